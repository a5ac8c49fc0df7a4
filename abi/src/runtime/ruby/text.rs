//! The interpreter's strings.

use super::{EMBEDDING, Lost, Reader, STRING, TEXT_MAX, TYPE_MASK};
use crate::runtime::WordReader;
use crate::runtime::cookie::CookieParts;

/// Offsets in a string whose bytes are elsewhere: of their number and their address.
const LENGTH: u16 = 16;
const BYTES: u16 = 24;
/// The place of the number of bytes in the flags of another string.
const LENGTH_SHIFT: u32 = 14;
const LENGTH_MASK: u64 = 0x1f;

/// Where the bytes of a string are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextPlace {
    pub(super) start: u64,
    pub(super) len: u64,
}

impl TextPlace {
    /// Finds the bytes of a string.
    pub(super) fn of(reader: &mut Reader<'_, impl WordReader>, string: u64) -> Result<Self, Lost> {
        let flags = reader.word(string)?;
        if flags & TYPE_MASK != STRING {
            return Err(Lost);
        }
        let text_start = reader.layout.text_start;
        let start = match flags & EMBEDDING {
            0 => string.wrapping_add(u64::from(text_start)),
            _ => reader.field(string, BYTES)?,
        };
        let len = match flags & EMBEDDING {
            0 if text_start == LENGTH => flags >> LENGTH_SHIFT & LENGTH_MASK,
            _ => reader.field(string, LENGTH)?,
        };
        let place = Self { start, len };
        if place.len > TEXT_MAX { Err(Lost) } else { Ok(place) }
    }

    /// Returns a number that other bytes would hardly have.
    pub(super) fn digest(self, reader: &mut Reader<'_, impl WordReader>) -> Result<u64, Lost> {
        let mut parts = CookieParts::NONE.with(self.len);
        let mut at = 0u64;
        while at < self.len {
            let word = self.word(reader, at)?;
            let left = self.len.wrapping_sub(at);
            let mask = if left < 8 { (1u64 << (left * 8)).wrapping_sub(1) } else { u64::MAX };
            parts = parts.with(word & mask);
            at = at.wrapping_add(8);
        }
        Ok(parts.part())
    }

    /// Returns the eight bytes from this one on. What is behind the last byte may be anything.
    fn word(self, reader: &mut Reader<'_, impl WordReader>, at: u64) -> Result<u64, Lost> {
        let start = self.start.wrapping_add(at);
        let (aligned, shift) = (start & !7, (start & 7) as u32 * 8);
        let low = reader.word(aligned)?;
        let in_first = 8u64.wrapping_sub(start & 7);
        if shift == 0 || self.len.wrapping_sub(at) <= in_first {
            return Ok(low >> shift);
        }
        let high = reader.word(aligned.wrapping_add(8))?;
        Ok(low >> shift | high << 64u32.wrapping_sub(shift))
    }
}

/// Returns the digest of a string.
pub(super) fn digest(reader: &mut Reader<'_, impl WordReader>, string: u64) -> Result<u64, Lost> {
    TextPlace::of(reader, string)?.digest(reader)
}
