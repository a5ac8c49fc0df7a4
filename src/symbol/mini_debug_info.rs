//! The compressed symbol table that some distributions leave in stripped files (`.gnu_debugdata`).
//!
//! It may unpack to 128 MiB, and stays unpacked in memory while the file's names are in use.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use liblzma::read::XzDecoder;
use liblzma::stream::Stream;
use nix::sys::memfd::{MFdFlags, memfd_create};
use object::{Object, ObjectSection, ReadCache};

use super::elf_headers::{ElfHeaders, MINI_DEBUG_INFO};
use super::memory_budget::{MemoryBudget, ReservedMemory};
use super::parser::{NameSource, Parser};
use super::{Resolved, panic_guard};
use crate::proc::descriptor_path;

/// Maximum unpacked length in bytes. A program of a hundred megabytes has a table of ten.
const LEN_MAX: u64 = 128 << 20;
/// Maximum memory of the decoder in bytes. The strongest preset needs 65 MiB.
const MEMORY_MAX: u64 = 96 << 20;

/// The table of a file. It is unpacked when the first address is resolved.
pub(super) struct MiniDebugInfo {
    path: PathBuf,
    budget: Arc<MemoryBudget>,
    /// The unpacked table, once tried. The inner value is `None` if it cannot be unpacked. The file
    /// stays open while it is read.
    unpacked: Option<Option<Unpacked>>,
    is_over_budget: bool,
}

struct Unpacked {
    parser: Parser,
    _file: File,
    _taken: ReservedMemory,
}

impl MiniDebugInfo {
    /// Creates the table of a file. The unpacked bytes count against the budget.
    pub(super) fn new(path: PathBuf, budget: Arc<MemoryBudget>) -> Self {
        Self { path, budget, unpacked: None, is_over_budget: false }
    }

    fn unpack(&mut self) -> Option<Unpacked> {
        let file = panic_guard::contain(|| read(&self.path)).flatten()?;
        let path = descriptor_path(&file);
        // The unpacked data is an ELF file too, and its headers need the same checks.
        let headers = ElfHeaders::read(&path)?;
        let len = file.metadata().ok()?.len().saturating_add(headers.packed.other);
        let taken = self.budget.take(len);
        self.is_over_budget = taken.is_none();
        Some(Unpacked { parser: Parser::new(path, false), _file: file, _taken: taken? })
    }
}

impl NameSource for MiniDebugInfo {
    fn resolve(&mut self, headers: &ElfHeaders, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        if self.unpacked.is_none() {
            self.unpacked = Some(self.unpack());
        }
        self.unpacked.as_mut()?.as_mut()?.parser.resolve(headers, svmas)
    }

    fn missing(&self) -> Option<String> {
        self.is_over_budget.then(|| self.budget.missing())
    }
}

/// Unpacks the ELF file inside into a file in memory.
fn read(path: &Path) -> Option<File> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let elf = object::File::parse(&cache).ok()?;
    let section = elf.section_by_name(MINI_DEBUG_INFO)?;
    unpack(section.data().ok()?).ok()
}

fn unpack(packed: &[u8]) -> io::Result<File> {
    let stream = Stream::new_stream_decoder(MEMORY_MAX, 0).map_err(io::Error::other)?;
    let mut unpacked = Vec::new();
    XzDecoder::new_stream(packed, stream).take(LEN_MAX + 1).read_to_end(&mut unpacked)?;
    if unpacked.len() as u64 > LEN_MAX {
        return Err(io::Error::other("longer than any symbol table"));
    }
    let mut file = File::from(memfd_create(c"symbols", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(&unpacked)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use liblzma::write::XzEncoder;

    use super::*;

    #[test]
    fn tables_that_unpack_without_end_are_refused() {
        let mut packer = XzEncoder::new(Vec::new(), 1);
        let zeros = vec![0; 1 << 20];
        for _ in 0..=LEN_MAX >> 20 {
            packer.write_all(&zeros).unwrap();
        }
        assert!(unpack(&packer.finish().unwrap()).is_err());
        assert!(unpack(b"no xz at all").is_err());
    }
}
