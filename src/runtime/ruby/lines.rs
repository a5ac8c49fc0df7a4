//! The lines of instructions.

use traceprof_abi::runtime::ruby::{INNERMOST, NOWHERE};

use super::offsets::RubyStructures;
use crate::runtime::memory::{MemoryPiece, TargetMemory, word};

/// The index of the entries begins with the ranks of this many positions, nine in a word.
const SHORT: u32 = 54;
const SHORT_IN_WORD: u32 = 9;
const SHORT_BITS: u32 = 7;
/// Behind them are blocks of so many positions: a rank, the ranks of their words, and a bit for
/// each position that begins an entry.
const BLOCK: u32 = 512;
const BLOCK_LEN: usize = 80;
const WORD_RANKS: usize = 8;
const WORD_RANK_BITS: u32 = 9;
const BITS: usize = 16;
/// Maximum number of instruction words, and of entries.
const WORDS_MAX: u32 = 1 << 20;
const ENTRIES_MAX: u32 = 1 << 18;

/// The lines of a function's instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::runtime) struct InstructionLines {
    /// The positions from which on another line counts, in order, and these lines.
    changes: Box<[(u32, u32)]>,
    /// The number of instruction words.
    len: u32,
}

impl InstructionLines {
    /// Reads the lines of a body that has so many instruction words and entries. `None` if they
    /// are unreadable.
    pub(super) fn read(
        memory: &dyn TargetMemory,
        offsets: &RubyStructures,
        (body, len, entries): (u64, u32, u32),
    ) -> Option<Self> {
        if len > WORDS_MAX || entries > ENTRIES_MAX {
            return None;
        }
        let field = |at: u64| word(memory, body.wrapping_add(at));
        let mut bytes = vec![0; entries as usize * offsets.line_len as usize];
        let start = field(offsets.lines)?;
        if memory.read(start, &mut bytes) != bytes.len() {
            return None;
        }
        let piece = MemoryPiece { avma: start, bytes: &bytes };
        let line_of = |entry: u32| piece.half(entry as usize * offsets.line_len as usize);
        let index = EntryIndex::read(memory, field(offsets.lines_index)?, len, entries)?;
        let mut changes: Vec<(u32, u32)> = Vec::new();
        for position in 0..len {
            // Positions before the first entry have none.
            let entry = index.rank(position)?.checked_sub(1);
            let line = entry.map_or(Some(0), line_of)?;
            if changes.last().is_none_or(|(_, last)| *last != line) {
                changes.push((position, line));
            }
        }
        Some(Self { changes: changes.into(), len })
    }

    /// Returns the line of a frame's position, 0 if it is unknown.
    pub(in crate::runtime) fn line_at(&self, position: u32) -> u32 {
        if position == NOWHERE {
            return 0;
        }
        // A frame has the position behind the instruction that runs.
        let behind = position & !INNERMOST;
        let line = self.line_of(behind.saturating_sub(1));
        // The innermost one may have that of the instruction.
        let is_sure =
            position & INNERMOST == 0 || behind >= self.len || self.line_of(behind) == line;
        if is_sure { line } else { 0 }
    }

    /// Returns the bytes of memory that the lines take.
    pub(in crate::runtime) fn bytes(&self) -> usize {
        size_of_val(&*self.changes)
    }

    fn line_of(&self, position: u32) -> u32 {
        let behind = self.changes.partition_point(|(start, _)| *start <= position);
        let found = behind.checked_sub(1).and_then(|at| self.changes.get(at));
        found.filter(|_| position < self.len).map_or(0, |(_, line)| *line)
    }
}

/// What tells which entry has a position.
struct EntryIndex {
    bytes: Vec<u8>,
    entries: u32,
}

impl EntryIndex {
    fn read(memory: &dyn TargetMemory, avma: u64, len: u32, entries: u32) -> Option<Self> {
        let last = len.saturating_sub(1);
        let short = last.min(SHORT - 1) / SHORT_IN_WORD + 1;
        let blocks = if last < SHORT { 0 } else { (last - SHORT) / BLOCK + 1 };
        let words = if blocks == 0 { short } else { SHORT / SHORT_IN_WORD };
        let mut bytes = vec![0; words as usize * 8 + blocks as usize * BLOCK_LEN];
        // A body with one entry has no index.
        let is_read = entries < 2 || memory.read(avma, &mut bytes) == bytes.len();
        is_read.then_some(Self { bytes, entries })
    }

    /// Returns the number of entries that begin up to a position. `None` if that is impossible.
    fn rank(&self, position: u32) -> Option<u32> {
        if self.entries < 2 {
            return Some(self.entries);
        }
        let piece = MemoryPiece { avma: 0, bytes: &self.bytes };
        let rank = match position.checked_sub(SHORT) {
            None => {
                let word = piece.word((position / SHORT_IN_WORD) as usize * 8)?;
                (word >> (position % SHORT_IN_WORD * SHORT_BITS)) as u32 & 0x7f
            }
            Some(at) => {
                let start = (SHORT / SHORT_IN_WORD) as usize * 8;
                let block = start + (at / BLOCK) as usize * BLOCK_LEN;
                let (word, bit) = (at % BLOCK / 64, at % 64);
                let ranks = piece.word(block + WORD_RANKS)?;
                let before = match word.checked_sub(1) {
                    None => 0,
                    Some(index) => (ranks >> (index * WORD_RANK_BITS)) as u32 & 0x1ff,
                };
                let bits = piece.word(block + BITS + word as usize * 8)?;
                let own = (bits << (63 - bit)).count_ones();
                piece.half(block)?.checked_add(before)?.checked_add(own)?
            }
        };
        (rank <= self.entries).then_some(rank)
    }
}
