//! Names for addresses: function, file, line and inlined calls of an SVMA (address in the file).
//!
//! The engine is blazesym, one instance per ELF file and always through a descriptor that the
//! recorder kept, so names survive the target's exit, upgrades of its files and the teardown of its
//! container. What is spread over several files (split DWARF, and what `dwz` put aside) is read by
//! addr2line, which asks for each piece. This module is the only user of both crates.
//!
//! Go programs name their functions, lines and inlined calls themselves, stripped or not, in a table
//! that is asked first.
//!
//! Debug information comes from the file itself or, by build id, from `.build-id` below the debug
//! directories and from the cache that debuginfod clients keep; or from where its `.gnu_debuglink`
//! leads (build id or checksum compared); all of it on this system and on the target's. Where that
//! is wanted, servers are asked last. Names alone come from the symbol tables, compressed ones
//! (`.gnu_debugdata`) included.
//!
//! # Invariants
//! - A symbol names only addresses within its size. A symbol without a size reaches up to the next
//!   symbol, and never out of its own section (else `_init` would own every PLT stub).
//! - All debug files together take a bounded part of the memory; who was asked for first keeps its own.
//! - ELF and DWARF are untrusted: an absurd claim, an error or a panic of a parser costs names, not
//!   the recording.
//! - Names are at most 4096 bytes and hold no control characters.
//!
//! # Does not
//! It does not know mappings or load biases, does not subtract one from return addresses, and does
//! not invent names: `[module+0x1234]` is the caller's job.

mod debug_file;
mod elf_file;
mod engine;
mod exported;
mod fetcher;
mod go;
mod guard;
mod jit;
mod name;
mod outline;
mod parser;
mod pieces;
mod plt;
#[cfg(any(test, fuzzing))]
pub mod probe;
mod resolved;
mod room;
mod roomy;
mod small;
mod spread;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use elf_file::{DebugFiles, ElfFile, System};
pub use engine::NamesKnown;
pub use fetcher::{DEBUGINFOD_SERVERS, Fetcher};
pub use jit::{CodeReader, FoundCode, JitCode, JitDump, PerfMap};
pub use resolved::{Function, Inlined, Resolved};
pub use room::Room;

use elf_file::Identity;
use engine::Engine;

/// Resolves addresses, keeping what it parsed of each ELF file until told to forget it.
#[derive(Default)]
pub struct Symbolizer {
    engines: HashMap<Identity, Engine>,
}

impl Symbolizer {
    /// A symbolizer that has parsed nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Resolves each address; the answer has one entry per address, in the same order.
    ///
    /// For a caller's frame hand in the return address minus one, or the line is that of the
    /// statement after the call.
    pub fn resolve(&mut self, elf: &ElfFile, svmas: &[u64]) -> Vec<Resolved> {
        if svmas.is_empty() {
            return Vec::new();
        }
        self.engines.entry(elf.identity()).or_insert_with(|| Engine::open(elf)).resolve(elf, svmas)
    }

    /// Where the names of a file that was asked for come from, for people.
    pub fn source(&self, elf: &ElfFile) -> Option<String> {
        self.engines.get(&elf.identity()).map(Engine::source)
    }

    /// Drops everything that was parsed of this file.
    pub fn forget(&mut self, elf: &ElfFile) {
        self.engines.remove(&elf.identity());
    }
}
