//! Where the parts of a table are, and how large they are.

/// Offset of the thread ids.
pub const TIDS: u64 = 0x1000;
/// Number of entries.
pub const ENTRIES: usize = 16384;
/// Entries in a cache line of thread ids.
pub const LINE: usize = 16;
/// Entries that a thread id is looked for in: two cache lines.
pub const RUN: usize = 2 * LINE;
/// Offset of the contexts.
pub const CONTEXTS: u64 = TIDS + ENTRIES as u64 * 4;
/// Offset of the index of texts.
pub const TEXT_INDEX: u64 = CONTEXTS + ENTRIES as u64 * 64;
/// Its number of words, a power of two.
pub const TEXT_INDEX_LEN: usize = 32768;
/// Words that a text is looked for in.
pub const TEXT_PROBES: usize = 64;
/// Offset of the texts.
pub const TEXTS: u64 = TEXT_INDEX + TEXT_INDEX_LEN as u64 * 4;
/// Their words.
pub const TEXT_WORDS: usize = 1 << 18;

/// The first entry that a thread may have; the others of its run follow, around the end.
pub fn first(tid: u32) -> usize {
    // The upper bits of the product tell which cache line.
    let line = tid.wrapping_mul(0x9E37_79B9) >> (32 - (ENTRIES / LINE).trailing_zeros());
    line as usize * LINE
}
