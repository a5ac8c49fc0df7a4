//! Columns of numbers as bytes, LEB128 encoded: each number in groups of seven bits, the lowest
//! first, the last one below 128.

use std::io::{self, Write};

/// Named columns, one after another.
#[derive(Debug, Default)]
pub(super) struct ByteColumns {
    all: Vec<(String, Vec<u8>)>,
}

impl ByteColumns {
    /// Adds a column.
    pub(super) fn add(&mut self, name: String, numbers: impl Iterator<Item = u64>) {
        let mut bytes = Vec::new();
        for number in numbers {
            put(&mut bytes, number);
        }
        self.all.push((name, bytes));
    }

    /// Returns the names in order, each with the length of its column in bytes.
    pub(super) fn lengths(&self) -> Vec<(&str, usize)> {
        self.all.iter().map(|(name, bytes)| (name.as_str(), bytes.len())).collect()
    }

    /// Writes all columns.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        self.all.iter().try_for_each(|(_, bytes)| out.write_all(bytes))
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_as_many_bytes_as_they_need() {
        let mut columns = ByteColumns::default();
        columns.add("one".to_owned(), [0, 1, 127, 128, 300, u64::MAX].into_iter());
        columns.add("none".to_owned(), std::iter::empty());
        assert_eq!(columns.lengths(), [("one", 17), ("none", 0)]);
        let mut bytes = Vec::new();
        columns.write(&mut bytes).unwrap();
        assert_eq!(bytes[..7], [0, 1, 127, 0x80, 1, 0xac, 2]);
        assert_eq!(bytes[7..], [255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
    }
}
