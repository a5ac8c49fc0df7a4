//! Code that PHP or LuaJIT has compiled.
//!
//! It is a part of the loop that interprets functions: the loop jumps to it, and it jumps back. It
//! has no frame of its own.
//!
//! PHP has it in memory that the process shares with its children. LuaJIT has it in areas that
//! begin with the address of the area before and the length, and uses bytes below the frame of the
//! loop. Handlers find that frame.

use std::collections::HashMap;

use super::AddressRange;
use crate::proc::{self, Mapping};
use crate::runtime::{ManagedLanguage, RuntimeExports};
use crate::unwind::{ModuleRef, ModuleTable, TableWriter};

/// The tables of mappings without a file, by their first address and the one after the last.
pub(super) type GeneratedTables = HashMap<(u64, u64), Option<ModuleRef>>;

/// Notes such code as a part of the loop.
pub(super) fn extend_loops(
    ranges: &mut [AddressRange],
    (mappings, pid): (&[Mapping], i32),
    generated: (&mut TableWriter<'_>, &mut GeneratedTables),
) {
    share_loop(ranges, mappings, generated);
    let head = |range: &AddressRange| proc::read_memory(pid, range.start, AREA_HEAD);
    note_areas(ranges, |range| head(range).ok()?.try_into().ok());
}

/// Gives code of PHP the table of the loop.
fn share_loop(
    ranges: &mut [AddressRange],
    mappings: &[Mapping],
    (tables, generated): (&mut TableWriter<'_>, &mut GeneratedTables),
) {
    let module = ranges.iter().filter_map(|range| range.module.as_ref());
    let Some(rule) = module.filter_map(|it| it.loop_rule).next() else { return };
    let is_compiled = |range: &AddressRange| {
        let own = mappings.iter().find(|mapping| mapping.start == range.start);
        range.module.is_none() && own.is_some_and(Mapping::is_shared_memory)
    };
    for range in ranges.iter_mut().filter(|range| is_compiled(range)) {
        let key = (range.start, range.end);
        let known = generated.get(&key).copied().flatten();
        range.table = known.or_else(|| tables.add_module(&ModuleTable::uniform(rule)).ok());
        generated.insert(key, range.table);
        (range.is_loop, range.bias) = (range.table.is_some(), range.start);
    }
}

/// Number of bytes at the beginning of an area of code of LuaJIT: an address, and the length.
const AREA_HEAD: usize = 16;
/// Alignment of such areas.
const PAGE: u64 = 4096;

/// Notes areas with code that LuaJIT has compiled. `read` reads the first bytes of a range.
fn note_areas(
    ranges: &mut [AddressRange],
    mut read: impl FnMut(&AddressRange) -> Option<[u8; AREA_HEAD]>,
) {
    let exports = |range: &AddressRange| range.module.as_ref()?.runtime.as_ref().map(language);
    if !ranges.iter().any(|range| exports(range) == Some(ManagedLanguage::Lua)) {
        return;
    }
    for range in ranges.iter_mut().filter(|range| !range.has_table()) {
        let Some(head) = read(range) else { continue };
        let number = u128::from_le_bytes(head);
        let (before, len) = (number as u64, (number >> 64) as u64);
        let is_area = len != 0 && len <= range.end - range.start && len.is_multiple_of(PAGE);
        range.is_loop = is_area && before.is_multiple_of(PAGE);
    }
}

fn language(exports: &RuntimeExports) -> ManagedLanguage {
    exports.language()
}
