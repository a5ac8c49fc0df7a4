//! Threads that cannot have a timer.
//!
//! Timers count against the user's limit of pending signals. A thread without a timer stays listed
//! here until it exits.
//!
//! # Invariants
//! - An entry belongs to one life of a slot: the next user of the slot or of the thread id inherits
//!   nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::{SlotState, ThreadSlot};

use crate::proc;

/// One life of a slot: its index and generation.
pub(crate) type SlotLife = (usize, u32);

/// The interval between two readings of CPU time; what a thread used since its last reading is lost
/// when it exits.
const READING_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum number of threads that the closing report names.
const NAMED_MAX: usize = 8;

/// The alternative for a thread that cannot have a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fallback {
    /// Nothing has been tried yet.
    Wanted,
    /// A perf event samples the thread.
    Event,
    /// The thread cannot have an event either.
    Impossible,
}

#[derive(Debug, Clone, Copy)]
struct TimerlessThread {
    tid: i32,
    errno: i32,
    fallback: Fallback,
    /// The CPU time in nanoseconds when the thread became unsampled, and at the last reading.
    cpu_ns: (u64, u64),
}

/// Threads that nothing sampled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Unsampled {
    /// The number of threads.
    pub(crate) count: u64,
    /// The ids of the first threads, each with the errno of its timer's creation.
    pub(crate) first: Vec<(i32, i32)>,
    /// The CPU time of all threads, in nanoseconds.
    pub(crate) cpu_ns: u64,
}

/// The threads of one recording that cannot have a timer.
pub(crate) struct TimerFailures {
    pid: i32,
    failed: BTreeMap<SlotLife, TimerlessThread>,
    /// The listed threads that have exited.
    ended: Unsampled,
    read: Instant,
}

impl TimerFailures {
    /// Makes an empty list for a process.
    pub(crate) fn new(pid: i32) -> Self {
        let ended = Unsampled::default();
        Self { pid, failed: BTreeMap::new(), ended, read: Instant::now() }
    }

    /// Adds a thread that could not have a timer.
    pub(crate) fn note(&mut self, life: SlotLife, tid: i32, errno: i32) {
        let pid = self.pid;
        self.failed.entry(life).or_insert_with(|| {
            let cpu_ns = proc::task_cpu_or_ticks_ns(pid, tid).unwrap_or(0);
            TimerlessThread { tid, errno, fallback: Fallback::Wanted, cpu_ns: (cpu_ns, cpu_ns) }
        });
    }

    /// Moves exited threads to the totals, and reads the CPU time of the others at intervals.
    pub(crate) fn sweep(&mut self, slots: &[ThreadSlot]) {
        let pid = self.pid;
        let is_due = self.read.elapsed() >= READING_INTERVAL;
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

    /// Checks whether a thread is listed.
    pub(crate) fn holds(&self, tid: i32) -> bool {
        self.failed.values().any(|failed| failed.tid == tid)
    }

    /// Returns the threads without an alternative yet: the life of their slot, and their id.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = (SlotLife, i32)> {
        let wanted = self.failed.iter().filter(|(_, failed)| failed.fallback == Fallback::Wanted);
        wanted.map(|(life, failed)| (*life, failed.tid))
    }

    /// Notes the alternative for a thread, which decides whether its time counts as unsampled.
    pub(crate) fn set(&mut self, life: SlotLife, fallback: Fallback) {
        if let Some(failed) = self.failed.get_mut(&life) {
            failed.advance(self.pid);
            if failed.fallback == Fallback::Event {
                failed.cpu_ns.0 = failed.cpu_ns.1;
            }
            failed.fallback = fallback;
        }
    }

    /// Returns the threads that nothing has sampled so far.
    pub(crate) fn unsampled(&mut self) -> Unsampled {
        let mut unsampled = self.ended.clone();
        for failed in self.failed.values_mut() {
            failed.advance(self.pid);
            unsampled.note(failed);
        }
        unsampled
    }
}

impl TimerlessThread {
    fn advance(&mut self, pid: i32) {
        // A thread that has exited keeps the value of the last reading.
        self.cpu_ns.1 = proc::task_cpu_or_ticks_ns(pid, self.tid).unwrap_or(self.cpu_ns.1);
    }
}

impl Unsampled {
    /// Adds the threads of a later program.
    pub(crate) fn add(&mut self, later: &Self) {
        self.count += later.count;
        self.cpu_ns += later.cpu_ns;
        let room = NAMED_MAX.saturating_sub(self.first.len());
        self.first.extend(later.first.iter().take(room));
    }

    fn note(&mut self, failed: &TimerlessThread) {
        if failed.fallback == Fallback::Event {
            return;
        }
        self.count += 1;
        self.cpu_ns += failed.cpu_ns.1.saturating_sub(failed.cpu_ns.0);
        if self.first.len() < NAMED_MAX {
            self.first.push((failed.tid, failed.errno));
        }
    }
}

/// Returns whether the same thread still lives in the slot.
pub(crate) fn is_alive(slots: &[ThreadSlot], (index, generation): SlotLife) -> bool {
    slots.get(index).is_some_and(|slot| {
        // Relaxed, both: this side alone retires and recycles.
        slot.generation.load(Ordering::Relaxed) == generation
            && slot.state.load(Ordering::Relaxed) != SlotState::Retired as u32
    })
}
