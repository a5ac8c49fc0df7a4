//! The names of classes and modules.
//!
//! A class of Ruby 3.1 has its name in a variable of its own, a later one in its structure.

use traceprof_abi::runtime::ruby::{CLASS, MODULE, SINGLETON, TYPE_MASK};

use super::objects::RubyMemory;
use super::symbols::SymbolNames;
use crate::runtime::memory::MemoryPiece;

/// Offset in an object of its class.
const CLASS_OF: u64 = 8;
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

/// Where the classes of one process have their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClassNames {
    /// In variables.
    Variables {
        /// The number of the symbol of [`NAME`].
        name: u64,
        /// The number of the symbol of [`OBJECT`].
        object: u64,
    },
    /// In their structures.
    Fields,
}

impl ClassNames {
    /// Finds where the class of all objects has its name. `None` if it has no such name.
    pub(super) fn of(object: u64, symbols: &SymbolNames, objects: RubyMemory<'_>) -> Option<Self> {
        let singleton = objects.field(object, CLASS_OF)?;
        let names = match objects.offsets.layout.class_number {
            0 => Self::Fields,
            _ => {
                let find = |class: u64, name: &str| {
                    let variables = variables(objects, class)?;
                    let numbers = variables.into_iter().map(|(number, _)| number);
                    let is_it = |it: &u64| symbols.name(objects, *it).as_deref() == Some(name);
                    numbers.into_iter().find(is_it)
                };
                Self::Variables { name: find(object, NAME)?, object: find(singleton, OBJECT)? }
            }
        };
        let is_it = names.name_of(objects, object)? == "Object"
            && names.object_of(objects, singleton)? == object;
        is_it.then_some(names)
    }

    /// Returns what stands before the name of a method of this class, as in `Integer#times` and
    /// `File.open`. Empty if the class has no name of its own.
    pub(super) fn prefix(&self, objects: RubyMemory<'_>, class: u64) -> String {
        let prefix = || {
            let flags = objects.field(class, 0)?;
            if flags & TYPE_MASK == CLASS && flags & SINGLETON != 0 {
                let object = self.object_of(objects, class)?;
                return Some(self.name_of(objects, object)? + ".");
            }
            Some(self.name_of(objects, class)? + "#")
        };
        prefix().unwrap_or_default()
    }

    fn name_of(&self, objects: RubyMemory<'_>, class: u64) -> Option<String> {
        let kind = objects.field(class, 0)? & TYPE_MASK;
        if kind != CLASS && kind != MODULE {
            return None;
        }
        objects.text(match self {
            Self::Variables { name, .. } => variable(objects, class, *name)?,
            Self::Fields => {
                // Other names are made of addresses, or for a while.
                let (at, bit) = objects.offsets.class_is_named;
                objects.field(class, at).filter(|word| word & bit != 0)?;
                objects.field(class, u64::from(objects.offsets.layout.class_name))?
            }
        })
    }

    /// Returns the object of a class of one object.
    fn object_of(&self, objects: RubyMemory<'_>, class: u64) -> Option<u64> {
        match self {
            Self::Variables { object, .. } => variable(objects, class, *object),
            Self::Fields => objects.field(class, u64::from(objects.offsets.layout.class_object)),
        }
    }
}

fn variable(objects: RubyMemory<'_>, class: u64, number: u64) -> Option<u64> {
    let variables = variables(objects, class)?;
    variables.into_iter().find(|(found, _)| *found == number).map(|(_, value)| value)
}

/// Returns the variables of a class: the numbers of their symbols, and their values.
fn variables(objects: RubyMemory<'_>, class: u64) -> Option<Vec<(u64, u64)>> {
    let more = objects.field(class, MORE)?;
    let table = objects.field(more, VARIABLES).filter(|table| *table != 0)?;
    let field = |at: u64| objects.field(table, at);
    let (first, behind, entries) = (field(FIRST)?, field(BEHIND)?, field(ENTRIES)?);
    let count = behind.checked_sub(first).filter(|count| *count <= ENTRIES_MAX)? as usize;
    let mut bytes = vec![0; count * ENTRY_LEN];
    let start = entries.checked_add(first.checked_mul(ENTRY_LEN as u64)?)?;
    if objects.memory.read(start, &mut bytes) != bytes.len() {
        return None;
    }
    let piece = MemoryPiece { avma: start, bytes: &bytes };
    let entry = |index: usize| {
        let word = |at: usize| piece.word(index * ENTRY_LEN + at);
        (word(0)? != DELETED).then_some((word(8)?, word(16)?))
    };
    Some((0..count).filter_map(entry).collect())
}
