//! Names from debug information in several files: split DWARF and the supplementary files of `dwz`.
//!
//! The linker leaves split units where the compiler put them: in one `.dwo` per unit, or in `.dwp`
//! packages. blazesym finds only a package next to the file, by a path that a descriptor does not
//! have, and no `.dwo`. It also has no names for inlined calls in a supplementary file. addr2line
//! asks for each file when it needs it.
//!
//! # Invariants
//! - A file is used only if it has the identifier that the program's own part of the unit states.
//! - Files come from the target's own system, and only a bounded number of their bytes is kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::{Context, Frame, LookupContinuation, LookupResult};
use gimli::constants::DW_AT_GNU_dwo_id;
use gimli::{DebugAbbrev, DebugInfo, EndianSlice, LittleEndian, UnitOffset, UnitType};
use object::{CompressionFormat, Object, ObjectSection};

use super::debug_file::DebugSource;
use super::dwo_files::{DwoFiles, LEN_MAX, SectionBytes};
use super::elf_headers::ElfHeaders;
use super::memory_budget::MemoryBudget;
use super::name::readable;
use super::panic_guard::TimeBudget;
use super::parser::NameSource;
use super::resolved::{Inlined, ResolvedFunction};
use super::{ElfFile, Resolved};
use crate::elf::unpack;
use crate::proc;
use crate::text::printable;

/// Maximum nesting of inlined calls. Deeper nesting is invalid.
const DEPTH_MAX: usize = 256;
/// The section that indicates split units. Programs without split units have it only with DWARF 5
/// and some compilers.
const SIGN: &str = ".debug_addr";
/// The section that names the supplementary file.
const PUT_ASIDE: &str = ".gnu_debugaltlink";

/// The names of a program whose debug information is spread over several files.
pub(super) struct SplitDwarf {
    path: PathBuf,
    pieces: Option<DwoFiles>,
    units: Option<Box<LoadedUnits>>,
    allowance: TimeBudget,
    missing: MissingFiles,
    budget: Arc<MemoryBudget>,
}

/// Files that were not found or not read.
#[derive(Debug, Clone, Copy, Default)]
struct MissingFiles {
    /// Number of units whose pieces are missing.
    units: usize,
    /// Whether the supplementary file of `dwz` is missing.
    supplement: bool,
    /// Whether the memory budget was too small.
    budget: bool,
}

/// The loaded debug information of a program.
struct LoadedUnits {
    context: Context<SectionBytes>,
    pieces: DwoFiles,
    missing: MissingFiles,
}

impl SplitDwarf {
    /// Opens a file whose debug information is at this path, if other files contain a part of it.
    pub(super) fn find(elf: &ElfFile, debug: &DebugSource, path: PathBuf) -> Option<Self> {
        let mut allowance = TimeBudget::default();
        let budget = Arc::clone(&elf.debug_files().budget);
        let is_spread = allowance.spend(|| is_spread(&path, &budget)).flatten()?;
        let debug_file = match debug {
            DebugSource::Own => None,
            DebugSource::Separate(file) => Some(file.path.as_path()),
        };
        is_spread.then(|| {
            let pieces =
                DwoFiles::of(Arc::clone(elf.debug_files()), Path::new(elf.path()), debug_file);
            let (pieces, units, missing) = (Some(pieces), None, MissingFiles::default());
            Self { path, pieces, units, allowance, missing, budget }
        })
    }
}

impl NameSource for SplitDwarf {
    fn resolve(&mut self, _: &ElfHeaders, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        // Neither value is put back after an error: then there is nothing to resolve with.
        let mut units = match (self.units.take(), self.pieces.take()) {
            (Some(units), _) => units,
            (None, pieces) => {
                let (pieces, path) = (pieces?, &self.path);
                let (units, missing) =
                    self.allowance.spend(move || LoadedUnits::open(pieces, path))?;
                self.missing = missing;
                units?
            }
        };
        let mut answers = Vec::with_capacity(svmas.len());
        for &svma in svmas {
            if self.allowance.is_spent() {
                answers.resize(svmas.len(), None);
                return Some(answers);
            }
            let (again, answer) = self.allowance.spend(move || {
                let answer = units.resolve(svma);
                (units, answer)
            })?;
            units = again;
            answers.push(answer);
        }
        self.missing = units.missing;
        self.units = Some(units);
        Some(answers)
    }

    fn missing(&self) -> Option<String> {
        let MissingFiles { units, supplement, budget } = self.missing;
        if budget {
            return Some(self.budget.missing());
        }
        let files = if units == 1 { "file" } else { "files" };
        let pieces = (units > 0).then(|| format!("without {units} split {files} (.dwo)"));
        pieces.or_else(|| supplement.then(|| "without what dwz put aside".to_owned()))
    }
}

impl LoadedUnits {
    /// Opens the debug information, and returns the files that are already known to be missing.
    fn open(mut pieces: DwoFiles, path: &Path) -> (Option<Box<Self>>, MissingFiles) {
        let own = pieces.own(path).ok();
        let supplement = own.as_ref().is_some_and(|own| own.is_supplement_missing);
        let missing = MissingFiles { units: 0, supplement, budget: pieces.is_over_budget };
        let context = own.and_then(|own| Context::from_dwarf(own.dwarf).ok());
        (context.map(|context| Box::new(Self { context, pieces, missing })), missing)
    }

    fn resolve(&mut self, svma: u64) -> Option<Resolved> {
        let Self { context, pieces, missing } = self;
        let mut lookup = context.find_frames(svma);
        let mut frames = loop {
            lookup = match lookup {
                LookupResult::Output(frames) => break frames.ok()?,
                LookupResult::Load { load, continuation } => {
                    let piece = pieces.find(&load);
                    missing.units += usize::from(piece.is_none());
                    missing.budget |= pieces.is_over_budget;
                    continuation.resume(piece.map(Arc::new))
                }
            };
        };
        let mut found = Vec::new();
        while found.len() < DEPTH_MAX
            && let Some(frame) = frames.next().ok()?
        {
            found.push(frame);
        }
        let (physical, inlined) = found.split_last()?;
        let start_svma = start(context, svma, physical.dw_die_offset?)?;
        let function = ResolvedFunction { name: name(physical)?, start_svma };
        let (file, line) = position(physical);
        let inlined = inlined.iter().rev().map(|frame| {
            let (file, line) = position(frame);
            Some(Inlined { name: name(frame)?, file, line })
        });
        let inlined = inlined.collect::<Option<_>>()?;
        Some(Resolved { function: Some(function), file, line, inlined })
    }
}

/// Returns the start of the function's range that contains an address.
fn start(context: &Context<SectionBytes>, svma: u64, function: UnitOffset) -> Option<u64> {
    // All needed files are loaded.
    let unit = context.find_dwarf_and_unit(svma).skip_all_loads()?;
    let mut ranges = unit.die_ranges(&unit.entry(function).ok()?).ok()?;
    while let Some(range) = ranges.next().ok()? {
        if (range.begin..range.end).contains(&svma) {
            return Some(range.begin);
        }
    }
    None
}

fn name(frame: &Frame<'_, SectionBytes>) -> Option<String> {
    let name = frame.function.as_ref()?.raw_name().ok()?;
    (!name.is_empty()).then(|| readable(&name))
}

fn position(frame: &Frame<'_, SectionBytes>) -> (Option<String>, u32) {
    let Some(location) = &frame.location else { return (None, 0) };
    (location.file.map(printable), location.line.unwrap_or(0))
}

/// Returns whether a unit of a file is split or refers to a supplementary file. Returns `None` for
/// an invalid file.
fn is_spread(path: &Path, budget: &Arc<MemoryBudget>) -> Option<bool> {
    let map = proc::map_file(std::fs::File::open(path).ok()?).ok()?;
    let elf = object::File::parse(&*map).ok()?;
    if elf.section_by_name(PUT_ASIDE).is_some() {
        return Some(true);
    }
    if elf.section_by_name(SIGN).is_none() {
        return Some(false);
    }
    let section = |name: &str| {
        let packed = elf.section_by_name(name)?.compressed_data().ok()?;
        let is_packed = packed.format != CompressionFormat::None;
        let taken = budget.take(if is_packed { packed.uncompressed_size } else { 0 })?;
        // The pieces of a larger section could not be kept either.
        Some((unpack(packed, LEN_MAX)?, taken))
    };
    let (info, _taken) = section(".debug_info")?;
    let (abbreviations, _taken_too) = section(".debug_abbrev")?;
    let abbreviations = DebugAbbrev::new(&abbreviations, LittleEndian);
    let mut units = DebugInfo::new(&info, LittleEndian).units();
    while let Some(unit) = units.next().ok()? {
        let states_piece = match unit.type_() {
            UnitType::Skeleton(_) => true,
            // Before DWARF 5, an attribute of the unit says so.
            UnitType::Compilation if unit.version() == 4 => {
                states_piece(&unit, &abbreviations).unwrap_or(false)
            }
            _ => false,
        };
        if states_piece {
            return Some(true);
        }
    }
    Some(false)
}

type SliceReader<'a> = EndianSlice<'a, LittleEndian>;

fn states_piece(
    unit: &gimli::UnitHeader<SliceReader<'_>>,
    abbreviations: &DebugAbbrev<SliceReader<'_>>,
) -> Option<bool> {
    let abbreviations = unit.abbreviations(abbreviations).ok()?;
    let mut entries = unit.entries(&abbreviations);
    let root = entries.next_dfs().ok()??;
    Some(root.attr_value(DW_AT_GNU_dwo_id).is_some())
}
