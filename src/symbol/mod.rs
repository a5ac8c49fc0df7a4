//! Names for addresses: function, file, line and inlined calls of an SVMA (address in the file).
//!
//! The engine is blazesym, one instance per ELF file and always through a descriptor that the
//! recorder kept, so names survive the target's exit, upgrades of its files and the teardown of its
//! container. This module is the only user of the blazesym crate.
//!
//! Debug information comes from the file itself, from its `.gnu_debuglink` (checksum compared), or,
//! by build id, from `.build-id` below the debug directories and from the cache that debuginfod
//! clients keep.
//!
//! # Invariants
//! - A symbol names only addresses within its size. A symbol without a size reaches up to the next
//!   symbol, and never out of its own section (else `_init` would own every PLT stub).
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
mod guard;
mod name;
mod outline;
mod plt;
mod resolved;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use elf_file::ElfFile;
pub use engine::DebugSource;
pub use resolved::{Function, Inlined, Resolved};

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
        self.engines.entry(elf.identity()).or_insert_with(|| Engine::open(elf)).resolve(svmas)
    }

    /// Drops everything that was parsed of this file.
    pub fn forget(&mut self, elf: &ElfFile) {
        self.engines.remove(&elf.identity());
    }
}
