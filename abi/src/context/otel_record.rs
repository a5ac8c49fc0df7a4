//! The OpenTelemetry thread context record (OTEP 4947): how to find its thread-local pointer, and
//! what the record contains.
//!
//! # Invariants
//! - Lengths that are read from memory are bounded, and no sum panics.
//!
//! # Does not
//! - touch memory: the caller does, and knows what is readable.

use super::sources::{RecordKind, RecordSource};
use crate::sync::{AtomicU64, Ordering, fence};

/// Name of the thread-local variable that points to a thread's record, or is 0.
pub const RECORD_SYMBOL: &str = "otel_thread_ctx_v1";
/// Number of bytes of a record before its attributes.
pub const RECORD_HEADER: usize = 28;
/// Maximum number of attribute bytes that are read. Writers keep a record within 640 bytes.
pub const ATTRIBUTES_MAX: usize = 640 - RECORD_HEADER;
/// Offsets from the thread pointer at which a thread's block holds the kernel's thread id: with
/// glibc, and with musl. glibc's block has a random number at musl's offset.
const TIDS_AT: [u64; 2] = [0x2d0, 0x30];
/// The entry in glibc's dynamic thread vector (DTV) of a TLS block that is not allocated yet.
const UNALLOCATED: u64 = u64::MAX;

/// The error for memory on the way to a variable that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

/// The location of a thread-local variable, relative to a thread: the plain values of a
/// [`RecordSource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsLocation {
    /// The way from the thread pointer to the variable.
    pub kind: RecordKind,
    /// Offset in bytes from the thread pointer (a signed number), or from the start of the module's
    /// block.
    pub offset: u64,
    /// The module's index in the vector.
    pub module: u64,
}

/// Whether the block at this thread pointer belongs to the thread with this id (its own id, in its
/// pid namespace). A thread that `clone` created without a block of its own uses the block of its
/// creator. `load` reads a word.
pub fn is_own_block(thread_pointer: u64, tid: u32, load: impl FnMut(u64) -> Option<u64>) -> bool {
    possible_tids(thread_pointer, load).any(|it| it == tid)
}

/// Returns the words in the block at this thread pointer that may be the id of its thread: the C
/// library decides which is. `load` reads a word.
pub fn possible_tids(
    thread_pointer: u64,
    mut load: impl FnMut(u64) -> Option<u64>,
) -> impl Iterator<Item = u32> {
    let places = TIDS_AT.into_iter().filter(move |_| thread_pointer != 0);
    places.filter_map(move |at| load(thread_pointer.wrapping_add(at)).map(|word| word as u32))
}

impl TlsLocation {
    /// Returns a location by the number of its [`RecordKind`]. `None` if there is no such kind.
    pub fn of(kind: u64, offset: u64, module: u64) -> Option<Self> {
        let kind = RecordKind::ALL.into_iter().find(|it| *it as u64 == kind)?;
        Some(Self { kind, offset, module })
    }

    /// Returns the address (AVMA) of a thread's variable, given its thread pointer. `None` if the
    /// thread does not have the variable yet. `load` reads a word.
    ///
    /// # Errors
    /// [`Unreadable`] if `load` returns `None` for a word on the way.
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
            // The entry before the vector has the number of its entries.
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
    /// Returns the variable's location, if there is one. `None` while the recorder replaces it.
    pub fn location(&self) -> Option<TlsLocation> {
        // Acquire: pairs with the Release in `set`; the other words are those of this kind.
        let kind = self.kind.load(Ordering::Acquire);
        // Relaxed: ordered by the load above.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let (offset, module) = (load(&self.offset), load(&self.module));
        // Acquire: pairs with the Release of a later word, should one have been read. Then the load
        // below sees that the kind has changed.
        fence(Ordering::Acquire);
        // Relaxed: ordered by the fence.
        if self.kind.load(Ordering::Relaxed) != kind {
            return None;
        }
        let has_number = |known: &RecordKind| *known as u64 == kind;
        let kind = RecordKind::ALL.into_iter().find(has_number)?;
        Some(TlsLocation { kind, offset, module })
    }

    /// Replaces the variable's location. Only the recorder calls this.
    pub fn set(&self, way: Option<TlsLocation>) {
        // Relaxed: the Release stores below keep this store before them.
        self.kind.store(0, Ordering::Relaxed);
        let Some(TlsLocation { kind, offset, module }) = way else { return };
        // Release, both: pair with the fence in `location`; a reader that sees the value sees that
        // the kind was 0.
        self.offset.store(offset, Ordering::Release);
        self.module.store(module, Ordering::Release);
        // Release: pairs with the Acquire in `location`; the words above are visible.
        self.kind.store(kind as u64, Ordering::Release);
    }
}

/// The header of a valid record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Trace id, upper and lower half.
    pub trace: (u64, u64),
    /// Span id.
    pub span: u64,
    /// Number of attribute bytes to read: those of the record, up to [`ATTRIBUTES_MAX`].
    pub attributes_len: usize,
}

impl Record {
    /// Parses a record's header. `None` if the record is invalid or empty.
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
        // Words of a glibc thread whose vector at 0x9000 has 3 entries, and of a musl thread whose
        // vector is at 0xa000.
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
        let way = TlsLocation { kind, offset: 0x18, module };
        assert_eq!(way.variable(THREAD, load), expected, "{kind:?} {module}");
    }

    #[test]
    fn variables_are_found_by_each_kind() {
        check(RecordKind::Offset, 0, Ok(Some(0x7018)));
        check(RecordKind::Glibc, 1, Ok(Some(0xb018)));
        check(RecordKind::Musl, 1, Ok(Some(0xc018)));
        let below =
            TlsLocation { kind: RecordKind::Offset, offset: 8u64.wrapping_neg(), module: 0 };
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
    fn sources_are_read_back_as_they_were_set() {
        let source = RecordSource::default();
        assert_eq!(source.location(), None);
        for kind in RecordKind::ALL {
            let way = TlsLocation { kind, offset: 7, module: kind as u64 };
            source.set(Some(way));
            assert_eq!(source.location(), Some(way));
        }
        source.set(None);
        assert_eq!(source.location(), None);
        source.kind.store(77, Ordering::Relaxed);
        assert_eq!(source.location(), None, "no such kind");
    }

    #[test]
    fn ids_are_big_endian_and_lengths_are_bounded() {
        let mut header = [0u8; RECORD_HEADER];
        header[24] = 1;
        assert_eq!(Record::parse(&header), None, "the record is empty");
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
