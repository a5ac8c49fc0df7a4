//! A call-trace table in memory of its own, for the tests of the storage.

use traceprof_abi::storage::log::SampleRecord;
use traceprof_abi::storage::table::{TableHeader, TraceTable};
use traceprof_abi::sync::{AtomicU64, Ordering};

/// The parts of one table, owned.
pub(crate) struct Parts {
    pub(crate) header: TableHeader,
    pub(crate) slots: Vec<AtomicU64>,
    pub(crate) arena: Vec<AtomicU64>,
    log: Vec<SampleRecord>,
}

/// Returns `count` words of zero.
pub(crate) fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Parts {
    pub(crate) fn new(slots: usize, arena: usize, log: usize) -> Self {
        let header = TableHeader::default();
        // Relaxed: no other thread knows the table yet.
        header.arena_limit.store(arena as u64, Ordering::Relaxed);
        header.log_limit.store(log as u64, Ordering::Relaxed);
        let log = (0..log).map(|_| SampleRecord::default()).collect();
        Self { header, slots: words(slots), arena: words(arena), log }
    }

    pub(crate) fn table(&self) -> TraceTable<'_> {
        TraceTable { header: &self.header, slots: &self.slots, arena: &self.arena, log: &self.log }
    }
}
