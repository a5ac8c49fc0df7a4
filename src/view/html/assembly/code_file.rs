//! A file with machine code, as the trace names it, on this system.
//!
//! # Invariants
//! - Code is only read from a file with the recorded build id.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;
use object::elf::EM_X86_64;

use crate::elf::{Elf, Pclntab, build_id_text, functions_around};
use crate::proc;
use crate::symbol::{ElfFile, SymbolTable};
use crate::trace::Module;
use crate::view::text::escape::escaped;

/// Maximum number of bytes of a function's code. The largest functions, generated ones, have less.
const CODE_MAX: u64 = 1 << 20;

/// An ELF file for x86-64 with the recorded build id.
pub(super) struct CodeFile {
    /// The path, escaped.
    shown: String,
    file: ElfFile,
    bytes: Mmap,
    functions: SymbolTable,
    /// The separate debug file with its symbols, if there is one. Of a stripped file, it has more.
    debug: OnceCell<Option<(Mmap, SymbolTable)>>,
}

/// Opens the file of a module for reading, or says what is wrong with it, as the end of a sentence.
pub(super) fn open(module: &Module) -> Result<File, String> {
    if !module.path.starts_with('/') {
        return Err("is in no file".to_owned());
    }
    let file = proc::open_regular(Path::new(&module.path)).map_err(|error| match error.kind() {
        ErrorKind::NotFound => "is not on this system".to_owned(),
        ErrorKind::PermissionDenied => "cannot be read by this user".to_owned(),
        _ => format!("cannot be read: {error}"),
    })?;
    if module.build_id.is_empty() {
        let why = "has no build id, so nothing tells whether it is the recorded file; link it with \
                   -Wl,--build-id and record again";
        return Err(why.to_owned());
    }
    Ok(file)
}

impl CodeFile {
    /// Reads the file of a module, or says what is wrong with it, as the end of a sentence.
    pub(super) fn read(module: &Module, file: ElfFile) -> Result<Self, String> {
        let bytes = file.map().map_err(|error| format!("cannot be read: {error}"))?;
        let parsed = Elf::parse(&bytes).map_err(|error| format!("cannot be read: {error}"))?;
        let found = parsed.build_id().unwrap_or_default();
        if found != module.build_id {
            let (found, recorded) = (build_id_text(found), build_id_text(&module.build_id));
            let found = if found.is_empty() { "none" } else { &found };
            return Err(format!(
                "is another file now: its build id is {found}, recorded was {recorded}"
            ));
        }
        if parsed.machine() != EM_X86_64.0 {
            return Err("has no code for x86-64, the one architecture to disassemble".to_owned());
        }
        let functions = SymbolTable::read(&bytes);
        let shown = escaped(&module.path).into_owned();
        Ok(Self { shown, file, bytes, functions, debug: OnceCell::new() })
    }

    /// Returns the path, escaped.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the build id.
    pub(super) fn build_id(&self) -> &[u8] {
        self.file.build_id()
    }

    /// Returns the bounds of the code around an address: of the function that begins at `start`,
    /// or, if that has several parts, of the part with the address.
    pub(super) fn range(&self, start: u64, svma: u64) -> Result<Range<u64>, String> {
        let elf = Elf::parse(&self.bytes).map_err(|error| format!("{}: {error}", self.shown))?;
        let in_table = |table: &SymbolTable| table.range(start).filter(|it| it.contains(&svma));
        let of_symbol = in_table(&self.functions);
        let around = || functions_around(&elf, &[svma]).into_iter().next().flatten();
        let of_go = || {
            let table = Some(&elf).filter(|elf| elf.is_go()).and_then(Pclntab::find)?;
            Some(table.find_function(svma)?.range)
        };
        let of_debug = || in_table(&self.debug()?.1);
        let range = of_symbol.or_else(around).or_else(of_go).or_else(of_debug);
        let Some(range) = range.filter(|range| range.contains(&svma)) else {
            return Err(format!(
                "neither a symbol nor unwind information in {} tells where it begins and ends",
                self.shown
            ));
        };
        if range.end - range.start > CODE_MAX {
            return Err(format!("its code in {} is longer than 1 MiB", self.shown));
        }
        Ok(range)
    }

    /// Returns the bytes of a range. Those of a truncated file are fewer.
    pub(super) fn code(&self, range: &Range<u64>) -> &[u8] {
        let data = Elf::parse(&self.bytes).ok().and_then(|elf| elf.data(range.start));
        let data = data.unwrap_or_default();
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        &data[..data.len().min(len)]
    }

    /// Returns the names of those of these addresses at which functions begin.
    pub(super) fn names(&self, svmas: &[u64]) -> HashMap<u64, String> {
        let mut names = self.functions.names(&self.bytes, svmas);
        let others: Vec<u64> =
            svmas.iter().copied().filter(|svma| !names.contains_key(svma)).collect();
        if !others.is_empty()
            && let Some((bytes, functions)) = self.debug()
        {
            names.extend(functions.names(bytes, &others));
        }
        names
    }

    fn debug(&self) -> Option<&(Mmap, SymbolTable)> {
        let read = || {
            let bytes = self.file.map_debug_file()?;
            let functions = SymbolTable::read(&bytes);
            Some((bytes, functions))
        };
        self.debug.get_or_init(read).as_ref()
    }
}
