//! The interpreter's strings.
//!
//! # Invariants
//! - A string is read only if it is compact: its characters follow its header, and a character 0
//!   follows them. Names in code objects are.

use std::fmt::Write;

use super::offsets::{ReferenceCount, TextOffsets};
use crate::runtime::memory::{MemoryPiece, TargetMemory};
use crate::text::{BoundedText, LENGTH_MAX};

/// Offsets of the type, the length and the state.
const TYPE: usize = 8;
const LENGTH: usize = 16;
const STATE: usize = 32;
/// Number of bytes of the first read. Most names end in it.
const FIRST: usize = 192;
/// Maximum number of characters of a string that is taken for a name.
const PLAUSIBLE: u64 = 1 << 20;

/// The shape of the strings of one interpreter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Texts {
    pub(super) offsets: TextOffsets,
    pub(super) references: ReferenceCount,
    /// The address of the strings' type, or 0 if it is unknown.
    pub(super) kind: u64,
}

impl ReferenceCount {
    /// Whether an object with this first word is in use. The allocator keeps addresses in the first
    /// word of free objects.
    pub(super) fn is_positive(self, word: u64) -> bool {
        const COUNT_MAX: u64 = 1 << 40;
        match self {
            Self::Word => (1..COUNT_MAX).contains(&word),
            Self::Half => word as u32 != 0 && word >> 32 & 0xffff == 0,
        }
    }
}

/// Where the characters of a string are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Characters {
    /// From the string.
    start: usize,
    /// Number of characters.
    count: usize,
    /// Number of bytes of each.
    width: usize,
    is_ascii: bool,
}

impl Texts {
    /// Reads a string, as it can be printed. `None` if there is none.
    pub(super) fn read(&self, memory: &dyn TargetMemory, avma: u64) -> Option<String> {
        if avma == 0 || !avma.is_multiple_of(8) {
            return None;
        }
        let mut head = [0; FIRST];
        let got = memory.read(avma, &mut head);
        let head = head.get(..got)?;
        let characters = self.characters(MemoryPiece { avma, bytes: head })?;
        let Characters { start, count, width, .. } = characters;
        // A longer text is cut when it is printed.
        let read = count.min(LENGTH_MAX);
        let is_cut = read < count;
        let end = start + (read + usize::from(!is_cut)) * width;
        if let Some(bytes) = head.get(start..end) {
            return characters.decode(bytes, is_cut);
        }
        let mut bytes = vec![0; end - start];
        let got = memory.read(avma.checked_add(start as u64)?, &mut bytes);
        (got == bytes.len()).then(|| characters.decode(&bytes, is_cut))?
    }

    fn characters(&self, head: MemoryPiece<'_>) -> Option<Characters> {
        let is_string = self.kind == 0 || head.word(TYPE)? == self.kind;
        let count = head.word(LENGTH)?;
        if !is_string || !self.references.is_positive(head.word(0)?) || count > PLAUSIBLE {
            return None;
        }
        let state = head.half(STATE)?;
        // Some builds of 3.14 have a half of the word for the bits before these.
        let is_wide = self.references == ReferenceCount::Half && state as u16 >> 2 == 0;
        let state = if is_wide { state >> 16 } else { state >> 2 };
        let (width, is_compact, is_ascii) = (state & 7, state & 8 != 0, state & 16 != 0);
        if !is_compact || !matches!(width, 1 | 2 | 4) || is_ascii && width != 1 {
            return None;
        }
        let start = if is_ascii { self.offsets.ascii } else { self.offsets.other };
        Some(Characters { start, count: count as usize, width: width as usize, is_ascii })
    }
}

impl Characters {
    /// Decodes the characters, and the 0 behind them unless the string is cut.
    fn decode(&self, bytes: &[u8], is_cut: bool) -> Option<String> {
        let numbers = bytes.chunks_exact(self.width).map(|unit| {
            let mut number = [0; 4];
            number[..self.width].copy_from_slice(unit);
            u32::from_le_bytes(number)
        });
        let numbers: Vec<u32> = numbers.collect();
        let shown = if is_cut {
            &numbers[..]
        } else {
            let (last, shown) = numbers.split_last()?;
            (*last == 0).then_some(shown)?
        };
        if self.is_ascii && shown.iter().any(|number| *number > 0x7f) {
            return None;
        }
        let mut text = BoundedText::default();
        for number in shown {
            if *number > u32::from(char::MAX) {
                return None;
            }
            // Strings may hold surrogates, each for a byte of a path that is not UTF-8.
            let character = char::from_u32(*number).unwrap_or(char::REPLACEMENT_CHARACTER);
            if text.write_char(character).is_err() {
                break;
            }
        }
        Some(text.finish())
    }
}
