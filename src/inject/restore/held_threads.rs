//! The threads and processes that a restore holds besides its worker: stopped threads, threads in
//! uninterruptible sleep, and other processes in the same memory.
//!
//! A thread in uninterruptible sleep (state D) does not stop. Once interrupted, it cannot run its
//! program again without stopping first, because the kernel checks the request on its way out. If
//! such a thread sleeps in a call of its own code, it stays outside of the agent, which is all that
//! a restore needs. The end of the tracing thread releases it.
//!
//! Calls that create or replace a process are different, because the new process is not held. The
//! parent of a `vfork` sleeps until its child calls exec or exits. The child uses the same memory,
//! but has its own copy of the signal actions, which name our handlers. A signal after the restore
//! would run code that no longer exists. So the child is stopped like a thread, and its actions are
//! restored, too. If the child is not found or does not stop, nothing is restored now, and another
//! attempt follows: the child will soon call exec.
//!
//! The kernel drops an ignored signal when it is sent, unless its receiver is traced. The receiver
//! is the leader for signals to the process, and the child's parent thread for SIGCHLD. A kept
//! signal wakes a thread of the process and ends its call with EINTR. A restore can repair that in
//! traced threads only. So the leader and the parents of children are stopped last and released
//! first.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::uninterruptible::{UninterruptibleSleep, VforkChildren, vfork_children};
use crate::inject::arch::Interrupted;
use crate::inject::error::InjectError;
use crate::inject::ptrace::Tracee;
use crate::inject::stop::{self, NotStopped, Stopped};
use crate::inject::worker::choice;
use crate::inject::worker::stack::stack_top;
use crate::proc::{self, Mapping, shares_memory};

/// Longest wait for the stop of a `vfork` child, while all others are held.
const VFORK_CHILD_MAX: Duration = Duration::from_millis(50);
/// Longest time for the repair of threads that have stopped meanwhile.
const LATE_MAX: Duration = Duration::from_millis(5);
/// Longest wait for interrupted threads without a processor. No other thread is held for them, and
/// a control group in debt gets a processor within seconds.
const QUEUED_LATE_MAX: Duration = Duration::from_secs(10);

/// The threads and processes that a restore holds besides its worker.
#[derive(Debug, Default)]
pub(super) struct HeldThreads {
    /// Threads that have stopped.
    pub(super) stopped: Vec<Stopped>,
    /// Threads that were interrupted in an uninterruptible sleep.
    asleep: Vec<Tracee>,
    /// Interrupted threads that did not stop in time, so nothing is restored now.
    pub(super) late: Vec<Tracee>,
    /// Stopped processes that use the same memory.
    pub(super) vfork_children: Vec<Stopped>,
    /// Properties of threads, read before their stops.
    traits: HashMap<i32, ThreadTraits>,
}

/// Properties of a thread that decide about its order, and about the choice of the worker.
#[derive(Debug, Clone, Copy)]
struct ThreadTraits {
    /// Whether the kernel, while it is traced, keeps signals that the process ignores.
    keeps_ignored_signals: bool,
    /// Whether no seccomp filter applies to the thread.
    is_unfiltered: bool,
}

impl HeldThreads {
    /// Returns the ids of all held threads of the process.
    pub(super) fn tids(&self) -> impl Iterator<Item = i32> {
        self.stopped.iter().map(Stopped::tid).chain(self.asleep.iter().map(Tracee::tid))
    }

    /// Returns all held threads and processes; `None` if one of them has not stopped.
    pub(super) fn all_stopped(&self) -> Option<impl Iterator<Item = &Stopped>> {
        self.asleep.is_empty().then(|| self.stopped.iter().chain(&self.vfork_children))
    }

    /// Holds a thread that sleeps outside of the agent, and the processes that it waits for.
    /// Returns `false` if there may be other processes, which are not held.
    pub(super) fn hold_asleep(
        &mut self,
        pid: i32,
        tracee: Tracee,
        sleep: UninterruptibleSleep,
    ) -> bool {
        let VforkChildren::Known(vfork_children) = vfork_children(pid, tracee.tid(), sleep) else {
            return false;
        };
        for child in vfork_children {
            // A child that has just called exec no longer uses this memory, and its parent wakes
            // up.
            match stop::stop(child, VFORK_CHILD_MAX, VFORK_CHILD_MAX) {
                Ok(stopped) if shares_memory(pid, child) == Some(true) => {
                    self.vfork_children.push(stopped)
                }
                _ => return false,
            }
        }
        self.asleep.push(tracee);
        true
    }

    /// Sorts threads into the order of their stops. This takes some microseconds for each new
    /// thread.
    pub(super) fn order(&mut self, pid: i32, tids: &mut [i32]) {
        tids.sort_by_cached_key(|&tid| {
            let inspect = || ThreadTraits {
                keeps_ignored_signals: tid == pid || choice::has_ignored_children(pid, tid),
                is_unfiltered: choice::is_unfiltered(pid, tid),
            };
            self.traits.entry(tid).or_insert_with(inspect).keeps_ignored_signals
        });
    }

    /// Whether the thread must be released before the others.
    pub(super) fn is_released_first(&self, tid: i32) -> bool {
        self.traits.get(&tid).is_some_and(|traits| traits.keeps_ignored_signals)
    }

    /// Chooses the worker among the stopped threads.
    ///
    /// The best worker is under no seccomp filter: filters that were installed after the attach are
    /// unchecked. Next come threads whose stack takes the frames, as they need no bare call. Among
    /// these, running threads are better than threads in a call. If a signal arrives while a thread
    /// in a call is stepped, its handler runs before the call is issued again. A program with a
    /// `pause` does not expect that. Threads that must be released first come last, because the
    /// worker is held the longest.
    pub(super) fn choose(&self, mappings: &[Mapping]) -> Option<usize> {
        let is_good = |thread: &Stopped| stack_top(thread, mappings).is_some();
        let is_running = |thread: &Stopped| thread.interrupted() == Interrupted::User;
        let stays = |thread: &Stopped| !self.is_released_first(thread.tid());
        let is_unfiltered = |thread: &Stopped| {
            self.traits.get(&thread.tid()).is_some_and(|traits| traits.is_unfiltered)
        };
        let first = |wanted: &dyn Fn(&Stopped) -> bool| self.stopped.iter().position(wanted);
        // The check of a stack costs a system call, and most threads are asleep.
        let best = |may: &dyn Fn(&Stopped) -> bool| {
            first(&|it| may(it) && is_running(it) && stays(it) && is_good(it))
                .or_else(|| first(&|it| may(it) && is_running(it) && is_good(it)))
                .or_else(|| first(&|it| may(it) && is_good(it)))
        };
        best(&is_unfiltered)
            .or_else(|| best(&|_| true))
            .or_else(|| (!self.stopped.is_empty()).then_some(0))
    }

    /// Whether a sampling signal is, or may be, pending for one of the threads.
    pub(super) fn has_sampling_signal(&self, pid: i32, signal: i32) -> bool {
        let waits = |tracee: &Tracee| {
            proc::task_status(pid, tracee.tid())
                .map_or(true, |status| status.pending >> (signal - 1) & 1 == 1)
        };
        let has_signal = |thread: &Stopped| thread.has_noted_sampling_signal(signal);
        self.stopped.iter().any(has_signal) || self.asleep.iter().any(waits)
    }

    /// Releases all held threads and processes.
    pub(super) fn release(mut self) -> Result<(), InjectError> {
        let mut first = Ok(());
        // Threads with a broken call come last. A thread that got its child only now is not among
        // the first.
        let mut turns: [Vec<Stopped>; 3] = Default::default();
        for thread in std::mem::take(&mut self.stopped) {
            let is_early = self.is_released_first(thread.tid());
            let turn = if is_early { 0 } else { 1 + usize::from(thread.is_in_broken_call()) };
            turns[turn].push(thread);
        }
        for thread in turns.into_iter().flatten().chain(self.vfork_children) {
            match thread.release() {
                Ok(_) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
        for tracee in self.asleep {
            if tracee.has_stopped() {
                repair(tracee, Instant::now() + LATE_MAX);
            }
        }
        first
    }
}

/// Repairs the calls of threads that did not stop in time, once they have stopped.
pub(super) fn repair_late(late: Vec<Tracee>) {
    let last = Instant::now() + QUEUED_LATE_MAX;
    late.into_iter().for_each(|tracee| repair(tracee, last));
}

/// Repairs the call of an interrupted thread and releases it. A thread that waits for a processor
/// may take until `last`. If that fails, the end of the tracing thread releases the thread.
fn repair(tracee: Tracee, last: Instant) {
    let now = Instant::now();
    let _: Result<Stopped, NotStopped> = Stopped::collect(tracee, now, now + LATE_MAX, last);
}
