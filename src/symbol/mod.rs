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
//! - What was parsed of a file serves all who have it open. When nobody has, it is kept for whoever may
//!   come, of a few files.
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
use std::sync::Weak;

pub use elf_file::{DebugFiles, ElfFile, System};
pub use engine::NamesKnown;
pub use fetcher::{DEBUGINFOD_SERVERS, Fetcher};
pub use jit::{CodeReader, FoundCode, JitCode, JitDump, PerfMap};
pub use resolved::{Function, Inlined, Resolved};
pub use room::Room;

use elf_file::Key;
use engine::Engine;

/// Files that nobody has open any more and of which is kept what was parsed.
const UNUSED_MAX: usize = 4;

/// Resolves addresses, keeping what it parsed of each ELF file until told to forget it, or until nobody
/// has the file any more.
#[derive(Default)]
pub struct Symbolizer {
    engines: HashMap<Key, Kept>,
    /// Questions there were.
    asked: u64,
}

/// What was parsed of a file.
struct Kept {
    engine: Engine,
    /// Who has asked.
    users: Vec<Weak<()>>,
    /// The number of the last question.
    asked: u64,
}

impl Kept {
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
        let key = elf.key();
        if !self.engines.contains_key(&key) {
            self.tidy();
        }
        self.asked += 1;
        let new = || Kept { engine: Engine::open(elf), users: Vec::new(), asked: 0 };
        let kept = self.engines.entry(key).or_insert_with(new);
        kept.note(elf, self.asked);
        kept.engine.resolve(elf, svmas)
    }

    /// Where the names of a file that was asked for come from, for people.
    pub fn source(&self, elf: &ElfFile) -> Option<String> {
        self.engines.get(&elf.key()).map(|kept| kept.engine.source())
    }

    /// Drops everything that was parsed of this file.
    pub fn forget(&mut self, elf: &ElfFile) {
        self.engines.remove(&elf.key());
    }

    /// Drops what was parsed of files that nobody has any more, but for those that were asked for last.
    fn tidy(&mut self) {
        let unused = self.engines.iter().filter(|(_, kept)| !kept.is_used());
        let mut unused: Vec<(u64, Key)> = unused.map(|(key, kept)| (kept.asked, *key)).collect();
        unused.sort_unstable_by_key(|(asked, _)| std::cmp::Reverse(*asked));
        for (_, key) in unused.into_iter().skip(UNUSED_MAX) {
            self.engines.remove(&key);
        }
    }
}
