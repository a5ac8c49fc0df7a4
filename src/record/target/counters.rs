//! The handlers' counters, read from shared memory, for one program or several in succession.

use traceprof_abi::layout::{COUNTERS, ControlBlock, Counter};
use traceprof_abi::sync::{AtomicU32, AtomicU64, Ordering};

/// The counters of samples that were not stored, with the reasons as the closing report words them.
pub(crate) const LOSSES: [(Counter, &str); 8] = [
    (Counter::LostThreadSlot, "no thread slot"),
    (Counter::LostHazard, "no hazard slot"),
    (Counter::LostRotation, "overtaken by rotations"),
    (Counter::LostLog, "log full"),
    (Counter::Broken, "control block unusable"),
    (Counter::Nested, "inside the handler"),
    (Counter::Withheld, "withheld from calls"),
    (Counter::Off, "sampling off"),
];

/// The values of a control block's counters at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HandlerCounts {
    counters: [u64; COUNTERS],
    /// The number of thread slots ever used, and the number of slots ready for use.
    pub(crate) slots: (u64, u64),
    /// The number of acknowledged priming signals.
    pub(crate) prime_acks: u64,
    /// The latency of acknowledgements in nanoseconds: sum and maximum.
    pub(crate) prime_latency_ns: (u64, u64),
}

impl Default for HandlerCounts {
    fn default() -> Self {
        Self { counters: [0; COUNTERS], slots: (0, 0), prime_acks: 0, prime_latency_ns: (0, 0) }
    }
}

impl HandlerCounts {
    /// Reads the counters.
    pub(crate) fn read(control: &ControlBlock) -> Self {
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

    /// Returns the value of one counter.
    pub(crate) fn of(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Returns the number of samples lost for any reason while sampling was on.
    pub(crate) fn lost(&self) -> u64 {
        let during = LOSSES.iter().filter(|(counter, _)| *counter != Counter::Off);
        // The target can write any value into the counters.
        during.map(|(counter, _)| self.of(*counter)).fold(0, u64::saturating_add)
    }

    /// Returns the number of traces that found no room; their samples have no stack.
    pub(crate) fn dropped(&self) -> u64 {
        self.of(Counter::DroppedArena).saturating_add(self.of(Counter::DroppedProbes))
    }

    /// Adds the counts of a later program. For slots, which are reused, the maximum counts.
    pub(crate) fn add(&mut self, later: &Self) {
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
    use crate::record::target::shm::own_data;

    #[test]
    fn counts_of_two_programs_add_up() {
        let data = own_data();
        let control = data.control();
        control.count_by(Counter::LostLog, 3);
        control.count(Counter::Off);
        control.slots_next.store(7, Ordering::Relaxed);
        control.prime_latency_sum_ns.store(50, Ordering::Relaxed);
        control.prime_latency_max_ns.store(40, Ordering::Relaxed);
        let first = HandlerCounts::read(control);
        control.count_by(Counter::Nested, u64::MAX - 4);
        control.slots_next.store(5, Ordering::Relaxed);
        control.prime_latency_max_ns.store(9, Ordering::Relaxed);
        let mut sum = HandlerCounts::read(control);
        sum.add(&first);
        assert_eq!((sum.of(Counter::LostLog), sum.of(Counter::Off)), (6, 2));
        assert_eq!((sum.lost(), first.lost()), (u64::MAX, 3), "scribbled counts only saturate");
        assert_eq!((sum.slots.0, sum.prime_latency_ns), (7, (100, 40)));
    }
}
