//! The table of symbols, which has the names of methods that are written in C.

use super::objects::{element, text};
use crate::runtime::memory::{TargetMemory, word};

/// From the table to the array of parts, each of which is an array.
const PARTS: u64 = 16;
/// Number of symbols in a part, and of elements for each.
const PART_LEN: u64 = 512;
const ELEMENTS: u64 = 2;
/// The bits of a symbol's number before its index.
const INDEX_SHIFT: u32 = 4;
/// An operator, whose number is that of its character.
const PLUS: u64 = b'+' as u64;

/// The table of symbols of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SymbolNames {
    /// Its address (AVMA).
    table: u64,
    /// The largest number of an operator, which is its own index in the table.
    operator_max: u64,
}

impl SymbolNames {
    /// Returns the table at this address, if there is one.
    pub(super) fn at(table: u64, operator_max: u64, memory: &dyn TargetMemory) -> Option<Self> {
        let symbols = Self { table, operator_max };
        (symbols.name(memory, PLUS)? == "+").then_some(symbols)
    }

    /// Reads the name of the symbol with this number.
    pub(super) fn name(&self, memory: &dyn TargetMemory, number: u64) -> Option<String> {
        let is_operator = number <= self.operator_max;
        let index = if is_operator { number } else { number as u32 as u64 >> INDEX_SHIFT };
        let parts = word(memory, self.table.wrapping_add(PARTS))?;
        let part = element(memory, parts, index / PART_LEN)?;
        text(memory, element(memory, part, index % PART_LEN * ELEMENTS)?)
    }
}
