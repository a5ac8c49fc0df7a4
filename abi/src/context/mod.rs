//! The thread-local context: which span a thread works on, as its tracer tells the profiler.
//!
//! Implements the thread-local context document: 64 bytes for each thread, which the thread alone
//! writes, and which a signal handler on the same thread reads, or the recorder from another core.
//!
//! # Invariants
//! - A checksum of 0 means that nothing is told: no span is set, or one is being set.
//! - While any field changes, the checksum is 0. So a checksum that is not 0 vouches for the tags
//!   as well, which it is not computed from.
//! - Writing and reading is bounded, and neither allocates, locks nor calls anything.

pub mod place;
mod record;
mod sources;
mod table;
mod tags;
#[cfg(all(test, not(loom)))]
mod tests;
mod texts;

pub use record::{
    ATTRIBUTES_MAX, RECORD_HEADER, RECORD_SYMBOL, Record, Unreadable, Way, is_own_block,
};
pub use sources::{
    ContextSources, RecordKind, RecordSource, SOURCES_RECORDS, SOURCES_TABLES, origin,
};
pub use table::{
    ContextTable, TABLE_LEN, TABLE_MAGIC, TABLE_MAPPING, TABLE_SYMBOL, TABLE_VERSION, TableHeader,
};
pub use tags::{TAG_NAME_MAX, TagKey, TagKind, TagNames, TagRefused};
pub use texts::{TEXT_MAX, Texts};

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Custom tags that a context has. Fewer in the models: all interleavings of ten never end.
pub const TAGS: usize = if cfg!(loom) { 2 } else { 10 };

/// 2^64 divided by the golden ratio: Knuth's multiplicative hash (The Art of Computer Programming,
/// volume 3, section 6.4).
const KNUTH: u64 = 0x9E37_79B9_7F4A_7C15;

/// The checksum of a span id and a root span id; never 0.
///
/// Test vectors: (0, 0) gives `ffffffffffffffff`, (1, 0) `9e3779b97f4a7c15`, (0, 1)
/// `7f4a7c1500000000`, (1, 2) `60a381937f4a7c15`.
#[inline]
pub fn checksum(span: u64, root_span: u64) -> u64 {
    let sum = span.wrapping_mul(KNUTH) ^ root_span.rotate_left(32).wrapping_mul(KNUTH);
    if sum == 0 { u64::MAX } else { sum }
}

/// One thread's context: a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Context {
    /// Id of the span that the thread works on.
    pub span: AtomicU64,
    /// Id of the root of its trace, in this process.
    pub root_span: AtomicU64,
    /// [`checksum()`] of both, or 0.
    pub checksum: AtomicU64,
    /// Tags, 0 for none; what they mean is the application's ([`TagKey`]).
    pub tags: [AtomicU32; TAGS],
}
#[cfg(not(loom))]
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Context>() == 64 && align_of::<Context>() == 64);
    assert!(offset_of!(Context, span) == 0x00);
    assert!(offset_of!(Context, root_span) == 0x08);
    assert!(offset_of!(Context, checksum) == 0x10);
    assert!(offset_of!(Context, tags) == 0x18);
};

/// The plain values of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Values {
    /// Span id.
    pub span: u64,
    /// Root span id.
    pub root_span: u64,
    /// Tags, 0 for none.
    pub tags: [u32; TAGS],
}

/// What reading a context gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// No span is set, or one is being set.
    None,
    /// What was read does not belong together. On the thread itself this is the sign of a writer
    /// that does not keep the order.
    Torn,
    /// All of it belongs together.
    Set(Values),
}

impl Context {
    /// Tells that the thread works on this span from now on. The tags stay.
    #[inline]
    pub fn set(&self, span: u64, root_span: u64) {
        self.begin();
        self.put_ids(span, root_span);
        self.finish(checksum(span, root_span));
    }

    /// As [`Self::set`], with all tags.
    #[inline]
    pub fn set_all(&self, values: &Values) {
        let Values { span, root_span, tags } = *values;
        self.begin();
        self.put_ids(span, root_span);
        for (word, tag) in self.tags.iter().zip(tags) {
            // Release: as in `put_ids`.
            word.store(tag, Ordering::Release);
        }
        self.finish(checksum(span, root_span));
    }

    /// Sets one tag; of a thread without a span, the span stays 0. A place that is not there is
    /// left out.
    #[inline]
    pub fn set_tag(&self, place: usize, value: u32) {
        let Some(word) = self.tags.get(place) else { return };
        let Values { span, root_span, .. } = self.values();
        self.begin();
        // Release: as in `put_ids`.
        word.store(value, Ordering::Release);
        self.finish(checksum(span, root_span));
    }

    /// Tells that the thread works on no span, and has no tags.
    #[inline]
    pub fn clear(&self) {
        self.begin();
        self.put_ids(0, 0);
        for word in &self.tags {
            // Release: as in `put_ids`.
            word.store(0, Ordering::Release);
        }
    }

    /// The values as the thread itself has written them. For the thread that writes: nobody else
    /// knows whether they belong together.
    #[inline]
    pub fn values(&self) -> Values {
        // Relaxed: the caller has written them, or orders them by the checksum.
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        Values {
            span: self.span.load(Ordering::Relaxed),
            root_span: self.root_span.load(Ordering::Relaxed),
            tags: self.tags.each_ref().map(load),
        }
    }

    /// Whether something is told.
    #[inline]
    pub fn is_set(&self) -> bool {
        // Relaxed: for the thread that writes.
        self.checksum.load(Ordering::Relaxed) != 0
    }

    /// Reads all of it, on this thread or another. On another thread the checksum alone tells spans
    /// apart: whoever sets the same span again, with other tags, while it is read there can be seen
    /// with tags of both. The recorder reads threads that sleep, and asks the scheduler whether
    /// they still do.
    #[inline]
    pub fn read(&self) -> Reading {
        // Acquire: pairs with the swap in `finish`; the fields of that checksum, or later ones, are
        // seen.
        let sum = self.checksum.load(Ordering::Acquire);
        if sum == 0 {
            return Reading::None;
        }
        let values = self.values();
        // Acquire: pairs with the Release of a later field, should one have been read: then the
        // mark that was set before it is seen below.
        fence(Ordering::Acquire);
        // Relaxed: ordered by the fence.
        let is_still = self.checksum.load(Ordering::Relaxed) == sum;
        if is_still && checksum(values.span, values.root_span) == sum {
            Reading::Set(values)
        } else {
            Reading::Torn
        }
    }

    /// Marks the context as being changed.
    #[inline]
    fn begin(&self) {
        #[cfg(loom)]
        if crate::sync::planted::has(crate::sync::planted::Mistake::NoMark) {
            return;
        }
        // Release: the document's. The fields below are what keeps the mark in front of them: each
        // is a Release store, before which the mark is visible wherever the field is. For a handler
        // on this thread a compiler fence would do, as it sees all that was before the instruction
        // that it interrupts.
        self.checksum.store(0, Ordering::Release);
    }

    #[inline]
    fn put_ids(&self, span: u64, root_span: u64) {
        // Release, both: pair with the Acquire fence in `read`; whoever sees the value sees the
        // mark.
        self.span.store(span, Ordering::Release);
        self.root_span.store(root_span, Ordering::Release);
    }

    /// Says that all is written.
    #[inline]
    fn finish(&self, sum: u64) {
        // SeqCst, as the document has it: pairs with the Acquire in `read`. The fields are visible
        // with it, and it is visible before anything that the thread does next; so a thread that
        // goes to sleep is seen with the span that it sleeps in. A swap: 18 cycles where a store
        // and a fence take 30.
        self.checksum.swap(sum, Ordering::SeqCst);
    }
}
