//! Code that PHP has compiled.
//!
//! It is a part of the loop that interprets functions: the loop jumps to it, and it jumps back. It
//! has no frame of its own. It is in memory that the process shares with its children.

use std::collections::HashMap;

use super::AddressRange;
use crate::proc::Mapping;
use crate::unwind::{ModuleRef, ModuleTable, TableWriter};

/// The tables of mappings without a file, by their first address and the one after the last.
pub(super) type GeneratedTables = HashMap<(u64, u64), Option<ModuleRef>>;

/// Gives such code the table of the loop.
pub(super) fn share_loop(
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
