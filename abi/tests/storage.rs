//! The storage with real threads: what is put is collected, once, whole, under any rotation.
#![cfg(not(loom))]
#![allow(missing_docs, reason = "a test crate")]

mod parts;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::thread;

use parts::{Parts, words};
use traceprof_abi::storage::DROPPED_TRACE_ID;
use traceprof_abi::storage::hazard::{HazardSlots, PROBES_MAX, Unprotected};
use traceprof_abi::storage::log::Sample;
use traceprof_abi::storage::rotation::{Collected, Rotation};
use traceprof_abi::storage::table::{Put, TraceTable};
use traceprof_abi::sync::{AtomicU64, Ordering};

fn frames(pcs: &[u64]) -> Vec<AtomicU64> {
    pcs.iter().map(|pc| AtomicU64::new(*pc)).collect()
}

/// A stack that tells by itself whether it is whole: each frame follows from the seed.
fn stack(seed: u64) -> Vec<u64> {
    (0..seed % 40).map(|depth| seed.wrapping_mul(31).wrapping_add(depth * depth)).collect()
}

#[test]
fn equal_stacks_get_equal_ids_and_weights_add_up() {
    let parts = Parts::new(64, 4096, 4);
    let table = parts.table();
    table.reset(3);
    let first = table.put(&frames(&[1, 2, 3]), 0, 2);
    let again = table.put(&frames(&[1, 2, 3]), 0, 5);
    assert_eq!(again, Put::Hit(first.id()));
    assert_eq!(first.id() >> 32, 3);
    assert_ne!(table.put(&frames(&[1, 2]), 0, 1).id(), first.id());
    assert_ne!(table.put(&frames(&[1, 2, 3]), 5, 1).id(), first.id(), "flags are part of a trace");
    let weight = table.traces().find(|trace| trace.id == first.id()).map(|trace| trace.weight);
    assert_eq!(weight, Some(7));
}

#[test]
fn new_traces_are_numbered_from_zero_on_in_each_instance() {
    let parts = Parts::new(64, 4096, 4);
    let table = parts.table();
    for instance in [3, 4] {
        table.reset(instance);
        let high = u64::from(instance) << 32;
        assert_eq!(table.put_with_id(&frames(&[9]), 0, 77), Put::New(77));
        for number in 0..20 {
            assert_eq!(table.put(&frames(&[number]), 1, 1), Put::New(high | number));
        }
        assert_eq!(table.put(&frames(&[5]), 1, 1), Put::Hit(high | 5));
        assert_eq!(table.put(&frames(&[9]), 0, 1), Put::Hit(77));
        assert_eq!(table.put(&frames(&[20]), 1, 1), Put::New(high | 20));
    }
}

#[test]
fn a_trace_without_room_is_dropped_and_its_sample_kept() {
    let parts = Parts::new(64, 16, 4);
    let table = parts.table();
    table.reset(1);
    assert!(matches!(table.put(&frames(&[1; 8]), 0, 1), Put::New(_)));
    let put = table.put(&frames(&[2; 8]), 0, 1);
    assert_eq!((put, put.id()), (Put::Dropped, DROPPED_TRACE_ID));
    assert!(table.append(&Sample { trace_id: put.id(), ..Sample::default() }));
    assert!(table.nearly_full());
}

#[test]
fn a_full_log_says_so_and_a_hole_is_skipped() {
    let parts = Parts::new(4, 64, 3);
    let table = parts.table();
    table.reset(1);
    assert!(table.append(&Sample { time: 1, ..Sample::default() }));
    // A thread that died between reserving and committing.
    parts.header.log_used.fetch_add(1, Ordering::Relaxed);
    assert!(table.append(&Sample { time: 3, ..Sample::default() }));
    assert!(!table.append(&Sample { time: 4, ..Sample::default() }));
    let times: Vec<_> = table.samples().map(|sample| sample.map(|sample| sample.time)).collect();
    assert_eq!(times, [Some(1), None, Some(3)]);
    table.reset(2);
    assert_eq!(table.samples().count(), 0);
}

#[test]
fn garbage_in_the_shared_memory_is_survived() {
    let parts = Parts::new(64, 256, 8);
    let table = parts.table();
    let mut state = 1u64;
    for _ in 0..2000 {
        for word in parts.slots.iter().chain(&parts.arena) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.store(state >> (state % 61), Ordering::Relaxed);
        }
        parts.header.log_used.store(state, Ordering::Relaxed);
        parts.header.arena_used.store(state, Ordering::Relaxed);
        assert!(table.traces().all(|trace| trace.frames.len() <= 256));
        assert!(table.samples().count() <= 8);
        table.put(&frames(&[1, 2, 3]), 0, 1);
    }
}

#[test]
fn a_thread_that_stays_inside_is_quarantined_and_given_back() {
    let parts: Vec<Parts> = (0..4).map(|_| Parts::new(64, 1024, 64)).collect();
    let tables: Vec<_> = parts.iter().map(Parts::table).collect();
    let active = AtomicU64::new(0);
    let hazard_words = words(8);
    let hazards = HazardSlots(&hazard_words);
    let mut rotation = Rotation::start(&tables, &active);
    let hazard = hazards.protect(7, &active).unwrap();
    let held = hazard.table();
    let id = tables[held].put(&frames(&[5]), 0, 1).id();
    assert_eq!(rotation.rotate(&tables, &active, hazards, || false), Collected::Quarantined(held));
    for _ in 0..5 {
        let next = rotation.rotate(&tables, &active, hazards, || false);
        assert!(matches!(next, Collected::Ready(table) if table != held), "{next:?}");
    }
    assert_eq!(rotation.released(hazards), None);
    hazards.release(hazard);
    assert_eq!(rotation.released(hazards), Some(held));
    assert_eq!(tables[held].traces().map(|trace| trace.id).collect::<Vec<_>>(), [id]);
    rotation.restore(held);
    assert_eq!(rotation.released(hazards), None);
}

#[test]
fn hazard_slots_run_out_without_harm() {
    let words = words(PROBES_MAX.next_power_of_two() / 2);
    let hazards = HazardSlots(&words);
    let active = AtomicU64::new(0);
    let mut held = Vec::new();
    let mut refused = 0;
    for owner in 1..1000 {
        match hazards.protect(owner, &active) {
            Ok(hazard) => held.push(hazard),
            Err(Unprotected::Exhausted) => refused += 1,
            Err(Unprotected::Overtaken) => panic!("nothing rotates"),
        }
    }
    assert!(held.len() > words.len() / 2 && refused > 0);
    held.into_iter().for_each(|hazard| hazards.release(hazard));
    assert!(hazards.is_clear(0));
}

/// Threads put and log while the tables rotate as fast as they can.
#[test]
fn nothing_is_lost_or_torn_under_rotation() {
    const THREADS: u32 = 4;
    const PUTS: u64 = 30_000;
    let parts: Vec<Parts> = (0..5).map(|_| Parts::new(4096, 1 << 18, 1 << 15)).collect();
    let tables: Vec<_> = parts.iter().map(Parts::table).collect();
    let active = AtomicU64::new(0);
    let hazard_words = words(8192);
    let hazards = HazardSlots(&hazard_words);
    let mut rotation = Rotation::start(&tables, &active);
    let done = AtomicBool::new(false);
    let mut traces: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut samples = Vec::new();
    let refused = AtomicU64::new(0);
    let (tables, done, active, refused) = (&tables, &done, &active, &refused);
    let work = |tid: u32| {
        for count in 0..PUTS {
            let seed = count % 97 + u64::from(tid % 2);
            let Ok(hazard) = hazards.protect(tid, active) else {
                refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let table = &tables[hazard.table()];
            let id = table.put(&frames(&stack(seed)), 0, 1).id();
            let sample = Sample { trace_id: id, time: seed, tid, ..Sample::default() };
            if id == DROPPED_TRACE_ID || !table.append(&sample) {
                refused.fetch_add(1, Ordering::Relaxed);
            }
            hazards.release(hazard);
        }
    };
    let work = &work;
    let mut collect = |table: TraceTable<'_>| {
        for trace in table.traces() {
            let pcs = trace.frames.iter().map(|f| f.load(Ordering::Relaxed)).collect();
            assert!(traces.insert(trace.id, pcs).is_none(), "id {:#x} twice", trace.id);
        }
        samples.extend(table.samples().map(|sample| sample.expect("nobody died")));
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (1..=THREADS).map(|tid| scope.spawn(move || work(tid))).collect();
        scope.spawn(move || {
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        loop {
            let last = done.load(std::sync::atomic::Ordering::Acquire);
            while let Some(table) = rotation.released(hazards) {
                collect(tables[table]);
                tables[table].reset(0);
                rotation.restore(table);
            }
            let patience = std::cell::Cell::new(1000);
            let outcome = rotation.rotate(tables, active, hazards, || {
                patience.set(patience.get() - 1);
                patience.get() > 0
            });
            if let Collected::Ready(table) = outcome {
                collect(tables[table]);
            }
            if last {
                break;
            }
        }
    });
    let lost = refused.load(Ordering::Relaxed);
    assert_eq!(samples.len() as u64 + lost, u64::from(THREADS) * PUTS);
    assert!(lost < u64::from(THREADS) * PUTS / 10, "{lost} lost: the test is to show storing");
    for sample in &samples {
        assert_eq!(traces[&sample.trace_id], stack(sample.time));
    }
}
