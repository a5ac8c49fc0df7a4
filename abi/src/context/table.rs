//! The table of an application's contexts: which thread has which.
//!
//! A mapping of its own, which the writer makes when the first thread of the process sets a span,
//! and never gives back: so a handler that was told of it can read it at any time. It is private,
//! and found by the name of its memory file ([`TABLE_MAPPING`]) or, where no such file can be made,
//! by an exported variable that holds its address ([`TABLE_SYMBOL`]). Each copy of a writer has a
//! table of its own: an application that is linked statically, and a library that it loads.
//!
//! | at                         | what                                                    |
//! |----------------------------|---------------------------------------------------------|
//! | 0                          | [`TableHeader`], with the names of the tags             |
//! | [`place::TIDS`]            | thread ids, [`place::ENTRIES`] of 4 bytes; 0 is free    |
//! | [`place::CONTEXTS`]        | their contexts, of 64 bytes, in the same order          |
//! | [`place::TEXT_INDEX`]      | places of texts by their hashes, 4 bytes each           |
//! | [`place::TEXTS`]           | the texts: length, bytes, in units of 4 bytes           |
//!
//! # Invariants
//! - A thread's pointer to its context is implied by the place of its id: none can dangle.
//! - A thread id is found among [`place::RUN`] entries from its hash on, or not at all.
//! - The context of a free entry is clear.
//! - The layout is that of one version for good: whoever reads believes no length in the table.
//!
//! # Safety
//! An address becomes references into a table in [`ContextTable::new`] alone, whose caller vouches
//! for the mapping. A table consists of atomics, so that whatever is in it is a valid value.

use super::tags::{TagKey, TagNames};
use super::texts::Texts;
use super::{Context, TAGS, place};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// First word of a table that is ready ("tpctxtab").
pub const TABLE_MAGIC: u64 = u64::from_be_bytes(*b"tpctxtab");
/// Version of the layout.
pub const TABLE_VERSION: u32 = 1;
/// Name of the memory file that a table is mapped from.
pub const TABLE_MAPPING: &str = "traceprof_context_v1";
/// Name of the exported variable that holds the table's address, or 0.
pub const TABLE_SYMBOL: &str = "traceprof_context_table_v1";
/// Bytes of a table.
pub const TABLE_LEN: u64 = place::TEXTS + place::TEXT_WORDS as u64 * 4;

/// The first page of a table.
#[repr(C)]
#[derive(Debug, Default)]
pub struct TableHeader {
    /// [`TABLE_MAGIC`], stored last.
    pub magic: AtomicU64,
    /// [`TABLE_VERSION`].
    pub version: AtomicU32,
    /// The process that made it, as it calls itself: a child of `fork` has a copy.
    pub pid: AtomicU32,
    /// Threads that found no entry.
    pub refused: AtomicU32,
    /// Words of texts that are given out.
    pub text_words: AtomicU32,
    /// Texts that found no room.
    pub texts_refused: AtomicU32,
    /// Places of tags that are given out.
    pub tags_used: AtomicU32,
    pub(crate) reserved: [AtomicU32; 8],
    /// The tags' names.
    pub tags: [TagKey; TAGS],
}
#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(TableHeader, version) == 8);
    assert!(offset_of!(TableHeader, pid) == 12);
    assert!(offset_of!(TableHeader, refused) == 16);
    assert!(offset_of!(TableHeader, text_words) == 20);
    assert!(offset_of!(TableHeader, texts_refused) == 24);
    assert!(offset_of!(TableHeader, tags_used) == 28);
    assert!(offset_of!(TableHeader, tags) == 64);
    assert!(size_of::<TableHeader>() as u64 <= place::TIDS);
    assert!(place::CONTEXTS.is_multiple_of(64) && place::TEXTS.is_multiple_of(64));
};

/// A table, as the process that it is of sees it.
#[derive(Debug, Clone, Copy)]
pub struct ContextTable<'a> {
    /// Its head.
    pub header: &'a TableHeader,
    /// Thread ids.
    pub tids: &'a [AtomicU32],
    /// Their contexts.
    pub contexts: &'a [Context],
    /// The values of tags that are texts.
    pub texts: Texts<'a>,
}

impl<'a> ContextTable<'a> {
    /// The table that is mapped at an address.
    ///
    /// # Safety
    /// [`TABLE_LEN`] bytes from `base` on, which is aligned to a page, are mapped readable (for the
    /// calls that write: writable) for as long as the value or a reference from it is used, and are
    /// written through this type and its parts, or by atomics of the same widths, alone.
    #[cfg(not(loom))]
    pub unsafe fn new(base: *const u8) -> Self {
        /// # Safety
        /// The part lies in the table.
        unsafe fn part<'a, T>(base: *const u8, offset: u64, count: usize) -> &'a [T] {
            // SAFETY: in the mapping, by this function's contract.
            let start = unsafe { base.add(offset as usize) };
            // SAFETY: as above; aligned, as the base and all offsets are; any bytes are valid
            // atomics.
            unsafe { core::slice::from_raw_parts(start.cast(), count) }
        }
        // SAFETY: aligned and mapped, as the caller vouches; any bytes are valid atomics.
        let header: &TableHeader = unsafe { &*base.cast() };
        // SAFETY: the parts follow one another and end at the table's length.
        let tids = unsafe { part(base, place::TIDS, place::ENTRIES) };
        // SAFETY: as above.
        let contexts = unsafe { part(base, place::CONTEXTS, place::ENTRIES) };
        // SAFETY: as above.
        let index = unsafe { part(base, place::TEXT_INDEX, place::TEXT_INDEX_LEN) };
        // SAFETY: as above.
        let words = unsafe { part(base, place::TEXTS, place::TEXT_WORDS) };
        let (used, refused) = (&header.text_words, &header.texts_refused);
        Self { header, tids, contexts, texts: Texts { index, words, used, refused } }
    }

    /// The names of its tags.
    pub fn tags(self) -> TagNames<'a> {
        let TableHeader { tags, tags_used, .. } = self.header;
        TagNames { keys: tags, used: tags_used, texts: self.texts }
    }

    /// Makes zeros a table, of the process that calls itself `pid`. From here on it must stay
    /// mapped: handlers may have been told of it.
    pub fn initialise(self, pid: u32) {
        // Relaxed, both: published by the magic.
        self.header.version.store(TABLE_VERSION, Ordering::Relaxed);
        self.header.pid.store(pid, Ordering::Relaxed);
        // Release: pairs with whoever loads the magic before it reads the rest.
        self.header.magic.store(TABLE_MAGIC, Ordering::Release);
    }

    /// Makes the copy that a child of `fork` has the child's own: no thread is in it, while tags
    /// and texts stay as they were. For the only thread of a process that calls itself `pid`.
    pub fn adopt(self, pid: u32) {
        for (word, context) in self.tids.iter().zip(self.contexts) {
            // Relaxed: nobody else is there.
            if word.load(Ordering::Relaxed) != 0 {
                context.clear();
                // Release: pairs with the Acquire in `claim`, as in `release`.
                word.store(0, Ordering::Release);
            }
        }
        // Relaxed: counts and words alone.
        self.header.refused.store(0, Ordering::Relaxed);
        self.header.pid.store(pid, Ordering::Relaxed);
    }

    /// The entries that a thread may have.
    fn run(self, tid: u32) -> impl Iterator<Item = (&'a AtomicU32, &'a Context)> {
        let first = place::first(tid);
        let mask = self.tids.len().wrapping_sub(1);
        // No indexing: the handler must have no way to panic.
        (0..place::RUN.min(self.tids.len())).filter_map(move |step| {
            let at = first.wrapping_add(step) & mask;
            Some((self.tids.get(at)?, self.contexts.get(at)?))
        })
    }

    /// The context of a thread, if it has one.
    pub fn find(self, tid: u32) -> Option<&'a Context> {
        // Acquire: pairs with the swap in `claim`; the context is that thread's.
        self.run(tid)
            .find(|(word, _)| word.load(Ordering::Acquire) == tid)
            .map(|(_, context)| context)
    }

    /// Gives the calling thread an entry, whose context is clear. `None` if those that it may have
    /// are taken.
    pub fn claim(self, tid: u32) -> Option<&'a Context> {
        // Of a thread with the same id that ended without saying so. Nobody but the caller has that
        // id.
        if let Some(context) = self.find(tid) {
            context.clear();
            return Some(context);
        }
        let swap = |word: &AtomicU32| {
            // Acquire: pairs with the Release in `release`; the context is clear. Release: pairs
            // with the Acquire in `find`. Relaxed on failure: another one is tried.
            word.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed)
        };
        let claimed = self.run(tid).find(|(word, _)| swap(word).is_ok());
        if claimed.is_none() {
            // Relaxed: a count.
            self.header.refused.fetch_add(1, Ordering::Relaxed);
        }
        claimed.map(|(_, context)| context)
    }

    /// Takes back the entry of the calling thread, which ends.
    pub fn release(self, tid: u32) {
        // Relaxed: the caller's own entry.
        let own = |(word, _): &(&AtomicU32, _)| word.load(Ordering::Relaxed) == tid;
        if let Some((word, context)) = self.run(tid).find(own) {
            context.clear();
            // Release: pairs with the Acquire in `claim`; the next thread finds the context clear.
            word.store(0, Ordering::Release);
        }
    }
}
