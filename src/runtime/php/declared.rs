//! The functions that a program has declared, in the interpreter's tables.
//!
//! A closure of a declared function, such as `strlen(...)` or `$object->method(...)`, is a copy of
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

    /// Returns the addresses of the functions from the entry with this number on, and the number of
    /// all entries. Empty if the table is unreadable.
    pub(super) fn functions(self, memory: &dyn TargetMemory, from: u32) -> (Vec<u64>, u32) {
        let word = |at: u64| memory::word(memory, self.0.wrapping_add(at));
        let count = word(COUNT).map(|it| it as u32).filter(|count| *count <= COUNT_MAX);
        let (Some(count), Some(entries)) = (count, word(ENTRIES)) else { return (Vec::new(), 0) };
        let from = from.min(count);
        let mut bytes = vec![0; (count - from) as usize * ENTRY as usize];
        let got = memory.read(entries.wrapping_add(ENTRY * u64::from(from)), &mut bytes);
        let (read, _) = bytes.split_at(got.min(bytes.len()));
        let piece = MemoryPiece { avma: 0, bytes: read };
        let places = (0..read.len()).step_by(ENTRY as usize);
        (places.filter_map(|at| piece.word(at)).filter(|it| *it != 0).collect(), count)
    }
}
