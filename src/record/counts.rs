//! What the handlers have counted, read out of the shared memory: of one program, or of several one
//! after the other.

use traceprof_abi::layout::{COUNTERS, ControlBlock, Counter};
use traceprof_abi::sync::{AtomicU32, AtomicU64, Ordering};

/// Samples that were not stored, by reason, in the words of the trailer.
pub(super) const LOSSES: [(Counter, &str); 8] = [
    (Counter::LostThreadSlot, "no thread slot"),
    (Counter::LostHazard, "no hazard slot"),
    (Counter::LostRotation, "overtaken by rotations"),
    (Counter::LostLog, "log full"),
    (Counter::Broken, "control block unusable"),
    (Counter::Nested, "inside the handler"),
    (Counter::Withheld, "withheld from calls"),
    (Counter::Off, "sampling off"),
];

/// The counts of a control block at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Counts {
    counters: [u64; COUNTERS],
    /// Thread slots that were ever used, and those that were ready for use.
    pub(super) slots: (u64, u64),
    /// Priming signals that were acknowledged.
    pub(super) prime_acks: u64,
    /// How long that took, in nanoseconds: sum and longest.
    pub(super) prime_latency_ns: (u64, u64),
}

impl Default for Counts {
    fn default() -> Self {
        Self { counters: [0; COUNTERS], slots: (0, 0), prime_acks: 0, prime_latency_ns: (0, 0) }
    }
}

impl Counts {
    /// Reads them.
    pub(super) fn read(control: &ControlBlock) -> Self {
        Self {
            counters: control.counters.each_ref().map(large),
            slots: (small(&control.slots_next), small(&control.slots_limit)),
            prime_acks: large(&control.prime_acks),
            prime_latency_ns: (
                large(&control.prime_latency_sum_ns),
                small(&control.prime_latency_max_ns),
            ),
        }
    }

    /// The value of one counter.
    pub(super) fn of(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Samples lost for whatever reason, while sampling was on.
    pub(super) fn lost(&self) -> u64 {
        let during = LOSSES.iter().filter(|(counter, _)| *counter != Counter::Off);
        // The counters lie where the target may write anything.
        during.map(|(counter, _)| self.of(*counter)).fold(0, u64::saturating_add)
    }

    /// Traces that found no room: their samples are kept without a stack.
    pub(super) fn dropped(&self) -> u64 {
        self.of(Counter::DroppedArena).saturating_add(self.of(Counter::DroppedProbes))
    }

    /// Adds those of a later program. Slots are not used up by a program that is gone: of them the
    /// most count.
    pub(super) fn add(&mut self, later: &Self) {
        for (sum, more) in self.counters.iter_mut().zip(later.counters) {
            *sum = sum.saturating_add(more);
        }
        self.slots = (self.slots.0.max(later.slots.0), self.slots.1.max(later.slots.1));
        self.prime_acks = self.prime_acks.saturating_add(later.prime_acks);
        let ((sum, longest), (more, other)) = (self.prime_latency_ns, later.prime_latency_ns);
        self.prime_latency_ns = (sum.saturating_add(more), longest.max(other));
    }
}

fn small(word: &AtomicU32) -> u64 {
    // Relaxed: a count.
    u64::from(word.load(Ordering::Relaxed))
}

fn large(word: &AtomicU64) -> u64 {
    // Relaxed: a count.
    word.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::shm::own_data;

    #[test]
    fn counts_of_two_programs_add_up() {
        let data = own_data();
        let control = data.control();
        control.count_by(Counter::LostLog, 3);
        control.count(Counter::Off);
        control.slots_next.store(7, Ordering::Relaxed);
        control.prime_latency_sum_ns.store(50, Ordering::Relaxed);
        control.prime_latency_max_ns.store(40, Ordering::Relaxed);
        let first = Counts::read(control);
        control.count_by(Counter::Nested, u64::MAX - 4);
        control.slots_next.store(5, Ordering::Relaxed);
        control.prime_latency_max_ns.store(9, Ordering::Relaxed);
        let mut sum = Counts::read(control);
        sum.add(&first);
        assert_eq!((sum.of(Counter::LostLog), sum.of(Counter::Off)), (6, 2));
        assert_eq!((sum.lost(), first.lost()), (u64::MAX, 3), "scribbled counts only saturate");
        assert_eq!((sum.slots.0, sum.prime_latency_ns), (7, (100, 40)));
    }
}
