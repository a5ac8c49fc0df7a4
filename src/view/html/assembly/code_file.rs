//! A file with machine code, as the trace names it, on this system.
//!
//! # Invariants
//! - Code is only read from a file with the recorded build id.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;
use object::elf::EM_X86_64;

use crate::elf::{Elf, Pclntab, build_id_text, functions_around};
use crate::proc;
use crate::symbol::SymbolTable;
use crate::trace::Module;
use crate::view::text::escape::escaped;

/// Maximum number of bytes of a function's code. The largest functions, generated ones, have less.
const CODE_MAX: u64 = 1 << 20;

/// An ELF file for x86-64 with the recorded build id.
pub(super) struct CodeFile {
    /// The path, escaped.
    shown: String,
    bytes: Mmap,
    functions: SymbolTable,
}

impl CodeFile {
    /// Opens the file of a module, or says why its code is not at hand.
    pub(super) fn open(module: &Module) -> Result<Self, String> {
        let shown = escaped(&module.path).into_owned();
        if !module.path.starts_with('/') {
            return Err(format!("its code is in no file: {shown}"));
        }
        let file = match proc::open_regular(Path::new(&module.path)) {
            Ok(file) => file,
            Err(error) => {
                return Err(match error.kind() {
                    ErrorKind::NotFound => format!("{shown} is not on this system"),
                    ErrorKind::PermissionDenied => format!("{shown} cannot be read by this user"),
                    _ => format!("{shown} cannot be read: {error}"),
                });
            }
        };
        if module.build_id.is_empty() {
            return Err(format!(
                "{shown} has no build id, so nothing tells whether it is the recorded file"
            ));
        }
        let bytes = proc::map_file(&file);
        let bytes = bytes.map_err(|error| format!("{shown} cannot be read: {error}"))?;
        let parsed = Elf::parse(&bytes).map_err(|error| format!("{shown}: {error}"))?;
        let found = parsed.build_id().unwrap_or_default();
        if found != module.build_id {
            let (found, recorded) = (build_id_text(found), build_id_text(&module.build_id));
            let found = if found.is_empty() { "none" } else { &found };
            return Err(format!(
                "{shown} is another file now: its build id is {found}, recorded was {recorded}"
            ));
        }
        if parsed.machine() != EM_X86_64.0 {
            return Err(format!("{shown}: no disassembly for this architecture, only for x86-64"));
        }
        let functions = SymbolTable::read(&bytes);
        Ok(Self { shown, bytes, functions })
    }

    /// Returns the path, escaped.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the bounds of the code around an address: of the function that begins at `start`,
    /// or, if that has several parts, of the part with the address.
    pub(super) fn range(&self, start: u64, svma: u64) -> Result<Range<u64>, String> {
        let elf = Elf::parse(&self.bytes).map_err(|error| format!("{}: {error}", self.shown))?;
        let of_symbol = self.functions.range(start).filter(|range| range.contains(&svma));
        let around = || functions_around(&elf, &[svma]).into_iter().next().flatten();
        let of_go = || {
            let table = Some(&elf).filter(|elf| elf.is_go()).and_then(Pclntab::find)?;
            Some(table.find_function(svma)?.range)
        };
        let range = of_symbol.or_else(around).or_else(of_go).filter(|range| range.contains(&svma));
        let Some(range) = range else {
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
        self.functions.names(&self.bytes, svmas)
    }
}
