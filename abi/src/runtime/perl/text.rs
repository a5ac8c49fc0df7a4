//! The interpreter's texts that end with a byte 0.

use super::{Lost, Reader, TEXT_MAX};
use crate::runtime::WordReader;
use crate::runtime::cookie::CookieParts;

/// Returns a number that another text would hardly have.
pub(super) fn digest(reader: &mut Reader<'_, impl WordReader>, start: u64) -> Result<u64, Lost> {
    let (aligned, in_first) = (start & !7, 8u64.wrapping_sub(start & 7));
    let shift = (start & 7) as u32 * 8;
    let mut parts = CookieParts::NONE;
    let mut low = reader.word(aligned)? >> shift;
    let mut next = aligned;
    for _ in 0..TEXT_MAX / 8 {
        let mut word = low;
        let mut end = zero_at(word);
        // What is behind the end may be unreadable.
        if end >= in_first {
            next = next.wrapping_add(8);
            let high = reader.word(next)?;
            low = high >> shift;
            if shift != 0 {
                word |= high << 64u32.wrapping_sub(shift);
                end = zero_at(word);
            }
            if shift == 0 || end == 8 {
                parts = parts.with(word);
                continue;
            }
        }
        let mask = (1u64 << (end * 8)).wrapping_sub(1);
        return Ok(parts.with(word & mask).with(end).part());
    }
    Err(Lost)
}

/// Returns the index of the first byte that is 0, or 8.
fn zero_at(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let zeros = word.wrapping_sub(ONES) & !word & (ONES << 7);
    u64::from(zeros.trailing_zeros() / 8)
}
