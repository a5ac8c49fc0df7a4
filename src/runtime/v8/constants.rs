//! The constants that V8 exports to debuggers.

use std::collections::HashMap;

use crate::elf::{Definitions, Elf, LoadSegment};

/// The beginning of their names.
const CONSTANT: &str = "v8dbg_";
/// Maximum number of constants. There are about 500.
const CONSTANTS_MAX: usize = 1 << 13;

/// Constants for debuggers, by their names.
#[derive(Debug, Default)]
pub(super) struct V8Constants<'a>(HashMap<&'a str, i32>);

impl<'a> V8Constants<'a> {
    pub(super) fn of(elf: &Elf<'a>, names: &Definitions<'_, 'a>) -> Self {
        let found = names.exported_after(CONSTANT).into_iter().take(CONSTANTS_MAX);
        let read = found.filter_map(|(name, it)| Some((name, number_at(elf, it.svma)?)));
        Self(read.collect())
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn for_test(values: &[(&'a str, i32)]) -> Self {
        Self(values.iter().copied().collect())
    }

    /// Returns the constant with this name.
    pub(super) fn get(&self, name: &str) -> Option<i32> {
        self.0.get(name).copied()
    }

    /// Returns the first constant that begins and ends so. The end is the C++ type of a field,
    /// which changes with the version.
    pub(super) fn field(&self, beginning: &str) -> Option<i32> {
        let is_it =
            |name: &str| name.strip_prefix(beginning).is_some_and(|it| it.starts_with("__"));
        self.0.iter().find(|(name, _)| is_it(name)).map(|(_, value)| *value)
    }
}

/// Reads a number of four bytes. Those that are 0 may not be in the file.
pub(super) fn number_at(elf: &Elf<'_>, svma: u64) -> Option<i32> {
    if let Some(bytes) = elf.data(svma).and_then(<[u8]>::first_chunk) {
        return Some(i32::from_le_bytes(*bytes));
    }
    let is_in = |load: &&LoadSegment| {
        load.svma.checked_add(load.mem_len).is_some_and(|end| (load.svma..end).contains(&svma))
    };
    elf.loads().iter().find(is_in).map(|_| 0)
}
