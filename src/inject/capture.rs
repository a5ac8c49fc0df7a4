//! The threads of a process, each stopped for a moment to copy its registers and its stack.
//!
//! One thread is stopped at a time and goes on at once: no thread waits for another's copy. Nothing
//! is written in the target but, to a thread whose call the stop would have ended with EINTR, the
//! registers that issue the call again.
//!
//! # Invariants
//! - Everything is done by a thread of its own: whatever becomes of it, at its end the kernel lets go
//!   of all that it traced, also of threads that have not stopped.
//! - No signal stops or ends this process in the middle, but those that nothing can hold up.
//!
//! # Does not
//! - unwind, or know what the copies are for.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};
use traceprof_abi::unwind::Registers;

use super::apart::hurry;
use super::error::InjectError;
use super::hearing::Hearing;
use super::ptrace::await_child;
use super::stop::{Asked, Look, NotStopped, Stopped, take_withheld};
use super::threads::containing;
use super::{arch, identity, preflight};
use crate::proc::{self, Mapping};

/// Longest wait for one thread before the next one is asked as well.
const TURN: Duration = Duration::from_millis(5);
/// The same for a thread that does not run: it waits for what no signal ends.
const STUCK_TURN: Duration = Duration::from_millis(2);
/// Between two looks at threads that have not stopped.
const PAUSE: Duration = Duration::from_micros(100);
/// Longest wait for threads that have not stopped when all have been asked.
const LATE_MAX: Duration = Duration::from_millis(200);
/// The same while one of them waits for a processor.
const QUEUED_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a guardian that is at work in a thread.
const GUARDIAN_MAX: Duration = Duration::from_secs(1);
/// Pause between attempts at a thread that a guardian has.
const RETRY: Duration = Duration::from_millis(2);
/// Readings of the list of threads: each may find some that the ones before have started.
const LISTS_MAX: usize = 4;
/// Bytes of a stack that are copied at most, most of which take no more than a few thousand.
const STACK_MAX: u64 = 256 << 10;
/// The same when the copies together have come to [`COPIES_MAX`].
const STACK_LEAST: u64 = 16 << 10;
/// Bytes of all copies.
const COPIES_MAX: u64 = 256 << 20;

/// The threads of a process, as far as they could be captured.
#[derive(Debug)]
pub struct Captures<T> {
    /// Each of them, by their ids.
    pub threads: Vec<Capture<T>>,
    /// Hits of a recording that threads did not get: they would have ended the calls that the threads
    /// were stopped in. As many samples are missing there.
    pub withheld: u64,
}

/// A thread that was to be captured.
#[derive(Debug)]
pub struct Capture<T> {
    /// Its id.
    pub tid: i32,
    /// What the caller saw of it just before.
    pub seen: T,
    /// Its copy, or why there is none.
    pub outcome: Result<Portrait, Missed>,
}

/// A thread as it was while it was stopped.
#[derive(Debug, PartialEq, Eq)]
pub struct Portrait {
    /// Its registers.
    pub registers: Registers,
    /// The system call that it was in, with its arguments.
    pub call: Option<(u64, [u64; 6])>,
    /// Where the copy of its stack starts (AVMA).
    pub stack_avma: u64,
    /// The stack, from below its stack pointer upwards.
    pub stack: Vec<u8>,
    /// How long it was stopped at most, in nanoseconds.
    pub stopped_ns: u64,
}

/// Why a thread has no portrait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missed {
    /// It ended meanwhile.
    Gone,
    /// It did not stop: it waits for something in the kernel, or for a processor.
    Late,
    /// It runs 32-bit code.
    Foreign,
    /// Anything else.
    Failed(InjectError),
}

/// Threads of a process, where not all are to be captured.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'a> {
    /// Their ids.
    pub tids: &'a [i32],
    /// For how long threads are asked to stop. When it is over, one that has not stopped is waited for
    /// only while it waits for a processor: let go before it runs, it might have a call that came back
    /// with EINTR.
    pub time_max: Duration,
}

/// Captures every thread of a process. `see` is called for each before it is stopped.
///
/// # Errors
/// If the process ended or executed another program.
pub fn capture<T: Send>(
    pid: i32,
    start_time: u64,
    mappings: &[Mapping],
    see: impl FnMut(i32) -> T + Send,
) -> Result<Captures<T>, InjectError> {
    disposed(pid, start_time, || {
        let mut session = Session::new(pid, mappings, see);
        session.all()?;
        Ok(session.done)
    })
}

/// Captures some threads of a process, as [`capture()`] does all of them. Those that wait for what no
/// signal ends are [`Missed::Late`] and not even asked.
///
/// A call with a time limit that is issued again has all of its time again. Whoever stops a thread in
/// such a call once more before it has come back may keep it from ever coming back.
///
/// # Errors
/// If the process ended or executed another program.
pub fn capture_threads<T: Send>(
    pid: i32,
    start_time: u64,
    mappings: &[Mapping],
    chosen: Chosen<'_>,
    see: impl FnMut(i32) -> T + Send,
) -> Result<Captures<T>, InjectError> {
    disposed(pid, start_time, || {
        let mut session = Session::new(pid, mappings, see);
        session.some(chosen)?;
        Ok(session.done)
    })
}

/// Does the work in a thread of its own, and tells what it withheld.
fn disposed<T: Send>(
    pid: i32,
    start_time: u64,
    work: impl FnOnce() -> Result<Vec<Capture<T>>, InjectError> + Send,
) -> Result<Captures<T>, InjectError> {
    let system = |error: nix::Error| InjectError::system("keeping signals away", &error.into());
    // The threads that are started from here on inherit it.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(system)?;
    let outcome = identity::disposable(|| {
        let _hearing = Hearing::begin().map_err(system)?;
        hurry();
        identity::check(pid, start_time)?;
        work()
    });
    // Whatever came of it: the next one has its own.
    let (hits, overruns) = take_withheld();
    before.thread_set_mask().map_err(system)?;
    outcome.map(|threads| Captures { threads, withheld: hits + overruns })
}

struct Session<'a, T, S> {
    pid: i32,
    mappings: &'a [Mapping],
    see: S,
    /// Asked, and not yet seen to stop.
    pending: Vec<(Asked, T)>,
    done: Vec<Capture<T>>,
    /// Bytes of all copies.
    copied: u64,
}

impl<'a, T, S: FnMut(i32) -> T> Session<'a, T, S> {
    fn new(pid: i32, mappings: &'a [Mapping], see: S) -> Self {
        Self { pid, mappings, see, pending: Vec::new(), done: Vec::new(), copied: 0 }
    }

    fn all(&mut self) -> Result<(), InjectError> {
        let mut known = HashSet::new();
        for _ in 0..LISTS_MAX {
            let tids = match proc::tasks(self.pid) {
                Ok(tids) => tids,
                // What was captured until its end is worth having.
                Err(_) if !self.done.is_empty() => break,
                Err(_) => return Err(InjectError::Gone),
            };
            let new: Vec<i32> = tids.into_iter().filter(|&tid| known.insert(tid)).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                self.one(tid)?;
            }
        }
        self.wait_for_the_late(LATE_MAX)
    }

    fn some(&mut self, chosen: Chosen<'_>) -> Result<(), InjectError> {
        let since = Instant::now();
        let mut known = HashSet::new();
        for &tid in chosen.tids.iter().filter(|&&tid| known.insert(tid)) {
            // To be asked and let go again leaves a mark on a call that looks for signals later.
            if since.elapsed() >= chosen.time_max || self.is_stuck(tid) {
                let seen = (self.see)(tid);
                self.done.push(Capture { tid, seen, outcome: Err(Missed::Late) });
            } else {
                self.one(tid)?;
            }
        }
        self.wait_for_the_late(chosen.time_max.saturating_sub(since.elapsed()))
    }

    /// It waits for what no signal ends.
    fn is_stuck(&self, tid: i32) -> bool {
        proc::task_stat(self.pid, tid).is_ok_and(|stat| stat.state == 'D')
    }

    /// Asks a thread to stop, and waits for it a little.
    fn one(&mut self, tid: i32) -> Result<(), InjectError> {
        let seen = (self.see)(tid);
        match self.ask(tid) {
            Ok(asked) => self.pending.push((asked, seen)),
            Err(failure) => {
                let missed = self.missed(tid, failure)?;
                self.done.push(Capture { tid, seen, outcome: Err(missed) });
                return Ok(());
            }
        }
        let since = Instant::now();
        loop {
            let looked = Instant::now();
            self.look()?;
            let is_pending = self.pending.iter().any(|(asked, _)| asked.tid() == tid);
            let waited = since.elapsed();
            if !is_pending || waited >= TURN || (waited >= STUCK_TURN && !proc::is_runnable(tid)) {
                return Ok(());
            }
            pause(looked);
        }
    }

    fn ask(&self, tid: i32) -> Result<Asked, NotStopped> {
        let since = Instant::now();
        loop {
            let denied = match Asked::ask(self.pid, tid) {
                Err(NotStopped::Failed(error)) => error,
                outcome => return outcome,
            };
            let tracer = proc::task_status(self.pid, tid).map_or(0, |status| status.tracer);
            let is_guardian = tracer != 0 && preflight::is_guardian(tracer);
            if !is_guardian || since.elapsed() >= GUARDIAN_MAX {
                return Err(NotStopped::Failed(denied));
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Captures those that have stopped.
    fn look(&mut self) -> Result<(), InjectError> {
        for (asked, seen) in std::mem::take(&mut self.pending) {
            let tid = asked.tid();
            let outcome = match asked.look() {
                Ok(Look::NotYet(asked)) => {
                    self.pending.push((asked, seen));
                    continue;
                }
                Ok(Look::Stopped(stopped)) => self.portray(*stopped),
                Err(failure) => Err(self.missed(tid, failure)?),
            };
            self.done.push(Capture { tid, seen, outcome });
        }
        Ok(())
    }

    fn portray(&mut self, stopped: Stopped) -> Result<Portrait, Missed> {
        let registers = arch::general(&stopped.saved.registers);
        let call = arch::interrupted_call(&stopped.saved.registers);
        let (stack_avma, stack) = self.copy(&stopped, registers.sp);
        self.copied += stack.len() as u64;
        let tid = stopped.tid();
        match stopped.release() {
            Ok(stopped) => {
                let stopped_ns = stopped.as_nanos() as u64;
                Ok(Portrait { registers, call, stack_avma, stack, stopped_ns })
            }
            Err(error) if error.is_gone() => Err(Missed::Gone),
            Err(error) => Err(Missed::Failed(identity::explain(self.pid, tid, error))),
        }
    }

    /// The stack, from where a leaf function may have kept something to its end.
    fn copy(&self, stopped: &Stopped, sp: u64) -> (u64, Vec<u8>) {
        let most = if self.copied < COPIES_MAX { STACK_MAX } else { STACK_LEAST };
        let start = sp.saturating_sub(arch::RED_ZONE) & !7;
        let mapped = containing(self.mappings, sp).map(|index| &self.mappings[index]);
        let end = mapped.map_or(u64::MAX, |mapping| mapping.end);
        let mut stack = vec![0; end.saturating_sub(start).min(most) as usize];
        let got = stopped.read_part(start, &mut stack);
        stack.truncate(got);
        (start, stack)
    }

    /// What keeps one thread from being captured; an error if it concerns all of them.
    fn missed(&self, tid: i32, failure: NotStopped) -> Result<Missed, InjectError> {
        match failure {
            NotStopped::Gone(InjectError::Executed) => Err(InjectError::Executed),
            NotStopped::Gone(_) => Ok(Missed::Gone),
            NotStopped::Timeout => Ok(Missed::Late),
            NotStopped::Foreign => Ok(Missed::Foreign),
            NotStopped::Failed(error) => match identity::explain(self.pid, tid, error) {
                error if error.is_gone() => Ok(Missed::Gone),
                error => Ok(Missed::Failed(error)),
            },
        }
    }

    fn wait_for_the_late(&mut self, late_max: Duration) -> Result<(), InjectError> {
        let since = Instant::now();
        while !self.pending.is_empty() {
            let looked = Instant::now();
            self.look()?;
            let waited = since.elapsed();
            let is_queued = |pending: &(Asked, T)| proc::is_runnable(pending.0.tid());
            let some_run = waited < QUEUED_MAX && self.pending.iter().any(is_queued);
            if waited >= late_max && !some_run {
                break;
            }
            pause(looked);
        }
        for (asked, seen) in std::mem::take(&mut self.pending) {
            self.done.push(Capture { tid: asked.tid(), seen, outcome: Err(Missed::Late) });
        }
        self.done.sort_by_key(|capture| capture.tid);
        Ok(())
    }
}

/// Waits for a stop between two looks, the last of which began then. The shorter the pause, the
/// better is it known since when a thread has been stopped; but most of the time is the target's.
fn pause(looked: Instant) {
    await_child(Instant::now() + PAUSE.max(looked.elapsed() * 4));
}
