//! Go's encoding of a value by pc: steps of value and pc, each a number of variable length.

use std::ops::Range;

/// The values of one function, each with the range of SVMAs that it applies to.
#[derive(Debug, Clone)]
pub struct Values<'a> {
    rest: &'a [u8],
    range: Range<u64>,
    value: i32,
    is_first: bool,
}

impl<'a> Values<'a> {
    pub(super) fn new(rest: &'a [u8], range: Range<u64>) -> Self {
        Self { rest, range, value: -1, is_first: true }
    }

    fn number(&mut self) -> Option<u32> {
        let mut number = 0_u32;
        for shift in (0..35).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            number |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

impl Iterator for Values<'_> {
    type Item = (Range<u64>, i32);

    fn next(&mut self) -> Option<Self::Item> {
        if self.range.is_empty() {
            return None;
        }
        let step = self.number()?;
        if step == 0 && !self.is_first {
            return None;
        }
        self.is_first = false;
        // Every value applies to at least one instruction, so a function has no more values than
        // bytes.
        let len = self.number().filter(|&len| len > 0)?;
        // The sign is the lowest bit.
        self.value = self.value.wrapping_add((step >> 1) as i32 ^ -((step & 1) as i32));
        let start = self.range.start;
        let end = start.saturating_add(u64::from(len)).min(self.range.end);
        self.range.start = end;
        Some((start..end, self.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: &[(Range<u64>, i32)]) {
        assert_eq!(Values::new(bytes, 100..200).collect::<Vec<_>>(), expected, "{bytes:x?}");
    }

    #[test]
    fn steps_are_summed_up() {
        // +1 for 4 bytes, +32 for 130 bytes, and the end.
        check(&[2, 4, 64, 0x82, 1, 0], &[(100..104, 0), (104..200, 32)]);
        check(&[2, 4, 64, 8, 63, 3, 0, 9, 9], &[(100..104, 0), (104..112, 32), (112..115, 0)]);
    }

    #[test]
    fn the_first_step_may_be_none() {
        check(&[0, 5, 4, 5, 0], &[(100..105, -1), (105..110, 1)]);
    }

    #[test]
    fn damaged_bytes_end_it() {
        check(&[], &[]);
        check(&[2], &[]);
        check(&[2, 0x80, 0x80, 0x80, 0x80, 0x80, 1], &[]);
        check(&[2, 4, 0x80], &[(100..104, 0)]);
        check(&[2, 4, 2, 0, 2, 4, 0], &[(100..104, 0)]);
    }
}
