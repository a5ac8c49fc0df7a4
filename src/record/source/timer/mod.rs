//! The `timer` engine: a CPU timer for each thread of the target, armed by our code inside the
//! target.
//!
//! The recorder marks the slots of threads that need a timer. The next handler that runs in the
//! target, in any thread, arms their timers, so a sleeping thread is not woken for its own timer.
//! If a thread without a timer runs while no handler of ours does, the recorder steps in. It sends
//! the priming signal to a thread that has only computed for a while, or the guardian stops one
//! thread once. A signal handler makes `epoll_wait` and a few other calls fail with EINTR, whatever
//! its flags are. A thread that runs during the check may sleep when the signal arrives (measured:
//! 1 to 4 of 100 signals to threads that sleep every millisecond). The guardian repairs that.
//!
//! # Invariants
//! - A slot is marked at most once for each of its lives and each signal, and its thread is
//!   signalled at most once.
//! - No signal goes to a thread that did not compute since the previous check.
//! - Timers stop by themselves when their [`Lease`] is not renewed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use traceprof_abi::layout::{self, ARM_MAX, Counter, TIMER_BUSY};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::{SlotState, ThreadSlot};

use crate::proc;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::source::timer_failures::TimerFailures;
use crate::record::target::lease::Lease;
use crate::record::target::signals;

/// How long to wait for a handler to arm a timer before the thread is checked.
const PATIENCE: Duration = Duration::from_millis(10);
/// How long to wait for a signal's acknowledgement.
const ACKNOWLEDGE: Duration = Duration::from_millis(100);
/// How long a running thread may stay without a signal before the guardian helps it.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(20);
/// The shortest time between two stops by the guardian.
const ENTRY_PAUSE: Duration = Duration::from_millis(50);
/// The maximum number of threads that one turn checks.
const CHECKS_MAX: usize = 64;
/// The time budget for checks in one turn, so that ten thousand sleepers do not stall the loop.
const CHECKS_TIME: Duration = Duration::from_micros(500);
/// The CPU time that a thread must have used without a sleep since the previous check, in
/// nanoseconds, to be signalled.
///
/// To wait for a processor is not enough: the thread may be about to return from a call that timed
/// out, which a signal would still turn into EINTR (measured with `poll` on a busy machine). The
/// kernel brings the CPU time of a running thread up to date at its clock ticks only, so a share of
/// the elapsed time says less than the count of sleeps.
const COMPUTED_NS: u64 = 1_000_000;

/// What a check found out about a thread.
#[derive(Debug, Clone, Copy)]
struct RunCheck {
    /// Whether it ran or waited for a processor.
    is_running: bool,
    /// Its CPU time in nanoseconds.
    ran_ns: u64,
    /// How often it had gone to sleep.
    sleeps: u64,
}

/// A slot that has no timer yet.
#[derive(Debug, Clone, Copy)]
struct UnarmedSlot {
    tid: i32,
    since: Instant,
    /// Whether the thread existed when sampling started.
    is_first: bool,
    last_check: Option<RunCheck>,
    signalled: Option<Instant>,
}

/// The help that a thread without a timer gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Help {
    /// No help: its turn will come, or it needs none.
    None,
    /// The priming signal, since the thread computes.
    Signal,
    /// An entry of the guardian, since the thread runs and nothing else helped.
    Entry,
}

/// The timers of one recording.
pub(crate) struct Timers {
    pid: i32,
    data: DataSegment,
    lease: Lease,
    signal: i32,
    /// Threads that get no timer, since they would mistake its signal for one that they wait for.
    left_out: Vec<signals::LeftOutThread>,
    waiting: BTreeMap<usize, UnarmedSlot>,
    /// The slot at which the next round of checks starts, so that every slot gets its turn.
    next_check: usize,
    is_first_cover: bool,
    /// Threads that cannot have a timer.
    pub(crate) failures: TimerFailures,
    entered: Instant,
    /// The number of priming signals sent.
    pub(crate) signals: u64,
}

impl Timers {
    /// Starts the engine for a process whose agent handles `signal`.
    ///
    /// Timers may be armed from now on, except for threads that are left out.
    pub(crate) fn start(
        pid: i32,
        data: DataSegment,
        signal: i32,
        left_out: Vec<signals::LeftOutThread>,
    ) -> Self {
        Self {
            pid,
            data,
            lease: Lease::start(data),
            signal,
            left_out,
            waiting: BTreeMap::new(),
            next_check: 0,
            is_first_cover: true,
            failures: TimerFailures::new(pid),
            entered: Instant::now(),
            signals: 0,
        }
    }

    /// Requests timers for those of these threads (outer and inner id) that have none.
    pub(crate) fn cover(&mut self, threads: impl Iterator<Item = (i32, u32)>) {
        for (tid, inner) in threads {
            if signals::is_listed(&self.left_out, self.pid, tid) {
                continue;
            }
            let threads = self.data.threads();
            let index = threads.find(inner).or_else(|| threads.claim(inner).index());
            let slot = index.and_then(|index| Some((index, threads.slots.get(index)?)));
            let Some((index, slot)) = slot else { continue };
            if has_timer(slot)
                || self.waiting.contains_key(&index)
                || self.has_failed(tid, (index, slot))
            {
                continue;
            }
            self.data.want_timer(index);
            let (since, is_first) = (Instant::now(), self.is_first_cover);
            let waiting = UnarmedSlot { tid, since, is_first, last_check: None, signalled: None };
            self.waiting.insert(index, waiting);
        }
        self.is_first_cover = false;
    }

    /// Requests the deletion of timers whose threads have exited.
    ///
    /// The kernel keeps such timers and counts them against the user's limit.
    pub(crate) fn sweep(&mut self) {
        let threads = self.data.threads();
        self.failures.sweep(threads.slots);
        // Relaxed, all: hints that are read repeatedly; the handler that takes a bit checks again.
        let used = threads.next.load(Ordering::Relaxed) as usize;
        for (index, slot) in threads.slots.iter().enumerate().take(used) {
            let timer = slot.timer.load(Ordering::Relaxed);
            let is_left = timer != 0 && timer != TIMER_BUSY;
            let is_gone = slot.tid.load(Ordering::Relaxed) == 0
                || slot.state.load(Ordering::Relaxed) == SlotState::Retired as u32;
            if is_left && is_gone {
                self.data.want_timer(index);
            }
        }
    }

    fn has_failed(&mut self, tid: i32, (index, slot): (usize, &ThreadSlot)) -> bool {
        // Relaxed, both: the handler's error may be read late, and only this side increments the
        // generation.
        let errno = slot.timer_error.load(Ordering::Relaxed) as i32;
        let life = (index, slot.generation.load(Ordering::Relaxed));
        // EINVAL means that the thread has exited and needs no timer.
        if errno != 0 && errno != libc::EINVAL {
            self.failures.note(life, tid, errno);
        }
        errno != 0
    }

    /// Returns whether no thread waits for its timer.
    pub(crate) fn is_complete(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Runs one turn of the recorder's loop.
    ///
    /// Returns true if the guardian should enter the target to arm timers that nothing else arms.
    pub(crate) fn turn(&mut self) -> bool {
        self.lease.note_turn();
        let slots = self.data.threads().slots;
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|index, it| {
            let slot = slots.get(*index);
            slot.is_some_and(|slot| !has_timer(slot) && !self.has_failed(it.tid, (*index, slot)))
        });
        let is_entry_due = self.check_some(&mut waiting);
        self.waiting = waiting;
        is_entry_due && self.entered.elapsed() >= ENTRY_PAUSE
    }

    /// Checks some of the waiting threads and helps them; returns whether an entry would help.
    fn check_some(&mut self, all: &mut BTreeMap<usize, UnarmedSlot>) -> bool {
        let (now, is_entry_unfinished) = (Instant::now(), self.is_entry_unfinished());
        let round = all.range(self.next_check..).chain(all.range(..self.next_check));
        let due = round.filter(|(_, it)| now.duration_since(it.since) >= PATIENCE);
        let due: Vec<usize> = due.map(|(index, _)| *index).take(CHECKS_MAX).collect();
        let mut is_entry_due = false;
        for index in due {
            let Some(waiting) = all.get_mut(&index) else { continue };
            self.next_check = index + 1;
            is_entry_due |= waiting.is_first && is_entry_unfinished;
            match self.check(waiting, now) {
                Ok(Help::None) => {}
                Ok(Help::Signal) => self.signal(waiting, now),
                Ok(Help::Entry) => is_entry_due = true,
                // The thread has exited.
                Err(_) => drop(all.remove(&index)),
            }
            if now.elapsed() >= CHECKS_TIME {
                break;
            }
        }
        is_entry_due
    }

    /// Returns whether nothing arms the remaining threads of the first entry.
    ///
    /// The first entry may arm only a few threads, and it is not known which.
    fn is_entry_unfinished(&self) -> bool {
        let control = self.data.control();
        let count = |counter: Counter| {
            // Relaxed: a count.
            control.counters[counter as usize].load(Ordering::Relaxed)
        };
        // The target may have written anything to these words.
        let served = count(Counter::Armed).saturating_add(count(Counter::TimerFailed));
        // Relaxed: a hint; the handler that serves it checks again.
        served < ARM_MAX as u64 && control.arm_wanted.load(Ordering::Relaxed) != 0
    }

    /// Decides which help a thread without a timer needs.
    fn check(&self, waiting: &mut UnarmedSlot, now: Instant) -> std::io::Result<Help> {
        let status = proc::task_status(self.pid, waiting.tid)?;
        let check = RunCheck {
            is_running: status.state == 'R',
            ran_ns: proc::task_cpu_or_ticks_ns(self.pid, waiting.tid)?,
            sleeps: status.voluntary_switches,
        };
        let before = waiting.last_check.replace(check);
        Ok(help(waiting, before, check, now))
    }

    fn signal(&mut self, waiting: &mut UnarmedSlot, now: Instant) {
        waiting.signalled = Some(now);
        // Relaxed: written before the handler was installed.
        let cookie = self.data.control().cookie.load(Ordering::Relaxed);
        let value = layout::prime_value(cookie, monotonic_now_ns());
        // A thread that may not be signalled gets other help; one that has exited needs none.
        if signals::is_queueable(self.signal)
            && signals::send(self.pid, waiting.tid, self.signal, value).is_ok()
        {
            self.signals += 1;
        }
    }

    /// Notes that the guardian has entered the target.
    pub(crate) fn note_entry(&mut self) {
        self.entered = Instant::now();
    }

    /// Forgets all requests, after all timers were deleted, and uses this signal from now on.
    pub(crate) fn restart(&mut self, signal: i32, left_out: Vec<signals::LeftOutThread>) {
        (self.signal, self.left_out) = (signal, left_out);
        self.waiting.clear();
    }
}

/// Returns whether the slot has a timer for its current life.
///
/// A timer of the previous thread does not count: the kernel keeps it, but it never expires.
fn has_timer(slot: &ThreadSlot) -> bool {
    // Acquire: pairs with the Release with which the agent publishes a timer; its life is visible.
    match slot.timer.load(Ordering::Acquire) {
        0 => false,
        TIMER_BUSY => true,
        // Relaxed on both: ordered by the load above; only this side increments the generation.
        _ => {
            let life = slot.generation.load(Ordering::Relaxed);
            slot.timer_generation.load(Ordering::Relaxed) == life
        }
    }
}

/// Decides which help a thread without a timer needs, from its last two checks.
///
/// A signal goes only to a thread that has only computed between two checks. It would interrupt a
/// call of a thread that sleeps now and then.
fn help(waiting: &UnarmedSlot, before: Option<RunCheck>, check: RunCheck, now: Instant) -> Help {
    if !check.is_running {
        return Help::None;
    }
    match (waiting.signalled, before) {
        (Some(sent), _) if now.duration_since(sent) >= ACKNOWLEDGE => Help::Entry,
        (Some(_), _) | (None, None) => Help::None,
        (None, Some(before)) => {
            let has_slept = check.sleeps != before.sleeps;
            let ran_ns = check.ran_ns.saturating_sub(before.ran_ns);
            if !has_slept && ran_ns >= COMPUTED_NS {
                Help::Signal
            } else if now.duration_since(waiting.since) >= SIGNAL_PATIENCE {
                Help::Entry
            } else {
                Help::None
            }
        }
    }
}

#[cfg(test)]
mod tests;
