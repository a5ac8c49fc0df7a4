//! The thread-local context: the span that a thread works on, as its tracer publishes it for the
//! profiler.
//!
//! Implements the thread-local context document. Each thread has 64 bytes, which only the thread
//! writes. A signal handler on the same thread reads them, or the recorder on another core.
//!
//! # Invariants
//! - A checksum of 0 means that the context has no value: no span is set, or the thread is just
//!   setting one.
//! - While any field changes, the checksum is 0. A checksum other than 0 thus vouches for the tags
//!   as well, although it is not computed from them.
//! - Writing and reading are bounded. They do not allocate, lock or call anything.

mod otel_record;
mod sources;
mod table;
pub mod table_layout;
mod tags;
#[cfg(all(test, not(loom)))]
mod tests;
mod texts;

pub use otel_record::{
    ATTRIBUTES_MAX, RECORD_HEADER, RECORD_SYMBOL, Record, TlsLocation, Unreadable, is_own_block,
    possible_tids,
};
pub use sources::{
    ContextSources, RecordKind, RecordSource, SOURCES_RECORDS, SOURCES_TABLES, origin,
};
pub use table::{
    ContextTable, ContextTableHeader, TABLE_LEN, TABLE_MAGIC, TABLE_MAPPING, TABLE_SYMBOL,
    TABLE_VERSION,
};
pub use tags::{TAG_NAME_MAX, TagKey, TagKind, TagNames, TagRefused};
pub use texts::{TEXT_MAX, Texts};

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Number of custom tags in a context. The models have fewer: the interleavings of ten would take
/// forever.
pub const TAGS: usize = if cfg!(loom) { 2 } else { 10 };

/// 2^64 divided by the golden ratio: Knuth's multiplicative hash (The Art of Computer Programming,
/// volume 3, section 6.4).
const KNUTH: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the checksum of a span id and a root span id. Never 0.
///
/// Test vectors: (0, 0) gives `ffffffffffffffff`, (1, 0) gives `9e3779b97f4a7c15`, (0, 1) gives
/// `7f4a7c1500000000`, (1, 2) gives `60a381937f4a7c15`.
#[inline]
pub fn checksum(span: u64, root_span: u64) -> u64 {
    let sum = span.wrapping_mul(KNUTH) ^ root_span.rotate_left(32).wrapping_mul(KNUTH);
    if sum == 0 { u64::MAX } else { sum }
}

/// The context of one thread, in a cache line of its own.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Context {
    /// Id of the span on which the thread works.
    pub span: AtomicU64,
    /// Id of the root of its trace, in this process.
    pub root_span: AtomicU64,
    /// [`checksum()`] of both, or 0.
    pub checksum: AtomicU64,
    /// Tags, 0 for none. The application defines their meaning ([`TagKey`]).
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

/// The result of reading a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// No span is set, or the thread is just setting one.
    None,
    /// The values do not belong together. On the thread itself this shows a writer that does not
    /// keep the order of the stores.
    Torn,
    /// The values belong together.
    Set(Values),
}

impl Context {
    /// Sets the span on which the thread works from now on. The tags stay.
    #[inline]
    pub fn set(&self, span: u64, root_span: u64) {
        self.begin();
        self.put_ids(span, root_span);
        self.finish(checksum(span, root_span));
    }

    /// Like [`Self::set`], with all tags.
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

    /// Sets one tag. If the thread has no span, the span stays 0. Does nothing if there is no tag
    /// with this index.
    #[inline]
    pub fn set_tag(&self, index: usize, value: u32) {
        let Some(word) = self.tags.get(index) else { return };
        let Values { span, root_span, .. } = self.values();
        self.begin();
        // Release: as in `put_ids`.
        word.store(value, Ordering::Release);
        self.finish(checksum(span, root_span));
    }

    /// Clears the span and all tags.
    #[inline]
    pub fn clear(&self) {
        self.begin();
        self.put_ids(0, 0);
        for word in &self.tags {
            // Release: as in `put_ids`.
            word.store(0, Ordering::Release);
        }
    }

    /// Returns the values that the thread has written. Only the writing thread may call this: no
    /// other thread knows whether they belong together.
    #[inline]
    pub fn values(&self) -> Values {
        // Relaxed: the caller wrote the values itself, or orders them by the checksum.
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        Values {
            span: self.span.load(Ordering::Relaxed),
            root_span: self.root_span.load(Ordering::Relaxed),
            tags: self.tags.each_ref().map(load),
        }
    }

    /// Whether a span or a tag is set.
    #[inline]
    pub fn is_set(&self) -> bool {
        // Relaxed: only the writing thread calls this.
        self.checksum.load(Ordering::Relaxed) != 0
    }

    /// Reads the complete context, on this thread or another. On another thread, only the checksum
    /// distinguishes spans. If the owner sets the same span again with other tags during the read,
    /// the reader may see tags of both. The recorder reads threads that sleep, and checks with the
    /// scheduler that they still do.
    #[inline]
    pub fn read(&self) -> Reading {
        // Acquire: pairs with the swap in `finish`; the reader sees the fields of that checksum, or
        // later ones.
        let sum = self.checksum.load(Ordering::Acquire);
        if sum == 0 {
            return Reading::None;
        }
        let values = self.values();
        // Acquire: pairs with the Release of a later field, should one have been read. Then the
        // load below sees the mark that was set before that field.
        fence(Ordering::Acquire);
        // Relaxed: ordered by the fence.
        let is_still = self.checksum.load(Ordering::Relaxed) == sum;
        if is_still && checksum(values.span, values.root_span) == sum {
            Reading::Set(values)
        } else {
            Reading::Torn
        }
    }

    /// Marks the context as changing.
    #[inline]
    fn begin(&self) {
        #[cfg(loom)]
        if crate::sync::planted::has(crate::sync::planted::Mistake::NoMark) {
            return;
        }
        // Release: required by the document. What keeps the mark before the fields is their own
        // Release: wherever a field is visible, the mark is, too. For a handler on this thread a
        // compiler fence would do, because it sees everything before the interrupted instruction.
        self.checksum.store(0, Ordering::Release);
    }

    #[inline]
    fn put_ids(&self, span: u64, root_span: u64) {
        // Release, both: pair with the Acquire fence in `read`; a reader that sees the value sees
        // the mark.
        self.span.store(span, Ordering::Release);
        self.root_span.store(root_span, Ordering::Release);
    }

    /// Marks the context as complete.
    #[inline]
    fn finish(&self, sum: u64) {
        // SeqCst, as in the document: pairs with the Acquire in `read`. The fields are visible with
        // the checksum, and the checksum is visible before anything that the thread does next. So a
        // reader of a sleeping thread sees the span in which it sleeps. A swap takes 18 cycles, a
        // store and a fence take 30.
        self.checksum.swap(sum, Ordering::SeqCst);
    }
}
