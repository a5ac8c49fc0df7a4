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
use object::{CompressionFormat, Object, ObjectSection};

use super::engine::DebugSource;
use super::guard::Allowance;
use super::name::{printable, readable};
use super::outline::Outline;
use super::parser::NameSource;
use super::pieces::{Bytes, LEN_MAX, Pieces};
use super::resolved::{Function, Inlined};
use super::room::Room;
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
    room: Arc<Room>,
}

/// What is nowhere, or was not read.
#[derive(Debug, Clone, Copy, Default)]
struct Lacking {
    /// Units whose pieces are not there.
    units: usize,
    /// What was put aside.
    supplement: bool,
    /// There is no room for it.
    room: bool,
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
        let room = Arc::clone(&elf.debug_files().room);
        let is_spread = allowance.spend(|| is_spread(&path, &room)).flatten()?;
        let debug_file = match debug {
            DebugSource::Own => None,
            DebugSource::Separate(file) => Some(file.path.as_path()),
        };
        is_spread.then(|| {
            let pieces =
                Pieces::of(Arc::clone(elf.debug_files()), Path::new(elf.path()), debug_file);
            let (pieces, units, lacking) = (Some(pieces), None, Lacking::default());
            Self { path, pieces, units, allowance, lacking, room }
        })
    }
}

impl NameSource for SpreadNames {
    fn resolve(&mut self, _: &Outline, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        // Neither is put back after a mistake: then there is nothing to say any more.
        let mut units = match (self.units.take(), self.pieces.take()) {
            (Some(units), _) => units,
            (None, pieces) => {
                let (pieces, path) = (pieces?, &self.path);
                let (units, lacking) = self.allowance.spend(move || Units::open(pieces, path))?;
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
        let Lacking { units, supplement, room } = self.lacking;
        if room {
            return Some(self.room.lack());
        }
        let files = if units == 1 { "file" } else { "files" };
        let pieces = (units > 0).then(|| format!("without {units} split {files} (.dwo)"));
        pieces.or_else(|| supplement.then(|| "without what dwz put aside".to_owned()))
    }
}

impl Units {
    /// What there is to read, and what is missing of it already.
    fn open(mut pieces: Pieces, path: &Path) -> (Option<Box<Self>>, Lacking) {
        let own = pieces.own(path).ok();
        let supplement = own.as_ref().is_some_and(|own| own.lacks_supplement);
        let lacking = Lacking { units: 0, supplement, room: pieces.is_without_room };
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
                    lacking.room |= pieces.is_without_room;
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
fn is_spread(path: &Path, room: &Arc<Room>) -> Option<bool> {
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
        let taken = room.take(if is_packed { packed.uncompressed_size } else { 0 })?;
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
