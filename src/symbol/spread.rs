//! Debug information that is spread over several files: what the linker left where the compiler put it
//! (`.dwo` for each unit, or `.dwp` packages of them), and what `dwz` put aside because several
//! programs have it in common.
//!
//! blazesym finds a package beside the file only, by a path that a descriptor does not have, and no
//! `.dwo` at all; inlined calls that `dwz` put aside have no names with it. addr2line asks for each
//! piece as it needs it.
//!
//! # Invariants
//! - A piece is used only if it carries the identifier that the program's own part of the unit states.
//! - Pieces come from the target's own system, and a bounded number of their bytes is kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::{Context, Frame, LookupContinuation, LookupResult};
use gimli::constants::DW_AT_GNU_dwo_id;
use gimli::{DebugAbbrev, DebugInfo, EndianSlice, LittleEndian, UnitOffset, UnitType};
use object::{Object, ObjectSection};

use super::engine::DebugSource;
use super::guard::Allowance;
use super::name::{printable, readable};
use super::outline::Outline;
use super::parser::NameSource;
use super::pieces::{Bytes, LEN_MAX, Pieces};
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
pub(super) struct SpreadNames {
    path: PathBuf,
    pieces: Option<Pieces>,
    units: Option<Box<Units>>,
    allowance: Allowance,
    lacking: Lacking,
}

/// What is nowhere.
#[derive(Debug, Clone, Copy, Default)]
struct Lacking {
    /// Units whose pieces are not there.
    units: usize,
    /// What was put aside.
    supplement: bool,
}

/// What is read of a program.
struct Units {
    context: Context<Bytes>,
    pieces: Pieces,
    lacking: Lacking,
}

impl SpreadNames {
    /// Of a file whose debug information is at this path, if it is not the whole.
    pub(super) fn find(elf: &ElfFile, debug: &DebugSource, path: PathBuf) -> Option<Self> {
        let mut allowance = Allowance::default();
        let is_spread = allowance.spend(|| is_spread(&path)).flatten()?;
        let debug_file = match debug {
            DebugSource::Own => None,
            DebugSource::Separate(file) => Some(file.path.as_path()),
        };
        is_spread.then(|| {
            let pieces =
                Pieces::of(Arc::clone(elf.debug_files()), Path::new(elf.path()), debug_file);
            Self { path, pieces: Some(pieces), units: None, allowance, lacking: Lacking::default() }
        })
    }
}

impl NameSource for SpreadNames {
    fn resolve(&mut self, _: &Outline, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        // Neither is put back after a mistake: then there is nothing to say any more.
        let mut units = match (self.units.take(), self.pieces.take()) {
            (Some(units), _) => units,
            (None, pieces) => {
                let (mut pieces, path) = (pieces?, &self.path);
                self.allowance.spend(move || {
                    let own = pieces.own(path).ok()?;
                    let lacking = Lacking { units: 0, supplement: own.lacks_supplement };
                    let context = Context::from_dwarf(own.dwarf).ok()?;
                    Some(Box::new(Units { context, pieces, lacking }))
                })??
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
        let Lacking { units, supplement } = self.lacking;
        let files = if units == 1 { "file" } else { "files" };
        let pieces = (units > 0).then(|| format!("without {units} split {files} (.dwo)"));
        pieces.or_else(|| supplement.then(|| "without what dwz put aside".to_owned()))
    }
}

impl Units {
    fn resolve(&mut self, svma: u64) -> Option<Resolved> {
        let Self { context, pieces, lacking } = self;
        let mut lookup = context.find_frames(svma);
        let mut frames = loop {
            lookup = match lookup {
                LookupResult::Output(frames) => break frames.ok()?,
                LookupResult::Load { load, continuation } => {
                    let piece = pieces.find(&load);
                    lacking.units += usize::from(piece.is_none());
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
fn start(context: &Context<Bytes>, svma: u64, function: UnitOffset) -> Option<u64> {
    // What it needs is loaded.
    let unit = context.find_dwarf_and_unit(svma).skip_all_loads()?;
    let mut ranges = unit.die_ranges(&unit.entry(function).ok()?).ok()?;
    while let Some(range) = ranges.next().ok()? {
        if (range.begin..range.end).contains(&svma) {
            return Some(range.begin);
        }
    }
    None
}

fn name(frame: &Frame<'_, Bytes>) -> Option<String> {
    let name = frame.function.as_ref()?.raw_name().ok()?;
    (!name.is_empty()).then(|| readable(&name))
}

fn place(frame: &Frame<'_, Bytes>) -> (Option<String>, u32) {
    let Some(location) = &frame.location else { return (None, 0) };
    (location.file.map(printable), location.line.unwrap_or(0))
}

/// Whether a unit of a file is split, or something put aside; `None` for a file that makes no sense.
fn is_spread(path: &Path) -> Option<bool> {
    let map = proc::map_file(std::fs::File::open(path).ok()?).ok()?;
    let elf = object::File::parse(&*map).ok()?;
    if elf.section_by_name(PUT_ASIDE).is_some() {
        return Some(true);
    }
    if elf.section_by_name(SIGN).is_none() {
        return Some(false);
    }
    let section = |name: &str| {
        // The pieces of a larger one could not be kept either.
        unpack(elf.section_by_name(name)?.compressed_data().ok()?, LEN_MAX)
    };
    let (info, abbreviations) = (section(".debug_info")?, section(".debug_abbrev")?);
    let abbreviations = DebugAbbrev::new(&abbreviations, LittleEndian);
    let mut units = DebugInfo::new(&info, LittleEndian).units();
    while let Some(unit) = units.next().ok()? {
        let states_piece = match unit.type_() {
            UnitType::Skeleton(_) => true,
            // Before DWARF 5 it is said in the unit.
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

type Slice<'a> = EndianSlice<'a, LittleEndian>;

fn states_piece(
    unit: &gimli::UnitHeader<Slice<'_>>,
    abbreviations: &DebugAbbrev<Slice<'_>>,
) -> Option<bool> {
    let abbreviations = unit.abbreviations(abbreviations).ok()?;
    let mut entries = unit.entries(&abbreviations);
    let root = entries.next_dfs().ok()??;
    Some(root.attr_value(DW_AT_GNU_dwo_id).is_some())
}
