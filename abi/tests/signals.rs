//! A stress test of the storage: timers signal many threads, ten thousand times a second and more,
//! while the tables rotate without a pause. Handlers interrupt handlers. Every signal is accounted
//! for, and no trace is torn.
#![cfg(not(loom))]
#![allow(missing_docs, reason = "a test crate")]

mod parts;
mod timers;

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use parts::{Parts, words};
use timers::{Info, Timer};
use traceprof_abi::layout::{HAZARD_SLOTS, TRACE_TABLES};
use traceprof_abi::storage::DROPPED_TRACE_ID;
use traceprof_abi::storage::hazard::{HazardSlots, Unprotected, owner};
use traceprof_abi::storage::log::Sample;
use traceprof_abi::storage::rotation::{Collected, Rotation};
use traceprof_abi::storage::table::{Put, TraceTable};
use traceprof_abi::sync::{AtomicU32, AtomicU64, Ordering};

const THREADS: usize = 16;
/// The number of these threads that never sleep. They interrupt the others' handlers and the
/// rotation.
const SPINNING: usize = 2;
const TIMERS_A_THREAD: usize = 2;
const INTERVAL_NS: i64 = 1_000_000;
/// Number of different stacks that the handlers put.
const STACKS: u64 = 500;
const DEPTH_MAX: usize = 48;
/// Marks the stacks of handlers that interrupted another handler.
const NESTED: u64 = 1 << 63;

/// The state of one thread, like its thread slot and frame buffer in the data segment.
struct ThreadState {
    inside: AtomicU32,
    turns: AtomicU64,
    frames: Vec<AtomicU64>,
}

/// The outcomes of the signals.
#[derive(Default)]
struct Counts {
    handled: AtomicU64,
    expired: AtomicU64,
    nested: AtomicU64,
    stored: AtomicU64,
    log_full: AtomicU64,
    no_hazard: AtomicU64,
    overtaken: AtomicU64,
    /// Puts of outer and nested handlers that returned no id.
    dropped: AtomicU64,
    broken: AtomicU64,
}

/// The data that the handlers access.
struct Shared {
    tables: Vec<TraceTable<'static>>,
    active: AtomicU64,
    hazards: Vec<AtomicU64>,
    threads: Vec<ThreadState>,
    counts: Counts,
    stop: AtomicU32,
}

static SHARED: OnceLock<Shared> = OnceLock::new();

impl Shared {
    fn new() -> Self {
        // Small, so that they fill up now and then.
        let parts: Vec<Parts> = (0..TRACE_TABLES).map(|_| Parts::new(64, 1024, 512)).collect();
        let thread = |_| ThreadState {
            inside: AtomicU32::new(0),
            turns: AtomicU64::new(0),
            frames: words(DEPTH_MAX),
        };
        Self {
            tables: Vec::leak(parts).iter().map(Parts::table).collect(),
            active: AtomicU64::new(0),
            hazards: words(HAZARD_SLOTS),
            threads: (0..THREADS).map(thread).collect(),
            counts: Counts::default(),
            stop: AtomicU32::new(0),
        }
    }

    fn slots(&self) -> HazardSlots<'_> {
        HazardSlots(&self.hazards)
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn depth(seed: u64) -> usize {
    1 + (seed % DEPTH_MAX as u64) as usize
}

/// Returns a frame of a stack. A stack shows whether it is complete: each frame follows from the
/// first.
fn frame_of(seed: u64, index: usize) -> u64 {
    if index == 0 { seed } else { (seed + index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) }
}

fn signal() -> i32 {
    libc::SIGRTMIN() + 3
}

/// Sends another signal at one of the steps of every eighth sample.
fn provoke(thread: u64, turn: u64, step: u64) {
    if turn.is_multiple_of(8) && turn / 8 % 4 == step {
        timers::send_to_self(signal(), thread);
    }
}

extern "C" fn on_signal(_: i32, info: &Info, _: *const libc::c_void) {
    let Some(shared) = SHARED.get() else { return };
    let counts = &shared.counts;
    count(&counts.handled);
    counts.expired.fetch_add(info.expiries(), Ordering::Relaxed);
    let Some(thread) = shared.threads.get(info.value as usize) else {
        return count(&counts.broken);
    };
    // Acquire: pairs with the Release below, as in the agent.
    if thread.inside.swap(1, Ordering::Acquire) != 0 {
        count(&counts.nested);
        return put_nested(shared, info.value, get(&thread.turns));
    }
    sample(shared, info.value, thread);
    // Release: pairs with the Acquire above.
    thread.inside.store(0, Ordering::Release);
}

/// Does what the agent's handler does, with an invented stack.
fn sample(shared: &Shared, number: u64, thread: &ThreadState) {
    let counts = &shared.counts;
    let turn = thread.turns.fetch_add(1, Ordering::Relaxed);
    let seed = turn % STACKS;
    let frames = &thread.frames[..depth(seed)];
    for (index, frame) in frames.iter().enumerate() {
        if index == frames.len() / 2 {
            provoke(number, turn, 0);
        }
        frame.store(frame_of(seed, index), Ordering::Relaxed);
    }
    provoke(number, turn, 1);
    let hazard = match shared.slots().protect(owner(number as u32, 1), &shared.active) {
        Ok(hazard) => hazard,
        Err(Unprotected::Exhausted) => return count(&counts.no_hazard),
        Err(Unprotected::Overtaken) => return count(&counts.overtaken),
    };
    provoke(number, turn, 2);
    let table = &shared.tables[hazard.table()];
    let put = table.put(frames, 0, 1);
    if let Put::Dropped(_) = put {
        count(&counts.dropped);
    }
    provoke(number, turn, 3);
    let sample = Sample { trace_id: put.id(), time: seed, ..Sample::default() };
    count(if table.append_at(&sample).is_some() { &counts.stored } else { &counts.log_full });
    if !shared.slots().release(hazard) {
        count(&counts.broken);
    }
}

/// Puts a stack from a handler inside a handler. It must leave the thread's frames alone, but it
/// may put frames of its own: the storage can take that.
fn put_nested(shared: &Shared, number: u64, turn: u64) {
    let seed = NESTED | (turn % STACKS);
    let frames: [AtomicU64; 5] = std::array::from_fn(|at| AtomicU64::new(frame_of(seed, at)));
    let Ok(hazard) = shared.slots().protect(owner(number as u32, 1), &shared.active) else {
        return count(&shared.counts.dropped);
    };
    if let Put::Dropped(_) = shared.tables[hazard.table()].put(&frames, 0, 1) {
        count(&shared.counts.dropped);
    }
    if !shared.slots().release(hazard) {
        count(&shared.counts.broken);
    }
}

/// A thread of the program, which works or sleeps, and gets signals.
fn work(shared: &Shared, number: usize) {
    let timer = |_| Timer::start(signal(), number as u64, INTERVAL_NS);
    let timers: Vec<Timer> = (0..TIMERS_A_THREAD).map(timer).collect();
    while shared.stop.load(Ordering::Relaxed) == 0 {
        if number < SPINNING {
            (0..1000).for_each(|_| std::hint::spin_loop());
        } else {
            thread::sleep(Duration::from_millis(5));
        }
    }
    drop(timers);
}

/// The recorder with what it has read.
#[derive(Default)]
struct Read {
    ids: HashSet<u64>,
    samples: u64,
    weight: u64,
    rotations: u64,
    quarantines: u64,
    blocked: u64,
}

impl Read {
    fn collect(&mut self, table: TraceTable<'_>) {
        let mut here = HashMap::new();
        for trace in table.traces() {
            let frames: Vec<u64> =
                trace.frames.iter().map(|frame| frame.load(Ordering::Relaxed)).collect();
            let seed = frames[0];
            let expected: Vec<u64> = (0..frames.len()).map(|index| frame_of(seed, index)).collect();
            let length = if seed & NESTED == 0 { depth(seed) } else { 5 };
            assert_eq!((frames.len(), &frames), (length, &expected), "a torn trace");
            assert!(self.ids.insert(trace.id), "id {:#x} twice", trace.id);
            here.insert(trace.id, seed);
            self.weight += trace.weight;
        }
        for sample in table.samples() {
            let sample = sample.expect("nobody dies between reserving and committing");
            self.samples += 1;
            if sample.trace_id != DROPPED_TRACE_ID {
                assert_eq!(here.get(&sample.trace_id), Some(&sample.time), "another's trace");
            }
        }
    }

    fn turn(&mut self, shared: &Shared, rotation: &mut Rotation) {
        let hazards = shared.slots();
        while let Some(table) = rotation.released(hazards) {
            self.collect(shared.tables[table]);
            shared.tables[table].reset(0);
            rotation.restore(table);
        }
        // The wait is short, so that it meets threads that are preempted inside.
        let mut patience = 3;
        let outcome = rotation.rotate(&shared.tables, &shared.active, hazards, || {
            thread::yield_now();
            patience -= 1;
            patience > 0
        });
        match outcome {
            Collected::Ready(table) => self.collect(shared.tables[table]),
            Collected::Quarantined(_) => self.quarantines += 1,
            Collected::Blocked => {
                self.blocked += 1;
                return thread::yield_now();
            }
            Collected::Exhausted => panic!("no ids left"),
        }
        self.rotations += 1;
    }
}

/// Stops the threads, also when a check of the read data fails.
struct Stop<'a>(&'a Shared);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(1, Ordering::Relaxed);
    }
}

/// Whether the test has run long enough and had enough signals. A busy machine takes longer.
fn is_enough(shared: &Shared, started: Instant) -> bool {
    let seconds = if std::env::var_os("TRACEPROF_TEST_LONG").is_some() { 60 } else { 2 };
    let elapsed = started.elapsed();
    let enough = get(&shared.counts.handled) >= 20_000 * seconds && elapsed.as_secs() >= seconds;
    enough || elapsed.as_secs() >= seconds * 10
}

#[test]
fn every_signal_is_accounted_for_while_the_tables_rotate() {
    let shared = SHARED.get_or_init(Shared::new);
    let mut rotation = Rotation::start(&shared.tables, &shared.active);
    timers::install(signal(), on_signal);
    let mut read = Read::default();
    let started = Instant::now();
    let elapsed = thread::scope(|scope| {
        let _stop = Stop(shared);
        for number in 0..THREADS {
            scope.spawn(move || work(shared, number));
        }
        while !is_enough(shared, started) {
            read.turn(shared, &mut rotation);
        }
        started.elapsed()
    });
    for _ in 0..2 * TRACE_TABLES {
        read.turn(shared, &mut rotation);
    }
    let Counts {
        handled,
        expired,
        nested,
        stored,
        log_full,
        no_hazard,
        overtaken,
        dropped,
        broken,
    } = &shared.counts;
    let all = [handled, expired, nested, stored, log_full, no_hazard, overtaken, dropped, broken];
    let [handled, expired, nested, stored, log_full, no_hazard, overtaken, dropped, broken] =
        all.map(get);
    eprintln!(
        "{elapsed:.1?}: {expired} expiries, {handled} signals, {nested} of them nested, \
         {stored} \
         stored, {log_full} found the log full, {no_hazard} no hazard, {overtaken} were overtaken, \
         {dropped} stacks dropped; {} rotations, {} quarantines, {} blocked",
        read.rotations, read.quarantines, read.blocked
    );
    assert_eq!(handled, nested + stored + log_full + no_hazard + overtaken);
    assert_eq!(read.samples, stored, "what was stored is read, once");
    assert_eq!(read.weight + dropped, nested + stored + log_full, "every put adds its weight");
    assert_eq!(broken, 0, "no claim was taken away");
    assert!(rotation.is_drained() && shared.slots().claims().next().is_none());
    assert!(expired as f64 >= 10_000.0 * elapsed.as_secs_f64(), "the timers are too slow");
    assert!(nested > stored / 20, "too few handlers interrupted handlers");
    assert!(read.rotations > 200, "{} rotations", read.rotations);
    assert!(stored > handled / 2, "too few samples were stored");
}
