//! Since when no method of a Java machine was freed.

use std::collections::VecDeque;

use crate::record::contract::clock::monotonic_now_ns;
use crate::runtime::TargetMemory;
use crate::runtime::java::{JavaMachine, UnloadCount};

/// The largest number of generations whose ends are remembered.
const ENDS_MAX: usize = 1 << 10;

/// The last look at the number of classes that a machine has unloaded.
///
/// As long as the number is the same, the address of a method is that of one method. What is read
/// there now is then what was there at all times since [`Self::since_ns`]: no second reading is
/// needed, and a method that has one sample has a name.
///
/// A machine without the number may have unloaded classes at any time. Then what is read holds
/// from the reading on.
#[derive(Debug, Default)]
pub(super) struct UnloadWatch {
    count: Option<UnloadCount>,
    value: Option<u64>,
    /// The number of this look among those that found another number.
    pub(super) generation: u64,
    /// When the number was first seen, in CLOCK_MONOTONIC nanoseconds.
    pub(super) since_ns: u64,
    /// The last time at which each generation was seen, the newest last.
    ends: VecDeque<(u64, u64)>,
}

impl UnloadWatch {
    /// Looks at the number before something is read.
    pub(super) fn look(&mut self, machine: &JavaMachine, memory: &dyn TargetMemory) {
        if self.count.is_none() {
            self.count = UnloadCount::of(machine, memory);
        }
        let before_ns = monotonic_now_ns();
        let value = self.count.and_then(|count| count.read(memory));
        self.note(value, before_ns, monotonic_now_ns());
    }

    /// Looks at the number, if there is one, so that the time of a change is known.
    pub(super) fn glance(&mut self, memory: &dyn TargetMemory) {
        let before_ns = monotonic_now_ns();
        if let Some(value) = self.count.and_then(|count| count.read(memory)) {
            self.note(Some(value), before_ns, monotonic_now_ns());
        }
    }

    /// Notes a number that was read between two times.
    fn note(&mut self, value: Option<u64>, before_ns: u64, after_ns: u64) {
        if value.is_none() || value != self.value {
            self.value = value;
            self.generation += 1;
            // A machine that has unloaded nothing yet has never done so.
            self.since_ns = if value == Some(0) { 0 } else { after_ns };
            self.ends.push_back((self.generation, before_ns));
            self.ends.drain(..self.ends.len().saturating_sub(ENDS_MAX));
        }
        if let Some((_, end_ns)) = self.ends.back_mut() {
            *end_ns = before_ns;
        }
    }

    /// Returns when a generation was last seen. 0 if that is long ago.
    pub(super) fn end_ns(&self, generation: u64) -> u64 {
        let at = self.ends.partition_point(|(it, _)| *it < generation);
        self.ends.get(at).filter(|(it, _)| *it == generation).map_or(0, |(_, end_ns)| *end_ns)
    }

    /// Whether something with a last sample at this time is alive in this generation, so that what
    /// is read of it is no memory that was freed. Without a number, another reading will tell.
    pub(super) fn is_alive(&self, last_ns: Option<u64>) -> bool {
        self.value.is_none() || last_ns.is_some_and(|it| it >= self.since_ns)
    }

    /// Whether the number is still the one of the last look, or there is none.
    pub(super) fn still_holds(&self, memory: &dyn TargetMemory) -> bool {
        self.count.and_then(|count| count.read(memory)) == self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_number_begins_another_generation() {
        let mut watch = UnloadWatch::default();
        let mut note = |value, now_ns| {
            watch.note(value, now_ns - 1, now_ns);
            (watch.generation, watch.since_ns)
        };
        assert_eq!(note(Some(0), 10), (1, 0));
        assert_eq!(note(Some(0), 20), (1, 0));
        assert_eq!(note(Some(3), 30), (2, 30));
        assert_eq!(note(Some(3), 40), (2, 30));
        assert_eq!(note(Some(4), 50), (3, 50));
        // Nothing is known without a number.
        assert_eq!([note(None, 60), note(None, 70)], [(4, 60), (5, 70)]);
        assert_eq!([0, 1, 2, 3, 4, 5, 6].map(|it| watch.end_ns(it)), [0, 19, 39, 49, 59, 69, 0]);
    }
}
