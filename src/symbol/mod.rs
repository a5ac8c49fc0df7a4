//! Names for addresses: function, file, line and inlined calls of an SVMA (address in the file).
//!
//! blazesym reads most files: one instance per ELF file, always through a descriptor that the
//! recorder kept. So names survive the target's exit, upgrades of its files and the removal of its
//! container. addr2line reads debug information in several files (split DWARF and the supplementary
//! files of `dwz`). Only this module uses these two crates.
//!
//! Go programs contain a table of their functions, lines and inlined calls, stripped or not. It is
//! asked first.
//!
//! Debug information comes from the file itself, from `.build-id` below the debug directories, from
//! the cache of debuginfod clients, or from the path in `.gnu_debuglink` (build id or checksum
//! compared). All of these are searched on this system and on the target's. Servers are asked last,
//! and only if the user enables it. Names alone come from the symbol tables, including compressed
//! ones (`.gnu_debugdata`).
//!
//! # Invariants
//! - A symbol names only addresses within its size. A symbol without a size extends to the next
//!   symbol, but never beyond its own section (else `_init` would cover every PLT stub).
//! - All debug files together use a bounded amount of memory. The first files keep theirs.
//! - All holders of an open file share its parsed data. The parsed data of a few files that are no
//!   longer open is kept.
//! - ELF and DWARF are untrusted: an absurd value, or an error or panic of a parser, costs names,
//!   not the recording.
//! - Names are at most 4096 bytes long and contain no control characters.
//!
//! # Does not
//! It does not know mappings or load biases, does not subtract one from return addresses, and does
//! not invent names: the caller writes `[module+0x1234]`.

mod budgeted_source;
mod debug_file;
mod dwo_files;
mod dynamic_symbols;
mod elf_file;
mod elf_headers;
mod fetcher;
mod file_symbolizer;
#[cfg(any(test, fuzzing))]
pub mod fuzz_entry;
mod go;
mod jit;
mod memory_budget;
mod mini_debug_info;
mod name;
mod panic_guard;
mod parser;
mod plt;
mod resolved;
pub mod source_map;
mod split_dwarf;
mod symbol_table;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Weak;

pub use elf_file::{DebugFiles, ElfFile, ParsedFileKey, System};
pub use fetcher::{DEBUGINFOD_SERVERS, Fetcher};
pub use file_symbolizer::NamesKnown;
pub use jit::{CodeReader, FoundCode, JitCode, JitDump, PerfMap};
pub use memory_budget::MemoryBudget;
pub use resolved::{Inlined, Resolved, ResolvedFunction};
pub use symbol_table::SymbolTable;

use file_symbolizer::FileSymbolizer;

/// Maximum number of files that keep their parsed data although they are no longer open.
const UNUSED_MAX: usize = 4;

/// Resolves addresses. It keeps the parsed data of each ELF file while the file is open.
#[derive(Default)]
pub struct Symbolizer {
    engines: HashMap<ParsedFileKey, ParsedFile>,
    /// The number of calls of [`Symbolizer::resolve`].
    asked: u64,
}

/// The parsed data of a file.
struct ParsedFile {
    engine: FileSymbolizer,
    /// The open files that share the data.
    users: Vec<Weak<()>>,
    /// The number of the last call that used the data.
    asked: u64,
}

impl ParsedFile {
    fn is_used(&self) -> bool {
        self.users.iter().any(|it| it.strong_count() > 0)
    }

    fn note(&mut self, elf: &ElfFile, asked: u64) {
        self.asked = asked;
        let user = elf.holder();
        if !self.users.iter().any(|it| it.ptr_eq(&user)) {
            self.users.retain(|it| it.strong_count() > 0);
            self.users.push(user);
        }
    }
}

impl Symbolizer {
    /// Creates a symbolizer that has parsed nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Resolves each address. The answer has one entry per address, in the same order.
    ///
    /// For a caller's frame, pass the return address minus one. Otherwise the line is that of the
    /// statement after the call.
    pub fn resolve(&mut self, elf: &ElfFile, svmas: &[u64]) -> Vec<Resolved> {
        if svmas.is_empty() {
            return Vec::new();
        }
        let key = elf.key();
        if !self.engines.contains_key(&key) {
            self.tidy();
        }
        self.asked += 1;
        let new = || ParsedFile { engine: FileSymbolizer::open(elf), users: Vec::new(), asked: 0 };
        let kept = self.engines.entry(key).or_insert_with(new);
        kept.note(elf, self.asked);
        kept.engine.resolve(elf, svmas)
    }

    /// Returns a description of where the names of a file come from, or `None` before its first
    /// address.
    pub fn source(&self, elf: &ElfFile) -> Option<String> {
        self.engines.get(&elf.key()).map(|kept| kept.engine.source())
    }

    /// Drops all parsed data of this file.
    pub fn forget(&mut self, elf: &ElfFile) {
        self.engines.remove(&elf.key());
    }

    /// Drops the parsed data of files that are no longer open, except the most recent ones.
    fn tidy(&mut self) {
        let unused = self.engines.iter().filter(|(_, kept)| !kept.is_used());
        let mut unused: Vec<(u64, ParsedFileKey)> =
            unused.map(|(key, kept)| (kept.asked, *key)).collect();
        unused.sort_unstable_by_key(|(asked, _)| std::cmp::Reverse(*asked));
        for (_, key) in unused.into_iter().skip(UNUSED_MAX) {
            self.engines.remove(&key);
        }
    }
}
