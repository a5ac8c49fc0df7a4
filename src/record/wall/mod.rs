//! Wall clock: what threads do that do not run, watched from outside.
//!
//! Where a thread is while it runs is what its CPU samples say. How long it runs, waits for a processor and
//! sleeps is measured here, without a signal: the scheduler's account of each thread is read from a
//! descriptor that is kept, and as long as it does not change the thread sleeps where it slept. Where, is
//! found out when it goes to sleep ([`sleeper`]), mostly without a stop.
//!
//! Looks come at random moments, one in each interval: a program whose rhythm is that of the looks would
//! always be found at the same place.
//!
//! # Invariants
//! - No thread is signalled, and none is stopped that can be read while it sleeps.
//! - A turn takes no longer than a share of the interval: what it leaves is counted, and is first in the
//!   next one.

mod gather;
pub(super) mod report;
mod running;
mod sleeper;
mod task;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use traceprof_abi::storage::log::Sample;
use traceprof_abi::unwind::Tables;

use self::gather::Gathered;
use self::sleeper::{History, Read, Sight, Sleepers};
use self::task::{Span, Task};
use super::batch::{Batch, ThreadNews};
use super::clock::monotonic_now_ns;
use super::contexts::Outside;
use super::perf::descriptor_limit;
use super::threads::Key;
use crate::proc::{Mapping, TaskClock, Turns};
use crate::trace::RunState;

/// Threads that are stopped for their stacks in one turn.
const STOPS_MAX: usize = 16;
/// Between two looks at a thread that sleeps on, at most,
const LOOK_MAX_NS: u64 = 100_000_000;
/// unless there are so many of them that more would be looked at in a second.
const LOOKS_MAX: u64 = 2000;
/// Of the descriptors that there may be, one in so many threads: the others are for perf events.
const DESCRIPTORS_SHARE: usize = 4;
/// A turn takes one part in so many of the interval, but for one thread at least.
const SHARE: u32 = 4;

/// What was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WallStats {
    /// Readings of a thread's account.
    pub(super) looks: u64,
    /// Sleepers that were where they had been before they ran.
    pub(super) known: u64,
    /// New stacks of sleepers that were read without a stop.
    pub(super) read: u64,
    /// The same that took a stop.
    pub(super) stopped: u64,
    /// The longest of these stops, in nanoseconds.
    pub(super) stop_ns_max: u64,
    /// Sleepers that had gone on before their stack was had.
    pub(super) moved: u64,
    /// Sleepers whose stack could not be had.
    pub(super) missed: u64,
    /// Turns that had to leave threads to the next one, and how many threads in all.
    pub(super) capped: (u64, u64),
    /// Threads that there were no descriptors for, at most at a time.
    pub(super) unwatched: u64,
    /// Accounts that cannot be the thread's: another one that executed a program took its place.
    pub(super) impossible: u64,
    /// Threads that had ended before they were looked at for the first time.
    pub(super) unmet: u64,
    /// Microseconds that were told of, by [`RunState`].
    pub(super) told_us: [u64; RunState::ALL.len()],
    /// Of them, without a stack.
    pub(super) unplaced_us: u64,
}

impl WallStats {
    /// Adds those of a later program.
    pub(super) fn add(&mut self, later: &Self) {
        self.looks += later.looks;
        self.known += later.known;
        self.read += later.read;
        self.stopped += later.stopped;
        self.stop_ns_max = self.stop_ns_max.max(later.stop_ns_max);
        self.moved += later.moved;
        self.missed += later.missed;
        self.capped.0 += later.capped.0;
        self.capped.1 += later.capped.1;
        self.unwatched = self.unwatched.max(later.unwatched);
        self.unmet += later.unmet;
        self.impossible += later.impossible;
        for (sum, more) in self.told_us.iter_mut().zip(later.told_us) {
            *sum += more;
        }
        self.unplaced_us += later.unplaced_us;
    }
}

/// A thread that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alive {
    /// The number of its life.
    pub(super) life: u32,
    /// Its id.
    pub(super) tid: i32,
    /// When it started, if that was during the recording.
    pub(super) born_ns: Option<u64>,
}

/// A thread that is watched.
struct Watched {
    tid: i32,
    clock: TaskClock,
    task: Task,
    history: History,
    /// Stops whose stack was not recognised later, one after the other, and when another one may come.
    stops: (u32, u64),
}

/// A thread that sleeps at an unknown place.
struct Unknown {
    life: u32,
    tid: i32,
    state: RunState,
}

/// Watches the threads of one program.
pub(super) struct Wall {
    interval: Duration,
    /// The interval that the next turn lies in begins then,
    begins: Instant,
    /// and this is its moment.
    due: Instant,
    random: u64,
    watched: BTreeMap<u32, Watched>,
    /// So many at most: each takes two descriptors.
    watched_max: usize,
    /// That of the threads when they were last taken in.
    version: Option<(usize, usize)>,
    /// See [`LOOK_MAX_NS`].
    look_max_ns: u64,
    /// Threads that were ever watched.
    met: u64,
    /// Where the last turn had to stop.
    first: u32,
    sleepers: Sleepers,
    gathered: Gathered,
    spans: Vec<Span>,
    stats: WallStats,
    /// The recording ends: nobody is taken in any more.
    is_over: bool,
}

impl Wall {
    /// Of a process whose unwind tables these are.
    pub(super) fn new(pid: i32, interval: Duration, tables: Tables) -> std::io::Result<Self> {
        let now = Instant::now();
        let mut wall = Self {
            interval,
            begins: now,
            due: now,
            // Any number but 0.
            random: monotonic_now_ns() | 1,
            watched: BTreeMap::new(),
            watched_max: descriptor_limit() as usize / DESCRIPTORS_SHARE,
            version: None,
            look_max_ns: LOOK_MAX_NS,
            met: 0,
            first: 0,
            sleepers: Sleepers::new(pid, tables)?,
            gathered: Gathered::default(),
            spans: Vec::new(),
            stats: WallStats::default(),
            is_over: false,
        };
        wall.next_turn(now);
        Ok(wall)
    }

    /// When the next turn is due.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// What is mapped now.
    pub(super) fn note_mappings(&mut self, mappings: Vec<Mapping>) {
        self.sleepers.mappings = mappings;
    }

    /// Looks at the threads.
    pub(super) fn turn(&mut self, contexts: &Outside) {
        let now = Instant::now();
        self.next_turn(now);
        self.look_at_all(now + self.interval / SHARE, contexts);
    }

    /// A moment in the interval after this one.
    fn next_turn(&mut self, now: Instant) {
        self.begins += self.interval;
        if self.begins < now {
            // It was late by more than an interval.
            self.begins = now;
        }
        // Xorshift, Marsaglia 2003.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let part = self.random as u32;
        self.due = self.begins + self.interval.mul_f64(f64::from(part) / f64::from(u32::MAX));
    }

    /// Takes new threads in, and those out that are gone. With the same version all are as they were.
    pub(super) fn meet(
        &mut self,
        pid: i32,
        version: (usize, usize),
        alive: impl Iterator<Item = Alive>,
        end_of: impl Fn(u32) -> Option<(u64, Option<u64>)>,
    ) {
        if self.is_over || self.version.replace(version) == Some(version) {
            return;
        }
        let mut there = BTreeSet::new();
        let mut unwatched = 0;
        for Alive { life, tid, born_ns } in alive {
            there.insert(life);
            if self.watched.contains_key(&life) {
                continue;
            }
            if self.watched.len() >= self.watched_max {
                unwatched += 1;
                continue;
            }
            // Else it is gone again.
            if let Some(watched) = watch(pid, tid, born_ns) {
                self.met += 1;
                self.gathered.begin(life, tid);
                self.watched.insert(life, watched);
            }
        }
        self.stats.unwatched = self.stats.unwatched.max(unwatched);
        self.stats.unmet = (version.0 as u64).saturating_sub(self.met + unwatched);
        let now_ns = monotonic_now_ns();
        let is_gone = |life: &u32| !there.contains(life);
        let gone: Vec<u32> = self.watched.keys().copied().filter(is_gone).collect();
        for life in gone {
            let Some(mut watched) = self.watched.remove(&life) else { continue };
            let (end_ns, cpu_ns) = end_of(life).unwrap_or((now_ns, None));
            watched.task.gone(end_ns, cpu_ns, &mut self.spans);
            self.gathered.take_in((life, watched.tid), end_ns, &mut self.spans);
            self.gathered.forget(life, end_ns);
        }
        let each_ns = self.watched.len() as u64 * 1_000_000_000 / LOOKS_MAX;
        self.look_max_ns = each_ns.max(LOOK_MAX_NS);
    }

    /// Looks at those that are due, until the deadline.
    fn look_at_all(&mut self, deadline: Instant, contexts: &Outside) {
        let now_ns = monotonic_now_ns();
        let due = |(life, it): (&u32, &Watched)| it.task.is_due(now_ns).then_some(*life);
        let (before, after) = (self.watched.range(..self.first), self.watched.range(self.first..));
        let due: Vec<u32> = after.chain(before).filter_map(due).collect();
        let mut unknown = Vec::new();
        for (place, life) in due.iter().enumerate() {
            if place > 0 && (unknown.len() >= STOPS_MAX || Instant::now() >= deadline) {
                self.first = *life;
                self.stats.capped.0 += 1;
                self.stats.capped.1 += (due.len() - place) as u64;
                break;
            }
            unknown.extend(self.look_at(*life, contexts));
        }
        self.stop(&unknown, contexts);
    }

    /// Looks at a thread; gives one back that sleeps at an unknown place.
    fn look_at(&mut self, life: u32, contexts: &Outside) -> Option<Unknown> {
        let watched = self.watched.get_mut(&life)?;
        self.stats.looks += 1;
        // Gone: the registry will find that out.
        let turns = watched.clock.turns().ok()?;
        let now_ns = monotonic_now_ns();
        let mut unknown = None;
        if !watched.task.is_possible(now_ns, turns) {
            self.stats.impossible += 1;
            watched.task.take_for_another(now_ns, turns, &mut self.spans);
        }
        if watched.task.is_still(turns) {
            watched.task.stay(now_ns, self.look_max_ns, &mut self.spans);
        } else {
            let mut place = None;
            let letter = watched.clock.state().ok();
            if letter == Some('R') && !contexts.is_empty() {
                // Who waits for a processor cannot change it; who runs is another one's account.
                let context = contexts.read(watched.tid);
                if watched.clock.turns().is_ok_and(|after| after == turns) {
                    watched.task.waits(context);
                }
            }
            if let Some(state) = letter.and_then(run_state) {
                let history = &mut watched.history;
                // Whoever has run meanwhile was not asleep all the time.
                let unmoved = || watched.clock.turns().is_ok_and(|after| after == turns);
                let sight = Sight { history, contexts };
                match self.sleepers.read((watched.tid, state), sight, unmoved, &mut self.stats) {
                    Read::Again(found) => {
                        watched.stops.0 = 0;
                        place = Some(found);
                    }
                    Read::New(known) => place = Some(history.add(known)),
                    Read::Moved => self.stats.moved += 1,
                    Read::Unknown(seen) if now_ns < watched.stops.1 => {
                        self.stats.missed += 1;
                        place = Some(seen);
                    }
                    Read::Unknown(_) => unknown = Some(Unknown { life, tid: watched.tid, state }),
                }
            }
            if unknown.is_none() {
                watched.task.go_on(now_ns, turns, place, &mut self.spans);
            }
        }
        self.gathered.take_in((life, watched.tid), now_ns, &mut self.spans);
        unknown
    }

    /// Stops threads for their stacks.
    fn stop(&mut self, unknown: &[Unknown], contexts: &Outside) {
        if unknown.is_empty() {
            return;
        }
        let found = self.sleepers.stop(unknown, contexts, &mut self.stats);
        for (Unknown { life, tid, .. }, found) in unknown.iter().zip(found) {
            let Some(watched) = self.watched.get_mut(life) else { continue };
            let (turns, now_ns) = (watched.clock.turns().ok(), monotonic_now_ns());
            let is_possible = |turns: &Turns| watched.task.is_possible(now_ns, *turns);
            let Some(turns) = turns.filter(is_possible) else { continue };
            watched.stops.0 += 1;
            watched.stops.1 = now_ns + stop_pause_ns(watched.stops.0);
            let place = found.map(|known| watched.history.add(known));
            watched.task.go_on(now_ns, turns, place, &mut self.spans);
            self.gathered.take_in((*life, *tid), now_ns, &mut self.spans);
        }
    }

    /// What was seen up to now as samples, to be added to the batch when those of CPU time have been put
    /// right; their stacks are in it at once. See [`Gathered::samples`].
    pub(super) fn samples(
        &mut self,
        batch: &mut Batch,
        instance: impl FnMut() -> Option<u32>,
        tell: impl FnMut(Key, &mut Vec<ThreadNews>),
    ) -> Vec<Sample> {
        self.gathered.samples(batch, instance, tell)
    }

    /// The same of the time that threads ran. See [`Gathered::running`].
    pub(super) fn running(
        &mut self,
        batch: &mut Batch,
        (period_ns, is_last): (u64, bool),
        instance: impl FnMut() -> Option<u32>,
        tell: impl FnMut(Key, &mut Vec<ThreadNews>),
    ) -> Vec<Sample> {
        self.gathered.running(batch, (period_ns, is_last), instance, tell)
    }

    /// From now on a hit stands for 2 to the power of `shift` periods.
    pub(super) fn slow(&mut self, shift: u32) {
        self.gathered.slow(shift);
    }

    /// The recording ends.
    pub(super) fn end(&mut self) {
        let now_ns = monotonic_now_ns();
        for (life, watched) in &mut self.watched {
            let turns = watched.clock.turns().ok();
            let turns = turns.filter(|turns| watched.task.is_possible(now_ns, *turns));
            watched.task.end(now_ns, turns, &mut self.spans);
            self.gathered.take_in((*life, watched.tid), now_ns, &mut self.spans);
        }
        self.watched.clear();
        self.is_over = true;
    }

    /// What was counted.
    pub(super) fn stats(&self) -> WallStats {
        let Gathered { told_us, unplaced_us, .. } = self.gathered;
        WallStats { told_us, unplaced_us, ..self.stats }
    }
}

fn watch(pid: i32, tid: i32, born_ns: Option<u64>) -> Option<Watched> {
    let clock = TaskClock::open(pid, tid).ok()?;
    let task = match born_ns {
        Some(born_ns) => Task::new(born_ns, Turns::default()),
        None => Task::new(monotonic_now_ns(), clock.turns().ok()?),
    };
    Some(Watched { tid, clock, task, history: History::default(), stops: (0, 0) })
}

/// How long a thread is left alone after so many stops in vain: one whose stack is never the same would be
/// stopped in each of its sleeps, and a time limit would begin anew each time.
fn stop_pause_ns(stops: u32) -> u64 {
    const FREE: u32 = 8;
    const LONGEST_NS: u64 = 10_000_000_000;
    match stops.checked_sub(FREE) {
        None => 0,
        Some(more) => (20_000_000 << more.min(10)).min(LONGEST_NS),
    }
}

/// The state of a thread that does not run, from its letter.
fn run_state(letter: char) -> Option<RunState> {
    match letter {
        'R' => None,
        'D' => Some(RunState::Disk),
        'T' | 't' => Some(RunState::Stopped),
        _ => Some(RunState::Sleeping),
    }
}
