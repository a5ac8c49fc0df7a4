//! The files with machine code of a trace, each opened once.
//!
//! # Invariants
//! - At most [`FILES_MAX`] files are opened, whatever a trace names.

use std::collections::HashMap;
use std::rc::Rc;

use super::code_file::{self, CodeFile};
use super::unshown::FileWhy;
use crate::symbol::{ElfFile, ParsedFileKey};
use crate::trace::{Module, ModuleId};

/// Maximum number of files, as many as functions.
const FILES_MAX: usize = super::LISTINGS_MAX;

/// The files by module. A trace may name one file by several paths.
#[derive(Default)]
pub(super) struct CodeFiles {
    by_module: HashMap<ModuleId, Result<Rc<CodeFile>, FileWhy>>,
    by_key: HashMap<ParsedFileKey, Rc<CodeFile>>,
}

impl CodeFiles {
    /// Returns the file of a module, or why its code is not shown, if that is known already.
    pub(super) fn known(&self, id: ModuleId) -> Option<Result<Rc<CodeFile>, String>> {
        self.by_module.get(&id).map(answer)
    }

    /// Returns the file of a module, or why its code is not shown.
    pub(super) fn get(&mut self, id: ModuleId, module: &Module) -> Result<Rc<CodeFile>, String> {
        if let Some(known) = self.known(id) {
            return known;
        }
        if self.by_module.len() >= FILES_MAX {
            return Err(format!(
                "the page has code of the {FILES_MAX} files with the most time, and its file is \
                 none of them"
            ));
        }
        let file = self.open(module).map_err(|why| FileWhy::new(&module.path, why));
        answer(self.by_module.entry(id).or_insert(file))
    }

    /// Returns the files whose code is not shown.
    pub(super) fn unshown(&self) -> impl Iterator<Item = (ModuleId, &FileWhy)> {
        self.by_module.iter().filter_map(|(id, file)| Some((*id, file.as_ref().err()?)))
    }

    fn open(&mut self, module: &Module) -> Result<Rc<CodeFile>, String> {
        let file = code_file::open(module)?;
        let file = ElfFile::new(file.into(), module.path.clone(), module.build_id.clone());
        let key = file.key();
        let known = self.by_key.get(&key).filter(|it| it.build_id() == module.build_id);
        if let Some(known) = known {
            return Ok(Rc::clone(known));
        }
        let file = Rc::new(CodeFile::read(module, file)?);
        self.by_key.insert(key, Rc::clone(&file));
        Ok(file)
    }
}

fn answer(file: &Result<Rc<CodeFile>, FileWhy>) -> Result<Rc<CodeFile>, String> {
    file.as_ref().map(Rc::clone).map_err(FileWhy::of_function)
}
