//! The table of an application's contexts: which thread has which context.
//!
//! The table is a mapping of its own. The writer creates it when the first thread of the process
//! sets a span, and never unmaps it. A handler that knows its address checks all the same that what
//! it reads is still readable.
//! The mapping is private. The recorder finds it by the name of its memory file ([`TABLE_MAPPING`])
//! or, where no such file can be created, by an exported variable with its address
//! ([`TABLE_SYMBOL`]). Each copy of a writer has a table of its own: for example a statically
//! linked application and a library that it loads.
//!
//! | offset                        | content                                               |
//! |-------------------------------|-------------------------------------------------------|
//! | 0                             | [`ContextTableHeader`], with the names of the tags    |
//! | [`table_layout::TIDS`]        | thread ids, [`table_layout::ENTRIES`] of 4 bytes; 0 is free |
//! | [`table_layout::CONTEXTS`]    | their contexts, of 64 bytes, in the same order        |
//! | [`table_layout::TEXT_INDEX`]  | first words of texts by their hashes, 4 bytes each    |
//! | [`table_layout::TEXTS`]       | the texts: length, bytes, in units of 4 bytes         |
//!
//! # Invariants
//! - The index of a thread's id implies where its context is, so no pointer can dangle.
//! - A thread id is among [`table_layout::RUN`] entries starting at its hash, or not in the table.
//! - The context of a free entry is clear.
//! - The layout never changes within a version. A reader trusts no length in the table.
//!
//! # Safety
//! Only [`ContextTable::new`] turns an address into references into a table, and its caller vouches
//! for the mapping. A table consists of atomics, so any contents are valid values.

use super::tags::{TagKey, TagNames};
use super::texts::Texts;
use super::{Context, TAGS, table_layout};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// First word of a table that is ready ("tpctxtab").
pub const TABLE_MAGIC: u64 = u64::from_be_bytes(*b"tpctxtab");
/// Version of the layout.
pub const TABLE_VERSION: u32 = 1;
/// Name of the memory file that a table is mapped from.
pub const TABLE_MAPPING: &str = "traceprof_context_v1";
/// Name of the exported variable that holds the table's address, or 0.
pub const TABLE_SYMBOL: &str = "traceprof_context_table_v1";
/// Size of a table in bytes.
pub const TABLE_LEN: u64 = table_layout::TEXTS + table_layout::TEXT_WORDS as u64 * 4;

/// The header of a table, in its first page.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ContextTableHeader {
    /// [`TABLE_MAGIC`], stored last.
    pub magic: AtomicU64,
    /// [`TABLE_VERSION`].
    pub version: AtomicU32,
    /// The id of the process that created the table, in its own pid namespace. A child of `fork`
    /// has a copy of the table.
    pub pid: AtomicU32,
    /// Number of threads that found no entry.
    pub refused: AtomicU32,
    /// Number of allocated words for texts.
    pub text_words: AtomicU32,
    /// Number of texts that found no room.
    pub texts_refused: AtomicU32,
    /// Number of allocated tags.
    pub tags_used: AtomicU32,
    pub(crate) reserved: [AtomicU32; 8],
    /// The tags' names.
    pub tags: [TagKey; TAGS],
}
#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(ContextTableHeader, version) == 8);
    assert!(offset_of!(ContextTableHeader, pid) == 12);
    assert!(offset_of!(ContextTableHeader, refused) == 16);
    assert!(offset_of!(ContextTableHeader, text_words) == 20);
    assert!(offset_of!(ContextTableHeader, texts_refused) == 24);
    assert!(offset_of!(ContextTableHeader, tags_used) == 28);
    assert!(offset_of!(ContextTableHeader, tags) == 64);
    assert!(size_of::<ContextTableHeader>() as u64 <= table_layout::TIDS);
    assert!(table_layout::CONTEXTS.is_multiple_of(64) && table_layout::TEXTS.is_multiple_of(64));
};

/// A table, as mapped in the application's process.
#[derive(Debug, Clone, Copy)]
pub struct ContextTable<'a> {
    /// The header.
    pub header: &'a ContextTableHeader,
    /// Thread ids.
    pub tids: &'a [AtomicU32],
    /// The contexts of these threads.
    pub contexts: &'a [Context],
    /// The texts, which are values of tags.
    pub texts: Texts<'a>,
}

impl<'a> ContextTable<'a> {
    /// Wraps the table that is mapped at an address.
    ///
    /// # Safety
    /// `base` is page aligned. [`TABLE_LEN`] bytes from it stay mapped readable (for calls that
    /// write: writable) for as long as the value, or a reference from it, is in use. They are
    /// written only through this type and its parts, or by atomics of the same widths.
    #[cfg(not(loom))]
    pub unsafe fn new(base: *const u8) -> Self {
        /// # Safety
        /// The part is within the table, and `offset` is aligned for `T`, which consists of
        /// atomics.
        unsafe fn part<'a, T>(base: *const u8, offset: u64, count: usize) -> &'a [T] {
            // SAFETY: the offset is in the mapping, by this function's contract.
            let start = unsafe { base.add(offset as usize) };
            // SAFETY: the part is in the mapping. The base and all offsets are aligned, and any
            // bytes are valid atomics.
            unsafe { core::slice::from_raw_parts(start.cast(), count) }
        }
        // SAFETY: the caller vouches that it is aligned and mapped, and any bytes are valid
        // atomics.
        let header: &ContextTableHeader = unsafe { &*base.cast() };
        // SAFETY: the parts follow each other and end at the table's length.
        let tids = unsafe { part(base, table_layout::TIDS, table_layout::ENTRIES) };
        // SAFETY: as above.
        let contexts = unsafe { part(base, table_layout::CONTEXTS, table_layout::ENTRIES) };
        // SAFETY: as above.
        let index = unsafe { part(base, table_layout::TEXT_INDEX, table_layout::TEXT_INDEX_LEN) };
        // SAFETY: as above.
        let words = unsafe { part(base, table_layout::TEXTS, table_layout::TEXT_WORDS) };
        let (used, refused) = (&header.text_words, &header.texts_refused);
        Self { header, tids, contexts, texts: Texts { index, words, used, refused } }
    }

    /// Returns the names of the table's tags.
    pub fn tags(self) -> TagNames<'a> {
        let ContextTableHeader { tags, tags_used, .. } = self.header;
        TagNames { keys: tags, used: tags_used, texts: self.texts }
    }

    /// Turns zeros into a table of the process with this id (in its own pid namespace). From now on
    /// the table must stay mapped: handlers may know its address.
    pub fn initialise(self, pid: u32) {
        // Relaxed, both: published by the magic.
        self.header.version.store(TABLE_VERSION, Ordering::Relaxed);
        self.header.pid.store(pid, Ordering::Relaxed);
        // Release: pairs with the load of the magic by a reader, which reads the other words
        // afterwards.
        self.header.magic.store(TABLE_MAGIC, Ordering::Release);
    }

    /// Turns the copy of the table in a child of `fork` into the child's own. It removes all
    /// threads and keeps tags and texts. The caller is the only thread of the process with this id.
    pub fn adopt(self, pid: u32) {
        for (word, context) in self.tids.iter().zip(self.contexts) {
            // Relaxed: there is no other thread.
            if word.load(Ordering::Relaxed) != 0 {
                context.clear();
                // Release: pairs with the Acquire in `claim`, as in `release`.
                word.store(0, Ordering::Release);
            }
        }
        // Relaxed: these words publish nothing.
        self.header.refused.store(0, Ordering::Relaxed);
        self.header.pid.store(pid, Ordering::Relaxed);
    }

    /// Returns the entries that a thread may have.
    fn run(self, tid: u32) -> impl Iterator<Item = (&'a AtomicU32, &'a Context)> {
        table_layout::run(tid, self.tids.len())
            .filter_map(move |at| Some((self.tids.get(at)?, self.contexts.get(at)?)))
    }

    /// Returns the context of a thread, if it has one.
    pub fn find(self, tid: u32) -> Option<&'a Context> {
        // Acquire: pairs with the swap in `claim`; the context is that thread's.
        self.run(tid)
            .find(|(word, _)| word.load(Ordering::Acquire) == tid)
            .map(|(_, context)| context)
    }

    /// Gives the calling thread an entry with a clear context. `None` if all entries that it may
    /// have are taken.
    pub fn claim(self, tid: u32) -> Option<&'a Context> {
        // The entry belongs to an earlier thread with the same id that exited without releasing it.
        // Only the caller has that id now.
        if let Some(context) = self.find(tid) {
            context.clear();
            return Some(context);
        }
        let swap = |word: &AtomicU32| {
            // Acquire: pairs with the Release in `release`; the context is clear. Release: pairs
            // with the Acquire in `find`. Relaxed on failure: the next entry is tried.
            word.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed)
        };
        let claimed = self.run(tid).find(|(word, _)| swap(word).is_ok());
        if claimed.is_none() {
            // Relaxed: a count.
            self.header.refused.fetch_add(1, Ordering::Relaxed);
        }
        claimed.map(|(_, context)| context)
    }

    /// Releases the entry of the calling thread, which exits.
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
