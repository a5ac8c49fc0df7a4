//! What is made of a module's file when it is first seen.
//!
//! Code of which the file itself says nothing is looked up in its debug file, if that is at hand.
//! Servers are not asked for it: nobody samples meanwhile. What they were asked for because of names
//! is at hand for the next recording.

use std::ops::Range;

use traceprof_abi::context::{RECORD_SYMBOL, TABLE_SYMBOL};

use crate::elf::{Elf, TlsAccess};
use crate::proc::Mapping;
use crate::symbol::ElfFile;
use crate::unwind::{self, CallFrames, CompileError, ModuleTable};

/// What is kept of a file beside its table.
pub(super) struct Compiled {
    /// Functions by the unwind information: start and length (SVMA), sorted.
    pub(super) functions: Vec<(u64, u64)>,
    /// Load segments, to find the bias of each mapping.
    pub(super) loads: Loads,
}

/// Start of a file's executable bytes: what turns a mapping into a bias.
#[derive(Debug, Clone, Default)]
pub(super) struct Loads(Vec<(Range<u64>, u64)>);

/// What a file has for those who look for contexts of threads.
#[derive(Debug, Clone, Default)]
pub(in crate::record) struct Exports {
    /// How it reaches the variable that points to a thread's record of OpenTelemetry.
    pub(in crate::record) records: Vec<TlsAccess>,
    /// Where it keeps the address of its table of contexts (SVMA).
    pub(in crate::record) table: Option<u64>,
    /// It is a program that asks for musl's loader.
    pub(in crate::record) is_of_musl: bool,
}

impl Exports {
    /// Of the bytes of a file.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let Ok(elf) = Elf::parse(bytes) else { return Self::default() };
        let is_musl = |path: &str| path.rsplit('/').next().is_some_and(|it| it.contains("-musl"));
        let is_of_musl = elf.interpreter().is_some_and(is_musl);
        let table = elf.variable(TABLE_SYMBOL, size_of::<u64>() as u64);
        Self { records: elf.thread_local(RECORD_SYMBOL), table, is_of_musl }
    }
}

/// The GNU build id of a file, empty if there is none.
pub(super) fn build_id(bytes: &[u8], is_vdso: bool) -> Vec<u8> {
    let elf = parse(bytes, is_vdso).ok();
    elf.and_then(|elf| elf.build_id()).unwrap_or_default().to_vec()
}

fn parse(bytes: &[u8], is_vdso: bool) -> Result<Elf<'_>, String> {
    let elf = if is_vdso { Elf::parse_image(bytes) } else { Elf::parse(bytes) };
    elf.map_err(|error| format!("not an ELF file: {error}"))
}

impl Compiled {
    /// Of a file and its bytes, which may be those of the vDSO; with its table.
    pub(super) fn of(
        file: &ElfFile,
        bytes: &[u8],
        is_vdso: bool,
    ) -> Result<(Self, ModuleTable), String> {
        let elf = parse(bytes, is_vdso)?;
        let table = if is_vdso { unwind::compile_image(bytes) } else { compile(file, bytes) };
        let table = table.map_err(|error| format!("no unwind table: {error}"))?;
        let functions = unwind::function_starts(bytes).unwrap_or_default();
        Ok((Self { functions, loads: Loads::of(&elf) }, table))
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

impl Loads {
    /// File ranges of the load segments and the SVMA - file offset of each.
    fn of(elf: &Elf<'_>) -> Self {
        Self(
            elf.loads()
                .iter()
                .map(|load| {
                    // The loader maps whole pages around a segment.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bias_is_that_of_the_segment_a_mapping_begins_in() {
        // As linkers lay files out: each segment a page further from its offset than the last.
        let loads = Loads(vec![(0..0x1800, 0), (0x1000..0x3000, 0x1000), (0x3000..0x3400, 0x2000)]);
        let at = |start, file_offset| {
            loads.bias(&Mapping { file_offset, ..Mapping::writable(start, start + 0x1000, "lib") })
        };
        let base = 0x5000_0000_0000;
        assert_eq!(at(base, 0), base);
        assert_eq!(at(base + 0x2000, 0x1000), base, "of two segments in one page the later counts");
        assert_eq!(at(base + 0x5000, 0x3000), base);
    }
}
