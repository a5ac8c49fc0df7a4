//! The line tables of code objects: which instruction is of which line.
//!
//! Positions are in bytes from the first instruction. A position before the first instruction is of
//! a function that has not started: its line is that of the function.

/// The format of line tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) enum LineFormat {
    /// Pairs of a distance in bytes, and the number of lines to add from there on (3.8, 3.9).
    Deltas,
    /// Pairs of a length in bytes, and the number of lines to add for these bytes, or a mark for
    /// bytes without a line (3.10).
    Ranges,
    /// Entries of several bytes, with columns (3.11 and later).
    Locations,
}

/// The mark in [`LineFormat::Ranges`] for bytes without a line.
const NO_LINE: i8 = -128;

/// The positions of a function that has not started: the interpreter stores -1, or the address
/// before the first instruction.
const BEFORE_FIRST: [i32; 2] = [-1, -2];

/// A copy of a line table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::runtime) struct LineTable {
    pub(super) format: LineFormat,
    pub(in crate::runtime) bytes: Box<[u8]>,
}

impl LineTable {
    /// Makes a table in the format of this minor version.
    #[cfg(test)]
    pub(in crate::runtime) fn for_test(minor: u8, bytes: &[u8]) -> Self {
        let format = super::offsets::structures(minor).unwrap().lines;
        Self { format, bytes: bytes.into() }
    }

    /// Returns the line of a position in a function that starts on line `first`. 0 if the position
    /// has no line, or the table does not have it.
    pub(in crate::runtime) fn line_at(&self, first: u32, position: u32) -> u32 {
        if BEFORE_FIRST.contains(&(position as i32)) {
            return first;
        }
        let (first, position) = (i64::from(first as i32), u64::from(position));
        let line = match self.format {
            LineFormat::Deltas => Some(by_deltas(&self.bytes, first, position)),
            LineFormat::Ranges => by_ranges(&self.bytes, first, position),
            LineFormat::Locations => by_locations(&self.bytes, first, position),
        };
        line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0)
    }
}

fn by_deltas(table: &[u8], first: i64, position: u64) -> i64 {
    let (pairs, _) = table.as_chunks::<2>();
    let mut end = 0u64;
    let before = |[distance, _]: &&[u8; 2]| {
        end += u64::from(*distance);
        end <= position
    };
    let lines = pairs.iter().take_while(before).map(|[_, lines]| i64::from(*lines as i8));
    first + lines.sum::<i64>()
}

fn by_ranges(table: &[u8], first: i64, position: u64) -> Option<i64> {
    let (pairs, _) = table.as_chunks::<2>();
    let (mut end, mut line) = (0u64, first);
    for [len, lines] in pairs {
        let lines = *lines as i8;
        if lines != NO_LINE {
            line += i64::from(lines);
        }
        end += u64::from(*len);
        if position < end {
            return (lines != NO_LINE).then_some(line);
        }
    }
    None
}

fn by_locations(table: &[u8], first: i64, position: u64) -> Option<i64> {
    let mut entries = Locations(table);
    let (mut end, mut line) = (0u64, first);
    while let Some((len, lines)) = entries.next_entry() {
        line = line.saturating_add(lines.unwrap_or(0));
        end += len;
        if position < end {
            return lines.map(|_| line);
        }
    }
    None
}

/// The entries of [`LineFormat::Locations`].
///
/// The first byte of an entry has bit 7, and four bits of a code and three of a length. The other
/// bytes do not have bit 7.
struct Locations<'t>(&'t [u8]);

impl Locations<'_> {
    /// Returns the length in bytes of the instructions of the next entry, and the lines to add for
    /// them, or `None` for no line. The rest of the entry is about columns.
    fn next_entry(&mut self) -> Option<(u64, Option<i64>)> {
        let head = self.byte().filter(|head| head & 0x80 != 0)?;
        let len = (u64::from(head & 7) + 1) * 2;
        let lines = match head >> 3 & 0xf {
            15 => None,
            13 | 14 => Some(self.signed()),
            code @ 10..=12 => Some(i64::from(code) - 10),
            _ => Some(0),
        };
        while self.0.first().is_some_and(|byte| byte & 0x80 == 0) {
            self.byte();
        }
        Some((len, lines))
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// Reads a number of six bits a byte, the lowest first; bit 6 says that another byte follows.
    /// The lowest bit of the number is its sign.
    fn signed(&mut self) -> i64 {
        let (mut number, mut shift) = (0u64, 0);
        while let Some(byte) = self.0.first().filter(|byte| *byte & 0x80 == 0) {
            let byte = *byte;
            self.byte();
            if shift < 60 {
                number |= u64::from(byte & 0x3f) << shift;
            }
            shift += 6;
            if byte & 0x40 == 0 {
                break;
            }
        }
        let size = (number >> 1) as i64;
        if number & 1 == 0 { size } else { -size }
    }
}
