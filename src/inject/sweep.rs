//! The sweep: stops every thread of the target at once, outside of the agent's code, and chooses the one
//! that does the work.
//!
//! What it does to each thread counts a hundred times or a thousand, so it is five system calls: the
//! request, a look at whether it has stopped, its registers, the hits that wait for it, its release. What
//! more must be known, of the worker and of a thread about to take a signal, is asked of those alone.
//!
//! # Invariants
//! - Hits are looked for when all have stopped: until the first is let go nothing adds to them.
//! - A thread that was asked to stop is waited for before it is let go, however the sweep ends; but one
//!   that does not stop in time is left to the end of the tracing thread.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::beside::{self, Beside};
use super::error::InjectError;
use super::identity;
use super::inside::Inside;
use super::ptrace::Tracee;
use super::stop::{NotStopped, Stopped};
use crate::proc::{self, Mapping};

/// Longest time that threads are held while others stop one after the other.
pub(super) const HELD_MAX: Duration = Duration::from_secs(2);
/// Longest time that threads are held while no other stops.
const COLLECT_MAX: Duration = Duration::from_millis(100);
/// The same while one of them waits for a processor, which those that are held leave to it. A
/// control group that has used up its share gets the next one after 100 ms, mostly.
const QUEUED_COLLECT_MAX: Duration = Duration::from_millis(500);
/// Time for a thread to leave the agent's code.
const NUDGE: Duration = Duration::from_micros(200);
/// Attempts to see all threads outside of the agent's code within one stop.
const NUDGES_MAX: usize = 200;

/// See the module.
pub(super) struct Sweep {
    pid: i32,
    /// All that are held, but for the worker.
    pub(super) beside: Beside,
    passed_over: HashSet<i32>,
    /// When the first of them was asked to stop.
    first_asked: Option<Instant>,
    /// Threads that have taken the signals that they had to, once.
    settled: HashSet<i32>,
}

/// What a sweep came to.
pub(super) enum Swept {
    /// All are held, and this one does the work.
    All(Box<Stopped>),
    /// There are no threads any more.
    Nobody,
    /// A thread could not be brought there; or, where all sleep, one of them.
    Stuck(i32),
}

impl Sweep {
    pub(super) fn of(pid: i32) -> Sweep {
        let (beside, passed_over, settled) = Default::default();
        Sweep { pid, beside, passed_over, first_asked: None, settled }
    }

    /// When the first thread was asked to stop; now, if none was.
    pub(super) fn since(&self) -> Instant {
        self.first_asked.unwrap_or_else(Instant::now)
    }

    /// Waits until a thread comes out of its sleep, and has it stop then; `false` if it does not.
    pub(super) fn catch_sleeper(&mut self, tid: i32, until: Instant) -> Result<bool, InjectError> {
        let since = Instant::now();
        let asked = Tracee::seize(tid).and_then(|tracee| tracee.interrupt().map(|()| tracee));
        let Ok(tracee) = asked else { return Ok(true) };
        match Stopped::collect(tracee, since, until, until) {
            Ok(thread) => {
                self.first_asked = Some(Instant::now());
                self.beside.stopped.push(thread);
            }
            Err(NotStopped::Gone(InjectError::Gone)) => {}
            Err(NotStopped::Gone(error) | NotStopped::Failed(error)) => return Err(error),
            Err(NotStopped::Timeout | NotStopped::Foreign) => return Ok(false),
        }
        Ok(true)
    }

    /// Looks at the threads before anybody is held.
    pub(super) fn foresee(&mut self) {
        self.beside.order(self.pid, &mut proc::tasks(self.pid).unwrap_or_default());
    }

    /// See the module.
    pub(super) fn stop_all(
        &mut self,
        inside: Inside<'_>,
        mappings: &[Mapping],
    ) -> Result<Swept, InjectError> {
        let last = Instant::now() + HELD_MAX;
        loop {
            if let Some(tid) = self.hold_all(inside, last)? {
                return Ok(Swept::Stuck(tid));
            }
            let Some(chosen) = self.beside.choose(mappings) else {
                // All of them sleep: nobody can do the work.
                return Ok(self.beside.tids().next().map_or(Swept::Nobody, Swept::Stuck));
            };
            let mut worker = self.beside.stopped.swap_remove(chosen);
            let tid = worker.tid();
            if !self.settled.insert(tid) {
                return Ok(Swept::All(Box::new(worker)));
            }
            match worker.settle_held(last.min(Instant::now() + COLLECT_MAX)) {
                Ok(false) => return Ok(Swept::All(Box::new(worker))),
                // It has moved, and may be in the agent's handler now.
                Ok(true) => self.beside.stopped.push(worker),
                Err(failure) => {
                    if let Some(tid) = self.fallen_out(tid, failure)? {
                        return Ok(Swept::Stuck(tid));
                    }
                }
            }
        }
    }

    /// Holds every thread, outside of the agent's code and with no signal of its own that it would take,
    /// until a pass over the task list finds no new one. Gives a thread that could not be brought there.
    fn hold_all(&mut self, inside: Inside<'_>, last: Instant) -> Result<Option<i32>, InjectError> {
        for _ in 0..NUDGES_MAX {
            let tids = proc::tasks(self.pid).map_err(|_| InjectError::Gone)?;
            let known: HashSet<i32> = self.beside.tids().collect();
            let is_new = |tid: &i32| !known.contains(tid) && !self.passed_over.contains(tid);
            let mut new: Vec<i32> = tids.into_iter().filter(is_new).collect();
            self.beside.order(self.pid, &mut new);
            let found = self.beside.stopped.iter().position(|thread| inside.is(thread));
            if new.is_empty() && found.is_none() {
                let (is_any, stuck) = self.have_taken(last)?;
                if !is_any || stuck.is_some() {
                    // A child of `vfork` is in the handler for a moment, if ever.
                    let guest = self.beside.guests.iter().find(|guest| inside.is(guest));
                    return Ok(stuck.or(guest.map(Stopped::tid)));
                }
                continue;
            }
            if let Some(tid) = self.hold_these(&new, inside, last)? {
                return Ok(Some(tid));
            }
            let Some(found) = found else { continue };
            // It may create threads while it runs, so the list is read again afterwards.
            if let Some(tid) = self.nudge(found, last)? {
                return Ok(Some(tid));
            }
        }
        let mut held = self.beside.stopped.iter().chain(&self.beside.guests);
        let found = held.find(|thread| inside.is(thread)).map(Stopped::tid);
        Ok(found.or_else(|| self.beside.tids().next()))
    }

    /// Has threads take the signals of their own that they are about to take, each thread once. Whether
    /// there was any, and one that does not stop any more.
    fn have_taken(&mut self, last: Instant) -> Result<(bool, Option<i32>), InjectError> {
        let (mut index, mut is_any) = (0, false);
        while let Some(thread) = self.beside.stopped.get_mut(index) {
            index += 1;
            let tid = thread.tid();
            if !thread.note_hits() || !self.settled.insert(tid) {
                continue;
            }
            is_any = true;
            if let Err(failure) = thread.settle_held(last.min(Instant::now() + COLLECT_MAX)) {
                index -= 1;
                self.beside.stopped.swap_remove(index);
                if let Some(tid) = self.fallen_out(tid, failure)? {
                    return Ok((true, Some(tid)));
                }
            }
        }
        Ok((is_any, None))
    }

    /// Lets a thread go on for a moment that is in the agent's code.
    fn nudge(&mut self, index: usize, last: Instant) -> Result<Option<i32>, InjectError> {
        let mut thread = self.beside.stopped.swap_remove(index);
        let tid = thread.tid();
        if Instant::now() >= last {
            return Ok(Some(tid));
        }
        match thread.nudge(NUDGE, Instant::now() + COLLECT_MAX) {
            Ok(()) => self.beside.stopped.push(thread),
            Err(error) if error.is_gone() => {}
            Err(InjectError::WouldNotStop { .. }) => return Ok(Some(tid)),
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// A thread that does not stop, or not as it should; `None` for one that is gone.
    fn fallen_out(&mut self, tid: i32, failure: NotStopped) -> Result<Option<i32>, InjectError> {
        match failure {
            NotStopped::Gone(InjectError::Gone) => {
                self.passed_over.insert(tid);
                Ok(None)
            }
            NotStopped::Gone(error) | NotStopped::Failed(error) => Err(error),
            NotStopped::Timeout | NotStopped::Foreign => Ok(Some(tid)),
        }
    }

    /// All are asked before the first is waited for: they stop side by side.
    fn hold_these(
        &mut self,
        tids: &[i32],
        inside: Inside<'_>,
        last: Instant,
    ) -> Result<Option<i32>, InjectError> {
        let asked = self.ask(tids)?;
        let mut deadline = Instant::now() + COLLECT_MAX;
        let mut refused = None;
        let mut left = asked.len();
        for (tracee, since) in asked {
            let tid = tracee.tid();
            let sleep = beside::sleep_of(self.pid, &tracee, left);
            left -= 1;
            if let Some(sleep) = sleep.filter(|it| !inside.may_be_asleep(tid, it)) {
                // It sleeps on; the others must not be held for that.
                let is_held = self.beside.hold_asleep(self.pid, tracee, sleep);
                refused = refused.or((!is_held).then_some(tid));
                continue;
            }
            let queued = last.min(Instant::now() + QUEUED_COLLECT_MAX);
            match Stopped::hold(tracee, since, deadline, queued) {
                Ok(thread) => {
                    self.beside.stopped.push(thread);
                    // Many threads take their turns to stop.
                    deadline = last.min(Instant::now() + COLLECT_MAX);
                }
                // The others are waited for all the same: they have been asked, and who is let go
                // before it was seen to stop finds its call broken.
                Err(failure) => refused = refused.or(self.fallen_out(tid, failure)?),
            }
        }
        Ok(refused)
    }

    /// Traced first and stopped then: a call that ends meanwhile is put right in a traced thread.
    fn ask(&mut self, tids: &[i32]) -> Result<Vec<(Tracee, Instant)>, InjectError> {
        let mut seized = Vec::with_capacity(tids.len());
        for &tid in tids {
            seized.extend(self.unless_gone(tid, Tracee::seize(tid))?);
        }
        let mut asked = Vec::with_capacity(seized.len());
        for tracee in seized {
            let (tid, since) = (tracee.tid(), Instant::now());
            self.first_asked.get_or_insert(since);
            let outcome = tracee.interrupt().map(|()| (tracee, since));
            asked.extend(self.unless_gone(tid, outcome)?);
        }
        Ok(asked)
    }

    /// What a request for a thread gave; `None` if the thread is gone.
    fn unless_gone<T>(
        &mut self,
        tid: i32,
        outcome: std::io::Result<T>,
    ) -> Result<Option<T>, InjectError> {
        let Err(error) = outcome else { return Ok(outcome.ok()) };
        match identity::explain(self.pid, tid, InjectError::system("PTRACE_SEIZE", &error)) {
            InjectError::Gone => {
                self.passed_over.insert(tid);
                Ok(None)
            }
            other => Err(other),
        }
    }
}
