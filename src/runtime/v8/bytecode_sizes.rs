//! The lengths of bytecodes.

use crate::elf::{Definition, Elf};

/// Number of tables of the lengths of bytecodes: for operands of one, two and four bytes.
const SCALES: usize = 3;
/// Maximum number of bytecodes, which one byte tells.
const BYTECODES_MAX: usize = 256;

/// The lengths of bytecodes with their operands, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BytecodeSizes {
    /// One table for each scale, behind each other. Empty if they are unknown.
    sizes: Vec<u8>,
}

impl BytecodeSizes {
    pub(super) fn of(elf: &Elf<'_>, definition: Option<Definition>) -> Self {
        let read = || {
            let definition = definition?;
            let len = usize::try_from(definition.len).ok()?;
            let is_table = len > 0 && len.is_multiple_of(SCALES) && len <= SCALES * BYTECODES_MAX;
            elf.data(definition.svma)?.get(..len).filter(|_| is_table).map(<[u8]>::to_vec)
        };
        Self { sizes: read().unwrap_or_default() }
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn for_test(sizes: &[u8]) -> Self {
        Self { sizes: sizes.to_vec() }
    }

    /// Returns the length of the first of these bytecodes, with a prefix that tells the size of its
    /// operands. `None` if it is unknown.
    pub(super) fn first(&self, bytecodes: &[u8]) -> Option<usize> {
        let per_scale = self.sizes.len() / SCALES;
        let (scale, prefix) = match *bytecodes.first()? {
            0 | 2 => (1, 1),
            1 | 3 => (2, 1),
            _ => (0, 0),
        };
        let bytecode = usize::from(*bytecodes.get(prefix)?);
        let index = (bytecode < per_scale).then_some(scale * per_scale + bytecode)?;
        let size = usize::from(*self.sizes.get(index)?);
        (size > 0).then_some(prefix + size)
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn lengths_of_bytecodes_depend_on_their_prefix() {
        let mut table = vec![1; 3 * 6];
        (table[4], table[6 + 4], table[12 + 4]) = (2, 3, 5);
        let sizes = BytecodeSizes { sizes: table };
        assert_eq!(sizes.first(&[4, 9, 9]), Some(2));
        assert_eq!(sizes.first(&[0, 4, 9]), Some(4));
        assert_eq!(sizes.first(&[3, 4, 9]), Some(6));
        assert_eq!([&[6][..], &[0], &[], &[0, 6]].map(|some| sizes.first(some)), [None; 4]);
        assert_eq!(BytecodeSizes::default().first(&[4, 1]), None);
    }
}
