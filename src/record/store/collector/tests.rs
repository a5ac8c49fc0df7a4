//! Rotations with threads that stay inside a table, die inside, or overwrite it.

use std::sync::{Arc, Mutex};

use traceprof_abi::storage::hazard::Hazard;
use traceprof_abi::storage::log::Sample;
use traceprof_abi::sync::AtomicU64;

use super::*;
use crate::record::store::threads::Registry;
use crate::record::target::shm::own_data;

const RECORDS: u64 = 64;

/// Makes a segment whose tables have room for a few records.
fn segment() -> DataSegment {
    let data = own_data();
    for table in (0..TRACE_TABLES).filter_map(|index| data.table(index)) {
        table.header.arena_limit.store(RECORDS * 8, Ordering::Relaxed);
        table.header.log_limit.store(RECORDS, Ordering::Relaxed);
    }
    data
}

fn collector(data: DataSegment) -> Collector {
    Collector::start(data, Arc::default()).unwrap()
}

/// Does what the handler of thread `tid` does, up to the release of its hazard.
fn sample(data: DataSegment, tid: u32) -> Hazard {
    let hazard = data.hazards().protect(tid, &data.control().active).unwrap();
    let table = data.table(hazard.table()).unwrap();
    let trace_id = table.put(&[AtomicU64::new(u64::from(tid))], 0, 1).id();
    let sample = Sample { tid, trace_id, weight: 1, ..Sample::default() };
    assert!(table.append_at(&sample).is_some());
    hazard
}

fn release(data: DataSegment, hazard: Hazard) {
    assert!(data.hazards().release(hazard));
}

fn put(data: DataSegment, tid: u32) {
    release(data, sample(data, tid));
}

fn rotate(collector: &mut Collector, batch: &mut Batch) -> bool {
    collector.rotate(batch, &|_| false).is_complete
}

fn tids(batch: &Batch) -> Vec<u32> {
    let mut tids: Vec<u32> = batch.samples.iter().map(|sample| sample.tid).collect();
    tids.sort_unstable();
    tids
}

#[test]
fn a_handler_that_stays_inside_delays_only_the_samples_of_its_table() {
    let data = segment();
    let (mut collector, mut batch) = (collector(data), Batch::default());
    put(data, 1);
    assert!(rotate(&mut collector, &mut batch));
    let inside = sample(data, 2);
    assert!(!rotate(&mut collector, &mut batch), "a handler is inside");
    put(data, 3);
    assert!(!rotate(&mut collector, &mut batch), "it is still inside");
    assert_eq!(tids(&batch), [1, 3]);
    release(data, inside);
    assert!(rotate(&mut collector, &mut batch));
    assert_eq!(tids(&batch), [1, 2, 3]);
    assert_eq!(batch.traces.entries().len(), 3);
    assert_eq!((collector.stats.quarantines, collector.stats.orphans), (1, 0));
}

#[test]
fn the_end_collects_tables_of_dead_threads_and_tables_that_were_not_rotated() {
    let data = segment();
    let (mut collector, mut batch) = (collector(data), Batch::default());
    let threads = TRACE_TABLES as u32 + 2;
    for tid in 1..=threads {
        // Never released: the thread has died, which the recorder does not know.
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
    let (mut collector, mut batch) = (collector(data), Batch::default());
    let _ = sample(data, 1);
    assert!(collector.rotate(&mut batch, &|tid| tid == 1).is_complete);
    assert_eq!(tids(&batch), [1]);
}

#[test]
fn ids_that_run_out_lose_nothing() {
    let (data, mut batch) = (segment(), Batch::default());
    assert!(!collector(data).is_ending());
    // The last three instances: one for the start, and one for each of the last two rotations.
    let instances = Arc::new(Instances::from(u32::MAX - 2));
    let mut collector = Collector::start(data, instances).unwrap();
    assert!(collector.is_ending());
    release(data, sample(data, 1));
    collector.finish(&mut batch);
    assert_eq!((tids(&batch), collector.take_instance()), (vec![1], None));
    assert!(!rotate(&mut collector, &mut batch), "nothing rotates any more");
    assert_eq!(tids(&batch), [1]);
}

#[test]
fn overwritten_tables_cost_no_more_than_intact_ones() {
    let data = segment();
    let (mut collector, mut batch) = (collector(data), Batch::default());
    put(data, 1);
    let table = data.table(0).unwrap();
    for (slot, word) in table.slots.iter().enumerate().skip(1) {
        // Every slot names an entry, with whatever length the arena has there.
        word.store(1 << 32 | (slot as u64 * 4 + 1), Ordering::Relaxed);
    }
    for (place, word) in table.arena.iter().enumerate().skip(5) {
        word.store([3, FRAME_WORDS_MAX as u64, u64::MAX >> 1][place % 3], Ordering::Relaxed);
    }
    table.header.log_used.store(u64::MAX, Ordering::Relaxed);
    let wrong = Sample { slot: THREAD_SLOTS as u32, ..Sample::default() };
    table.log[1].commit(1, 1, &wrong);
    rotate(&mut collector, &mut batch);
    let words = batch.traces.words();
    assert!(words <= table.arena.len(), "{words}");
    assert!(batch.traces.entries().iter().all(|trace| trace.depth() <= FRAME_WORDS_MAX));
    assert_eq!(tids(&batch), [1]);
    assert_eq!((collector.stats.unreadable, collector.stats.holes), (1, RECORDS - 2));
}

/// Preserves the traces whose stack is one of these frames.
struct Frames(Arc<Mutex<Vec<u64>>>);

impl LivenessChecker for Frames {
    fn mark(&mut self, collected: &Batch, live: &mut PreserveSet) {
        let wanted = self.0.lock().unwrap();
        for entry in collected.traces.entries() {
            if collected.traces.frames_of(entry).iter().any(|frame| wanted.contains(frame)) {
                live.insert(entry.id);
            }
        }
    }
}

/// Makes a collector that preserves by frames, and returns it with the set of frames.
fn preserving(data: DataSegment) -> (Collector, Arc<Mutex<Vec<u64>>>) {
    let (mut collector, frames) = (collector(data), Arc::default());
    collector.register(Box::new(Frames(Arc::clone(&frames))));
    (collector, frames)
}

/// Runs one turn, and returns what was collected.
fn turn(collector: &mut Collector, is_gone: &dyn Fn(u32) -> bool) -> (Batch, DrainStatus) {
    let mut batch = Batch::default();
    let drained = collector.rotate(&mut batch, is_gone);
    batch.sort();
    collector.preserve(&batch);
    (batch, drained)
}

/// Returns the ids of all traces with this frame, and whether each was preserved.
fn ids(batch: &Batch, frame: u64) -> Vec<(u64, bool)> {
    let traces = &batch.traces;
    let entries = traces.entries().iter();
    let with = entries.filter(|entry| traces.frames_of(entry) == [frame]);
    with.map(|entry| (entry.id, entry.preserved)).collect()
}

/// Memory that a handler found readable is verified again after each rotation: it may be unmapped
/// by then.
#[test]
fn stack_windows_are_verified_again_after_each_rotation() {
    let data = segment();
    let mut collector = collector(data);
    let epoch = || data.control().window_epoch.load(Ordering::Relaxed);
    let before = epoch();
    for turns in 1..=3 {
        let _ = turn(&mut collector, &|_| false);
        assert_eq!(epoch(), before + turns);
    }
}

#[test]
fn a_preserved_trace_is_in_every_collection_under_its_id() {
    let data = segment();
    let (mut collector, wanted) = preserving(data);
    wanted.lock().unwrap().push(7);
    put(data, 7);
    put(data, 8);
    let (batch, _) = turn(&mut collector, &|_| false);
    let id = ids(&batch, 7)[0].0;
    for round in 0..20 {
        put(data, 9);
        let (batch, drained) = turn(&mut collector, &|_| false);
        assert!(drained.is_complete);
        assert_eq!(ids(&batch, 7), [(id, true)], "round {round}");
        assert_eq!((ids(&batch, 8), ids(&batch, 9).len()), (vec![], 1));
        let entry = batch.traces.get(id).unwrap();
        assert_eq!((entry.weight, entry.flags), (0, 0), "the weight is that of this round alone");
    }
    // The stack occurs again with another id. Both are kept, since samples name either.
    put(data, 7);
    let (batch, _) = turn(&mut collector, &|_| false);
    assert_eq!(ids(&batch, 7).len(), 2);
    let (batch, _) = turn(&mut collector, &|_| false);
    assert!(
        matches!(ids(&batch, 7)[..], [(first, true), (second, true)] if first == id && second > id)
    );
    wanted.lock().unwrap().clear();
    let (batch, _) = turn(&mut collector, &|_| false);
    assert_eq!(ids(&batch, 7).len(), 2, "they are dropped after this collection");
    let (batch, _) = turn(&mut collector, &|_| false);
    assert_eq!(ids(&batch, 7), []);
    assert_eq!(collector.stats.preserve_damaged, 0);
    assert_eq!(collector.stats.preserve_spilled, 0);
}

#[test]
fn preserved_traces_survive_a_held_standby() {
    let data = segment();
    let (mut collector, wanted) = preserving(data);
    wanted.lock().unwrap().push(7);
    put(data, 7);
    let (batch, _) = turn(&mut collector, &|_| false);
    let id = ids(&batch, 7)[0].0;
    // Threads stop inside one table after the other until nothing can rotate any more.
    let mut inside = Vec::new();
    for tid in 20..20 + TRACE_TABLES as u32 + 1 {
        inside.push(sample(data, tid));
        let (batch, drained) = turn(&mut collector, &|_| false);
        assert_eq!(ids(&batch, 7), [(id, true)]);
        assert!(!drained.is_complete);
    }
    assert!(collector.stats.blocked > 0 && collector.stats.preserve_spilled > 0);
    inside.into_iter().for_each(|hazard| release(data, hazard));
    let mut all = Batch::default();
    for _ in 0..3 {
        let (batch, _) = turn(&mut collector, &|_| false);
        assert_eq!(ids(&batch, 7), [(id, true)]);
        all.samples.extend(batch.samples);
    }
    assert_eq!(tids(&all), (20..20 + TRACE_TABLES as u32 + 1).collect::<Vec<_>>());
    assert_eq!((collector.stats.orphans, collector.stats.preserve_damaged), (0, 0));
}

#[test]
fn changes_of_standby_by_the_target_are_counted_and_have_no_effect() {
    let data = segment();
    let (mut collector, wanted) = preserving(data);
    wanted.lock().unwrap().extend([7, 8]);
    put(data, 7);
    put(data, 8);
    let _ = turn(&mut collector, &|_| false);
    let standby = collector.tables[collector.rotation.standby()];
    let seven = standby.traces().find(|trace| trace.frames[0].load(Ordering::Relaxed) == 7);
    seven.unwrap().frames[0].store(99, Ordering::Relaxed);
    let (batch, _) = turn(&mut collector, &|_| false);
    assert_eq!((ids(&batch, 7).len(), ids(&batch, 8).len(), ids(&batch, 99).len()), (1, 1, 0));
    assert_eq!(collector.stats.preserve_damaged, 1);
}

#[test]
fn traces_that_do_not_fit_into_standby_are_still_kept() {
    let data = segment();
    let (mut collector, wanted) = preserving(data);
    wanted.lock().unwrap().extend(1..=20);
    (1..=20).for_each(|tid| put(data, tid));
    // Room for ten traces of one frame.
    for table in collector.tables.iter().skip(2) {
        table.header.arena_limit.store(50, Ordering::Relaxed);
    }
    let _ = turn(&mut collector, &|_| false);
    assert_eq!(collector.stats.preserve_spilled, 10);
    let (batch, _) = turn(&mut collector, &|_| false);
    assert!((1..=20).all(|frame| ids(&batch, frame).len() == 1));
    assert_eq!(collector.stats.preserve_full, 0);
}

#[test]
fn threads_that_died_inside_are_found_in_quarantined_tables() {
    let data = segment();
    let (mut collector, mut batch) = (collector(data), Batch::default());
    for tid in 1..=3 {
        let _ = sample(data, tid);
        assert!(!rotate(&mut collector, &mut batch), "the thread may run on");
    }
    assert_eq!((collector.stats.quarantines, tids(&batch)), (3, vec![]));
    // The second thread is known to have exited: only its table is released.
    assert!(!collector.rotate(&mut batch, &|owner| owner == 2).is_complete);
    assert_eq!((tids(&batch), collector.stats.reclaimed), (vec![2], 1));
    assert!(collector.rotate(&mut batch, &|_| true).is_complete);
    assert_eq!((tids(&batch), collector.stats.reclaimed), (vec![1, 2, 3], 3));
    assert_eq!((collector.stats.released, collector.stats.blocked), (3, 0));
}

#[test]
fn waits_are_counted_and_bounded() {
    let data = segment();
    let (mut collector, mut batch) = (collector(data), Batch::default());
    rotate(&mut collector, &mut batch);
    assert_eq!((collector.stats.hazard_waits, collector.stats.hazard_wait_ns), (0, 0));
    let _ = sample(data, 1);
    rotate(&mut collector, &mut batch);
    let Stats { hazard_waits, hazard_wait_ns, rotations, rotation_ns, .. } = collector.stats;
    assert_eq!((hazard_waits, rotations), (1, 2));
    assert!(hazard_wait_ns >= HAZARD_TIMEOUT.as_nanos() as u64, "{hazard_wait_ns}");
    assert!(rotation_ns.1 >= hazard_wait_ns && rotation_ns.0 >= rotation_ns.1, "{rotation_ns:?}");
}

#[test]
fn a_slot_is_kept_while_a_table_may_hold_samples_of_its_thread() {
    const GONE: u32 = 1 << 30;
    let data = segment();
    data.control().slots_limit.store(8, Ordering::Relaxed);
    let (mut collector, mut batch) = (collector(data), Batch::default());
    let mut registry = Registry::new(std::process::id() as i32, data, 0, &Arc::default()).unwrap();
    let threads = data.threads();
    let slot = threads.claim(GONE).index().unwrap();
    let generation = || threads.slots[slot].generation.load(Ordering::Relaxed);
    let mut turn = |batch: &mut Batch| {
        registry.scan(true);
        let mut changes = registry.take_changes();
        let drained = collector.rotate(batch, &|_| false);
        registry.retire(drained.is_complete, &mut changes);
    };
    // Its last sample is in a table inside which another thread is stopped.
    put(data, GONE >> 15);
    let inside = sample(data, 2);
    for _ in 0..4 {
        turn(&mut batch);
        assert_eq!(generation(), 0, "no other thread has it yet");
        assert!(batch.samples.is_empty());
    }
    release(data, inside);
    (0..3).for_each(|_| turn(&mut batch));
    assert_eq!((tids(&batch).len(), generation()), (2, 1));
}

#[test]
fn attributes_of_context_records_are_not_stacks() {
    let data = segment();
    let (mut collector, mut batch) = (collector(data), Batch::default());
    let hazard = sample(data, 1);
    let table = data.table(hazard.table()).unwrap();
    let words = [6, u64::from_le_bytes(*b"\x00\x04name\x00\x00")].map(AtomicU64::new);
    let id = table.put(&words, u32::from(ATTRIBUTES), 0).id();
    let lies = [u64::MAX, 7].map(AtomicU64::new);
    let lie = table.put(&lies, u32::from(ATTRIBUTES), 0).id();
    release(data, hazard);
    assert!(rotate(&mut collector, &mut batch));
    assert_eq!(batch.attributes.get(&id).map(|it| &**it), Some(&b"\x00\x04name"[..]));
    assert_eq!(batch.attributes.get(&lie), None);
    assert_eq!(batch.traces.entries().len(), 1, "the stack of the sample");
    assert_eq!((collector.stats.orphans, tids(&batch)), (0, vec![1]));
    // They are dropped with their table.
    batch.clear();
    collector.preserve(&batch);
    assert!(rotate(&mut collector, &mut batch));
    assert!(batch.attributes.is_empty() && batch.traces.entries().is_empty());
}
