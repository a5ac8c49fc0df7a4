//! The reasons why a module cannot be compiled.

use std::fmt;

use traceprof_elf::ElfError;

/// The reason why a module has no unwind table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompileError {
    /// The ELF headers are unusable.
    Elf(ElfError),
    /// The module is for another machine (`EM_*`).
    Machine(u16),
    /// The module has no executable segment with contents.
    NoCode,
    /// The executable segments span too many bytes.
    Span(u64),
}

impl From<ElfError> for CompileError {
    fn from(error: ElfError) -> Self {
        Self::Elf(error)
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elf(error) => error.fmt(f),
            Self::Machine(machine) => {
                write!(f, "ELF file for machine {machine}, not {}", std::env::consts::ARCH)
            }
            Self::NoCode => f.write_str("ELF file without executable code"),
            Self::Span(bytes) => write!(f, "executable segments span {bytes} bytes"),
        }
    }
}

impl std::error::Error for CompileError {}
