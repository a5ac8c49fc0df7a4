//! Rotates the storage's tables and copies out what they hold.
//!
//! # Invariants
//! - A table is read only when no hazard names it, and reset only after it was read.
//! - What is read was written by a process that owes us nothing: ids, slots and lengths are
//!   checked by the storage's own bounds before anything is copied.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use traceprof_abi::layout::{ControlBlock, DEPTH_MAX, THREAD_SLOTS, TRACE_TABLES};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::rotation::{Collected, Rotation};
use traceprof_abi::storage::table::{Trace, TraceTable};
use traceprof_abi::sync::Ordering;

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
    /// Samples whose trace was not in the table: they are kept without a stack.
    pub(super) orphans: u64,
    /// Records that name no thread: the target wrote over them.
    pub(super) unreadable: u64,
}

impl Collector {
    /// Takes the tables into use: the first one becomes ACTIVE.
    pub(super) fn start(data: DataSegment) -> Self {
        let rotation = Rotation::start(&tables(data), &data.control().active);
        Self { data, rotation, preserved: Vec::new(), stats: Stats::default() }
    }

    /// An upper half for the ids of traces that the recorder itself finds.
    pub(super) fn take_instance(&mut self) -> Option<u32> {
        self.rotation.take_instance()
    }

    /// There are no more ids to give to traces than those that the end needs.
    pub(super) fn is_ending(&self) -> bool {
        self.rotation.is_ending()
    }

    /// The tables that must be populated before the next rotation.
    pub(super) fn roles(&self) -> [usize; 3] {
        self.rotation.roles()
    }

    /// The ACTIVE table asked to be rotated.
    pub(super) fn is_wanted(&self) -> bool {
        // Relaxed: a hint.
        self.data.control().rotate_wanted.load(Ordering::Relaxed) != 0
    }

    /// One rotation. Traces for whose id `is_live` answers true are preserved with their id.
    /// `is_gone` says whether the owner of a hazard has ended.
    /// True if no handler is running any more that started before this call.
    pub(super) fn rotate(
        &mut self,
        batch: &mut Batch,
        is_live: &dyn Fn(u64) -> bool,
        is_gone: &dyn Fn(u32) -> bool,
    ) -> bool {
        let tables = tables(self.data);
        let hazards = self.data.hazards();
        let control: &ControlBlock = self.data.control();
        // Relaxed: cleared before the swap; a handler that sets it again means the new table.
        control.rotate_wanted.store(0, Ordering::Relaxed);
        let reclaim = || {
            for claim in hazards.claims().filter(|claim| is_gone(claim.owner)) {
                hazards.reclaim(claim);
            }
        };
        if !self.rotation.is_drained() {
            reclaim();
        }
        while let Some(table) = self.rotation.released(hazards) {
            self.collect(tables[table], batch);
            tables[table].reset(0);
            self.rotation.restore(table);
        }
        self.preserved.clear();
        let standby = tables[self.rotation.standby()];
        let live = standby.traces().filter(|trace| is_live(trace.id));
        self.preserved.extend(live.filter(|trace| trace.frames.len() <= DEPTH_MAX).map(copy));
        let deadline = Instant::now() + PATIENCE;
        let outcome = self.rotation.rotate(&tables, &control.active, hazards, || {
            reclaim();
            std::thread::sleep(Duration::from_micros(50));
            Instant::now() < deadline
        });
        match outcome {
            Collected::Ready(table) => self.collect(tables[table], batch),
            Collected::Quarantined(_) => self.stats.quarantines += 1,
            Collected::Blocked => {
                self.stats.quarantines += 1;
                return false;
            }
            Collected::Exhausted => return false,
        }
        self.stats.rotations += 1;
        self.preserve(&tables, batch, is_live);
        // Relaxed: stack windows verified before are verified anew; see `StackMemory`.
        control.window_epoch.fetch_add(1, Ordering::Relaxed);
        self.rotation.is_drained()
    }

    /// Reads what is left when the target is gone or sampling has stopped for good: also tables
    /// that a dead thread still holds, whose committed records are whole all the same.
    pub(super) fn finish(&mut self, batch: &mut Batch) {
        let hazards = self.data.hazards();
        // Quarantined tables are released by it, so that neither rotation is blocked.
        for claim in hazards.claims() {
            hazards.reclaim(claim);
        }
        self.rotate(batch, &|_| false, &|_| true);
        self.rotate(batch, &|_| false, &|_| true);
    }

    fn collect(&mut self, table: TraceTable<'_>, batch: &mut Batch) {
        let known = batch.traces.len();
        // No handler writes a longer one; of those that the target scribbled none is taken.
        let traces = table.traces().filter(|trace| trace.frames.len() <= DEPTH_MAX);
        // Entries of an honest table do not overlap, so their words are no more than the arena's.
        let mut room = table.arena.len();
        let fits = |trace: &Trace<'_>| {
            let left = room.checked_sub(trace.frames.len());
            room = left.unwrap_or(room);
            left.is_some()
        };
        batch.traces.extend(traces.filter(fits).map(copy));
        let ids: HashSet<u64> = batch.traces[known..].iter().map(|trace| trace.id).collect();
        for sample in table.samples() {
            match sample {
                Some(sample) if sample.slot as usize >= THREAD_SLOTS => self.stats.unreadable += 1,
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
            standby.put_preserved(&trace.frames, trace.flags, trace.id, 0);
        }
    }
}

fn tables(data: DataSegment) -> Vec<TraceTable<'static>> {
    (0..TRACE_TABLES).filter_map(|index| data.table(index)).collect()
}

fn copy(trace: Trace<'_>) -> CallTrace {
    // Relaxed: no thread is inside the table.
    let frames = trace.frames.iter().map(|frame| frame.load(Ordering::Relaxed)).collect();
    CallTrace { id: trace.id, flags: trace.flags, frames }
}

#[cfg(test)]
mod tests {
    use traceprof_abi::layout;
    use traceprof_abi::storage::hazard::Hazard;
    use traceprof_abi::storage::log::Sample;
    use traceprof_abi::storage::rotation::Origin;
    use traceprof_abi::sync::AtomicU64;

    use super::*;
    use crate::record::shm::Shared;

    const RECORDS: u64 = 64;

    /// A segment of which the tables have room for a few records.
    fn segment() -> DataSegment {
        let user = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let data = Shared::create(layout::DATA_LEN, user).unwrap().as_data();
        for table in tables(data) {
            table.header.arena_limit.store(RECORDS * 8, Ordering::Relaxed);
            table.header.log_limit.store(RECORDS, Ordering::Relaxed);
        }
        data
    }

    /// What the handler of thread `tid` does, up to the release of its hazard.
    fn sample(data: DataSegment, tid: u32) -> Hazard {
        let hazard = data.hazards().protect(tid, &data.control().active).unwrap();
        let table = data.table(hazard.table()).unwrap();
        let trace_id = table.put(&[AtomicU64::new(u64::from(tid))], 0, 1).id();
        assert!(table.append(&Sample { tid, trace_id, weight: 1, ..Sample::default() }));
        hazard
    }

    fn release(data: DataSegment, hazard: Hazard) {
        assert!(data.hazards().release(hazard));
    }

    fn rotate(collector: &mut Collector, batch: &mut Batch) -> bool {
        collector.rotate(batch, &|_| false, &|_| false)
    }

    fn tids(batch: &Batch) -> Vec<u32> {
        let mut tids: Vec<u32> = batch.samples.iter().map(|sample| sample.tid).collect();
        tids.sort_unstable();
        tids
    }

    #[test]
    fn a_handler_that_stays_inside_holds_its_samples_back_and_nothing_else() {
        let data = segment();
        let (mut collector, mut batch) = (Collector::start(data), Batch::default());
        release(data, sample(data, 1));
        assert!(rotate(&mut collector, &mut batch));
        let inside = sample(data, 2);
        assert!(!rotate(&mut collector, &mut batch), "a handler is inside");
        release(data, sample(data, 3));
        assert!(!rotate(&mut collector, &mut batch), "it still is");
        assert_eq!(tids(&batch), [1, 3]);
        release(data, inside);
        assert!(rotate(&mut collector, &mut batch));
        assert_eq!(tids(&batch), [1, 2, 3]);
        assert_eq!(batch.traces.len(), 3);
        assert_eq!((collector.stats.quarantines, collector.stats.orphans), (1, 0));
    }

    #[test]
    fn the_end_collects_what_dead_threads_hold_and_what_could_not_be_rotated() {
        let data = segment();
        let (mut collector, mut batch) = (Collector::start(data), Batch::default());
        let threads = TRACE_TABLES as u32 + 2;
        for tid in 1..=threads {
            // Never released: the thread died, and nobody knows.
            let _ = sample(data, tid);
            assert!(!rotate(&mut collector, &mut batch));
        }
        assert!(batch.samples.is_empty());
        collector.finish(&mut batch);
        assert_eq!(tids(&batch), (1..=threads).collect::<Vec<_>>());
        assert_eq!(collector.stats.orphans, 0);
    }

    #[test]
    fn a_dead_thread_blocks_no_rotation() {
        let data = segment();
        let (mut collector, mut batch) = (Collector::start(data), Batch::default());
        let _ = sample(data, 1);
        assert!(collector.rotate(&mut batch, &|_| false, &|tid| tid == 1));
        assert_eq!(tids(&batch), [1]);
    }

    #[test]
    fn ids_that_run_out_lose_nothing() {
        let (data, mut batch) = (segment(), Batch::default());
        let mut collector = Collector::start(data);
        assert!(!collector.is_ending());
        // The last id but two: the first rotation of the end, and the second, take what is left.
        let origin = Origin { instance: u32::MAX - 2, generation: 0 };
        collector.rotation = Rotation::start_at(&tables(data), &data.control().active, origin);
        assert!(collector.is_ending());
        release(data, sample(data, 1));
        collector.finish(&mut batch);
        assert_eq!((tids(&batch), collector.take_instance()), (vec![1], None));
        assert!(!rotate(&mut collector, &mut batch), "nothing rotates any more");
        assert_eq!(tids(&batch), [1]);
    }

    #[test]
    fn scribbled_tables_cost_no_more_than_honest_ones() {
        let data = segment();
        let (mut collector, mut batch) = (Collector::start(data), Batch::default());
        release(data, sample(data, 1));
        let table = data.table(0).unwrap();
        for (slot, word) in table.slots.iter().enumerate().skip(1) {
            // Every slot names an entry; its length is whatever stands there.
            word.store(1 << 32 | (slot as u64 * 4 + 1), Ordering::Relaxed);
        }
        for (place, word) in table.arena.iter().enumerate().skip(5) {
            word.store([3, DEPTH_MAX as u64, u64::MAX >> 1][place % 3], Ordering::Relaxed);
        }
        table.header.log_used.store(u64::MAX, Ordering::Relaxed);
        let wrong = Sample { slot: THREAD_SLOTS as u32, ..Sample::default() };
        table.log[1].commit(1, 1, &wrong);
        rotate(&mut collector, &mut batch);
        let words: usize = batch.traces.iter().map(|trace| trace.frames.len()).sum();
        assert!(words <= table.arena.len(), "{words}");
        assert!(batch.traces.iter().all(|trace| trace.frames.len() <= DEPTH_MAX));
        assert_eq!(tids(&batch), [1]);
        assert_eq!((collector.stats.unreadable, collector.stats.holes), (1, RECORDS - 2));
    }
}
