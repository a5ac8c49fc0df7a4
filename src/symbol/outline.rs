//! The outline of an ELF file: what must be known before a parser is let loose on it.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use object::{CompressionFormat, Object, ObjectSection, ReadCache, SectionFlags, elf};

use super::plt::is_stub_section;

/// No real compressed debug section is larger, and the parser allocates what the header claims.
const UNCOMPRESSED_MAX: u64 = 16 << 30;
/// zlib cannot exceed 1032; zstd can, but not on debug information.
const RATIO_MAX: u64 = 1100;
/// An ELF file with more sections than any linker emits for a program.
const SECTIONS_MAX: usize = 1 << 20;

/// Facts about an ELF file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outline {
    /// `.debug_info` is there, compressed or not.
    pub has_debug_info: bool,
    /// `.gnu_debuglink` names a separate debug file.
    pub has_debug_link: bool,
    /// The GNU build id as the file itself has it.
    pub build_id: Option<Vec<u8>>,
    /// Address ranges of executable sections, sorted.
    code: Vec<Range<u64>>,
    /// Address ranges of sections of PLT stubs.
    stubs: Vec<Range<u64>>,
}

impl Outline {
    /// Reads the headers. `None` for what is no ELF file or makes claims that no real file makes.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let elf = object::File::parse(&cache).ok()?;
        let mut outline = Self {
            has_debug_info: false,
            has_debug_link: false,
            build_id: elf.build_id().ok().flatten().map(<[u8]>::to_vec),
            code: Vec::new(),
            stubs: Vec::new(),
        };
        for (index, section) in elf.sections().enumerate() {
            let plausible = index < SECTIONS_MAX && is_plausible(&section);
            if !plausible {
                return None;
            }
            outline.has_debug_info |= section.name() == Ok(".debug_info");
            outline.has_debug_link |= section.name() == Ok(".gnu_debuglink");
            if let SectionFlags::Elf { sh_flags, .. } = section.flags()
                && sh_flags.0 & elf::SHF_EXECINSTR.0 != 0
                && let Some(end) = section.address().checked_add(section.size())
            {
                outline.code.push(section.address()..end);
                if section.name().is_ok_and(is_stub_section) {
                    outline.stubs.push(section.address()..end);
                }
            }
        }
        outline.code.sort_by_key(|range| range.start);
        Some(outline)
    }

    /// Whether two addresses lie in the same executable section. In a file without section headers
    /// nothing is known, and the answer is no.
    pub(super) fn same_section(&self, one: u64, other: u64) -> bool {
        self.code.iter().any(|range| range.contains(&one) && range.contains(&other))
    }

    /// Whether an address lies among PLT stubs.
    pub(super) fn is_stub(&self, svma: u64) -> bool {
        self.stubs.iter().any(|range| range.contains(&svma))
    }
}

fn is_plausible<'data>(section: &impl ObjectSection<'data>) -> bool {
    let Ok(range) = section.compressed_file_range() else { return false };
    range.format == CompressionFormat::None
        || (range.uncompressed_size <= UNCOMPRESSED_MAX
            && range.uncompressed_size / RATIO_MAX <= range.compressed_size)
}
