//! The unwind table and other facts, compiled from a module's file when the module is first seen.
//!
//! For code that the file itself does not describe, the recorder reads the debug file, if it is
//! present. It does not request one from servers here, since nothing is sampled meanwhile. A debug
//! file that was fetched for names is present in the next recording.

use std::ops::Range;
use std::sync::Arc;

use traceprof_abi::context::{RECORD_SYMBOL, TABLE_SYMBOL};

use crate::elf::{Elf, ThreadLocals, TlsAccess};
use crate::proc::{self, Mapping};
use crate::symbol::{DebugFiles, ElfFile};
use crate::unwind::{self, CallFrames, CompileError, ModuleTable};

/// The facts about a file that the recorder keeps besides its table.
pub(super) struct CompiledModule {
    /// Functions by the unwind information: start and length (SVMA), sorted.
    pub(super) functions: Vec<(u64, u64)>,
    /// The load segments, from which the bias of each mapping follows.
    pub(super) loads: LoadSegments,
}

/// The file ranges of load segments, which turn a mapping into a bias.
#[derive(Debug, Clone, Default)]
pub(super) struct LoadSegments(Vec<(Range<u64>, u64)>);

/// The symbols of a file that lead to the contexts of threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContextExports {
    /// The accesses to the variable that points to a thread's OpenTelemetry record.
    pub(crate) records: Vec<TlsAccess>,
    /// The SVMA of the variable with the address of the table of contexts.
    pub(crate) table: Option<u64>,
    /// Whether the file is a program that requests musl's loader.
    pub(crate) is_of_musl: bool,
}

impl ContextExports {
    /// Reads the symbols from the bytes of a file.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let Ok(elf) = Elf::parse(bytes) else { return Self::default() };
        let table = elf.variable(TABLE_SYMBOL, size_of::<u64>() as u64);
        Self {
            records: ThreadLocals::of(&elf).ways_to(RECORD_SYMBOL),
            table,
            is_of_musl: elf.is_of_musl(),
        }
    }
}

/// Returns the GNU build id of a file, empty if there is none.
pub(super) fn build_id(bytes: &[u8], is_vdso: bool) -> Vec<u8> {
    let elf = parse(bytes, is_vdso).ok();
    elf.and_then(|elf| elf.build_id()).unwrap_or_default().to_vec()
}

fn parse(bytes: &[u8], is_vdso: bool) -> Result<Elf<'_>, String> {
    let elf = if is_vdso { Elf::parse_image(bytes) } else { Elf::parse(bytes) };
    elf.map_err(|error| format!("not an ELF file: {error}"))
}

impl CompiledModule {
    /// Compiles the bytes of a file or of the vDSO; also returns the unwind table.
    pub(super) fn of(
        file: &ElfFile,
        bytes: &[u8],
        is_vdso: bool,
    ) -> Result<(Self, ModuleTable), String> {
        let elf = parse(bytes, is_vdso)?;
        let table = if is_vdso { unwind::compile_image(bytes) } else { compile(file, bytes) };
        let table = table.map_err(|error| format!("no unwind table: {error}"))?;
        let functions = unwind::function_starts(bytes).unwrap_or_default();
        Ok((Self { functions, loads: LoadSegments::of(&elf) }, table))
    }
}

fn compile(file: &ElfFile, bytes: &[u8]) -> Result<ModuleTable, CompileError> {
    let table = unwind::compile(bytes)?;
    if table.statistics().gap_bytes == 0 {
        return Ok(table);
    }
    let debug = file.map_debug_file();
    match debug.as_deref().and_then(CallFrames::read) {
        Some(frames) => unwind::compile_with(bytes, &frames),
        None => Ok(table),
    }
}

impl LoadSegments {
    /// Reads the file range of each load segment, and its SVMA minus its file offset.
    fn of(elf: &Elf<'_>) -> Self {
        Self(
            elf.loads()
                .iter()
                .map(|load| {
                    // The loader maps the complete pages around a segment.
                    let start = load.file_offset & !0xfff;
                    let range = start..load.file_offset + load.file_len;
                    (range, load.svma.wrapping_sub(load.file_offset))
                })
                .collect(),
        )
    }

    pub(super) fn bias(&self, mapping: &Mapping) -> u64 {
        let holds = |(range, _): &&(Range<u64>, u64)| range.contains(&mapping.file_offset);
        let shift = self.0.iter().rev().find(holds).map_or(0, |(_, shift)| *shift);
        mapping.start.wrapping_sub(mapping.file_offset.wrapping_add(shift))
    }
}

/// Returns the directories that may contain a process's debug files.
pub(super) fn debug_files(pid: i32, fetch: bool) -> Arc<DebugFiles> {
    let owner = proc::status(pid).map_or(0, |status| status.euid);
    Arc::new(DebugFiles::of(pid, owner, fetch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_has_the_bias_of_the_segment_in_which_it_starts() {
        // As linkers lay files out: each segment is one page further from its offset than the last.
        let loads =
            LoadSegments(vec![(0..0x1800, 0), (0x1000..0x3000, 0x1000), (0x3000..0x3400, 0x2000)]);
        let at = |start, file_offset| {
            loads.bias(&Mapping { file_offset, ..Mapping::writable(start, start + 0x1000, "lib") })
        };
        let base = 0x5000_0000_0000;
        assert_eq!(at(base, 0), base);
        assert_eq!(at(base + 0x2000, 0x1000), base, "of two segments in one page the later counts");
        assert_eq!(at(base + 0x5000, 0x3000), base);
    }
}
