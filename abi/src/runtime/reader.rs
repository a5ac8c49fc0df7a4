//! Reads of a runtime's structures.

use super::WordReader;
use super::word::SectionEnd;
use crate::context::Unreadable;

/// The error for memory that could not be read.
pub(super) struct Lost;

impl From<Unreadable> for Lost {
    fn from(_: Unreadable) -> Self {
        Self
    }
}

impl From<Lost> for SectionEnd {
    fn from(_: Lost) -> Self {
        Self::Unreadable
    }
}

/// The reads of the structures of one runtime, whose offsets are in the layout.
pub(super) struct Reader<'a, L, M> {
    pub(super) layout: &'a L,
    pub(super) memory: &'a mut M,
}

impl<L, M: WordReader> Reader<'_, L, M> {
    pub(super) fn word(&mut self, avma: u64) -> Result<u64, Lost> {
        if avma & 7 != 0 {
            return Err(Lost);
        }
        self.memory.load(avma).ok_or(Lost)
    }

    /// Loads a pointer field of a structure.
    pub(super) fn field(&mut self, base: u64, offset: u16) -> Result<u64, Lost> {
        self.word(base.wrapping_add(u64::from(offset)))
    }

    /// Loads a 32-bit field of a structure that is aligned to 8 bytes.
    pub(super) fn half(&mut self, base: u64, offset: u16) -> Result<u32, Lost> {
        let word = self.field(base, offset & !7)?;
        Ok((word >> (u32::from(offset & 4) * 8)) as u32)
    }

    /// Loads a byte of a structure that is aligned to 8 bytes.
    pub(super) fn byte(&mut self, base: u64, offset: u16) -> Result<u8, Lost> {
        let word = self.field(base, offset & !7)?;
        Ok((word >> (u32::from(offset & 7) * 8)) as u8)
    }
}
