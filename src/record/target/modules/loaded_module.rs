//! A module of the target.

use std::ops::Deref;
use std::sync::Arc;

use crate::unwind::{ModuleRef, TableWriter};

use super::TABLES_FULL;
use super::module_file::{ModuleFile, ReadModule};

/// A file that the target has mapped, with its number and its table.
#[derive(Debug)]
pub(crate) struct LoadedModule {
    /// The module's number within the recording of the process.
    pub(crate) index: u32,
    /// The position of its table in the tables segment.
    pub(super) table: Option<ModuleRef>,
    /// What the file says.
    pub(super) file: Arc<ModuleFile>,
}

impl LoadedModule {
    /// Adds the table of a file that was read. A message says why there is none, or no room for it.
    pub(super) fn add(
        read: &ReadModule,
        index: u32,
        tables: &mut TableWriter<'_>,
        notices: &mut Vec<String>,
    ) -> Self {
        let table = match &read.table {
            Ok(table) => tables.add_module(table).map_err(|_| TABLES_FULL.to_owned()),
            Err(what) => Err(format!("{}: {what}", read.file.path)),
        };
        let table = table.map_err(|notice| notices.push(notice)).ok();
        Self { index, table, file: Arc::clone(&read.file) }
    }
}

impl Deref for LoadedModule {
    type Target = ModuleFile;

    fn deref(&self) -> &ModuleFile {
        &self.file
    }
}

#[cfg(test)]
impl LoadedModule {
    pub(crate) fn for_test(index: u32, path: &str, elf: crate::symbol::ElfFile) -> Self {
        let file = ModuleFile { path: path.to_owned(), elf: Some(elf), ..ModuleFile::default() };
        Self { index, table: None, file: Arc::new(file) }
    }

    /// Changes what the file says.
    pub(crate) fn with_file(mut self, change: impl FnOnce(&mut ModuleFile)) -> Self {
        change(Arc::get_mut(&mut self.file).expect("not shared"));
        self
    }

    pub(crate) fn with_functions(self, functions: &[(u64, u64)]) -> Self {
        self.with_file(|file| file.functions = functions.to_vec())
    }
}
