//! The embedded agent image and its layout in the code segment.
//!
//! # Invariants
//! - The target maps the image as one read-only, executable segment. Nothing in the image is
//!   written in the target, whatever its program headers say. The recorder applies relocations
//!   beforehand, in its own copy.
//!
//! # Does not
//! - resolve symbols: the image imports none.

use std::io;

use object::elf::{FileHeader64, PT_LOAD, R_X86_64_RELATIVE, SHT_RELA};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, Sym};
use object::{Endianness, elf};

use crate::proc::Mapping;

/// Aligns the embedded bytes for their ELF structures.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

static IMAGE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/agent.so")));

/// Returns the agent image as built: an ELF shared object.
pub fn bytes() -> &'static [u8] {
    &IMAGE.0
}

/// Whether a mapping is this image, laid out by a recorder of the same version. `read` returns as
/// many bytes as it is asked for, from the start of the mapping.
pub fn is_mapped(mapping: &Mapping, read: impl FnOnce(usize) -> io::Result<Vec<u8>>) -> bool {
    // The first segment starts with the file's own headers, and no relocation changes it.
    let first = first_segment(bytes()).unwrap_or_default();
    mapping.is_system_v_segment()
        && !first.is_empty()
        && read(first.len()).is_ok_and(|found| found == first)
}

fn first_segment(image: &'static [u8]) -> Option<&'static [u8]> {
    let header = FileHeader64::<Endianness>::parse(image).ok()?;
    let endian = Endianness::Little;
    let mut segments = header.program_headers(endian, image).ok()?.iter();
    let loaded = segments.find(|segment| segment.p_type(endian) == PT_LOAD)?;
    loaded.data(endian, image).ok()
}

/// The addresses (AVMA) of the image's symbols in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entries {
    /// The agent's entry, which a chain calls.
    pub entry: u64,
    /// The signal handler.
    pub handler: u64,
    /// The code that returns from a signal handler.
    pub restorer: u64,
}

/// The reason why the image cannot be laid out: the build is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageError {
    /// The image is not an ELF file of the expected kind.
    Malformed,
    /// The image is longer than the code segment.
    TooLong,
    /// The image has a relocation of another type than relative.
    Relocation(u32),
    /// One of the three symbols is missing.
    Symbol(&'static str),
}

impl std::fmt::Display for ImageError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed => write!(out, "the embedded agent image is malformed"),
            Self::TooLong => write!(out, "the embedded agent image exceeds its segment"),
            Self::Relocation(kind) => write!(out, "agent image: relocation of type {kind}"),
            Self::Symbol(name) => write!(out, "agent image: no symbol {name}"),
        }
    }
}

impl std::error::Error for ImageError {}

/// Copies the image into `code` and relocates it to `base`, its address in the target.
pub fn lay_out(code: &mut [u8], base: u64) -> Result<Entries, ImageError> {
    lay_out_image(bytes(), code, base)
}

fn lay_out_image(image: &[u8], code: &mut [u8], base: u64) -> Result<Entries, ImageError> {
    let endian = Endianness::Little;
    let malformed = |_| ImageError::Malformed;
    let header = FileHeader64::<Endianness>::parse(image).map_err(malformed)?;
    for segment in header.program_headers(endian, image).map_err(malformed)? {
        if segment.p_type(endian) != PT_LOAD {
            continue;
        }
        let data = segment.data(endian, image).map_err(|()| ImageError::Malformed)?;
        let start = segment.p_vaddr(endian) as usize;
        let room = code.get_mut(start..).and_then(|room| room.get_mut(..data.len()));
        room.ok_or(ImageError::TooLong)?.copy_from_slice(data);
    }
    let sections = header.sections(endian, image).map_err(malformed)?;
    for section in sections.iter().filter(|s| s.sh_type(endian) == SHT_RELA) {
        let Some((relocations, _)) = section.rela(endian, image).map_err(malformed)? else {
            continue;
        };
        for relocation in relocations {
            relocate(code, base, relocation, endian)?;
        }
    }
    let symbols = sections.symbols(endian, image, elf::SHT_DYNSYM).map_err(malformed)?;
    let find = |name: &'static str| {
        let is_named = |symbol: &&elf::Sym64<Endianness>| {
            symbol.name(endian, symbols.strings()).is_ok_and(|found| found == name.as_bytes())
        };
        let symbol = symbols.iter().find(is_named).ok_or(ImageError::Symbol(name))?;
        Ok(base + symbol.st_value(endian))
    };
    Ok(Entries {
        entry: find("traceprof_entry")?,
        handler: find("traceprof_handler")?,
        restorer: find("traceprof_restorer")?,
    })
}

fn relocate(
    code: &mut [u8],
    base: u64,
    relocation: &elf::Rela64<Endianness>,
    endian: Endianness,
) -> Result<(), ImageError> {
    let kind = relocation.r_type(endian, false);
    if kind != R_X86_64_RELATIVE {
        return Err(ImageError::Relocation(kind.0));
    }
    let place = relocation.r_offset(endian) as usize;
    let word = code.get_mut(place..).and_then(|rest| rest.first_chunk_mut::<8>());
    let value = base.wrapping_add_signed(relocation.r_addend(endian));
    *word.ok_or(ImageError::Malformed)? = value.to_le_bytes();
    Ok(())
}
