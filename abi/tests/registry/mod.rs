//! A registry of threads in memory of its own, for the tests of the thread slots.

use traceprof_abi::sync::{AtomicU32, AtomicU64};
use traceprof_abi::thread::{FreeSlots, ThreadIndex, ThreadSlot, Threads};

/// The parts of the registry, owned.
pub(crate) struct Registry {
    pub(crate) index: Vec<AtomicU64>,
    pub(crate) slots: Vec<ThreadSlot>,
    pub(crate) next: AtomicU32,
    pub(crate) limit: AtomicU32,
    pub(crate) free: AtomicU64,
    pub(crate) leaked: AtomicU64,
}

impl Registry {
    pub(crate) fn new(index_words: usize, slots: u32) -> Self {
        Self {
            index: (0..index_words).map(|_| AtomicU64::new(0)).collect(),
            slots: (0..slots).map(|_| ThreadSlot::default()).collect(),
            next: AtomicU32::new(0),
            limit: AtomicU32::new(slots),
            free: AtomicU64::new(0),
            leaked: AtomicU64::new(0),
        }
    }

    pub(crate) fn threads(&self) -> Threads<'_> {
        Threads {
            index: ThreadIndex { words: &self.index },
            slots: &self.slots,
            next: &self.next,
            limit: &self.limit,
            free: FreeSlots { top: &self.free, slots: &self.slots, leaked: &self.leaked },
        }
    }
}
