//! Rotates the storage's tables and copies out what they hold.
//!
//! # Invariants
//! - A table is read only when no hazard names it, and reset only after it was read.
//! - What is read was written by a process that owes us nothing: ids, slots and lengths are
//!   checked by the storage's own bounds before anything is copied.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use traceprof_abi::layout::{ControlBlock, TRACE_TABLES};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::rotation::{Collected, Rotation};
use traceprof_abi::storage::table::TraceTable;
use traceprof_abi::sync::{AtomicU64, Ordering};

use super::batch::{Batch, CallTrace};

/// How long a rotation waits for handlers inside the old table: long against a handler, and
/// against a time slice of a busy core.
const PATIENCE: Duration = Duration::from_millis(20);

/// The recorder's side of the call-trace storage.
pub(super) struct Collector {
    data: DataSegment,
    rotation: Rotation,
    /// Traces to be kept over the next rotation: their last collection.
    preserved: Vec<CallTrace>,
    /// Counts of what rotations met.
    pub(super) stats: Stats,
}

/// What rotations met.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Stats {
    /// Rotations carried out.
    pub(super) rotations: u64,
    /// Log records that were reserved and never committed.
    pub(super) holes: u64,
    /// Rotations that waited in vain for a thread inside the old table.
    pub(super) quarantines: u64,
    /// Samples whose trace was not in the table.
    pub(super) orphans: u64,
}

impl Collector {
    /// Takes the tables into use: the first one becomes ACTIVE.
    pub(super) fn start(data: DataSegment) -> Self {
        let rotation = Rotation::start(&tables(data), &data.control().active);
        Self { data, rotation, preserved: Vec::new(), stats: Stats::default() }
    }

    /// An upper half for the ids of traces that the recorder itself finds.
    pub(super) fn take_instance(&mut self) -> u32 {
        self.rotation.take_instance()
    }

    /// The ACTIVE table asked to be rotated.
    pub(super) fn is_wanted(&self) -> bool {
        // Relaxed: a hint.
        self.data.control().rotate_wanted.load(Ordering::Relaxed) != 0
    }

    /// One rotation. Traces for whose id `is_live` answers true are preserved with their id.
    /// `is_gone` says whether the thread with that id (as the target sees it) has ended.
    pub(super) fn rotate(
        &mut self,
        batch: &mut Batch,
        is_live: &dyn Fn(u64) -> bool,
        is_gone: &dyn Fn(u32) -> bool,
    ) {
        let tables = tables(self.data);
        let hazards = self.data.hazards();
        let control: &ControlBlock = self.data.control();
        // Relaxed: cleared before the swap; a handler that sets it again means the new table.
        control.rotate_wanted.store(0, Ordering::Relaxed);
        while let Some(table) = self.rotation.released(hazards) {
            self.collect(tables[table], batch);
            tables[table].reset(0);
            self.rotation.restore(table);
        }
        self.preserved.clear();
        let standby = tables[self.rotation.standby()];
        self.preserved.extend(standby.traces().map(copy).filter(|trace| is_live(trace.id)));
        let old = self.rotation.active_word();
        let deadline = Instant::now() + PATIENCE;
        let outcome = self.rotation.rotate(&tables, &control.active, hazards, || {
            for (slot, owner) in hazards.holders(old).filter(|(_, owner)| is_gone(*owner)) {
                hazards.reclaim(slot, owner);
            }
            std::thread::sleep(Duration::from_micros(50));
            Instant::now() < deadline
        });
        match outcome {
            Collected::Ready(table) => self.collect(tables[table], batch),
            Collected::Quarantined(_) => self.stats.quarantines += 1,
            Collected::Blocked => return self.stats.quarantines += 1,
        }
        self.stats.rotations += 1;
        self.preserve(&tables, batch, is_live);
        // Relaxed: stack windows verified before are verified anew; see `StackMemory`.
        control.window_epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads what is left when the target is gone or sampling has stopped for good: also tables
    /// that a dead thread still holds, whose committed records are whole all the same.
    pub(super) fn finish(&mut self, batch: &mut Batch) {
        self.rotate(batch, &|_| false, &|_| true);
        self.rotate(batch, &|_| false, &|_| true);
        let tables = tables(self.data);
        for (index, table) in tables.iter().enumerate() {
            if self.rotation.is_quarantined(index) {
                self.collect(*table, batch);
            }
        }
    }

    fn collect(&mut self, table: TraceTable<'_>, batch: &mut Batch) {
        let known = batch.traces.len();
        batch.traces.extend(table.traces().map(copy));
        let ids: HashSet<u64> = batch.traces[known..].iter().map(|trace| trace.id).collect();
        for sample in table.samples() {
            match sample {
                Some(sample) => {
                    let dropped = traceprof_abi::storage::DROPPED_TRACE_ID;
                    if sample.trace_id != dropped && !ids.contains(&sample.trace_id) {
                        self.stats.orphans += 1;
                    }
                    batch.samples.push(sample);
                }
                None => self.stats.holes += 1,
            }
        }
    }

    /// Clears the new STANDBY and puts the live traces into it under the ids they have.
    fn preserve(&self, tables: &[TraceTable<'_>], batch: &Batch, is_live: &dyn Fn(u64) -> bool) {
        let index = self.rotation.standby();
        if self.rotation.is_quarantined(index) {
            return;
        }
        let standby = &tables[index];
        standby.reset(0);
        let live = batch.traces.iter().filter(|trace| is_live(trace.id));
        for trace in self.preserved.iter().chain(live) {
            let frames: Vec<AtomicU64> = trace.frames.iter().map(|f| AtomicU64::new(*f)).collect();
            standby.put_with_id(&frames, trace.flags, trace.id);
        }
    }
}

fn tables(data: DataSegment) -> Vec<TraceTable<'static>> {
    (0..TRACE_TABLES).filter_map(|index| data.table(index)).collect()
}

fn copy(trace: traceprof_abi::storage::table::Trace<'_>) -> CallTrace {
    // Relaxed: no thread is inside the table.
    let frames = trace.frames.iter().map(|frame| frame.load(Ordering::Relaxed)).collect();
    CallTrace { id: trace.id, flags: trace.flags, frames }
}
