//! Line tables of Java methods.

use super::numbers::{NumberFormat, NumberReader};

/// The byte that stands before two numbers.
const ESCAPE: u8 = 0xff;

/// The compressed line table of a method: for each statement the number of bytecodes and of lines
/// since the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JavaLines {
    pub(super) bytes: Box<[u8]>,
    pub(super) format: NumberFormat,
}

impl JavaLines {
    /// A table without lines.
    pub(super) fn none() -> Self {
        Self { bytes: Box::default(), format: NumberFormat::Any }
    }

    /// Returns the line of a bytecode, 0 if it is unknown: that of the last statement before it.
    pub(super) fn line_at(&self, bci: u32) -> u32 {
        let mut reader = NumberReader::of(&self.bytes, self.format);
        let (mut here, mut line) = (0i32, 0i32);
        let mut best: Option<(i32, i32)> = None;
        while let Some(byte) = reader.byte().filter(|byte| *byte != 0) {
            if byte == ESCAPE {
                let (Some(bytecodes), Some(lines)) = (reader.signed(), reader.signed()) else {
                    break;
                };
                (here, line) = (here.wrapping_add(bytecodes), line.wrapping_add(lines));
            } else {
                here = here.wrapping_add(i32::from(byte >> 3));
                line = line.wrapping_add(i32::from(byte & 7));
            }
            // Statements may come in any order.
            let is_before = u32::try_from(here).is_ok_and(|here| here <= bci);
            if is_before && best.is_none_or(|(known, _)| here >= known) {
                best = Some((here, line));
            }
        }
        best.and_then(|(_, line)| u32::try_from(line).ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> JavaLines {
        JavaLines { bytes: bytes.into(), format: NumberFormat::Any }
    }

    #[test]
    fn a_bytecode_has_the_line_of_its_statement() {
        // 0: line 100; 4: line 102; 20: line 90; 24: line 91.
        let table = lines(&[ESCAPE, 0, 200, 3, 4 << 3 | 2, ESCAPE, 32, 23, 4 << 3 | 1, 0]);
        let found = [0, 3, 4, 19, 20, 23, 24, 9999].map(|bci| table.line_at(bci));
        assert_eq!(found, [196, 196, 198, 198, 186, 186, 187, 187]);
    }

    #[test]
    fn damaged_tables_have_no_lines() {
        for bytes in [&[][..], &[0], &[ESCAPE], &[ESCAPE, 0], &[ESCAPE, 0, 1], &[8 << 3 | 1]] {
            assert_eq!(lines(bytes).line_at(0), 0, "{bytes:?}");
        }
    }
}
