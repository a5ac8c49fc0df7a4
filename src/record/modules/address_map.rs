//! What is executable where in the target, now and in earlier epochs.
//!
//! # Invariants
//! - Within one epoch an address means one thing: another epoch begins when something that is known lies
//!   where something else was.

use std::ops::Range;
use std::sync::Arc;

use super::LoadedModule;
use crate::record::jit::DumpFile;
use crate::unwind::ModuleRef;

/// Former ranges that are kept: samples of them come within a rotation.
pub(super) const RETIRED_MAX: usize = 1024;

/// An executable mapping.
#[derive(Debug, Clone)]
pub(in crate::record) struct AddressRange {
    /// First AVMA.
    pub(in crate::record) start: u64,
    /// One past the last AVMA.
    pub(in crate::record) end: u64,
    /// Offset in the file.
    pub(in crate::record) file_offset: u64,
    /// AVMA - SVMA.
    pub(in crate::record) bias: u64,
    /// The module; `None` for code without a file.
    pub(in crate::record) module: Option<Arc<LoadedModule>>,
    /// The epoch that it was first seen in.
    pub(super) since: u16,
    /// A table that was made without a file.
    pub(super) table: Option<ModuleRef>,
}

impl AddressRange {
    /// What it holds is known: it is of a module, or was recognised. In other code a frame is an address.
    pub(super) fn has_table(&self) -> bool {
        self.module.is_some() || self.table.is_some()
    }
}

/// What is executable where, at one time.
#[derive(Debug, Clone, Default)]
pub(in crate::record) struct AddressMap {
    /// Sorted by address.
    pub(in crate::record) ranges: Vec<AddressRange>,
    /// Dumps of code that the target makes.
    pub(in crate::record) dumps: Vec<Arc<DumpFile>>,
    /// When it was read, CLOCK_MONOTONIC nanoseconds.
    pub(in crate::record) seen_ns: u64,
    /// What was mapped before, with the epoch that it was gone in; the last ones, in their order.
    pub(super) retired: Vec<(AddressRange, u16)>,
    /// Of what is mapped now.
    pub(super) epoch: u16,
    /// How many programs the process has executed before.
    pub(super) program: u32,
}

impl AddressMap {
    /// The range that holds an address.
    pub(in crate::record) fn find(&self, avma: u64) -> Option<&AddressRange> {
        let after = self.ranges.partition_point(|range| range.start <= avma);
        self.ranges.get(after.checked_sub(1)?).filter(|range| avma < range.end)
    }

    /// The epoch of what is mapped now.
    pub(in crate::record) fn epoch(&self) -> u16 {
        self.epoch
    }

    /// The number of the program that maps it.
    pub(in crate::record) fn program(&self) -> u32 {
        self.program
    }

    /// Without any mappings, of the program with this number.
    #[cfg(test)]
    pub(in crate::record) fn of_program(program: u32) -> Self {
        Self { program, ..Self::default() }
    }

    /// One module, from address 0 on.
    #[cfg(test)]
    pub(in crate::record) fn of_one(module: LoadedModule, end: u64) -> Self {
        let (module, table) = (Some(Arc::new(module)), None);
        let range =
            AddressRange { start: 0, end, file_offset: 0, bias: 0, module, since: 0, table };
        Self { ranges: vec![range], ..Self::default() }
    }

    /// The range that held an address in an epoch, as far as that is still known.
    pub(in crate::record) fn find_at(&self, avma: u64, epoch: u16) -> Option<&AddressRange> {
        let now = self.find(avma);
        if epoch == self.epoch || now.is_some_and(|range| !is_before(epoch, range.since)) {
            return now;
        }
        let held = |(range, until): &&(AddressRange, u16)| {
            (range.start..range.end).contains(&avma)
                && !is_before(epoch, range.since)
                && is_before(epoch, *until)
        };
        // What was mapped since is better than nothing: the handler cannot have known it.
        self.retired.iter().rev().find(held).map(|(range, _)| range).or(now)
    }

    /// The number of the module that an address belonged to in an epoch.
    pub(in crate::record) fn module_at(&self, avma: u64, epoch: u16) -> Option<u32> {
        self.find_at(avma, epoch)?.module.as_ref().map(|module| module.index)
    }

    /// Some of these addresses are stepped through with a table, as far as is known.
    pub(in crate::record) fn has_tables(&self, range: &Range<u64>) -> bool {
        let after = self.ranges.partition_point(|known| known.start < range.end);
        let overlapping = self.ranges[..after].iter().rev();
        overlapping.take_while(|known| known.end > range.start).any(AddressRange::has_table)
    }

    /// The same range was there before.
    pub(in crate::record) fn holds(&self, range: &AddressRange) -> bool {
        self.find(range.start).is_some_and(|known| same(known, range))
    }
}

/// One epoch is before another. Both are of the same time, or nearly: they begin again at 0.
pub(in crate::record) fn is_before(one: u16, other: u16) -> bool {
    (one.wrapping_sub(other) as i16) < 0
}

/// What is mapped now holds what was mapped: the same code, or more of it. A runtime takes its code away
/// to write to it and brings it back, many times a second: addresses in it mean something else only once
/// something that is known lies there.
pub(super) fn goes_on(was: &AddressRange, now: &[AddressRange]) -> bool {
    if !was.has_table() {
        let after = now.partition_point(|range| range.start < was.end);
        let overlapping = now[..after].iter().rev().take_while(|range| range.end > was.start);
        return !overlapping.into_iter().any(AddressRange::has_table);
    }
    let index = |range: &AddressRange| range.module.as_ref().map(|module| module.index);
    let after = now.partition_point(|range| range.start <= was.start);
    let range = after.checked_sub(1).and_then(|place| now.get(place));
    range.is_some_and(|range| {
        was.end <= range.end && (range.bias, index(range)) == (was.bias, index(was))
    })
}

pub(super) fn same(one: &AddressRange, other: &AddressRange) -> bool {
    let index = |range: &AddressRange| range.module.as_ref().map(|module| module.index);
    (one.start, one.end, one.bias, index(one)) == (other.start, other.end, other.bias, index(other))
}

/// Takes note of code without a file that was there and is not, and may come back.
pub(super) fn remember_away(
    away: &mut Vec<AddressRange>,
    were: &[AddressRange],
    now: &[AddressRange],
) {
    let is_there = |range: &AddressRange| {
        let place = now.partition_point(|it| it.start < range.start);
        now.get(place).is_some_and(|it| (it.start, it.end) == (range.start, range.end))
    };
    let without = were.iter().filter(|range| !range.has_table());
    for range in without.filter(|range| !is_there(range)) {
        if !away.iter().any(|known| same(known, range)) {
            away.push(range.clone());
        }
    }
    away.retain(|range| goes_on(range, now) && !is_there(range));
    away.drain(..away.len().saturating_sub(RETIRED_MAX));
}

#[cfg(test)]
pub(in crate::record) mod tests {
    use super::*;

    /// First addresses of places where files took turns, with the epoch in which the second one came.
    pub(in crate::record) type Turns = [(u64, u16); 3];

    pub(in crate::record::modules) fn range(start: u64, number: Option<u32>) -> AddressRange {
        let module = number.map(|index| LoadedModule {
            index,
            path: String::new(),
            build_id: Vec::new(),
            elf: None,
            functions: Vec::new(),
            table: None,
            loads: Default::default(),
            exports: Default::default(),
        });
        AddressRange {
            start,
            end: start + 0x1000,
            file_offset: 0,
            bias: 0,
            module: module.map(Arc::new),
            since: 0,
            table: None,
        }
    }

    /// What is known at the end of it: modules 10, 11, 12 in the place of 0, 1, 2.
    pub(in crate::record) fn swapped(turns: &Turns) -> AddressMap {
        let mut map = AddressMap::default();
        for (number, (start, epoch)) in (0..).zip(turns) {
            map.retired.push((range(*start, Some(number)), *epoch));
            map.ranges.push(AddressRange { since: *epoch, ..range(*start, Some(number + 10)) });
            map.epoch = map.epoch.max(*epoch);
        }
        map
    }

    #[test]
    fn an_address_is_that_of_the_module_of_its_epoch() {
        let map = swapped(&[(0x1000, 1), (0x2000, 2), (0x3000, 2)]);
        let modules = |epoch| [0x1000, 0x2fff, 0x3000].map(|avma| map.module_at(avma, epoch));
        assert_eq!(modules(0), [Some(0), Some(1), Some(2)]);
        assert_eq!(modules(1), [Some(10), Some(1), Some(2)]);
        assert_eq!(modules(2), [Some(10), Some(11), Some(12)]);
        assert!(is_before(u16::MAX, 0) && !is_before(0, u16::MAX), "they begin again");
        assert!(map.has_tables(&(0..0x1001)) && !map.has_tables(&(0..0x1000)));
        assert!(map.has_tables(&(0x3fff..0x5000)) && !map.has_tables(&(0x4000..0x5000)));
    }
}
