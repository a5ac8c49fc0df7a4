//! The wall clock: where threads spend the time off the CPU, measured from outside.
//!
//! CPU samples say where a thread is while it runs. This module measures, without a signal, how
//! long it runs, waits for a processor and sleeps. It reads the scheduler's account of each thread
//! through descriptors, which stay open if there are enough of them. While the account does not
//! change, the thread sleeps at the same location. [`sleep_location`] finds the location when the
//! thread goes to sleep, mostly without a stop.
//!
//! Checks come at random moments, one in each interval. Regular checks would always find a program
//! with the same rhythm at the same location.
//!
//! # Invariants
//! - No thread is signalled. A thread is stopped only if it cannot be read while it sleeps.
//! - A turn takes no longer than a share of the interval: threads left over are counted, and come
//!   first in the next turn.

mod awaited;
mod kernel_frames;
pub(crate) mod report;
mod running_time;
mod samples;
mod sleep_location;
mod sleeper_frames;
mod stats;
mod thread_time;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::storage::log::Sample;
use traceprof_abi::unwind::Tables;

use self::samples::WallSamples;
use self::sleep_location::{
    LocationHistory, LocationRead, LocationReader, LocationSources, ThreadLocation,
};
pub(crate) use self::stats::WallStats;
use self::thread_time::{StateSpan, ThreadTime};
use crate::proc::{Mapping, TaskClock, Turns};
use crate::record::batch::Batch;
use crate::record::batch::contexts::ReadContext;
use crate::record::batch::threads::{ThreadChange, ThreadKey};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::sampling::KernelFrames;
use crate::record::target::modules::AddressMap;
use crate::trace::RunState;

/// The maximum number of threads that one turn stops to read their stacks.
const STOPS_MAX: usize = 16;
/// The longest time between two checks of a sleeping thread, unless [`CHECKS_MAX`] requires a
/// longer one.
const CHECK_MAX_NS: u64 = 100_000_000;
/// The maximum number of checks of sleeping threads in a second.
const CHECKS_MAX: u64 = 2000;
/// A turn may take one part in this many of the interval, but checks at least one thread.
const SHARE: u32 = 4;

/// A thread that exists now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveThread {
    /// The number of the thread's life.
    pub(crate) life: u32,
    /// The outer thread id.
    pub(crate) tid: i32,
    /// The time of its start in CLOCK_MONOTONIC nanoseconds, if that was during the recording.
    pub(crate) born_ns: Option<u64>,
}

/// A thread whose account is read.
struct WatchedThread {
    tid: i32,
    clock: TaskClock,
    time: ThreadTime,
    history: LocationHistory,
    /// The number of consecutive stops whose stack was not recognised later, and the earliest time
    /// of the next stop in nanoseconds.
    stops: (u32, u64),
    /// Whether the last stop failed. A later one in the same sleep may succeed.
    has_failed: bool,
}

/// A thread that sleeps at an unknown location.
struct UnlocatedThread {
    life: u32,
    tid: i32,
    state: RunState,
    /// Whether it has slept there since the check before.
    is_same_sleep: bool,
}

impl WatchedThread {
    /// Whether another attempt may read the stack of this sleep. Only a stop that failed is
    /// repeated: each stop may restart the timeout of the thread's call.
    fn is_read_again(&self, now_ns: u64) -> bool {
        self.has_failed && self.time.lacks_stack() && now_ns >= self.stops.1
    }

    /// Notes a check that found the account changed or new, or the stack of the same sleep.
    fn moved(
        &mut self,
        (now_ns, turns): (u64, Turns),
        is_same_sleep: bool,
        location: Option<Arc<ThreadLocation>>,
        spans: &mut Vec<StateSpan>,
    ) {
        let found = location.as_ref().filter(|at| is_same_sleep && !at.frames.is_empty());
        found.into_iter().for_each(|at| self.time.place(Arc::clone(at)));
        self.time.moved(now_ns, turns, location, spans);
    }
}

/// The wall-clock measurement of one program's threads.
pub(crate) struct Wall {
    interval: Duration,
    /// The start of the interval that contains the next turn.
    interval_start: Instant,
    /// The moment of the next turn.
    due: Instant,
    random: u64,
    watched: BTreeMap<u32, WatchedThread>,
    /// The version of the thread list at the last update.
    version: Option<(usize, usize)>,
    /// The longest time between two checks of a sleeping thread; see [`CHECK_MAX_NS`].
    check_max_ns: u64,
    /// The number of threads that were ever watched.
    ever_watched: u64,
    /// The thread at which the next turn starts.
    first: u32,
    locations: LocationReader,
    samples: WallSamples,
    spans: Vec<StateSpan>,
    stats: WallStats,
    /// Whether the measurement has ended, so that no more threads are added.
    is_over: bool,
}

impl Wall {
    /// Starts the measurement of a process that has these unwind tables. `frames` is what samples
    /// show of the kernel's functions.
    pub(crate) fn new(
        pid: i32,
        interval: Duration,
        (tables, frames): (Tables, KernelFrames),
    ) -> io::Result<Self> {
        let wants_kernel = frames != KernelFrames::Unwanted;
        let now = Instant::now();
        let mut wall = Self {
            interval,
            interval_start: now,
            due: now,
            // Any number but 0.
            random: monotonic_now_ns() | 1,
            watched: BTreeMap::new(),
            version: None,
            check_max_ns: CHECK_MAX_NS,
            ever_watched: 0,
            first: 0,
            locations: LocationReader::new(pid, tables, wants_kernel)?,
            samples: WallSamples::default(),
            spans: Vec::new(),
            stats: WallStats::default(),
            is_over: false,
        };
        wall.stats.kernel_hidden = wants_kernel && !wall.locations.kernel.is_on;
        wall.next_turn(now);
        Ok(wall)
    }

    /// Returns when the next turn is due.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Sets the current mappings.
    pub(crate) fn note_mappings(&mut self, mappings: Vec<Mapping>) {
        self.locations.mappings = mappings;
    }

    /// Sets the language runtimes of the program.
    pub(crate) fn note_runtimes(&mut self, addresses: &AddressMap) {
        let runtimes = &addresses.runtimes;
        self.locations.waits.java.clone_from(&addresses.java);
        let known = &self.locations.waits.runtimes;
        let is_same = known.len() == runtimes.len()
            && known.iter().zip(runtimes).all(|(known, now)| Arc::ptr_eq(known, now));
        if !is_same {
            self.locations.waits.runtimes.clone_from(runtimes);
        }
    }

    /// Checks the threads that are due.
    pub(crate) fn turn(&mut self, contexts: &dyn ReadContext) {
        let now = Instant::now();
        self.next_turn(now);
        self.check_all(now + self.interval / SHARE, contexts);
    }

    /// Picks a moment in the next interval.
    fn next_turn(&mut self, now: Instant) {
        self.interval_start += self.interval;
        if self.interval_start < now {
            // This turn is late by more than an interval.
            self.interval_start = now;
        }
        // Xorshift, Marsaglia 2003.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let part = self.random as u32;
        self.due =
            self.interval_start + self.interval.mul_f64(f64::from(part) / f64::from(u32::MAX));
    }

    /// Adds new threads and removes exited ones; an unchanged version means unchanged threads.
    pub(crate) fn update_threads(
        &mut self,
        pid: i32,
        version: (usize, usize),
        alive: impl Iterator<Item = LiveThread>,
        end_of: impl Fn(u32) -> Option<(u64, Option<u64>)>,
    ) {
        if self.is_over || self.version.replace(version) == Some(version) {
            return;
        }
        let mut there = BTreeSet::new();
        let mut unwatched = 0;
        for LiveThread { life, tid, born_ns } in alive {
            there.insert(life);
            if self.watched.contains_key(&life) {
                continue;
            }
            match watch(pid, tid, born_ns) {
                Ok(watched) => {
                    self.ever_watched += 1;
                    self.samples.add_thread(life, tid);
                    self.watched.insert(life, watched);
                }
                // It has exited already.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(_) => unwatched += 1,
            }
        }
        if unwatched > 0 {
            // The next update tries again.
            self.version = None;
        }
        self.stats.unwatched = self.stats.unwatched.max(unwatched);
        self.stats.ended_unseen = (version.0 as u64).saturating_sub(self.ever_watched + unwatched);
        let now_ns = monotonic_now_ns();
        let is_gone = |life: &u32| !there.contains(life);
        let gone: Vec<u32> = self.watched.keys().copied().filter(is_gone).collect();
        for life in gone {
            let Some(mut watched) = self.watched.remove(&life) else { continue };
            let (end_ns, cpu_ns) = end_of(life).unwrap_or((now_ns, None));
            watched.time.ended(end_ns, cpu_ns, &mut self.spans);
            self.samples.add_spans((life, watched.tid), end_ns, &mut self.spans);
            self.samples.remove_thread(life, end_ns);
        }
        let reopened = self.watched.values().filter(|it| it.clock.is_reopened()).count();
        self.stats.reopened = self.stats.reopened.max(reopened as u64);
        let each_ns = self.watched.len() as u64 * 1_000_000_000 / CHECKS_MAX;
        self.check_max_ns = each_ns.max(CHECK_MAX_NS);
    }

    /// Checks the threads that are due, until the deadline.
    fn check_all(&mut self, deadline: Instant, contexts: &dyn ReadContext) {
        let now_ns = monotonic_now_ns();
        let due = |(life, it): (&u32, &WatchedThread)| it.time.is_due(now_ns).then_some(*life);
        let (before, after) = (self.watched.range(..self.first), self.watched.range(self.first..));
        let due: Vec<u32> = after.chain(before).filter_map(due).collect();
        let mut unknown = Vec::new();
        for (index, life) in due.iter().enumerate() {
            if index > 0 && (unknown.len() >= STOPS_MAX || Instant::now() >= deadline) {
                self.first = *life;
                self.stats.capped.0 += 1;
                self.stats.capped.1 += (due.len() - index) as u64;
                break;
            }
            unknown.extend(self.check(*life, contexts));
        }
        self.stop(&unknown, contexts);
    }

    /// Checks a thread, and returns one that sleeps at an unknown location.
    fn check(&mut self, life: u32, contexts: &dyn ReadContext) -> Option<UnlocatedThread> {
        let watched = self.watched.get_mut(&life)?;
        self.stats.checks += 1;
        // On an error the thread has exited; the next update of the threads removes it.
        let turns = watched.clock.turns().ok()?;
        let now_ns = monotonic_now_ns();
        let mut unknown = None;
        if !watched.time.is_possible(now_ns, turns) {
            self.stats.impossible += 1;
            watched.time.restart_from(now_ns, turns, &mut self.spans);
        }
        let is_same_sleep = watched.time.is_unchanged(turns);
        if is_same_sleep && !watched.is_read_again(now_ns) {
            watched.time.unchanged(now_ns, self.check_max_ns, &mut self.spans);
        } else {
            let mut location = None;
            let letter = watched.clock.state().ok();
            if letter == Some('R') {
                // A thread that waits for a processor cannot change what is read here. A changed
                // account means that it ran.
                let sources = LocationSources { history: &mut watched.history, contexts };
                let waiting = self.locations.read_waiting(watched.tid, sources);
                if watched.clock.turns().is_ok_and(|after| after == turns) {
                    watched.time.set_waiting(waiting);
                }
            }
            if let Some(state) = letter.and_then(run_state) {
                let history = &mut watched.history;
                // If the thread ran meanwhile, it was not asleep all the time.
                let unmoved = || watched.clock.turns().is_ok_and(|after| after == turns);
                let sources = LocationSources { history, contexts };
                match self.locations.read((watched.tid, state), sources, unmoved, &mut self.stats) {
                    LocationRead::Known(found) => {
                        watched.stops.0 = 0;
                        location = Some(found);
                    }
                    LocationRead::New(known) => location = Some(history.add(known)),
                    LocationRead::Moved => self.stats.moved += 1,
                    LocationRead::NeedsStop(seen) if now_ns < watched.stops.1 => {
                        self.stats.missed += 1;
                        location = Some(seen);
                    }
                    LocationRead::NeedsStop(_) => {
                        let tid = watched.tid;
                        unknown = Some(UnlocatedThread { life, tid, state, is_same_sleep });
                    }
                }
            }
            if unknown.is_none() {
                watched.moved((now_ns, turns), is_same_sleep, location, &mut self.spans);
            }
        }
        self.samples.add_spans((life, watched.tid), now_ns, &mut self.spans);
        unknown
    }

    /// Stops threads to read their stacks.
    fn stop(&mut self, unknown: &[UnlocatedThread], contexts: &dyn ReadContext) {
        if unknown.is_empty() {
            return;
        }
        let found = self.locations.stop(unknown, contexts, &mut self.stats);
        for (UnlocatedThread { life, tid, is_same_sleep, .. }, found) in unknown.iter().zip(found) {
            let Some(watched) = self.watched.get_mut(life) else { continue };
            let (turns, now_ns) = (watched.clock.turns().ok(), monotonic_now_ns());
            let is_possible = |turns: &Turns| watched.time.is_possible(now_ns, *turns);
            let Some(turns) = turns.filter(is_possible) else { continue };
            watched.stops.0 += 1;
            watched.stops.1 = now_ns + stop_pause_ns(watched.stops.0);
            let location = found.map(|known| watched.history.add(known));
            watched.has_failed = location.as_ref().is_some_and(|at| at.frames.is_empty());
            watched.moved((now_ns, turns), *is_same_sleep, location, &mut self.spans);
            self.samples.add_spans((*life, *tid), now_ns, &mut self.spans);
        }
    }

    /// Returns off-CPU time since the last call as samples; see [`WallSamples::off_cpu`].
    ///
    /// Their stacks are added to the batch at once. The caller adds the samples after it has
    /// weighed the CPU samples.
    pub(crate) fn samples(
        &mut self,
        batch: &mut Batch,
        instance: impl FnMut() -> Option<u32>,
        announce: impl FnMut(ThreadKey, &mut Vec<ThreadChange>),
    ) -> Vec<Sample> {
        batch.kernel_functions.extend(self.locations.kernel.take_new());
        self.samples.off_cpu(batch, instance, announce)
    }

    /// Returns the running time of threads as samples; see [`WallSamples::running`].
    pub(crate) fn running(
        &mut self,
        batch: &mut Batch,
        (period_ns, is_last): (u64, bool),
        instance: impl FnMut() -> Option<u32>,
        announce: impl FnMut(ThreadKey, &mut Vec<ThreadChange>),
    ) -> Vec<Sample> {
        self.samples.running(batch, (period_ns, is_last), instance, announce)
    }

    /// Sets the base-2 logarithm of the number of periods between two expiries.
    pub(crate) fn slow(&mut self, shift: u32) {
        self.samples.slow(shift);
    }

    /// Closes all accounts at the end of the recording.
    pub(crate) fn end(&mut self) {
        let now_ns = monotonic_now_ns();
        for (life, watched) in &mut self.watched {
            let turns = watched.clock.turns().ok();
            let turns = turns.filter(|turns| watched.time.is_possible(now_ns, *turns));
            watched.time.end(now_ns, turns, &mut self.spans);
            self.samples.add_spans((*life, watched.tid), now_ns, &mut self.spans);
        }
        self.watched.clear();
        self.is_over = true;
    }

    /// Returns the counts so far.
    pub(crate) fn stats(&self) -> WallStats {
        let WallSamples { reported_us, stackless_us, .. } = self.samples;
        WallStats { reported_us, stackless_us, ..self.stats }
    }
}

fn watch(pid: i32, tid: i32, born_ns: Option<u64>) -> io::Result<WatchedThread> {
    let clock = TaskClock::open(pid, tid)?;
    let time = match born_ns {
        Some(born_ns) => ThreadTime::new(born_ns, Turns::default()),
        None => ThreadTime::new(monotonic_now_ns(), clock.turns()?),
    };
    let (history, has_failed) = (LocationHistory::default(), false);
    Ok(WatchedThread { tid, clock, time, history, stops: (0, 0), has_failed })
}

/// Returns the minimum pause in nanoseconds before the next stop, after this many consecutive
/// stops.
///
/// Otherwise a thread whose stack is never the same would be stopped in each of its sleeps, and the
/// timeout of its call would restart each time.
fn stop_pause_ns(stops: u32) -> u64 {
    const FREE: u32 = 8;
    const LONGEST_NS: u64 = 10_000_000_000;
    match stops.checked_sub(FREE) {
        None => 0,
        Some(more) => (20_000_000 << more.min(10)).min(LONGEST_NS),
    }
}

/// Converts the kernel's state letter; returns `None` for a runnable thread.
fn run_state(letter: char) -> Option<RunState> {
    match letter {
        'R' => None,
        'D' => Some(RunState::Disk),
        'T' | 't' => Some(RunState::Stopped),
        _ => Some(RunState::Sleeping),
    }
}
