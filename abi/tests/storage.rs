//! Tests of the storage with real threads: what is put is collected once and completely, under any
//! rotation.
#![cfg(not(loom))]
#![allow(missing_docs, reason = "a test crate")]

mod parts;
#[path = "parts/segment.rs"]
mod segment;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::thread;

use parts::Parts;
use segment::Segment;
use traceprof_abi::storage::hazard;
use traceprof_abi::storage::log::{Sample, SampleRecord};
use traceprof_abi::storage::rotation::{Collected, Rotation};
use traceprof_abi::storage::table::{self, Put};
use traceprof_abi::storage::{DROPPED_TRACE_ID, Dropped};
use traceprof_abi::sync::{AtomicU64, Ordering};

fn frames(pcs: &[u64]) -> Vec<AtomicU64> {
    pcs.iter().map(|pc| AtomicU64::new(*pc)).collect()
}

/// Returns a stack that shows whether it is complete: each frame follows from the seed.
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
        assert_eq!(table.put_preserved(&[9], 0, 77, 1), Put::New(77));
        for number in 0..20 {
            assert_eq!(table.put(&frames(&[number]), 1, 1), Put::New(high | number));
        }
        assert_eq!(table.put(&frames(&[5]), 1, 1), Put::Hit(high | 5));
        assert_eq!(table.put(&frames(&[9]), 0, 1), Put::Hit(77));
        assert_eq!(table.put(&frames(&[20]), 1, 1), Put::New(high | 20));
    }
}

#[test]
fn stacks_with_equal_hashes_are_distinguished_by_their_frames() {
    // One step of the hash runs backwards: the second frame compensates for the first.
    let (a, b) = (0x1111_u64, 0x2222_u64);
    let second = 0x3333_u64;
    let other = second ^ state_after(a) ^ state_after(b);
    let (left, right) = ([a, second], [b, other]);
    assert_ne!(left, right);
    assert_eq!(table::hash(&left, 0), table::hash(&right, 0), "the stacks do not collide");
    let parts = Parts::new(64, 4096, 4);
    let table = parts.table();
    table.reset(1);
    let (first, collided) = table.put_probed(&frames(&left), 0, 1);
    assert!(!collided);
    let (second, collided) = table.put_probed(&frames(&right), 0, 1);
    assert!(collided, "the first probed slot has the other stack");
    assert_eq!((first, second), (Put::New(1 << 32), Put::New(1 << 32 | 1)));
    assert_eq!(table.put(&frames(&left), 0, 1), Put::Hit(first.id()));
    assert_eq!(table.put(&frames(&right), 0, 1), Put::Hit(second.id()));
}

/// Returns the hash's state after the first of two frames.
fn state_after(frame: u64) -> u64 {
    const K: u64 = 0x9E37_79B9_7F4A_7C15;
    let product = u128::from(2u64.wrapping_mul(K) ^ K ^ frame) * u128::from(K);
    product as u64 ^ (product >> 64) as u64
}

#[test]
fn equal_traces_of_two_epochs_are_both_preserved_and_put_finds_the_older() {
    let parts = Parts::new(64, 4096, 4);
    let table = parts.table();
    table.reset(9);
    let (old, new) = (3 << 32 | 5, 4 << 32 | 6);
    assert_eq!(table.put_preserved(&[1, 2], 0, old, 10), Put::New(old));
    assert_eq!(table.put_preserved(&[1, 2], 0, new, 20), Put::New(new));
    assert_eq!(table.put_preserved(&[1, 2], 0, new, 3), Put::Hit(new));
    assert_eq!(table.put_preserved(&[1, 2], 7, 8, 1), Put::New(8), "other flags");
    for _ in 0..3 {
        assert_eq!(table.put(&frames(&[1, 2]), 0, 1), Put::Hit(old));
    }
    let mut traces: Vec<_> = table.traces().map(|trace| (trace.id, trace.weight)).collect();
    traces.sort_unstable();
    assert_eq!(traces, [(8, 1), (old, 13), (new, 23)]);
}

#[test]
fn a_trace_without_a_slot_is_dropped() {
    let parts = Parts::new(8, 4096, 4);
    let table = parts.table();
    table.reset(1);
    for stack in 0..8 {
        assert!(matches!(table.put(&frames(&[stack]), 0, 1), Put::New(_)));
    }
    let (put, collided) = table.put_probed(&frames(&[8]), 0, 1);
    assert_eq!((put, put.id()), (Put::Dropped(Dropped::Probes), DROPPED_TRACE_ID));
    assert!(collided);
    assert_eq!(table.put_preserved(&[9], 0, 77, 1), Put::Dropped(Dropped::Probes));
}

/// More threads than cores put the same stacks into one instance. Each stack gets one id, and no
/// weight is lost.
#[test]
fn a_stack_has_one_id_whoever_puts_it() {
    const THREADS: u64 = 8;
    const STACKS: u64 = 100;
    const ROUNDS: u64 = 50;
    let parts = Parts::new(256, 1 << 16, 4);
    let table = parts.table();
    table.reset(1);
    let work = |thread: u64| {
        let mut ids = vec![0; STACKS as usize];
        for turn in 0..STACKS * ROUNDS {
            // Each thread begins with another stack, and they collide all the time.
            let seed = (turn + thread * 13) % STACKS;
            let id = table.put(&frames(&[seed, seed * seed, 7]), 0, 1).id();
            let known = std::mem::replace(&mut ids[seed as usize], id);
            assert!(known == 0 || known == id, "stack {seed} has ids {known:#x} and {id:#x}");
        }
        ids
    };
    let all: Vec<Vec<u64>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    assert!(all.iter().all(|ids| *ids == all[0]), "threads disagree");
    let mut ids = all[0].clone();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len() as u64, STACKS);
    assert_eq!(table.traces().count() as u64, STACKS);
    let weight: u64 = table.traces().map(|trace| trace.weight).sum();
    assert_eq!(weight, THREADS * STACKS * ROUNDS);
}

#[test]
fn a_trace_without_room_is_dropped_and_its_sample_kept() {
    let parts = Parts::new(64, 16, 4);
    let table = parts.table();
    table.reset(1);
    assert!(matches!(table.put(&frames(&[1; 8]), 0, 1), Put::New(_)));
    let put = table.put(&frames(&[2; 8]), 0, 1);
    assert_eq!((put, put.id()), (Put::Dropped(Dropped::Arena), DROPPED_TRACE_ID));
    let sample = Sample { trace_id: put.id(), ..Sample::default() };
    assert_eq!(table.append_at(&sample), Some(0));
    assert!(table.nearly_full());
}

#[test]
fn a_full_log_refuses_samples_and_a_hole_is_skipped() {
    let parts = Parts::new(4, 64, 3);
    let table = parts.table();
    table.reset(1);
    let at = |time: u64| Sample { time, ..Sample::default() };
    assert_eq!(table.append_at(&at(1)), Some(0));
    // A thread that died between reserving and committing.
    parts.header.log_used.fetch_add(1, Ordering::Relaxed);
    assert_eq!(table.append_at(&at(3)), Some(2));
    assert_eq!(table.append_at(&at(4)), None);
    let times: Vec<_> = table.samples().map(|sample| sample.map(|sample| sample.time)).collect();
    assert_eq!(times, [Some(1), None, Some(3)]);
    table.reset(2);
    assert_eq!(table.samples().count(), 0);
}

#[test]
fn a_record_counts_only_at_its_own_index_and_instance() {
    let record = SampleRecord::default();
    let sample = Sample { time: 7, weight: 2, ..Sample::default() };
    record.commit(5, 3, &sample);
    assert_eq!(record.read(5, 3), Some(sample));
    for (instance, index) in [(5, 2), (5, 4), (4, 3), (6, 3)] {
        assert_eq!(record.read(instance, index), None, "{instance} {index}");
    }
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

/// One sample in this many has a slice.
const SLICED_EVERY: u64 = 50;

/// Stores `samples` samples of a thread and retries each until there is room, because the machine
/// decides how fast the tables are emptied.
fn store_all(segment: &Segment, tid: u32, samples: u64, kept_slices: &AtomicU64) {
    for count in 0..samples {
        let seed = count % 97 + u64::from(tid % 2);
        let sample = Sample { time: seed, tid, weight: 1, ..Sample::default() };
        let words = [seed, !seed, seed << 7];
        let words = if count % SLICED_EVERY == 0 { &words[..] } else { &[] };
        loop {
            let stack = frames(&stack(seed));
            let stored = segment.store(hazard::owner(tid, 0), &stack, sample, words);
            let is_stored =
                stored.is_ok_and(|it| it.log_index.is_some() && !matches!(it.put, Put::Dropped(_)));
            let has_slice = stored.is_ok_and(|it| it.has_slice);
            kept_slices.fetch_add(u64::from(has_slice), Ordering::Relaxed);
            if is_stored {
                break;
            }
            thread::yield_now();
        }
    }
}

/// Threads store samples, some with a slice, while the tables rotate as fast as they can.
#[test]
fn nothing_is_lost_or_torn_under_rotation() {
    const THREADS: u32 = 4;
    const SAMPLES: u64 = 30_000;
    const LOG_RECORDS: usize = 1 << 15;
    const SLICES: usize = 128;
    let parts = (0..5).map(|_| Parts::new(4096, 1 << 18, LOG_RECORDS)).collect();
    let segment = Segment::new(parts, 8192, SLICES);
    let mut rotation = Rotation::start(&segment.tables(), &segment.active);
    let done = AtomicBool::new(false);
    let mut traces: HashMap<u64, Vec<u64>> = HashMap::new();
    let (mut samples, mut slices) = (Vec::new(), 0);
    let kept_slices = AtomicU64::new(0);
    let work = |tid: u32| store_all(&segment, tid, SAMPLES, &kept_slices);
    let mut collect = |index: usize| {
        let table = segment.parts[index].table();
        for trace in table.traces() {
            let pcs = trace.frames.iter().map(|f| f.load(Ordering::Relaxed)).collect();
            assert!(traces.insert(trace.id, pcs).is_none(), "id {:#x} twice", trace.id);
        }
        let logged: Vec<_> = table.samples().map(|it| it.expect("nobody died")).collect();
        let instance = table.header.instance.load(Ordering::Relaxed) as u32;
        for (slice, words) in segment.slices(index).all(instance) {
            let Sample { time, tid, .. } = logged[slice.sample];
            assert_eq!(slice.pc, u64::from(hazard::owner(tid, 0)), "another thread's sample");
            let words: Vec<_> = words.iter().map(|it| it.load(Ordering::Relaxed)).collect();
            assert_eq!(words, [time, !time, time << 7]);
            slices += 1;
        }
        segment.slices(index).reset();
        samples.extend(logged);
    };
    thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (1..=THREADS).map(|tid| scope.spawn(move || work(tid))).collect();
        let done = &done;
        scope.spawn(move || {
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            done.store(true, std::sync::atomic::Ordering::Release);
        });
        let (tables, hazards) = (segment.tables(), segment.slots());
        loop {
            let last = done.load(std::sync::atomic::Ordering::Acquire);
            while let Some(table) = rotation.released(hazards) {
                collect(table);
                tables[table].reset(0);
                rotation.restore(table);
            }
            let patience = std::cell::Cell::new(1000);
            let outcome = rotation.rotate(&tables, &segment.active, hazards, || {
                patience.set(patience.get() - 1);
                patience.get() > 0
            });
            if let Collected::Ready(table) = outcome {
                collect(table);
            }
            if last {
                break;
            }
        }
    });
    assert_eq!(samples.len() as u64, u64::from(THREADS) * SAMPLES);
    assert_eq!(slices, kept_slices.load(Ordering::Relaxed));
    // However fast the tables are emptied, a table that is full of samples is full of slices as
    // well.
    let full_tables = u64::from(THREADS) * SAMPLES / LOG_RECORDS as u64;
    assert!(slices >= full_tables * SLICES as u64, "{slices} slices");
    for sample in &samples {
        assert_eq!(traces[&sample.trace_id], stack(sample.time));
    }
}
