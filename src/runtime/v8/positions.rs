//! Tables of source positions, and of the bytecodes of baseline code.
//!
//! # Invariants
//! - Offsets in the code never decrease.

use super::bytecode_sizes::BytecodeSizes;

/// Maximum number of entries of a table.
const ENTRIES_MAX: usize = 1 << 18;

/// A position in a source text, or in a function that is inlined there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SourcePosition(pub(super) u64);

impl SourcePosition {
    /// Returns the offset in the source text of the script, in characters.
    pub(super) fn offset(self) -> Option<u32> {
        let is_external = self.0 & 1 != 0;
        let next = (self.0 >> 1) as u32 & 0x3fff_ffff;
        next.checked_sub(1).filter(|_| !is_external)
    }

    /// Returns the index of the inlining that the position is in. `None` for the function itself.
    pub(super) fn inlining(self) -> Option<usize> {
        usize::from((self.0 >> 31) as u16).checked_sub(1)
    }
}

/// Decodes numbers of variable length.
struct Numbers<'b>(&'b [u8]);

impl Numbers<'_> {
    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Decodes a number with its sign in the lowest bit.
    fn signed(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

/// Decodes a table of source positions: offsets in the code, and the position from each on.
/// `None` if it is damaged.
pub(super) fn source_positions(table: &[u8]) -> Option<Vec<(u32, SourcePosition)>> {
    let mut numbers = Numbers(table);
    let (mut offset, mut position) = (-1i64, 0i64);
    let mut found = Vec::new();
    while !numbers.0.is_empty() {
        let step = numbers.signed()?;
        // The sign tells statements from expressions.
        offset = offset.checked_add(if step >= 0 { step } else { -1 - step })?;
        position = position.checked_add(numbers.signed()?)?;
        if found.len() >= ENTRIES_MAX {
            return None;
        }
        // Entries at -1 are for the whole function.
        found.push((u32::try_from(offset.max(0)).ok()?, SourcePosition(position as u64)));
    }
    Some(found)
}

/// Decodes the table of baseline code: offsets in the code, and the offset of the bytecode that
/// begins at each. `None` if it is damaged.
pub(super) fn baseline_bytecodes(
    table: &[u8],
    bytecodes: &[u8],
    sizes: &BytecodeSizes,
) -> Option<Vec<(u32, u32)>> {
    let mut numbers = Numbers(table);
    let (mut start, mut bytecode) = (0u32, 0usize);
    let mut found = Vec::new();
    while !numbers.0.is_empty() {
        start = start.checked_add(u32::try_from(numbers.unsigned()?).ok()?)?;
        let Some(rest) = bytecodes.get(bytecode..).filter(|rest| !rest.is_empty()) else {
            // The end of the last one.
            return numbers.0.is_empty().then_some(found);
        };
        if found.len() >= ENTRIES_MAX {
            return None;
        }
        found.push((start, bytecode as u32));
        bytecode = bytecode.checked_add(sizes.first(rest)?)?;
    }
    Some(found)
}

/// Returns what a sorted table has for an offset: that of the last entry at or before it.
pub(super) fn at_or_before<T: Copy>(table: &[(u32, T)], offset: u32) -> Option<T> {
    let after = table.partition_point(|(start, _)| *start <= offset);
    table.get(after.checked_sub(1)?).map(|(_, value)| *value)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn positions_have_an_offset_and_an_inlining() {
        let position = SourcePosition(3 << 31 | 8 << 1);
        assert_eq!((position.offset(), position.inlining()), (Some(7), Some(2)));
        let unknown = SourcePosition(0);
        assert_eq!((unknown.offset(), unknown.inlining()), (None, None));
        assert_eq!(SourcePosition(8 << 1 | 1).offset(), None);
        assert_eq!(SourcePosition(u64::MAX).inlining(), Some(0xfffe));
    }

    #[test]
    fn tables_are_sums_of_differences() {
        // +1 and a statement, +3 and an expression, position 10 less.
        let table = [2, 40, 0x80 | 5, 0, 19];
        let found = source_positions(&table).unwrap();
        assert_eq!(found, [(0, SourcePosition(20)), (2, SourcePosition(10))]);
        let at = |offset| at_or_before(&found, offset);
        assert_eq!([at(0), at(1)], [Some(SourcePosition(20)); 2]);
        assert_eq!(at(u32::MAX), Some(SourcePosition(10)));
        assert_eq!(at_or_before(&found[1..], 1), None);
        assert_eq!(source_positions(&table[..3]), None);
        assert_eq!(source_positions(&[0xff; 11]), None);
        assert_eq!(source_positions(&[]), Some(vec![]));
    }
}
