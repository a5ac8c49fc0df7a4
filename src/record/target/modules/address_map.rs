//! The executable ranges of the target, now and in earlier epochs.
//!
//! # Invariants
//! - Within one epoch an address has one meaning: another epoch starts when known code appears
//!   where something else was mapped.

use std::ops::Range;
use std::sync::Arc;

use crate::record::target::jit_dump::DumpFile;
use crate::record::target::modules::LoadedModule;
use crate::runtime::java::JavaMachine;
use crate::runtime::node::NodeThreads;
use crate::runtime::v8::V8Machine;
use crate::runtime::{ManagedLanguage, NamesThreads, Runtime};
use crate::unwind::ModuleRef;

/// The number of former ranges to keep; their samples arrive within a rotation.
pub(super) const RETIRED_MAX: usize = 1024;

/// An executable mapping.
#[derive(Debug, Clone)]
pub(crate) struct AddressRange {
    /// The first AVMA.
    pub(crate) start: u64,
    /// The AVMA after the last one.
    pub(crate) end: u64,
    /// The offset in the file.
    pub(crate) file_offset: u64,
    /// AVMA - SVMA.
    pub(crate) bias: u64,
    /// The module; `None` for code without a file.
    pub(crate) module: Option<Arc<LoadedModule>>,
    /// The epoch in which the range was first seen.
    pub(super) since: u16,
    /// The unwind table of code without a file.
    pub(super) table: Option<ModuleRef>,
    /// Whether it is code that PHP has compiled: a part of the loop that interprets functions.
    pub(super) is_loop: bool,
}

impl AddressRange {
    /// Returns whether the code is known, as a module or a recognised pattern.
    ///
    /// In other ranges a frame is just an address.
    pub(super) fn has_table(&self) -> bool {
        self.module.is_some() || self.table.is_some()
    }
}

/// The executable ranges at one time.
#[derive(Debug, Clone, Default)]
pub(crate) struct AddressMap {
    /// The ranges sorted by address.
    pub(crate) ranges: Vec<AddressRange>,
    /// Dumps of code that the target generates.
    pub(crate) dumps: Vec<Arc<DumpFile>>,
    /// The time of the reading in CLOCK_MONOTONIC nanoseconds.
    pub(crate) seen_ns: u64,
    /// The latest former ranges in order, each with the epoch in which it disappeared.
    pub(super) retired: Vec<(AddressRange, u16)>,
    /// The epoch of the current ranges.
    pub(super) epoch: u16,
    /// The number of programs that the process executed before.
    pub(super) program: u32,
    /// The language runtimes, by the numbers that frame words have.
    pub(crate) runtimes: Vec<Arc<Runtime>>,
    /// The Java machine, if there is one.
    pub(crate) java: Option<Arc<JavaMachine>>,
    /// The engine of JavaScript, if there is one.
    pub(crate) v8: Option<Arc<V8Machine>>,
    /// The threads of Node.js, if that is the program.
    pub(crate) node: Option<Arc<NodeThreads>>,
}

impl AddressMap {
    /// Returns the range that contains an address.
    pub(crate) fn find(&self, avma: u64) -> Option<&AddressRange> {
        let after = self.ranges.partition_point(|range| range.start <= avma);
        self.ranges.get(after.checked_sub(1)?).filter(|range| avma < range.end)
    }

    /// Returns the number of the runtime whose loop contains an address.
    pub(crate) fn loop_at(&self, avma: u64) -> Option<u8> {
        let holds = |runtime: &Arc<Runtime>| runtime.loops.iter().any(|it| it.contains(&avma));
        let in_own = self.runtimes.iter().position(holds);
        let has_compiled = |runtime: &Arc<Runtime>| runtime.language == ManagedLanguage::Php;
        let in_compiled = || {
            self.find(avma).filter(|range| range.is_loop)?;
            self.runtimes.iter().position(has_compiled)
        };
        in_own.or_else(in_compiled).map(|number| number as u8)
    }

    /// Whether an address is in a function of the engine of JavaScript itself.
    pub(crate) fn is_builtin(&self, avma: u64) -> bool {
        let range = self.find(avma).filter(|_| self.v8.is_some());
        range.is_some_and(|range| {
            let module = range.module.as_deref();
            module.is_some_and(|it| it.builtin_at(avma.wrapping_sub(range.bias)).is_some())
        })
    }

    /// Whether an agent of a Java machine is loaded.
    pub(crate) fn has_java_agent(&self) -> bool {
        self.ranges.iter().filter_map(|range| range.module.as_ref()).any(|it| it.has_java_agent)
    }

    /// Returns the name of the runtime's lock that contains an address.
    pub(crate) fn lock_at(&self, avma: u64) -> Option<&'static str> {
        self.runtimes.iter().find_map(|runtime| runtime.lock_at(avma))
    }

    /// Returns the runtimes in which threads have names. Those of later ones count more.
    pub(crate) fn with_thread_names(&self) -> Vec<&dyn NamesThreads> {
        let node = self.node.iter().map(|it| -> &dyn NamesThreads { it.as_ref() });
        let runtimes = self.runtimes.iter().map(|it| -> &dyn NamesThreads { it.as_ref() });
        let java = self.java.iter().map(|it| -> &dyn NamesThreads { it.as_ref() });
        node.chain(runtimes).chain(java).collect()
    }

    /// Returns whether an address is in code that a runtime has generated to carry its frames.
    pub(crate) fn is_trampoline(&self, avma: u64) -> bool {
        self.find(avma).is_some_and(|range| range.module.is_none() && range.table.is_some())
    }

    /// Returns the epoch of the current ranges.
    pub(crate) fn epoch(&self) -> u16 {
        self.epoch
    }

    /// Returns the number of the program.
    pub(crate) fn program(&self) -> u32 {
        self.program
    }

    /// Makes a map without ranges, of the program with this number.
    #[cfg(test)]
    pub(crate) fn of_program(program: u32) -> Self {
        Self { program, ..Self::default() }
    }

    /// Makes a map of one module from address 0 on.
    #[cfg(test)]
    pub(crate) fn of_one(module: LoadedModule, end: u64) -> Self {
        let (module, table) = (Some(Arc::new(module)), None);
        let range = AddressRange {
            start: 0,
            end,
            file_offset: 0,
            bias: 0,
            module,
            since: 0,
            table,
            is_loop: false,
        };
        Self { ranges: vec![range], ..Self::default() }
    }

    /// Returns the range that contained an address in an epoch, if it is still known.
    pub(crate) fn find_at(&self, avma: u64, epoch: u16) -> Option<&AddressRange> {
        let now = self.find(avma);
        if epoch == self.epoch || now.is_some_and(|range| !is_before(epoch, range.since)) {
            return now;
        }
        let held = |(range, until): &&(AddressRange, u16)| {
            (range.start..range.end).contains(&avma)
                && !is_before(epoch, range.since)
                && is_before(epoch, *until)
        };
        // A later mapping is better than none, although the handler cannot have known it.
        self.retired.iter().rev().find(held).map(|(range, _)| range).or(now)
    }

    /// Returns the number of the module that contained an address in an epoch.
    pub(crate) fn module_at(&self, avma: u64, epoch: u16) -> Option<u32> {
        self.find_at(avma, epoch)?.module.as_ref().map(|module| module.index)
    }

    /// Checks whether a table covers some of these addresses, as far as known.
    pub(crate) fn has_tables(&self, range: &Range<u64>) -> bool {
        let after = self.ranges.partition_point(|known| known.start < range.end);
        let overlapping = self.ranges[..after].iter().rev();
        overlapping.take_while(|known| known.end > range.start).any(AddressRange::has_table)
    }

    /// Checks whether the same range is in this map.
    pub(crate) fn holds(&self, range: &AddressRange) -> bool {
        self.find(range.start).is_some_and(|known| is_same_range(known, range))
    }
}

/// Returns whether one epoch is before another one of nearly the same time.
///
/// The numbers wrap around.
pub(crate) fn is_before(one: u16, other: u16) -> bool {
    (one.wrapping_sub(other) as i16) < 0
}

/// Returns whether the current ranges contain a former one: the same code, or more of it.
///
/// A runtime may unmap its code to write to it and map it again, many times a second. The meaning
/// of its addresses changes only once other known code is mapped there.
pub(super) fn is_continued(was: &AddressRange, now: &[AddressRange]) -> bool {
    if !was.has_table() {
        let after = now.partition_point(|range| range.start < was.end);
        let overlapping = now[..after].iter().rev().take_while(|range| range.end > was.start);
        return !overlapping.into_iter().any(AddressRange::has_table);
    }
    let index = |range: &AddressRange| range.module.as_ref().map(|module| module.index);
    let after = now.partition_point(|range| range.start <= was.start);
    let range = after.checked_sub(1).and_then(|index| now.get(index));
    range.is_some_and(|range| {
        was.end <= range.end && (range.bias, index(range)) == (was.bias, index(was))
    })
}

pub(super) fn is_same_range(one: &AddressRange, other: &AddressRange) -> bool {
    let index = |range: &AddressRange| range.module.as_ref().map(|module| module.index);
    (one.start, one.end, one.bias, index(one)) == (other.start, other.end, other.bias, index(other))
}

/// Remembers unmapped code without a file, which may be mapped again.
pub(super) fn remember_unmapped(
    away: &mut Vec<AddressRange>,
    were: &[AddressRange],
    now: &[AddressRange],
) {
    let is_there = |range: &AddressRange| {
        let index = now.partition_point(|it| it.start < range.start);
        now.get(index).is_some_and(|it| (it.start, it.end) == (range.start, range.end))
    };
    let without = were.iter().filter(|range| !range.has_table());
    for range in without.filter(|range| !is_there(range)) {
        if !away.iter().any(|known| is_same_range(known, range)) {
            away.push(range.clone());
        }
    }
    away.retain(|range| is_continued(range, now) && !is_there(range));
    away.drain(..away.len().saturating_sub(RETIRED_MAX));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// First addresses of ranges where one file replaced another, with the epoch of the second.
    pub(crate) type FileSwaps = [(u64, u16); 3];

    pub(crate) fn range(start: u64, number: Option<u32>) -> AddressRange {
        let file = Arc::default();
        let module = number.map(|index| LoadedModule { index, table: None, file });
        AddressRange {
            start,
            end: start + 0x1000,
            file_offset: 0,
            bias: 0,
            module: module.map(Arc::new),
            since: 0,
            table: None,
            is_loop: false,
        }
    }

    /// Makes the final map, in which modules 10, 11, 12 replaced 0, 1, 2.
    pub(crate) fn swapped(turns: &FileSwaps) -> AddressMap {
        let mut map = AddressMap::default();
        for (number, (start, epoch)) in (0..).zip(turns) {
            map.retired.push((range(*start, Some(number)), *epoch));
            map.ranges.push(AddressRange { since: *epoch, ..range(*start, Some(number + 10)) });
            map.epoch = map.epoch.max(*epoch);
        }
        map
    }

    #[test]
    fn an_address_belongs_to_the_module_of_its_epoch() {
        let map = swapped(&[(0x1000, 1), (0x2000, 2), (0x3000, 2)]);
        let modules = |epoch| [0x1000, 0x2fff, 0x3000].map(|avma| map.module_at(avma, epoch));
        assert_eq!(modules(0), [Some(0), Some(1), Some(2)]);
        assert_eq!(modules(1), [Some(10), Some(1), Some(2)]);
        assert_eq!(modules(2), [Some(10), Some(11), Some(12)]);
        assert!(is_before(u16::MAX, 0) && !is_before(0, u16::MAX), "they wrap around");
        assert!(map.has_tables(&(0..0x1001)) && !map.has_tables(&(0..0x1000)));
        assert!(map.has_tables(&(0x3fff..0x5000)) && !map.has_tables(&(0x4000..0x5000)));
    }
}
