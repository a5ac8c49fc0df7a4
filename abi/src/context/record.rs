//! The thread context record of OpenTelemetry (OTEP 4947): how its thread-local pointer is found,
//! and what it holds.
//!
//! # Invariants
//! - No length that is read is believed beyond a bound, and no sum panics.
//!
//! # Does not
//! - touch memory: whoever asks does, and knows what can be read.

use super::sources::{RecordKind, RecordSource};
use crate::sync::{AtomicU64, Ordering, fence};

/// Name of the thread-local variable that points to a thread's record, or is 0.
pub const RECORD_SYMBOL: &str = "otel_thread_ctx_v1";
/// Bytes of a record in front of its attributes.
pub const RECORD_HEADER: usize = 28;
/// Bytes of attributes that are read: writers keep a record to 640 bytes.
pub const ATTRIBUTES_MAX: usize = 640 - RECORD_HEADER;
/// Where a thread's block holds the id that the kernel knows the thread by, in bytes from the
/// thread pointer: with glibc, and with musl. In glibc's block the second place has a random
/// number.
const TIDS_AT: [u64; 2] = [0x2d0, 0x30];
/// What glibc's vector holds for a block that the thread has not got yet.
const UNALLOCATED: u64 = u64::MAX;

/// Some memory on the way could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

/// How a thread-local variable is found: the plain values of a [`RecordSource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// By which way.
    pub kind: RecordKind,
    /// Bytes from the thread pointer (as a signed number), or from the start of the module's block.
    pub offset: u64,
    /// The module's number in the vector.
    pub module: u64,
}

/// Whether the block at this thread pointer is that of the thread, which calls itself so. A thread
/// that was made by `clone` without a block of its own goes on with that of the thread that made
/// it. `load` reads a word.
pub fn is_own_block(
    thread_pointer: u64,
    tid: u32,
    mut load: impl FnMut(u64) -> Option<u64>,
) -> bool {
    let mut is_at =
        |at| load(thread_pointer.wrapping_add(at)).is_some_and(|word| word as u32 == tid);
    thread_pointer != 0 && TIDS_AT.into_iter().any(&mut is_at)
}

impl Way {
    /// Where the variable of a thread is (AVMA), given its thread pointer; `None` if the thread has
    /// not got it yet. `load` reads a word.
    ///
    /// # Errors
    /// If `load` does not give a word that is needed.
    pub fn variable(
        &self,
        thread_pointer: u64,
        mut load: impl FnMut(u64) -> Option<u64>,
    ) -> Result<Option<u64>, Unreadable> {
        if thread_pointer == 0 {
            return Ok(None);
        }
        let Self { kind, offset, module } = *self;
        let (entry_len, count_at) = match kind {
            RecordKind::Offset => return Ok(Some(thread_pointer.wrapping_add(offset))),
            // In front of the vector is how many entries it has.
            RecordKind::Glibc => (16, 16u64.wrapping_neg()),
            RecordKind::Musl => (8, 0),
        };
        let mut load = |avma| load(avma).ok_or(Unreadable);
        let vector = load(thread_pointer.wrapping_add(8))?;
        if vector == 0 || module == 0 || module > load(vector.wrapping_add(count_at))? {
            return Ok(None);
        }
        let block = load(vector.wrapping_add(module.wrapping_mul(entry_len)))?;
        if block == 0 || block == UNALLOCATED {
            return Ok(None);
        }
        Ok(Some(block.wrapping_add(offset)))
    }
}

impl RecordSource {
    /// The way, if there is one. One that is exchanged right now is none.
    pub fn way(&self) -> Option<Way> {
        // Acquire: pairs with the Release in `set`; the other words are those of the kind.
        let kind = self.kind.load(Ordering::Acquire);
        // Relaxed: ordered by the load above.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let (offset, module) = (load(&self.offset), load(&self.module));
        // Acquire: pairs with the Release of a later word, should one have been read: then the kind
        // is seen to have changed.
        fence(Ordering::Acquire);
        // Relaxed: ordered by the fence.
        if self.kind.load(Ordering::Relaxed) != kind {
            return None;
        }
        let is_it = |known: &RecordKind| *known as u64 == kind;
        let kind = RecordKind::ALL.into_iter().find(is_it)?;
        Some(Way { kind, offset, module })
    }

    /// Exchanges the way. Only the recorder calls it.
    pub fn set(&self, way: Option<Way>) {
        // Relaxed: the stores below keep it in front of them.
        self.kind.store(0, Ordering::Relaxed);
        let Some(Way { kind, offset, module }) = way else { return };
        // Release, both: pair with the fence in `way`; whoever sees the value sees that there was
        // no kind.
        self.offset.store(offset, Ordering::Release);
        self.module.store(module, Ordering::Release);
        // Release: pairs with the Acquire in `way`; the words above are visible.
        self.kind.store(kind as u64, Ordering::Release);
    }
}

/// The first part of a record that is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Trace id, upper and lower half.
    pub trace: (u64, u64),
    /// Span id.
    pub span: u64,
    /// Bytes of attributes that are to be read: those of the record, or as many as are read of one.
    pub attributes_len: usize,
}

impl Record {
    /// Reads it. `None` of one that is not valid, or tells nothing.
    pub fn parse(header: &[u8; RECORD_HEADER]) -> Option<Self> {
        const VALID: u8 = 1;
        let (words, rest) = header.as_chunks::<8>();
        let ([high, low, span], [VALID, _, len @ ..]) = (words, rest) else { return None };
        let len = usize::from(u16::from_ne_bytes(*len.first_chunk()?));
        let [high, low, span] = [high, low, span].map(|id| u64::from_be_bytes(*id));
        let attributes_len = len.min(ATTRIBUTES_MAX);
        let record = Self { trace: (high, low), span, attributes_len };
        (high | low | span != 0 || attributes_len > 0).then_some(record)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const THREAD: u64 = 0x7000;

    fn check(kind: RecordKind, module: u64, expected: Result<Option<u64>, Unreadable>) {
        // Words of a thread of glibc whose vector has 3 entries at 0x9000, and of one of musl at
        // 0xa000.
        let load = |avma: u64| match (kind, avma) {
            (RecordKind::Glibc, 0x7008) => Some(0x9000),
            (RecordKind::Glibc, 0x8ff0) => Some(3),
            (RecordKind::Glibc, 0x9010) => Some(0xb000),
            (RecordKind::Glibc, 0x9020) => Some(UNALLOCATED),
            (RecordKind::Musl, 0x7008) => Some(0xa000),
            (RecordKind::Musl, 0xa000) => Some(3),
            (RecordKind::Musl, 0xa008) => Some(0xc000),
            (RecordKind::Musl, 0xa010) => Some(0),
            _ => None,
        };
        let way = Way { kind, offset: 0x18, module };
        assert_eq!(way.variable(THREAD, load), expected, "{kind:?} {module}");
    }

    #[test]
    fn variables_are_found_by_each_way() {
        check(RecordKind::Offset, 0, Ok(Some(0x7018)));
        check(RecordKind::Glibc, 1, Ok(Some(0xb018)));
        check(RecordKind::Musl, 1, Ok(Some(0xc018)));
        let below = Way { kind: RecordKind::Offset, offset: 8u64.wrapping_neg(), module: 0 };
        assert_eq!(below.variable(THREAD, |_| None), Ok(Some(0x6ff8)));
        assert_eq!(
            below.variable(0, |_| None),
            Ok(None),
            "a thread without thread-local variables"
        );
    }

    #[test]
    fn a_thread_that_never_used_the_variable_has_none() {
        for kind in [RecordKind::Glibc, RecordKind::Musl] {
            check(kind, 0, Ok(None));
            check(kind, 2, Ok(None));
            check(kind, 4, Ok(None));
            check(kind, u64::MAX, Ok(None));
            check(kind, 3, Err(Unreadable));
        }
    }

    #[test]
    fn sources_are_given_back_as_they_were_set() {
        let source = RecordSource::default();
        assert_eq!(source.way(), None);
        for kind in RecordKind::ALL {
            let way = Way { kind, offset: 7, module: kind as u64 };
            source.set(Some(way));
            assert_eq!(source.way(), Some(way));
        }
        source.set(None);
        assert_eq!(source.way(), None);
        source.kind.store(77, Ordering::Relaxed);
        assert_eq!(source.way(), None, "no such kind");
    }

    #[test]
    fn ids_are_big_endian_and_lengths_are_bounded() {
        let mut header = [0u8; RECORD_HEADER];
        header[24] = 1;
        assert_eq!(Record::parse(&header), None, "it tells nothing");
        for (at, byte) in header[..24].iter_mut().enumerate() {
            *byte = at as u8;
        }
        let trace = (0x0001_0203_0405_0607, 0x0809_0a0b_0c0d_0e0f);
        let record = |attributes_len| Record { trace, span: 0x1011_1213_1415_1617, attributes_len };
        assert_eq!(Record::parse(&header), Some(record(0)));
        header[26..].copy_from_slice(&300u16.to_ne_bytes());
        assert_eq!(Record::parse(&header), Some(record(300)));
        header[26..].copy_from_slice(&u16::MAX.to_ne_bytes());
        assert_eq!(Record::parse(&header), Some(record(ATTRIBUTES_MAX)));
        for invalid in [0, 2, 255] {
            header[24] = invalid;
            assert_eq!(Record::parse(&header), None);
        }
    }
}
