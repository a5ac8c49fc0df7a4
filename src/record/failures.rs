//! Threads that can have no timer.
//!
//! Timers count against the user's limit of pending signals. A thread that gets none is noted here
//! until something else samples it, or until it has ended.
//!
//! # Invariants
//! - A note is of one life of a slot: whoever has the slot or the thread id next inherits nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::{SlotState, ThreadSlot};

use crate::proc;

/// One life of a slot: its number and generation.
pub(super) type Life = (usize, u32);

/// Between two readings of the threads' CPU time: what one used after the last is not known when it
/// has ended.
const READING: Duration = Duration::from_millis(500);
/// Threads that are named in the end.
const NAMED: usize = 8;

/// What is done for a thread that can have no timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rescue {
    /// Nothing yet.
    Wanted,
    /// An event samples it.
    Event,
    /// Nothing: it can have no event either.
    Impossible,
}

#[derive(Debug, Clone, Copy)]
struct Failed {
    tid: i32,
    errno: i32,
    rescue: Rescue,
    /// CPU time that it had used when nothing sampled it first, and when it was looked at last.
    cpu_ns: (u64, u64),
}

/// Threads that nothing sampled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unsampled {
    /// How many.
    pub(super) count: u64,
    /// The first of them: id, and the errno that says why.
    pub(super) first: Vec<(i32, i32)>,
    /// CPU time of theirs, in nanoseconds.
    pub(super) cpu_ns: u64,
}

/// The threads of one recording.
pub(super) struct Failures {
    pid: i32,
    failed: BTreeMap<Life, Failed>,
    /// Of threads that have ended.
    ended: Unsampled,
    read: Instant,
}

impl Failures {
    /// Of a process's threads.
    pub(super) fn new(pid: i32) -> Self {
        let ended = Unsampled::default();
        Self { pid, failed: BTreeMap::new(), ended, read: Instant::now() }
    }

    /// A thread could have no timer.
    pub(super) fn note(&mut self, life: Life, tid: i32, errno: i32) {
        let pid = self.pid;
        self.failed.entry(life).or_insert_with(|| {
            let cpu_ns = proc::task_cpu_or_ticks_ns(pid, tid).unwrap_or(0);
            Failed { tid, errno, rescue: Rescue::Wanted, cpu_ns: (cpu_ns, cpu_ns) }
        });
    }

    /// Threads that have ended are counted; of the others the time is read now and then.
    pub(super) fn sweep(&mut self, slots: &[ThreadSlot]) {
        let pid = self.pid;
        let is_due = self.read.elapsed() >= READING;
        if is_due {
            self.read = Instant::now();
        }
        let ended = &mut self.ended;
        self.failed.retain(|life, failed| {
            let is_there = is_alive(slots, *life);
            if !is_there {
                ended.note(failed);
            } else if is_due {
                failed.advance(pid);
            }
            is_there
        });
    }

    /// Whether a thread is one of them.
    pub(super) fn holds(&self, tid: i32) -> bool {
        self.failed.values().any(|failed| failed.tid == tid)
    }

    /// Threads for which nothing else was tried: the life of their slot, and their id.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (Life, i32)> {
        let wanted = self.failed.iter().filter(|(_, failed)| failed.rescue == Rescue::Wanted);
        wanted.map(|(life, failed)| (*life, failed.tid))
    }

    /// Notes what was done for a thread; from now on its time counts as unsampled, or does not.
    pub(super) fn set(&mut self, life: Life, rescue: Rescue) {
        if let Some(failed) = self.failed.get_mut(&life) {
            failed.advance(self.pid);
            if failed.rescue == Rescue::Event {
                failed.cpu_ns.0 = failed.cpu_ns.1;
            }
            failed.rescue = rescue;
        }
    }

    /// Threads that nothing sampled, up to now.
    pub(super) fn unsampled(&mut self) -> Unsampled {
        let mut unsampled = self.ended.clone();
        for failed in self.failed.values_mut() {
            failed.advance(self.pid);
            unsampled.note(failed);
        }
        unsampled
    }
}

impl Failed {
    fn advance(&mut self, pid: i32) {
        // One that has ended meanwhile keeps what was read before.
        self.cpu_ns.1 = proc::task_cpu_or_ticks_ns(pid, self.tid).unwrap_or(self.cpu_ns.1);
    }
}

impl Unsampled {
    /// Adds those of a later program.
    pub(super) fn add(&mut self, later: &Self) {
        self.count += later.count;
        self.cpu_ns += later.cpu_ns;
        let room = NAMED.saturating_sub(self.first.len());
        self.first.extend(later.first.iter().take(room));
    }

    fn note(&mut self, failed: &Failed) {
        if failed.rescue == Rescue::Event {
            return;
        }
        self.count += 1;
        self.cpu_ns += failed.cpu_ns.1.saturating_sub(failed.cpu_ns.0);
        if self.first.len() < NAMED {
            self.first.push((failed.tid, failed.errno));
        }
    }
}

/// The slot is lived in by the thread that is meant.
pub(super) fn is_alive(slots: &[ThreadSlot], (index, generation): Life) -> bool {
    slots.get(index).is_some_and(|slot| {
        // Relaxed, both: this side alone retires and recycles.
        slot.generation.load(Ordering::Relaxed) == generation
            && slot.state.load(Ordering::Relaxed) != SlotState::Retired as u32
    })
}
