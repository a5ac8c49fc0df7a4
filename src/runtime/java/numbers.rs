//! Numbers of variable length, as HotSpot stores them (UNSIGNED5).

/// A byte below it ends a number.
const LAST: u32 = 192;
/// Number of bits by which each further byte counts more.
const SHIFT: u32 = 6;
/// Maximum number of bytes of a number.
const BYTES_MAX: u32 = 5;

/// Which bytes numbers consist of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberFormat {
    /// Of all bytes.
    Any,
    /// Of all bytes but 0, each of which counts one less.
    NotZero,
}

/// Reads numbers one behind the other.
#[derive(Debug, Clone)]
pub(super) struct NumberReader<'b> {
    bytes: &'b [u8],
    format: NumberFormat,
}

impl<'b> NumberReader<'b> {
    /// Starts at the first of these bytes.
    pub(super) fn of(bytes: &'b [u8], format: NumberFormat) -> Self {
        Self { bytes, format }
    }

    /// Returns the number of bytes that are left.
    pub(super) fn rest(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the next byte as it is.
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// Returns the next number.
    pub(super) fn number(&mut self) -> Option<u32> {
        let excluded = u32::from(self.format == NumberFormat::NotZero);
        let mut sum = 0u32;
        for index in 0..BYTES_MAX {
            let byte = u32::from(self.byte()?);
            let digit = byte.checked_sub(excluded)?;
            sum = sum.wrapping_add(digit << (SHIFT * index));
            if byte < LAST {
                break;
            }
        }
        Some(sum)
    }

    /// Returns the next number with a sign.
    pub(super) fn signed(&mut self) -> Option<i32> {
        let number = self.number()?;
        Some((number >> 1) as i32 ^ -((number & 1) as i32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], format: NumberFormat, expected: &[u32]) {
        let mut reader = NumberReader::of(bytes, format);
        let found: Vec<u32> = std::iter::from_fn(|| reader.number()).collect();
        assert_eq!(found, expected, "{bytes:?}");
    }

    #[test]
    fn numbers_end_with_a_small_byte() {
        check(&[0, 191, 192, 0, 193, 2], NumberFormat::Any, &[0, 191, 192, 193 + (2 << 6)]);
        check(&[1, 191, 192, 1, 255, 2], NumberFormat::NotZero, &[0, 190, 191, 254 + 64]);
        // Five bytes are a number, whatever they are.
        check(&[255; 5], NumberFormat::Any, &[255u32.wrapping_mul(0x0104_1041)]);
        check(&[192, 192], NumberFormat::Any, &[]);
        check(&[192, 0], NumberFormat::NotZero, &[]);
        check(&[], NumberFormat::Any, &[]);
    }

    #[test]
    fn signs_alternate() {
        let mut reader = NumberReader::of(&[0, 1, 2, 3, 4], NumberFormat::Any);
        let found: Vec<i32> = std::iter::from_fn(|| reader.signed()).collect();
        assert_eq!(found, [0, -1, 1, -2, 2]);
    }
}
