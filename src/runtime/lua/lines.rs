//! The lines of a function's instructions.

use traceprof_abi::runtime::lua::{FIRST_LINE, INSTRUCTIONS, LINE_COUNT, LINES};

use crate::runtime::memory::{MemoryPiece, TargetMemory};

/// Maximum number of instructions of which lines are read.
const INSTRUCTIONS_MAX: u32 = 1 << 20;

/// The lines of a function's instructions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::runtime) struct CodeLines {
    /// The positions from which on another line counts, in order, and these lines.
    changes: Box<[(u32, u32)]>,
    /// The number of instructions.
    len: u32,
}

impl CodeLines {
    /// Reads the lines of a prototype, whose fields are in `head`. Empty if it has none. `None` if
    /// they are unreadable.
    pub(super) fn read(memory: &dyn TargetMemory, head: &MemoryPiece<'_>) -> Option<Self> {
        let half = |at: u16| head.half(usize::from(at));
        let (first, count, len) = (half(FIRST_LINE)?, half(LINE_COUNT)?, half(INSTRUCTIONS)?);
        let lines = head.word(usize::from(LINES))?;
        if lines == 0 {
            return Some(Self { changes: Box::default(), len: 0 });
        }
        if len > INSTRUCTIONS_MAX {
            return None;
        }
        let width = match count {
            0..0x100 => 1,
            0x100..0x1_0000 => 2,
            _ => 4,
        };
        // The first instruction is the head of the function.
        let mut bytes = vec![0; len.saturating_sub(1) as usize * width];
        if memory.read(lines, &mut bytes) != bytes.len() {
            return None;
        }
        let distance = |bytes: &[u8]| {
            let mut number = [0; 4];
            number[..width].copy_from_slice(bytes);
            u32::from_le_bytes(number)
        };
        let mut changes = vec![(0, first)];
        for (position, bytes) in (1..).zip(bytes.chunks_exact(width)) {
            let line = first.checked_add(distance(bytes))?;
            if changes.last().is_none_or(|(_, last)| *last != line) {
                changes.push((position, line));
            }
        }
        Some(Self { changes: changes.into(), len })
    }

    /// Returns the line of a frame's position, 0 if it is unknown.
    pub(in crate::runtime) fn line_at(&self, position: u32) -> u32 {
        if position >= self.len {
            return 0;
        }
        let next = self.changes.partition_point(|(from, _)| *from <= position);
        next.checked_sub(1).map_or(0, |last| self.changes[last].1)
    }

    /// Returns the bytes of memory that the lines take.
    pub(in crate::runtime) fn bytes(&self) -> usize {
        size_of_val(&*self.changes)
    }
}
