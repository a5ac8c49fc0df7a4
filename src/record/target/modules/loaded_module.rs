//! A module of the target.

use std::ops::Deref;
use std::sync::Arc;

use crate::unwind::ModuleRef;

use super::module_file::ModuleFile;

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
