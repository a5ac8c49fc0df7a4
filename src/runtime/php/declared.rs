//! The functions that a program has declared, in the interpreter's tables.
//!
//! A closure of a declared function, such as `work(...)` or `$object->method(...)`, is a copy of
//! it. So the tables have the names of such closures that are gone.

use crate::runtime::memory::{self, MemoryPiece, TargetMemory};

/// Offsets in a table: of the address of its entries, and of their number, which has 32 bits.
const ENTRIES: u64 = 16;
const COUNT: u64 = 24;
/// The size of an entry, which begins with the address of a function.
const ENTRY: u64 = 32;
/// The largest number of entries that are read.
const COUNT_MAX: u32 = 1 << 16;
/// Offset of the table of its methods in a class.
const METHODS: u64 = 64;

/// Functions of a table, by their addresses (AVMAs).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SomeFunctions {
    pub(super) functions: Vec<u64>,
    /// The number of the first entry behind them.
    pub(super) next: u32,
    /// Whether there is no such entry, or it is unreadable.
    pub(super) is_end: bool,
}

/// A table of functions, by its address (AVMA).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FunctionTable(u64);

impl FunctionTable {
    /// Returns the table of all functions that are no methods. `bailout` is the address of the
    /// variable that has it behind two others.
    pub(super) fn of_functions(memory: &dyn TargetMemory, bailout: u64) -> Option<Self> {
        memory::word(memory, bailout.wrapping_add(16)).map(Self)
    }

    /// Returns the table of the methods of a class.
    pub(super) fn of_class(class: u64) -> Self {
        Self(class.wrapping_add(METHODS))
    }

    /// Returns the functions of some entries, from the one with this number on. None of a table
    /// that is unreadable.
    pub(super) fn functions(
        self,
        memory: &dyn TargetMemory,
        from: u32,
        most: u32,
    ) -> SomeFunctions {
        let word = |at: u64| memory::word(memory, self.0.wrapping_add(at));
        let count = word(COUNT).map(|it| it as u32).filter(|count| *count <= COUNT_MAX);
        let (Some(count), Some(entries)) = (count, word(ENTRIES)) else {
            return SomeFunctions { functions: Vec::new(), next: from, is_end: true };
        };
        let from = from.min(count);
        let mut bytes = vec![0; most.min(count - from) as usize * ENTRY as usize];
        let got = memory.read(entries.wrapping_add(ENTRY * u64::from(from)), &mut bytes);
        let whole = got.min(bytes.len()) / ENTRY as usize;
        let piece = MemoryPiece { avma: 0, bytes: &bytes };
        let functions = (0..whole).filter_map(|at| piece.word(at * ENTRY as usize));
        let functions = functions.filter(|it| *it != 0).collect();
        let next = from + whole as u32;
        SomeFunctions { functions, next, is_end: whole == 0 || next == count }
    }
}
