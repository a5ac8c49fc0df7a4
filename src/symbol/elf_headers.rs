//! Facts from the headers of an ELF file, checked before any parser reads the file.

use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::{CompressionFormat, Object, ObjectSection, ReadCache, SectionFlags, elf};

use super::plt::is_stub_section;

/// The section with a compressed symbol table.
pub(super) const MINI_DEBUG_INFO: &str = ".gnu_debugdata";
/// Maximum unpacked size of a file's compressed sections together. No real file has more.
const UNPACKED_MAX: u64 = 16 << 30;
/// Maximum compression ratio. zlib cannot exceed 1032. zstd can, but not on debug information.
const RATIO_MAX: u64 = 1100;
/// Maximum number of sections: more than any linker emits for a program.
const SECTIONS_MAX: usize = 1 << 20;

/// Facts about an ELF file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ElfHeaders {
    /// Whether there is a `.debug_info`, compressed or not.
    pub has_debug_info: bool,
    /// The name of a separate debug file from `.gnu_debuglink`, and its checksum.
    pub debug_link: Option<(PathBuf, u32)>,
    /// Whether `.gnu_debugdata` contains a compressed symbol table.
    pub has_small_symbols: bool,
    /// Whether there is a `.symtab`.
    pub has_symbols: bool,
    /// The unpacked size of the compressed sections.
    pub packed: Packed,
    /// The GNU build id in the file itself.
    pub build_id: Option<Vec<u8>>,
    /// Address ranges of executable sections, sorted.
    code: Vec<Range<u64>>,
    /// Address ranges of sections of PLT stubs.
    stubs: Vec<Range<u64>>,
}

/// The unpacked size of compressed sections in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Packed {
    /// Bytes of debug information.
    pub debug: u64,
    /// Bytes of all other sections.
    pub other: u64,
}

impl ElfHeaders {
    /// Reads the headers. Returns `None` for a file that is not ELF or has values that no real file
    /// has.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let elf = object::File::parse(&cache).ok()?;
        let mut headers = Self {
            has_debug_info: false,
            debug_link: debug_link(&elf),
            has_small_symbols: false,
            has_symbols: false,
            packed: Packed::default(),
            build_id: elf.build_id().ok().flatten().map(<[u8]>::to_vec),
            code: Vec::new(),
            stubs: Vec::new(),
        };
        for (index, section) in elf.sections().enumerate() {
            if index >= SECTIONS_MAX {
                return None;
            }
            let len = unpacked_len(&section)?;
            let is_debug_info = section.name().is_ok_and(|name| name.starts_with(".debug_"));
            *(if is_debug_info { &mut headers.packed.debug } else { &mut headers.packed.other }) +=
                len;
            if headers.packed.debug.saturating_add(headers.packed.other) > UNPACKED_MAX {
                return None;
            }
            headers.has_debug_info |= section.name() == Ok(".debug_info");
            headers.has_small_symbols |= section.name() == Ok(MINI_DEBUG_INFO);
            headers.has_symbols |= section.name() == Ok(".symtab");
            if let SectionFlags::Elf { sh_flags, .. } = section.flags()
                && sh_flags.0 & elf::SHF_EXECINSTR.0 != 0
                && let Some(end) = section.address().checked_add(section.size())
            {
                headers.code.push(section.address()..end);
                if section.name().is_ok_and(is_stub_section) {
                    headers.stubs.push(section.address()..end);
                }
            }
        }
        headers.code.sort_by_key(|range| range.start);
        Some(headers)
    }

    /// Returns whether two addresses are in the same executable section. Returns false for a file
    /// without section headers.
    pub(super) fn same_section(&self, one: u64, other: u64) -> bool {
        self.code.iter().any(|range| range.contains(&one) && range.contains(&other))
    }

    /// Returns whether an address is in a section of PLT stubs.
    pub(super) fn is_stub(&self, svma: u64) -> bool {
        self.stubs.iter().any(|range| range.contains(&svma))
    }
}

fn debug_link<'data>(elf: &impl Object<'data>) -> Option<(PathBuf, u32)> {
    let (name, checksum) = elf.gnu_debuglink().ok()??;
    let name = PathBuf::from(OsStr::from_bytes(name));
    // A path could lead to another folder.
    (name.components().count() == 1).then_some((name, checksum))
}

/// Returns the unpacked size of a section, 0 if it is not compressed, or `None` if the stated size
/// is absurd.
fn unpacked_len<'data>(section: &impl ObjectSection<'data>) -> Option<u64> {
    let range = section.compressed_file_range().ok()?;
    if range.format == CompressionFormat::None {
        return Some(0);
    }
    let is_plausible = range.uncompressed_size / RATIO_MAX <= range.compressed_size
        && range.uncompressed_size <= UNPACKED_MAX;
    is_plausible.then_some(range.uncompressed_size)
}
