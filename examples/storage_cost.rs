//! Measures what the call-trace storage costs a handler: puts of known and of new traces by several
//! threads at once into one table, and how often threads collide at their first hazard slot.
//!
//! Prints `known THREADS NS SCALE` and `new THREADS NS SCALE`. NS is the CPU time of a put with its
//! hazard. SCALE is the puts per second of all threads as a multiple of one thread's (best of many
//! batches). Then it prints `collisions KEYS THREADS PERCENT REFUSED`. `scripts/bench` reads this.
//! With more threads than cores the times show contention and preemption inside a put, and no
//! scaling.
//!
//! # Safety
//! The only unsafe code is a system call that reads a clock.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::collections::HashSet;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use traceprof_abi::layout::HAZARD_SLOTS;
use traceprof_abi::storage::hazard::{HazardSlots, owner};
use traceprof_abi::storage::table::{ARENA_WORDS, Put, SLOTS, TableHeader, TraceTable};
use traceprof_abi::sync::{AtomicU64, Ordering};

const DEPTH: usize = 32;
/// Number of known stacks, shared by all threads: a busy program has few hot ones.
const KNOWN: u64 = 64;
/// Number of puts in a batch, by all threads together: less than a table holds.
const BATCH: u64 = 40_000;
const BATCHES: usize = 25;
const THREADS: [usize; 4] = [1, 2, 4, 8];

/// The storage that a put uses. No other table becomes ACTIVE.
struct Storage<'a> {
    active: &'a AtomicU64,
    hazards: HazardSlots<'a>,
    table: TraceTable<'a>,
}

fn main() {
    let (slots, arena) = (words(SLOTS), words(ARENA_WORDS));
    let header = TableHeader::default();
    header.arena_limit.store(ARENA_WORDS as u64, Ordering::Relaxed);
    let table = TraceTable { header: &header, slots: &slots, arena: &arena, log: &[] };
    let (active, hazards) = (AtomicU64::new(0), words(HAZARD_SLOTS));
    let hazards = HazardSlots(&hazards);
    let storage = Storage { active: &active, hazards, table };
    for (name, is_new) in [("known", false), ("new", true)] {
        let mut one = 0.0;
        for threads in THREADS {
            let (ns, rate) = best(&storage, threads, is_new);
            if threads == 1 {
                one = rate;
            }
            println!("{name} {threads} {ns:.0} {:.2}", rate / one);
        }
    }
    for threads in [200, 2000, 4000] {
        collisions("consecutive", (0..threads).collect());
        collisions("pointer-like", (0..threads).map(|n| n * ((8 << 20) + 4096)).collect());
        collisions("random", random(threads));
    }
}

fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// Returns the least CPU time of a put in nanoseconds, and the most puts per second, of all
/// batches.
fn best(storage: &Storage<'_>, threads: usize, is_new: bool) -> (f64, f64) {
    let (mut least, mut most) = (f64::MAX, 0.0_f64);
    for _ in 0..BATCHES {
        storage.table.reset(1);
        if !is_new {
            (0..KNOWN).for_each(|stack| put(storage, 0, stack, false));
        }
        let (ns, rate) = batch(storage, threads, is_new);
        (least, most) = (least.min(ns), most.max(rate));
    }
    (least, most)
}

fn batch(storage: &Storage<'_>, threads: usize, is_new: bool) -> (f64, f64) {
    let each = BATCH / threads as u64;
    let barrier = Barrier::new(threads);
    let work = |thread: usize| {
        barrier.wait();
        let (begin, cpu_ns) = (Instant::now(), thread_cpu_ns());
        for turn in 0..each {
            let stack = if is_new { thread as u64 * each + turn } else { turn % KNOWN };
            put(storage, thread, stack, is_new);
        }
        (thread_cpu_ns() - cpu_ns, begin, Instant::now())
    };
    let done: Vec<(u64, Instant, Instant)> = thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
    });
    let puts = (each * threads as u64) as f64;
    let cpu_ns: u64 = done.iter().map(|(cpu_ns, ..)| cpu_ns).sum();
    let first = done.iter().map(|(_, begin, _)| *begin).min();
    let last = done.iter().map(|(.., end)| *end).max();
    let wall = first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64());
    (cpu_ns as f64 / puts, puts / wall)
}

fn put(storage: &Storage<'_>, thread: usize, stack: u64, is_new: bool) {
    let base = (stack + 1) << 20 | u64::from(is_new);
    let frames: [AtomicU64; DEPTH] =
        std::array::from_fn(|index| AtomicU64::new(base + index as u64 * 16));
    let hazard = storage.hazards.protect(owner(thread as u32, 0), storage.active);
    let hazard = hazard.expect("a hazard slot is free");
    let put = storage.table.put(&frames, 0, 1);
    assert!(storage.hazards.release(hazard), "nobody took the claim away");
    assert!(!matches!(put, Put::Dropped(_)), "the table has room for a batch");
}

fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one structure that lives across it.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn random(count: u64) -> Vec<u64> {
    let mut state = 42_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state ^ state >> 29
    };
    (0..count).map(|_| next()).collect()
}

/// Prints the collisions with all of these threads inside at once.
fn collisions(name: &str, keys: Vec<u64>) {
    let words = words(HAZARD_SLOTS);
    let mut taken = HashSet::new();
    let (mut collided, mut refused) = (0, 0);
    for key in &keys {
        match HazardSlots(&words).probes_of(*key).position(|slot| taken.insert(slot)) {
            Some(0) => {}
            Some(_) => collided += 1,
            None => refused += 1,
        }
    }
    let percent = f64::from(collided) * 100.0 / keys.len() as f64;
    println!("collisions {name} {} {percent:.1} {refused}", keys.len());
}
