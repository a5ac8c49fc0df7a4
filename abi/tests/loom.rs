//! Models of the storage's lock-free steps. loom runs them over all interleavings:
//! `scripts/loom.sh`.
//!
//! Each model also runs with a planted mistake that it must catch. A model that passes with its
//! mistake would prove nothing.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test crate")]

mod model;
mod parts;
#[path = "parts/segment.rs"]
mod segment;

use std::sync::atomic::AtomicBool;

use loom::sync::Arc;
use loom::thread;
use parts::Parts;
use segment::{Segment, Stored};
use traceprof_abi::storage::hazard::{RETRIES_MAX, Unprotected, owner};
use traceprof_abi::storage::log::{Sample, SampleRecord};
use traceprof_abi::storage::rotation::{Collected, Rotation};
use traceprof_abi::storage::table::Put;
use traceprof_abi::sync::planted::Mistake;
use traceprof_abi::sync::{AtomicU32, AtomicU64, Ordering};

/// Checks a model over all interleavings, without a bound on preemptions.
fn check(mistake: Mistake, model: fn()) {
    model::check(None, &[mistake], model);
}

fn frame(pc: u64) -> [AtomicU64; 1] {
    [AtomicU64::new(pc)]
}

/// Returns a segment with `hazards` hazard slots, and room for one sample in each table.
fn segment(hazards: usize) -> Arc<Segment> {
    let parts = (0..Rotation::ROLES).map(|_| Parts::new(1, 6, 1)).collect();
    Arc::new(Segment::new(parts, hazards, 1))
}

/// Stores a sample as a handler does. Frames, sample and slice name the thread.
fn store(segment: &Segment, owner: u32) -> Result<Stored, Unprotected> {
    let frames = [AtomicU64::new(u64::from(owner)), AtomicU64::new(42)];
    segment.store(owner, &frames, sample_of(owner), &[u64::from(owner), 43])
}

fn sample_of(owner: u32) -> Sample {
    Sample { tid: owner, reason: 3, weight: 1, ..Sample::default() }
}

/// The data that the recorder reads from tables.
#[derive(Debug, Default, PartialEq)]
struct Read {
    /// Ids, flags and frames of the traces.
    traces: Vec<(u64, u32, Vec<u64>)>,
    /// Samples and holes.
    samples: Vec<Option<Sample>>,
    /// Sample, program counter and words of the slices.
    slices: Vec<(usize, u64, Vec<u64>)>,
}

impl Read {
    /// Returns everything that the thread stored.
    fn all_of(owner: u32, trace_id: u64) -> Self {
        let name = u64::from(owner);
        Self {
            traces: vec![(trace_id, 3, vec![name, 42])],
            samples: vec![Some(Sample { trace_id, ..sample_of(owner) })],
            slices: vec![(0, name, vec![name, 43])],
        }
    }

    /// Reads a table as the collector does, and discards its slices.
    fn add(&mut self, segment: &Segment, index: usize) {
        let table = segment.parts[index].table();
        let values = |words: &[AtomicU64]| {
            words.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>()
        };
        let traces = table.traces().map(|trace| (trace.id, trace.flags, values(trace.frames)));
        self.traces.extend(traces);
        let instance = table.header.instance.load(Ordering::Relaxed) as u32;
        let slices = segment.slices(index);
        let read =
            slices.all(instance).map(|(slice, words)| (slice.sample, slice.pc, values(words)));
        self.slices.extend(read);
        self.samples.extend(table.samples());
        slices.reset();
    }
}

/// Runs one handler during `rotations` rotations. Everything that is read is complete, and a stored
/// sample is read once.
fn store_while_rotating(rotations: usize) {
    let segment = segment(1);
    let mut rotation = Rotation::start(&segment.tables(), &segment.active);
    let thread = {
        let segment = Arc::clone(&segment);
        thread::spawn(move || store(&segment, owner(7, 0)))
    };
    let (tables, hazards) = (segment.tables(), segment.slots());
    let mut found = Read::default();
    for _ in 0..rotations {
        // The wait ends at once: under loom, waiting in a loop would not end.
        match rotation.rotate(&tables, &segment.active, hazards, || false) {
            Collected::Ready(table) => found.add(&segment, table),
            Collected::Quarantined(_) | Collected::Blocked => break,
            Collected::Exhausted => unreachable!("three ids were taken"),
        }
    }
    let stored = thread.join().unwrap();
    // The handler has left: its data is in the quarantined table, or in a table that is not read
    // yet.
    let quarantined = rotation.released(hazards);
    let unread = quarantined.into_iter().chain([rotation.active()]);
    unread.for_each(|table| found.add(&segment, table));
    let Ok(Stored { put, log_index, has_slice }) = stored else {
        return assert_eq!(found, Read::default());
    };
    let Put::New(id) = put else { unreachable!("nobody else puts, and there is room") };
    assert_eq!((log_index, has_slice), (Some(0), true));
    assert_eq!(found, Read::all_of(owner(7, 0), id), "read once and complete");
    assert_ne!(id >> 32, 0, "the handler did not see the reset table");
}

fn rotation_never_reads_a_table_that_a_handler_is_inside_of() {
    store_while_rotating(1);
}

#[test]
fn rotation_and_hazards() {
    check(Mistake::NoFence, rotation_never_reads_a_table_that_a_handler_is_inside_of);
    check(Mistake::AllRelaxed, rotation_never_reads_a_table_that_a_handler_is_inside_of);
}

/// Three rotations make the first table ACTIVE again. The fourth reads it.
fn a_table_that_is_active_again_is_another_instance() {
    store_while_rotating(4);
}

#[test]
fn the_same_table_again() {
    check(Mistake::IgnoreGeneration, a_table_that_is_active_again_is_another_instance);
}

/// A table that is ACTIVE again still has the records of its last instance. A thread dies in it
/// between reserving and committing.
fn a_dead_thread_leaves_a_hole_and_no_slice() {
    let segment = segment(1);
    let (tables, hazards) = (segment.tables(), segment.slots());
    let mut rotation = Rotation::start(&tables, &segment.active);
    let first = rotation.active();
    assert!(store(&segment, owner(7, 0)).is_ok_and(|it| it.has_slice));
    for _ in 0..Rotation::ROLES {
        let ready = rotation.rotate(&tables, &segment.active, hazards, || false);
        let Collected::Ready(table) = ready else { unreachable!("nobody is inside: {ready:?}") };
        Read::default().add(&segment, table);
    }
    assert_eq!(rotation.active(), first);
    let dying = {
        let segment = Arc::clone(&segment);
        thread::spawn(move || {
            let hazard = segment.slots().protect(owner(8, 0), &segment.active).unwrap();
            segment.parts[hazard.table()].header.log_used.fetch_add(1, Ordering::Relaxed);
            segment.slices(hazard.table()).header.used.fetch_add(1, Ordering::Relaxed);
            hazard.table()
        })
    };
    let early = rotation.rotate(&tables, &segment.active, hazards, || false);
    let died_in = dying.join().unwrap();
    let claim = segment.slots().claims().next().expect("its hazard is still there");
    assert!(segment.slots().reclaim(claim));
    if died_in == first {
        assert_eq!(early, Collected::Quarantined(first));
        assert_eq!(rotation.released(hazards), Some(first));
    } else {
        assert_eq!(rotation.active(), died_in);
    }
    let mut found = Read::default();
    found.add(&segment, died_in);
    assert_eq!(found, Read { samples: vec![None], ..Read::default() });
}

#[test]
fn died_inside() {
    check(Mistake::CommitOfAnyInstance, a_dead_thread_leaves_a_hole_and_no_slice);
}

fn a_hazard_slot_has_one_owner_at_a_time() {
    let segment = segment(1);
    let inside = Arc::new(AtomicU32::new(0));
    let enter = |thread: u32| {
        let (segment, inside) = (Arc::clone(&segment), Arc::clone(&inside));
        move || {
            let Ok(hazard) = segment.slots().protect(owner(thread, 0), &segment.active) else {
                return false;
            };
            // Relaxed, and no swap: stronger operations would provide the order that the slot
            // itself must provide.
            assert_eq!(inside.load(Ordering::Relaxed), 0, "two own the slot");
            inside.store(1, Ordering::Relaxed);
            inside.store(0, Ordering::Relaxed);
            assert!(segment.slots().release(hazard), "the slot holds what was claimed");
            true
        }
    };
    let other = thread::spawn(enter(1));
    let mine = enter(2)();
    let other = other.join().unwrap();
    assert!(mine || other, "at least one got the slot");
    assert_eq!(segment.slots().claims().next(), None);
}

#[test]
fn claim_and_release() {
    check(Mistake::ClaimWithoutSwap, a_hazard_slot_has_one_owner_at_a_time);
    check(Mistake::AllRelaxed, a_hazard_slot_has_one_owner_at_a_time);
}

/// The tables rotate faster than a handler can follow. It withdraws its claim and leaves nothing
/// behind.
fn an_overtaken_claim_is_withdrawn() {
    let segment = segment(1);
    let recorder = {
        let segment = Arc::clone(&segment);
        // Changes the ACTIVE word as rotations do, without touching a table.
        thread::spawn(move || {
            for word in 1..=RETRIES_MAX as u64 {
                segment.active.store(word, Ordering::Release);
            }
        })
    };
    let outcome = segment.slots().protect(owner(1, 0), &segment.active);
    recorder.join().unwrap();
    match outcome {
        Ok(hazard) => {
            let held: Vec<_> = segment.slots().claims().map(|claim| claim.active).collect();
            assert_eq!(held, [hazard.active], "the slot has the confirmed word");
            assert!(segment.slots().release(hazard));
        }
        Err(unprotected) => {
            assert_eq!(unprotected, Unprotected::Overtaken);
            OVERTAKEN.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
    assert_eq!(segment.slots().claims().next(), None);
}

/// Whether an interleaving overtook the claim.
static OVERTAKEN: AtomicBool = AtomicBool::new(false);

#[test]
fn overtaken() {
    check(Mistake::KeepOvertaken, an_overtaken_claim_is_withdrawn);
    assert!(OVERTAKEN.load(std::sync::atomic::Ordering::Relaxed), "nobody was overtaken");
}

/// The recorder takes a thread for dead that is just leaving. Another thread enters through the
/// same hazard slot.
fn reclaiming_never_takes_the_claim_of_another_thread() {
    let segment = segment(1);
    let dead = segment.slots().protect(owner(1, 4), &segment.active).unwrap();
    let seen = segment.slots().claims().next().unwrap();
    let recorder = {
        let segment = Arc::clone(&segment);
        thread::spawn(move || segment.slots().reclaim(seen))
    };
    let alive = {
        let segment = Arc::clone(&segment);
        thread::spawn(move || {
            // The same thread slot in its next life.
            match segment.slots().protect(owner(1, 5), &segment.active) {
                Ok(hazard) => assert!(segment.slots().release(hazard), "the claim was taken away"),
                Err(unprotected) => assert_eq!(unprotected, Unprotected::Exhausted),
            }
        })
    };
    let released = segment.slots().release(dead);
    alive.join().unwrap();
    assert_ne!(recorder.join().unwrap(), released, "exactly one of the two cleared it");
    assert_eq!(segment.slots().claims().next(), None);
}

#[test]
fn reclaim_and_claim() {
    check(Mistake::ReclaimUnseen, reclaiming_never_takes_the_claim_of_another_thread);
}

/// The recorder preserves equal traces of two epochs while a handler puts the same stack.
fn preserved_traces_keep_their_ids_and_put_finds_one_of_them_for_good() {
    let parts = Arc::new(Parts::new(4, 18, 1));
    let handler = {
        let parts = Arc::clone(&parts);
        thread::spawn(move || {
            let first = parts.table().put(&frame(42), 3, 1).id();
            (first, parts.table().put(&frame(42), 3, 1).id())
        })
    };
    let preserved = [(7 << 32) | 1, (8 << 32) | 2];
    let puts = preserved.map(|id| parts.table().put_preserved(&[42], 3, id, 1));
    let (first, again) = handler.join().unwrap();
    assert_eq!(puts, preserved.map(Put::New));
    assert_eq!(first, again, "one stack, one id");
    let mut ids: Vec<_> = parts.table().traces().map(|trace| trace.id).collect();
    ids.sort_unstable();
    let mut expected = Vec::from(preserved);
    if !preserved.contains(&first) {
        expected.insert(0, first);
    }
    assert_eq!(ids, expected);
}

#[test]
fn preserve_and_put() {
    check(
        Mistake::PreserveByFrames,
        preserved_traces_keep_their_ids_and_put_finds_one_of_them_for_good,
    );
}

fn equal_traces_get_one_id_and_entries_are_whole() {
    let parts = Arc::new(Parts::new(2, 12, 1));
    let put = |parts: Arc<Parts>| {
        move || {
            let table = parts.table();
            let id = table.put(&frame(42), 3, 1).id();
            let seen: Vec<_> = table
                .traces()
                .map(|trace| (trace.id, trace.flags, trace.frames[0].load(Ordering::Relaxed)))
                .collect();
            assert_eq!(seen, [(id, 3, 42)]);
            id
        }
    };
    let other = thread::spawn(put(Arc::clone(&parts)));
    let mine = put(Arc::clone(&parts))();
    assert_eq!(other.join().unwrap(), mine);
}

#[test]
fn put_and_put() {
    check(Mistake::AllRelaxed, equal_traces_get_one_id_and_entries_are_whole);
}

fn a_record_is_read_whole_or_not_at_all() {
    let record = Arc::new(SampleRecord::default());
    let sample = Sample { time: 11, trace_id: 12, tid: 13, weight: 14, ..Sample::default() };
    let writer = {
        let record = Arc::clone(&record);
        thread::spawn(move || record.commit(5, 0, &sample))
    };
    if let Some(read) = record.read(5, 0) {
        assert_eq!(read, sample);
    }
    assert_eq!(record.read(4, 0), None, "a record of another instance was read");
    writer.join().unwrap();
}

#[test]
fn commit_and_read() {
    check(Mistake::AllRelaxed, a_record_is_read_whole_or_not_at_all);
}
