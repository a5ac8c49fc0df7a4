//! The offsets and sizes of the parts of a context table.

/// Offset of the thread ids.
pub const TIDS: u64 = 0x1000;
/// Number of entries.
pub const ENTRIES: usize = 16384;
/// Number of entries in a cache line of thread ids.
pub const LINE: usize = 16;
/// Number of entries in which a thread id may be: two cache lines.
pub const RUN: usize = 2 * LINE;
/// Offset of the contexts.
pub const CONTEXTS: u64 = TIDS + ENTRIES as u64 * 4;
/// Offset of the index of texts.
pub const TEXT_INDEX: u64 = CONTEXTS + ENTRIES as u64 * 64;
/// Number of words in the index of texts, a power of two.
pub const TEXT_INDEX_LEN: usize = 32768;
/// Number of index words in which a text may be.
pub const TEXT_PROBES: usize = 64;
/// Offset of the texts.
pub const TEXTS: u64 = TEXT_INDEX + TEXT_INDEX_LEN as u64 * 4;
/// Number of words for the texts.
pub const TEXT_WORDS: usize = 1 << 18;

/// Returns the entries that a thread may have, of so many (a power of two), in the order of the
/// search.
pub fn run(tid: u32, entries: usize) -> impl Iterator<Item = usize> {
    let first = first(tid);
    (0..RUN.min(entries)).map(move |step| first.wrapping_add(step) & entries.wrapping_sub(1))
}

/// Returns the offset of an entry's thread id.
pub fn tid_at(entry: usize) -> u64 {
    TIDS.wrapping_add((entry as u64).wrapping_mul(4))
}

/// Returns the offset of an entry's context.
pub fn context_at(entry: usize) -> u64 {
    CONTEXTS.wrapping_add((entry as u64).wrapping_mul(64))
}

/// Returns the first entry that a thread may have. The others of its run follow, and wrap around at
/// the end of the table.
pub fn first(tid: u32) -> usize {
    // The upper bits of the product select the cache line.
    let line = tid.wrapping_mul(0x9E37_79B9) >> (32 - (ENTRIES / LINE).trailing_zeros());
    line as usize * LINE
}
