//! Names from debug information in several files: split DWARF and the supplementary files of `dwz`.
//!
//! The linker leaves split units where the compiler put them, in a `.dwo` for each unit or in
//! `.dwp` packages. blazesym finds only a package beside the file, by a path that a descriptor does
//! not have, and no `.dwo`. Inlined calls in a supplementary file have no names with it. addr2line
//! asks for each file as it needs it.
//!
//! # Invariants
//! - A file is used only if it carries the identifier that the program's own part of the unit
//!   states.
//! - Files come from the target's own system, and a bounded number of their bytes is kept.

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
use super::name::{printable, readable};
use super::panic_guard::TimeBudget;
use super::parser::NameSource;
use super::resolved::{Function, Inlined};
use super::{ElfFile, Resolved};
use crate::elf::unpack;
use crate::proc;

/// Inlined calls in one another that are believed.
const DEPTH_MAX: usize = 256;
/// Only programs with split units have it, and those of DWARF 5 of some compilers.
const SIGN: &str = ".debug_addr";
/// Says where what was put aside is.
const PUT_ASIDE: &str = ".gnu_debugaltlink";

/// The names of a program whose debug information is spread.
pub(super) struct SplitDwarf {
    path: PathBuf,
    pieces: Option<DwoFiles>,
    units: Option<Box<LoadedUnits>>,
    allowance: TimeBudget,
    lacking: Lacking,
    budget: Arc<MemoryBudget>,
}

/// Files that were not found or not read.
#[derive(Debug, Clone, Copy, Default)]
struct Lacking {
    /// LoadedUnits whose pieces are not there.
    units: usize,
    /// The supplementary file of `dwz`.
    supplement: bool,
    /// There is no budget for it.
    budget: bool,
}

/// The debug information of a program, as far as it is loaded.
struct LoadedUnits {
    context: Context<SectionBytes>,
    pieces: DwoFiles,
    lacking: Lacking,
}

impl SplitDwarf {
    /// Opens a file whose debug information is at this path, if other files hold a part of it.
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
            let (pieces, units, lacking) = (Some(pieces), None, Lacking::default());
            Self { path, pieces, units, allowance, lacking, budget }
        })
    }
}

impl NameSource for SplitDwarf {
    fn resolve(&mut self, _: &ElfHeaders, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        // Neither is put back after a mistake: then there is nothing to say any more.
        let mut units = match (self.units.take(), self.pieces.take()) {
            (Some(units), _) => units,
            (None, pieces) => {
                let (pieces, path) = (pieces?, &self.path);
                let (units, lacking) =
                    self.allowance.spend(move || LoadedUnits::open(pieces, path))?;
                self.lacking = lacking;
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
        self.lacking = units.lacking;
        self.units = Some(units);
        Some(answers)
    }

    fn lack(&self) -> Option<String> {
        let Lacking { units, supplement, budget } = self.lacking;
        if budget {
            return Some(self.budget.lack());
        }
        let files = if units == 1 { "file" } else { "files" };
        let pieces = (units > 0).then(|| format!("without {units} split {files} (.dwo)"));
        pieces.or_else(|| supplement.then(|| "without what dwz put aside".to_owned()))
    }
}

impl LoadedUnits {
    /// Opens the debug information, and says which files are already missing.
    fn open(mut pieces: DwoFiles, path: &Path) -> (Option<Box<Self>>, Lacking) {
        let own = pieces.own(path).ok();
        let supplement = own.as_ref().is_some_and(|own| own.lacks_supplement);
        let lacking = Lacking { units: 0, supplement, budget: pieces.is_over_budget };
        let context = own.and_then(|own| Context::from_dwarf(own.dwarf).ok());
        (context.map(|context| Box::new(Self { context, pieces, lacking })), lacking)
    }

    fn resolve(&mut self, svma: u64) -> Option<Resolved> {
        let Self { context, pieces, lacking } = self;
        let mut lookup = context.find_frames(svma);
        let mut frames = loop {
            lookup = match lookup {
                LookupResult::Output(frames) => break frames.ok()?,
                LookupResult::Load { load, continuation } => {
                    let piece = pieces.find(&load);
                    lacking.units += usize::from(piece.is_none());
                    lacking.budget |= pieces.is_over_budget;
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
        let function = Function { name: name(physical)?, start_svma };
        let (file, line) = place(physical);
        let inlined = inlined.iter().rev().map(|frame| {
            let (file, line) = place(frame);
            Some(Inlined { name: name(frame)?, file, line })
        });
        let inlined = inlined.collect::<Option<_>>()?;
        Some(Resolved { function: Some(function), file, line, inlined })
    }
}

/// Where the part of a function begins that holds an address.
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

fn place(frame: &Frame<'_, SectionBytes>) -> (Option<String>, u32) {
    let Some(location) = &frame.location else { return (None, 0) };
    (location.file.map(printable), location.line.unwrap_or(0))
}

/// Whether a unit of a file is split, or something put aside; `None` for a file that makes no
/// sense.
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
        // The pieces of a larger one could not be kept either.
        Some((unpack(packed, LEN_MAX)?, taken))
    };
    let (info, _taken) = section(".debug_info")?;
    let (abbreviations, _taken_too) = section(".debug_abbrev")?;
    let abbreviations = DebugAbbrev::new(&abbreviations, LittleEndian);
    let mut units = DebugInfo::new(&info, LittleEndian).units();
    while let Some(unit) = units.next().ok()? {
        let states_piece = match unit.type_() {
            UnitType::Skeleton(_) => true,
            // Before DWARF 5 the unit itself says it.
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
