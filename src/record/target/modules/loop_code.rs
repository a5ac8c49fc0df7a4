//! Code that PHP has compiled.
//!
//! It is a part of the loop that interprets functions: the loop jumps to it, and it jumps back. It
//! has no frame of its own. It is in memory that the process shares with its children.

use super::{AddressRange, Modules};
use crate::proc::Mapping;
use crate::unwind::ModuleTable;

impl Modules<'_> {
    /// Gives such code the table of the loop.
    pub(super) fn share_loop(&mut self, ranges: &mut [AddressRange], mappings: &[Mapping]) {
        let module = ranges.iter().filter_map(|range| range.module.as_ref());
        let Some(rule) = module.filter_map(|it| it.loop_rule).next() else { return };
        let is_compiled = |range: &AddressRange| {
            let own = mappings.iter().find(|mapping| mapping.start == range.start);
            range.module.is_none() && own.is_some_and(Mapping::is_shared_memory)
        };
        for range in ranges.iter_mut().filter(|range| is_compiled(range)) {
            let known = self.generated.get(&(range.start, range.end)).copied().flatten();
            let table = || self.tables.add_module(&ModuleTable::uniform(rule)).ok();
            range.table = known.or_else(table);
            self.generated.insert((range.start, range.end), range.table);
            (range.is_loop, range.bias) = (range.table.is_some(), range.start);
        }
    }
}
