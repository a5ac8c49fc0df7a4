//! The ELF reader: pure functions over `&[u8]`.
//!
//! The reader is a thin layer over the `object` crate, which checks every offset. The bytes are a
//! file, or the memory image of a module that has no file (the vDSO), where data is at its address.
//!
//! # Invariants
//! - Addresses are SVMAs, as stated in the file. [`Elf::bias`] converts them to AVMAs.
//! - Missing or damaged section headers are not an error: everything needed is found through
//!   segments.
//!
//! # Does not
//! - read files, resolve names, or relocate.

#![deny(unsafe_code)]

mod definitions;
mod dynamic;
mod function_bounds;
mod gnu_hash;
mod packed;
mod pclntab;
mod relocated_words;
mod relocation;
mod segment;
mod symbols;
mod thread_local;
mod tls_location;

use std::fmt;
use std::ops::Range;

use object::LittleEndian;
use object::elf::{
    self, ET_DYN, FileHeader64, PT_GNU_EH_FRAME, PT_INTERP, PT_LOAD, PT_NOTE, ProgramHeader64,
    ProgramType, SHF_COMPRESSED, SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB, STT_FUNC, STT_GNU_IFUNC,
    STT_OBJECT,
};
use object::read::elf::{
    FileHeader, NoteIterator, ProgramHeader, SectionHeader, SectionTable, Sym,
};

pub use definitions::{Definition, Definitions};
pub use function_bounds::{functions_around, largest_gap};
pub use packed::unpack;
pub use pclntab::pclntab as probe_pclntab;
pub use pclntab::{GoFunction, GoLocation, Pclntab, PclntabLocation, Values};
pub use segment::LoadSegment;
use symbols::{Symbol, Symbols};
pub use thread_local::probe as probe_thread_local;
pub use thread_local::{ThreadLocals, TlsAccess};
pub use tls_location::resolve_tls;

/// The reason why bytes are not a usable ELF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElfError {
    /// The bytes have no ELF magic.
    NotElf,
    /// The file has another class or byte order than 64-bit little-endian.
    Class,
    /// The headers point outside the bytes.
    Headers,
    /// The file has no segment to load.
    NoSegments,
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotElf => "not an ELF file",
            Self::Class => "not a 64-bit little-endian ELF file",
            Self::Headers => "ELF headers point outside the file",
            Self::NoSegments => "ELF file without loadable segments",
        })
    }
}

impl std::error::Error for ElfError {}

/// The translation of an SVMA to a position in the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    File,
    /// The image starts at this SVMA.
    Image(u64),
}

/// A section with contents.
#[derive(Debug, Clone, Copy)]
pub struct Section<'a> {
    /// The address, 0 for sections that are not loaded.
    pub svma: u64,
    /// The contents.
    pub data: &'a [u8],
}

/// A parsed ELF file or image.
#[derive(Debug, Clone)]
pub struct Elf<'a> {
    bytes: &'a [u8],
    layout: Layout,
    header: &'a FileHeader64<LittleEndian>,
    program: &'a [ProgramHeader64<LittleEndian>],
    sections: Option<SectionTable<'a, FileHeader64<LittleEndian>>>,
    loads: Vec<LoadSegment>,
}

/// Returns a build id, or a part of one, in the text form of tools and file names.
pub fn build_id_text(build_id: &[u8]) -> String {
    build_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether the bytes start with the ELF magic.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(&elf::ELFMAG)
}

const LE: LittleEndian = LittleEndian;
/// The owner of the note that Go's linker writes.
const ELF_NOTE_GO: &[u8] = b"Go";
const NT_GO_BUILD_ID: u32 = 4;

impl<'a> Elf<'a> {
    /// Parses the headers of a file.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ElfError> {
        Self::read(bytes, false)
    }

    /// Parses the headers of a memory image that starts at the module's first segment.
    pub fn parse_image(bytes: &'a [u8]) -> Result<Self, ElfError> {
        Self::read(bytes, true)
    }

    fn read(bytes: &'a [u8], image: bool) -> Result<Self, ElfError> {
        if !is_elf(bytes) {
            return Err(ElfError::NotElf);
        }
        if bytes.get(4..6) != Some(&[elf::ELFCLASS64.0, elf::ELFDATA2LSB.0]) {
            return Err(ElfError::Class);
        }
        let header = FileHeader64::<LittleEndian>::parse(bytes).map_err(|_| ElfError::Headers)?;
        let program = header.program_headers(LE, bytes).map_err(|_| ElfError::Headers)?;
        let mut loads: Vec<LoadSegment> = program
            .iter()
            .filter(|segment| segment.p_type(LE) == PT_LOAD)
            .map(LoadSegment::new)
            .collect();
        loads.sort_by_key(|load| load.svma);
        let first = loads.first().ok_or(ElfError::NoSegments)?;
        let layout =
            if image { Layout::Image(first.svma - first.svma % 4096) } else { Layout::File };
        // The memory image of a module may be without its section headers.
        let sections = if image { None } else { header.sections(LE, bytes).ok() };
        Ok(Self { bytes, layout, header, program, sections, loads })
    }

    /// Returns the loaded segments, by address.
    pub fn loads(&self) -> &[LoadSegment] {
        &self.loads
    }

    /// Returns the address of the program's first instruction (SVMA).
    pub fn entry(&self) -> u64 {
        self.header.e_entry(LE)
    }

    /// Returns the machine (`EM_*`).
    pub fn machine(&self) -> u16 {
        self.header.e_machine(LE).0
    }

    /// Whether the file is position independent: a shared object or a PIE.
    pub fn is_dynamic(&self) -> bool {
        self.header.e_type(LE) == ET_DYN
    }

    /// Returns whether the file is a program that requests musl's loader.
    pub fn is_of_musl(&self) -> bool {
        let is_musl = |path: &str| path.rsplit('/').next().is_some_and(|it| it.contains("-musl"));
        self.interpreter().is_some_and(is_musl)
    }

    /// Returns the number to subtract, wrapping, from an AVMA for its SVMA. `start` and
    /// `file_offset` say where a mapping of the file starts in memory and in the file.
    pub fn bias(&self, start: u64, file_offset: u64, exec: bool) -> Option<u64> {
        let fits = |load: &&LoadSegment| load.maps(file_offset);
        let load = self
            .loads
            .iter()
            .filter(fits)
            .find(|load| load.exec == exec)
            .or_else(|| self.loads.iter().find(fits))?;
        let svma = load.svma.wrapping_sub(load.file_offset).wrapping_add(file_offset);
        Some(start.wrapping_sub(svma))
    }

    /// Returns the file offset of an address that a segment loads from the file.
    pub fn file_offset(&self, svma: u64) -> Option<u64> {
        self.loads.iter().find_map(|load| load.file_offset_of(svma))
    }

    /// Returns the address of a file offset, from the first executable segment that contains it, or
    /// else from another segment.
    pub fn svma(&self, file_offset: u64) -> Option<u64> {
        let of = |exec: bool| {
            let mut loads = self.loads.iter().filter(move |load| load.exec == exec);
            loads.find_map(|load| load.svma_of(file_offset))
        };
        of(true).or_else(|| of(false))
    }

    /// Returns the bytes from an address to the end of its segment's contents.
    pub fn data(&self, svma: u64) -> Option<&'a [u8]> {
        let load = self.loads.iter().find(|load| load.file_offset_of(svma).is_some())?;
        let rest = load.svma.checked_add(load.file_len)?.checked_sub(svma)?;
        let from = match self.layout {
            Layout::File => load.file_offset_of(svma)?,
            Layout::Image(base) => svma.checked_sub(base)?,
        };
        let from = self.bytes.get(usize::try_from(from).ok()?..)?;
        // For a truncated file, these are the bytes that it contains.
        Some(&from[..from.len().min(usize::try_from(rest).ok()?)])
    }

    /// Returns the address ranges of the code in the file.
    pub fn code(&self) -> impl Iterator<Item = Range<u64>> {
        self.loads.iter().filter(|load| load.exec).filter_map(|load| {
            let len = self.data(load.svma)?.len() as u64;
            Some(load.svma..load.svma.checked_add(len)?)
        })
    }

    /// Returns the smallest range with all the code in the file.
    pub fn code_range(&self) -> Option<Range<u64>> {
        self.code().reduce(|all, next| all.start.min(next.start)..all.end.max(next.end))
    }

    /// Returns a section by name, if it has contents that are not compressed.
    pub fn section(&self, name: &str) -> Option<Section<'a>> {
        let (_, header) = self.sections?.section_by_name(LE, name.as_bytes())?;
        if header.sh_type(LE) == SHT_NOBITS || header.sh_flags(LE).0 & SHF_COMPRESSED.0 != 0 {
            return None;
        }
        Some(Section { svma: header.sh_addr(LE), data: header.data(LE, self.bytes).ok()? })
    }

    /// Returns the start addresses of the functions that have symbols, sorted.
    pub fn function_symbols(&self) -> Vec<u64> {
        let Some(sections) = &self.sections else { return Vec::new() };
        let tables = [SHT_SYMTAB, SHT_DYNSYM].map(|kind| sections.symbols(LE, self.bytes, kind));
        let symbols = tables.iter().flatten().flat_map(|table| table.iter());
        let is_function = |kind| kind == STT_FUNC || kind == STT_GNU_IFUNC;
        let functions = symbols.filter(|symbol| is_function(symbol.st_type()));
        let mut starts: Vec<u64> = functions.map(|symbol| symbol.st_value(LE)).collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// Returns the start addresses of the functions whose names begin like this, sorted.
    pub fn functions_beginning(&self, beginning: &str) -> Vec<u64> {
        let symbols = Symbols::all(self).iter();
        let functions = symbols.filter(|it| it.is_defined && it.begins_with(beginning));
        let mut starts: Vec<u64> = functions.map(|symbol| symbol.value).collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// Returns the address of `.eh_frame_hdr`, from its program header.
    pub fn eh_frame_hdr(&self) -> Option<u64> {
        self.segment(PT_GNU_EH_FRAME).map(|segment| segment.p_vaddr(LE))
    }

    /// Returns the path of the loader that the file names.
    pub fn interpreter(&self) -> Option<&'a str> {
        let segment = self.segment(PT_INTERP)?;
        let path = self.data(segment.p_vaddr(LE))?;
        let path = path.get(..path.len().min(usize::try_from(segment.p_filesz(LE)).ok()?))?;
        std::str::from_utf8(path.split(|byte| *byte == 0).next()?).ok()
    }

    /// Returns the address (SVMA) of a dynamic symbol with this name and length in bytes.
    pub fn variable(&self, name: &str, len: u64) -> Option<u64> {
        let is_it = |symbol: &Symbol<'_>| {
            let is_right = symbol.kind == STT_OBJECT.0 && symbol.is_defined && symbol.len == len;
            is_right && symbol.is_named(name)
        };
        Symbols::exported(self).iter().find(is_it).map(|symbol| symbol.value)
    }

    /// Returns the first program header of a kind.
    fn segment(&self, kind: ProgramType) -> Option<&'a ProgramHeader64<LittleEndian>> {
        self.program.iter().find(|segment| segment.p_type(LE) == kind)
    }

    /// Returns the build id, from the note segments or, without them, the note section.
    pub fn build_id(&self) -> Option<&'a [u8]> {
        let section = self.section(".note.gnu.build-id").map(|section| (4, section.data));
        let mut notes = self.notes().chain(section);
        notes.find_map(|(align, data)| {
            note_in(align, data, elf::ELF_NOTE_GNU, elf::NT_GNU_BUILD_ID.0)
        })
    }

    /// Whether Go's linker made the file: it has Go's note, which `-buildid=` leaves out, or the
    /// section of Go's table.
    pub fn is_go(&self) -> bool {
        let mut notes = self.notes();
        notes.any(|(align, data)| note_in(align, data, ELF_NOTE_GO, NT_GO_BUILD_ID).is_some())
            || pclntab::SECTIONS.iter().any(|name| self.section(name).is_some())
    }

    /// Returns the alignment and contents of each note segment.
    fn notes(&self) -> impl Iterator<Item = (u64, &'a [u8])> {
        let segments = self.program.iter().filter(|segment| segment.p_type(LE) == PT_NOTE);
        segments.filter_map(|segment| {
            let data = self.data(segment.p_vaddr(LE))?;
            let length = usize::try_from(segment.p_filesz(LE)).ok()?;
            Some((segment.p_align(LE), data.get(..length)?))
        })
    }
}

/// Returns the contents of a note with this owner and type.
fn note_in<'a>(align: u64, data: &'a [u8], owner: &[u8], kind: u32) -> Option<&'a [u8]> {
    let mut notes = NoteIterator::<FileHeader64<LittleEndian>>::new(LE, align, data).ok()?;
    while let Ok(Some(note)) = notes.next() {
        if note.name() == owner && note.n_type(LE).0 == kind {
            return Some(note.desc());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn addresses_and_offsets_lead_to_each_other() {
        let bytes = own();
        let elf = Elf::parse(&bytes).unwrap();
        let text = elf.section(".text").unwrap();
        let offset = elf.file_offset(text.svma).unwrap();
        assert_eq!(elf.svma(offset), Some(text.svma));
        assert_eq!(elf.data(text.svma).unwrap()[..64], text.data[..64]);
        assert_eq!(bytes[offset as usize..][..64], text.data[..64]);
        assert_eq!(elf.file_offset(u64::MAX), None);
        assert!(elf.data(u64::MAX).is_none());
    }

    #[test]
    fn bias_leads_from_a_mapping_of_this_program_to_its_code() {
        let bytes = own();
        let elf = Elf::parse(&bytes).unwrap();
        let program = std::env::current_exe().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let code =
            |line: &&str| line.contains(" r-xp ") && line.ends_with(program.to_str().unwrap());
        let line = maps.lines().find(code).unwrap();
        let fields: Vec<&str> = line.split_whitespace().collect();
        let start = u64::from_str_radix(fields[0].split('-').next().unwrap(), 16).unwrap();
        let file_offset = u64::from_str_radix(fields[2], 16).unwrap();
        let bias = elf.bias(start, file_offset, true).unwrap();
        let function = addresses_and_offsets_lead_to_each_other as fn() as usize as u64;
        let text = elf.section(".text").unwrap();
        let svma = function.wrapping_sub(bias);
        assert!((text.svma..text.svma + text.data.len() as u64).contains(&svma), "{svma:#x}");
        assert!(bias.is_multiple_of(4096));
        assert_eq!(elf.bias(start, 1 << 40, true), None);
    }

    #[test]
    fn build_id_is_that_of_the_section() {
        let bytes = std::fs::read("/proc/self/exe").unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        let Some(section) = elf.section(".note.gnu.build-id") else {
            eprintln!("skipped: this program was linked without a build id");
            return;
        };
        // A header of 12 bytes, then "GNU\0", then the id.
        assert_eq!(elf.build_id(), Some(&section.data[16..]));
    }

    #[test]
    fn bytes_that_are_not_elf_are_refused_with_the_reason() {
        let mut bytes = own();
        let error = |bytes: &[u8]| Elf::parse(bytes).err();
        assert_eq!(error(b""), Some(ElfError::NotElf));
        assert_eq!(error(b"#!/bin/sh\n"), Some(ElfError::NotElf));
        assert_eq!(error(&bytes[..32]), Some(ElfError::Headers));
        bytes[4] = 1;
        assert_eq!(error(&bytes), Some(ElfError::Class));
        bytes[4] = 2;
        // No program headers.
        bytes[56..58].fill(0);
        assert_eq!(error(&bytes), Some(ElfError::NoSegments));
    }
}
