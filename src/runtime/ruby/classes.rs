//! The names of classes and modules.

use traceprof_abi::runtime::ruby::TYPE_MASK;

use super::objects::text;
use super::symbols::SymbolNames;
use crate::runtime::memory::{MemoryPiece, TargetMemory, word};

const CLASS: u64 = 0x02;
const MODULE: u64 = 0x03;
/// The flag of the class of one object.
const SINGLETON: u64 = 1 << 12;
/// Offset of what classes have more than other objects, and in it of the table of variables.
const MORE: u64 = 24;
const VARIABLES: u64 = 8;
/// Offsets in a table: of the numbers of its first entry and behind its last one, and its entries.
const FIRST: u64 = 32;
const BEHIND: u64 = 40;
const ENTRIES: u64 = 48;
/// Length of an entry: a hash, a symbol's number, and a value.
const ENTRY_LEN: usize = 24;
/// The hash of an entry that was deleted.
const DELETED: u64 = u64::MAX;
/// Maximum number of entries: variables of one class.
const ENTRIES_MAX: u64 = 4096;
/// The variables with the name of a class, and the object of a class of one object.
const NAME: &str = "__classpath__";
const OBJECT: &str = "__attached__";

/// Reads the names of classes of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClassNames {
    /// The number of the symbol of [`NAME`].
    name: u64,
    /// The number of the symbol of [`OBJECT`].
    object: u64,
}

impl ClassNames {
    /// Finds the variables in the class of all objects. `None` if it has no such name.
    pub(super) fn of(
        object: u64,
        symbols: &SymbolNames,
        memory: &dyn TargetMemory,
    ) -> Option<Self> {
        let find = |class: u64, name: &str| {
            let variables = variables(memory, class)?;
            let numbers = variables.into_iter().map(|(number, _)| number);
            numbers.into_iter().find(|it| symbols.name(memory, *it).as_deref() == Some(name))
        };
        let singleton = word(memory, object.wrapping_add(8))?;
        let names = Self { name: find(object, NAME)?, object: find(singleton, OBJECT)? };
        (names.name_of(memory, object)? == "Object").then_some(names)
    }

    /// Returns what stands before the name of a method of this class, as in `Integer#times` and
    /// `File.open`. Empty if the class has no name of its own.
    pub(super) fn prefix(&self, memory: &dyn TargetMemory, class: u64) -> String {
        let prefix = || {
            let flags = word(memory, class)?;
            if flags & TYPE_MASK == CLASS && flags & SINGLETON != 0 {
                let object = variable(memory, class, self.object)?;
                return Some(self.name_of(memory, object)? + ".");
            }
            Some(self.name_of(memory, class)? + "#")
        };
        prefix().unwrap_or_default()
    }

    fn name_of(&self, memory: &dyn TargetMemory, class: u64) -> Option<String> {
        let kind = word(memory, class)? & TYPE_MASK;
        let is_class = kind == CLASS || kind == MODULE;
        text(memory, variable(memory, class, self.name).filter(|_| is_class)?)
    }
}

fn variable(memory: &dyn TargetMemory, class: u64, number: u64) -> Option<u64> {
    let variables = variables(memory, class)?;
    variables.into_iter().find(|(found, _)| *found == number).map(|(_, value)| value)
}

/// Returns the variables of a class: the numbers of their symbols, and their values.
fn variables(memory: &dyn TargetMemory, class: u64) -> Option<Vec<(u64, u64)>> {
    let more = word(memory, class.wrapping_add(MORE))?;
    let table = word(memory, more.wrapping_add(VARIABLES)).filter(|table| *table != 0)?;
    let field = |at: u64| word(memory, table.wrapping_add(at));
    let (first, behind, entries) = (field(FIRST)?, field(BEHIND)?, field(ENTRIES)?);
    let count = behind.checked_sub(first).filter(|count| *count <= ENTRIES_MAX)? as usize;
    let mut bytes = vec![0; count * ENTRY_LEN];
    let start = entries.checked_add(first.checked_mul(ENTRY_LEN as u64)?)?;
    if memory.read(start, &mut bytes) != bytes.len() {
        return None;
    }
    let piece = MemoryPiece { avma: start, bytes: &bytes };
    let entry = |index: usize| {
        let word = |at: usize| piece.word(index * ENTRY_LEN + at);
        (word(0)? != DELETED).then_some((word(8)?, word(16)?))
    };
    Some((0..count).filter_map(entry).collect())
}
