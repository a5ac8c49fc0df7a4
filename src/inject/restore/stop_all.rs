//! Stops all threads of the target, outside of the agent's code, and chooses the worker.
//!
//! The work for each thread is repeated a hundred or a thousand times, so it takes only five system
//! calls. They are the interrupt, the check for the stop, the registers, the pending signals and
//! the detach. Only the worker and threads that are about to take a signal need more.
//!
//! # Invariants
//! - Pending sampling signals are read after all threads have stopped: nothing adds to them until
//!   the first thread is released.
//! - An interrupted thread is released only after its stop was seen, even after a failure. A thread
//!   without a processor is waited for once the others are released. The end of the tracing thread
//!   releases a thread that does not stop in time.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::held_threads::HeldThreads;
use super::in_use::InUse;
use super::uninterruptible::uninterruptible_sleep;
use crate::inject::error::InjectError;
use crate::inject::ptrace::Tracee;
use crate::inject::stop::{NotHeld, NotStopped, Stopped};
use crate::inject::target::identity;
use crate::proc::{self, Mapping};

/// Longest time for which threads are held while others stop one after the other.
pub(super) const HELD_MAX: Duration = Duration::from_secs(2);
/// Longest time for which threads are held while no other thread stops.
const COLLECT_MAX: Duration = Duration::from_millis(100);
/// Longest such time while one of the threads waits for a processor, which the held threads leave
/// to it. A control group that has used up its share usually gets the next one after 100 ms.
const QUEUED_COLLECT_MAX: Duration = Duration::from_millis(500);
/// Time that a thread gets to leave the agent's code.
const NUDGE: Duration = Duration::from_micros(200);
/// Most attempts to find all threads outside of the agent's code within one stop.
const NUDGES_MAX: usize = 200;

/// Stops all threads of one process.
pub(super) struct ThreadStopper {
    pid: i32,
    /// All held threads except the worker.
    pub(super) held: HeldThreads,
    exited: HashSet<i32>,
    /// The time when the first thread was interrupted.
    first_interrupted: Option<Instant>,
    /// Threads that have taken their pending signals once.
    settled: HashSet<i32>,
    /// Held threads that do not use the agent. A thread that runs again is checked again.
    outside: HashSet<i32>,
    /// The thread that still used the agent at the end of an attempt.
    pub(super) inside: Option<i32>,
}

/// The outcome of an attempt to stop all threads.
pub(super) enum StopAllOutcome {
    /// All threads are held, and this one is the worker.
    All(Box<Stopped>),
    /// The process has no threads any more.
    Nobody,
    /// This thread did not stop or did not leave the agent's code, or all threads sleep.
    Stuck(i32),
}

impl ThreadStopper {
    pub(super) fn of(pid: i32) -> ThreadStopper {
        let (held, exited, settled, outside) = Default::default();
        let (first_interrupted, inside) = (None, None);
        ThreadStopper { pid, held, exited, first_interrupted, settled, outside, inside }
    }

    /// Returns the time when the first thread was interrupted; now, if none was.
    pub(super) fn since(&self) -> Instant {
        self.first_interrupted.unwrap_or_else(Instant::now)
    }

    /// Interrupts a sleeping thread and waits until it wakes up. Returns `false` if it does not.
    pub(super) fn catch_sleeper(&mut self, tid: i32, until: Instant) -> Result<bool, InjectError> {
        let since = Instant::now();
        let interrupted = Tracee::seize(tid).and_then(|tracee| tracee.interrupt().map(|()| tracee));
        let Ok(tracee) = interrupted else { return Ok(true) };
        match Stopped::collect(tracee, since, until, until) {
            Ok(thread) => {
                self.first_interrupted = Some(Instant::now());
                self.held.stopped.push(thread);
            }
            Err(NotStopped::Gone(InjectError::Gone)) => {}
            Err(NotStopped::Gone(error) | NotStopped::Failed(error)) => return Err(error),
            Err(NotStopped::Timeout | NotStopped::Foreign) => return Ok(false),
        }
        Ok(true)
    }

    /// Inspects the threads before any of them is held.
    pub(super) fn inspect_threads(&mut self) {
        self.held.order(self.pid, &mut proc::tasks(self.pid).unwrap_or_default());
    }

    /// Holds all threads, and chooses the worker among them.
    pub(super) fn stop_all(
        &mut self,
        in_use: InUse<'_>,
        mappings: &[Mapping],
    ) -> Result<StopAllOutcome, InjectError> {
        let last = Instant::now() + HELD_MAX;
        loop {
            if let Some(tid) = self.hold_all(in_use, last)? {
                return Ok(StopAllOutcome::Stuck(tid));
            }
            let Some(chosen) = self.held.choose(mappings) else {
                // All threads sleep, so none can be the worker.
                return Ok(self
                    .held
                    .tids()
                    .next()
                    .map_or(StopAllOutcome::Nobody, StopAllOutcome::Stuck));
            };
            let mut worker = self.held.stopped.swap_remove(chosen);
            let tid = worker.tid();
            if !self.settled.insert(tid) {
                return Ok(StopAllOutcome::All(Box::new(worker)));
            }
            match worker.settle_held(last.min(Instant::now() + COLLECT_MAX)) {
                Ok(false) => return Ok(StopAllOutcome::All(Box::new(worker))),
                // The thread has run, and may be in the agent's handler now.
                Ok(true) => {
                    self.outside.remove(&tid);
                    self.held.stopped.push(worker);
                }
                Err(failure) => {
                    if let Some(tid) = self.handle_failed_stop(tid, failure)? {
                        return Ok(StopAllOutcome::Stuck(tid));
                    }
                }
            }
        }
    }

    /// Holds every thread outside of the agent's code and with no deliverable signal of its own,
    /// until a pass over the task list finds no new thread. Returns a thread for which that failed.
    fn hold_all(&mut self, in_use: InUse<'_>, last: Instant) -> Result<Option<i32>, InjectError> {
        for _ in 0..NUDGES_MAX {
            let tids = proc::tasks(self.pid)
                .map_err(|error| InjectError::reading("/proc/PID/task", &error))?;
            let known: HashSet<i32> = self.held.tids().collect();
            let is_new = |tid: &i32| !known.contains(tid) && !self.exited.contains(tid);
            let mut new: Vec<i32> = tids.into_iter().filter(is_new).collect();
            self.held.order(self.pid, &mut new);
            let found = self.find_inside(in_use);
            if new.is_empty() && found.is_none() {
                let (is_any, stuck) = self.deliver_own_signals(last)?;
                if !is_any || stuck.is_some() {
                    // A `vfork` child is in the handler for a moment at most.
                    let child = self.held.vfork_children.iter().find(|child| in_use.by(child));
                    return Ok(stuck.or(child.map(Stopped::tid)));
                }
                continue;
            }
            if let Some(tid) = self.hold_these(&new, in_use, last)? {
                return Ok(Some(tid));
            }
            let Some(found) = found else { continue };
            // The thread may create threads while it runs, so the list is read again afterwards.
            if let Some(tid) = self.nudge(found, last)? {
                return Ok(Some(tid));
            }
        }
        let mut held = self.held.stopped.iter().chain(&self.held.vfork_children);
        self.inside = held.find(|thread| in_use.by(thread)).map(Stopped::tid);
        Ok(self.inside.or_else(|| self.held.tids().next()))
    }

    /// Returns the index of a held thread that uses the agent. Searches the stack of each thread
    /// once.
    fn find_inside(&mut self, in_use: InUse<'_>) -> Option<usize> {
        let outside = &mut self.outside;
        self.held.stopped.iter().position(|thread| {
            let is_inside = !outside.contains(&thread.tid()) && in_use.by(thread);
            if !is_inside {
                outside.insert(thread.tid());
            }
            is_inside
        })
    }

    /// Lets threads take their own deliverable signals, each thread once. Returns whether there
    /// were any, and a thread that no longer stops.
    fn deliver_own_signals(&mut self, last: Instant) -> Result<(bool, Option<i32>), InjectError> {
        let (mut index, mut is_any) = (0, false);
        while let Some(thread) = self.held.stopped.get_mut(index) {
            index += 1;
            let tid = thread.tid();
            if !thread.note_sampling_signals() || !self.settled.insert(tid) {
                continue;
            }
            is_any = true;
            self.outside.remove(&tid);
            if let Err(failure) = thread.settle_held(last.min(Instant::now() + COLLECT_MAX)) {
                index -= 1;
                self.held.stopped.swap_remove(index);
                if let Some(tid) = self.handle_failed_stop(tid, failure)? {
                    return Ok((true, Some(tid)));
                }
            }
        }
        Ok((is_any, None))
    }

    /// Lets a thread in the agent's code run for a moment.
    fn nudge(&mut self, index: usize, last: Instant) -> Result<Option<i32>, InjectError> {
        let mut thread = self.held.stopped.swap_remove(index);
        let tid = thread.tid();
        if Instant::now() >= last {
            self.inside = Some(tid);
            return Ok(Some(tid));
        }
        match thread.nudge(NUDGE, Instant::now() + COLLECT_MAX) {
            Ok(()) => self.held.stopped.push(thread),
            Err(error) if error.is_gone() => {}
            Err(InjectError::WouldNotStop { .. }) => return Ok(Some(tid)),
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// Handles a thread that could not be stopped. Returns `None` if the thread has exited.
    fn handle_failed_stop(
        &mut self,
        tid: i32,
        failure: NotStopped,
    ) -> Result<Option<i32>, InjectError> {
        match failure {
            NotStopped::Gone(InjectError::Gone) => {
                self.exited.insert(tid);
                Ok(None)
            }
            NotStopped::Gone(error) | NotStopped::Failed(error) => Err(error),
            NotStopped::Timeout | NotStopped::Foreign => Ok(Some(tid)),
        }
    }

    /// Interrupts all threads before it waits for the first: they stop side by side.
    fn hold_these(
        &mut self,
        tids: &[i32],
        in_use: InUse<'_>,
        last: Instant,
    ) -> Result<Option<i32>, InjectError> {
        let interrupted = self.interrupt_all(tids)?;
        let mut deadline = Instant::now() + COLLECT_MAX;
        let mut refused = None;
        let mut left = interrupted.len();
        for (tracee, since) in interrupted {
            let tid = tracee.tid();
            let sleep = uninterruptible_sleep(self.pid, &tracee, left);
            left -= 1;
            if let Some(sleep) = sleep.filter(|it| !in_use.by_sleeper(tid, it)) {
                // The thread sleeps on. The others must not be held for that.
                let is_held = self.held.hold_asleep(self.pid, tracee, sleep);
                refused = refused.or((!is_held).then_some(tid));
                continue;
            }
            let queued = last.min(Instant::now() + QUEUED_COLLECT_MAX);
            match Stopped::hold(tracee, since, deadline, queued) {
                Ok(thread) => {
                    self.held.stopped.push(thread);
                    // Many threads need a processor to stop, one after the other.
                    deadline = last.min(Instant::now() + COLLECT_MAX);
                }
                // Wait for the others all the same, and for this one when they are released.
                Err(NotHeld::Late(tracee)) => {
                    self.held.late.push(tracee);
                    refused = refused.or(Some(tid));
                }
                Err(NotHeld::Other(failure)) => {
                    refused = refused.or(self.handle_failed_stop(tid, failure)?);
                }
            }
        }
        Ok(refused)
    }

    /// Seizes all threads before it interrupts any. If the call of a traced thread ends in between,
    /// it can be repaired.
    fn interrupt_all(&mut self, tids: &[i32]) -> Result<Vec<(Tracee, Instant)>, InjectError> {
        let mut seized = Vec::with_capacity(tids.len());
        for &tid in tids {
            seized.extend(self.unless_gone(tid, Tracee::seize(tid))?);
        }
        let mut interrupted = Vec::with_capacity(seized.len());
        for tracee in seized {
            let (tid, since) = (tracee.tid(), Instant::now());
            self.first_interrupted.get_or_insert(since);
            let outcome = tracee.interrupt().map(|()| (tracee, since));
            interrupted.extend(self.unless_gone(tid, outcome)?);
        }
        Ok(interrupted)
    }

    /// Returns the outcome of a request for a thread; `None` if the thread has exited.
    fn unless_gone<T>(
        &mut self,
        tid: i32,
        outcome: std::io::Result<T>,
    ) -> Result<Option<T>, InjectError> {
        let Err(error) = outcome else { return Ok(outcome.ok()) };
        match identity::explain(self.pid, tid, InjectError::system("PTRACE_SEIZE", &error)) {
            InjectError::Gone => {
                self.exited.insert(tid);
                Ok(None)
            }
            other => Err(other),
        }
    }
}
