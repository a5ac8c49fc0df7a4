//! Models of the lock-free steps, run by loom over all interleavings: `scripts/loom.sh`.
//!
//! Each model also runs against a planted mistake that it must catch; a model that passes with its
//! mistake would prove nothing.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test crate")]

mod parts;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use loom::sync::Arc;
use loom::thread;
use parts::{Parts, words};
use traceprof_abi::storage::hazard::HazardSlots;
use traceprof_abi::storage::log::{Sample, SampleRecord};
use traceprof_abi::storage::rotation::{Collected, Rotation};
use traceprof_abi::storage::table::TraceTable;
use traceprof_abi::sync::planted::{Mistake, plant};
use traceprof_abi::sync::{AtomicU64, Ordering};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The model holds, and does not hold with the mistake.
fn check(mistake: Mistake, model: fn()) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|poison| poison.into_inner());
    let run = || {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    };
    plant(Mistake::None);
    run();
    plant(mistake);
    let caught = catch_unwind(AssertUnwindSafe(run)).is_err();
    plant(Mistake::None);
    assert!(caught, "the model does not catch {mistake:?}");
}

struct Storage {
    active: AtomicU64,
    hazards: Vec<AtomicU64>,
    parts: Vec<Parts>,
}

impl Storage {
    fn tables(&self) -> Vec<TraceTable<'_>> {
        self.parts.iter().map(Parts::table).collect()
    }
}

fn frame(pc: u64) -> [AtomicU64; 1] {
    [AtomicU64::new(pc)]
}

fn rotation_never_reads_a_table_that_a_handler_is_inside_of() {
    let storage = Arc::new(Storage {
        active: AtomicU64::new(0),
        hazards: words(2),
        parts: (0..3).map(|_| Parts::new(2, 12, 1)).collect(),
    });
    let mut rotation = Rotation::start(&storage.tables(), &storage.active);
    let handler = {
        let storage = Arc::clone(&storage);
        thread::spawn(move || {
            let hazards = HazardSlots(&storage.hazards);
            let Ok(hazard) = hazards.protect(7, &storage.active) else { return 0 };
            let id = storage.parts[hazard.table()].table().put(&frame(42), 0, 1).id();
            assert!(hazards.release(hazard));
            id
        })
    };
    let tables = storage.tables();
    let hazards = HazardSlots(&storage.hazards);
    let mut found = Vec::new();
    // Given up at once: under loom, waiting in a loop has no end.
    let first = rotation.rotate(&tables, &storage.active, hazards, || false);
    if let Collected::Ready(table) = first {
        found.extend(tables[table].traces().map(|trace| trace.id));
    }
    let id = handler.join().unwrap();
    // The handler is out: what it put is in the table that was read, or in one not read yet.
    let quarantined = rotation.released(hazards);
    let rest = quarantined.into_iter().chain([rotation.active()]);
    found.extend(rest.flat_map(|table| tables[table].traces().map(|trace| trace.id)));
    assert_eq!(found, [id], "the trace is there once, whole");
}

#[test]
fn rotation_and_hazards() {
    check(Mistake::NoFence, rotation_never_reads_a_table_that_a_handler_is_inside_of);
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
    assert_eq!(record.read(4, 0), None, "another instance's record is none");
    writer.join().unwrap();
}

#[test]
fn commit_and_read() {
    check(Mistake::AllRelaxed, a_record_is_read_whole_or_not_at_all);
}
