//! The table of symbols, which has the names of methods that are written in C.

use super::objects::RubyMemory;

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
}

impl SymbolNames {
    /// Returns the table at this address, if there is one.
    pub(super) fn at(table: u64, objects: RubyMemory<'_>) -> Option<Self> {
        let symbols = Self { table };
        (symbols.name(objects, PLUS)? == "+").then_some(symbols)
    }

    /// Reads the name of the symbol with this number.
    pub(super) fn name(&self, objects: RubyMemory<'_>, number: u64) -> Option<String> {
        // An operator is its own index in the table.
        let is_operator = number <= objects.offsets.operator_max;
        let index = if is_operator { number } else { number as u32 as u64 >> INDEX_SHIFT };
        let parts = objects.field(self.table, PARTS)?;
        let part = objects.element(parts, index / PART_LEN)?;
        objects.text(objects.element(part, index % PART_LEN * ELEMENTS)?)
    }
}
