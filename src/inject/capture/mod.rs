//! Copies of the registers and stacks of threads, each stopped for a moment.
//!
//! The tracer stops one thread at a time and lets it continue at once: no thread waits for
//! another's copy. Nothing is written in the target, with one exception: if the stop would end a
//! thread's call with EINTR, the thread gets registers that issue the call again.
//!
//! # Invariants
//! - A dedicated thread does all the work. When it ends, the kernel detaches every thread that it
//!   traced, including threads that never stopped.
//! - Signals do not interrupt this process during a capture, except for SIGKILL and SIGSTOP.
//!
//! # Does not
//! - unwind, or know what the copies are for.

pub(super) mod sleeping;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};
use traceprof_abi::unwind::Registers;

use super::arch;
use super::error::InjectError;
use super::ptrace::priority::raise_priority;
use super::ptrace::sigchld::DefaultSigchld;
use super::ptrace::tracing_thread::on_tracing_thread;
use super::ptrace::wait::await_child;
use super::stop::{NotStopped, StopPoll, StopRequest, Stopped, take_withheld};
use super::target::{identity, tracer};
use super::worker::stack::containing;
use crate::proc::{self, Mapping};

/// Longest wait for one thread before the next one is interrupted, too.
const TURN: Duration = Duration::from_millis(5);
/// Longest wait for a thread that does not run: it may be in uninterruptible sleep.
const STUCK_TURN: Duration = Duration::from_millis(2);
/// Pause between two checks of threads that have not stopped.
const PAUSE: Duration = Duration::from_micros(100);
/// Longest wait for threads that have not stopped, after all were interrupted.
const LATE_MAX: Duration = Duration::from_millis(200);
/// Longest wait while one of these threads waits for a processor.
const QUEUED_MAX: Duration = Duration::from_secs(5);
/// Longest wait for a guardian that has stopped the thread.
const GUARDIAN_MAX: Duration = Duration::from_secs(1);
/// Pause between attempts at a thread that a guardian traces.
const RETRY: Duration = Duration::from_millis(2);
/// How often the list of threads is read. Each read may find threads that started since the last
/// one.
const LISTS_MAX: usize = 4;
/// Most bytes that are copied of one stack; nearly all stacks need a few thousand.
const STACK_MAX: u64 = 256 << 10;
/// Most bytes of one stack once all copies together reach [`COPIES_MAX`].
const STACK_LEAST: u64 = 16 << 10;
/// Bytes of all copies after which each further copy is kept short.
const COPIES_MAX: u64 = 256 << 20;

/// The captured threads of a process, and those that could not be captured.
#[derive(Debug)]
pub struct Captures<T> {
    /// All threads, ordered by their ids.
    pub threads: Vec<Capture<T>>,
    /// The samples that a running recording misses: the capture withheld sampling signals from
    /// threads that were stopped in a call, because a signal would have ended the call.
    pub withheld: u64,
}

/// The result for one thread.
#[derive(Debug)]
pub struct Capture<T> {
    /// The thread's id.
    pub tid: i32,
    /// The value of the caller's closure just before the stop.
    pub seen: T,
    /// The copy, or the reason why there is none.
    pub outcome: Result<ThreadSnapshot, NotCaptured>,
}

/// The state of a thread while it was stopped.
#[derive(Debug, PartialEq, Eq)]
pub struct ThreadSnapshot {
    /// The registers.
    pub registers: Registers,
    /// The system call that the thread was in, with the arguments.
    pub call: Option<(u64, [u64; 6])>,
    /// The start of the copy of the stack (AVMA).
    pub stack_avma: u64,
    /// The stack, from below the stack pointer upwards.
    pub stack: Vec<u8>,
    /// How long the thread was stopped at most, in nanoseconds.
    pub stopped_ns: u64,
}

/// The reason why a thread could not be captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotCaptured {
    /// The thread exited meanwhile.
    Gone,
    /// The thread did not stop: it is in uninterruptible sleep, or waits for a processor.
    Late,
    /// The thread runs 32-bit code.
    Foreign,
    /// Another error.
    Failed(InjectError),
}

/// A selection of threads to capture.
#[derive(Debug, Clone, Copy)]
pub struct CaptureSelection<'a> {
    /// The ids of the threads.
    pub tids: &'a [i32],
    /// How long the capture may interrupt threads.
    ///
    /// After that time, the capture waits for a thread only while the thread waits for a processor.
    /// If such a thread were released before it runs, its call might return EINTR.
    pub time_max: Duration,
}

/// A thread that is stopped.
#[derive(Debug, Clone, Copy)]
pub struct StoppedThread<'s> {
    /// The thread's id.
    pub tid: i32,
    /// The thread pointer.
    pub pointer: u64,
    /// The registers.
    pub registers: &'s Registers,
    /// The start of the copy of the stack (AVMA).
    pub stack_avma: u64,
    /// The stack, from below the stack pointer upwards.
    pub stack: &'s [u8],
}

/// What the caller of a capture reads of each thread itself. A function reads only before the stop.
pub trait ThreadView {
    /// What was read.
    type Seen: Send;

    /// Reads a thread just before its stop.
    fn before_stop(&mut self, tid: i32) -> Self::Seen;

    /// Reads more while the thread is stopped. The stop lasts as long as the call.
    fn while_stopped(&mut self, _stopped: StoppedThread<'_>, _seen: &mut Self::Seen) {}
}

impl<T: Send, F: FnMut(i32) -> T> ThreadView for F {
    type Seen = T;

    fn before_stop(&mut self, tid: i32) -> T {
        self(tid)
    }
}

/// Captures every thread of a process.
///
/// # Errors
/// Returns an error if the process exited or executed another program.
pub fn capture<V: ThreadView + Send>(
    pid: i32,
    start_time: u64,
    mappings: &[Mapping],
    view: V,
) -> Result<Captures<V::Seen>, InjectError> {
    on_capturing_thread(pid, start_time, || {
        let mut session = CaptureSession::new(pid, mappings, view);
        session.capture_all()?;
        Ok(session.done)
    })
}

/// Captures some threads of a process, as [`capture()`] captures all. Threads in uninterruptible
/// sleep are [`NotCaptured::Late`] and are not interrupted.
///
/// A call with a timeout that is issued again starts its timeout again. A thread that is stopped in
/// such a call over and over may never return from it.
///
/// # Errors
/// Returns an error if the process exited or executed another program.
pub fn capture_threads<V: ThreadView + Send>(
    pid: i32,
    start_time: u64,
    mappings: &[Mapping],
    chosen: CaptureSelection<'_>,
    view: V,
) -> Result<Captures<V::Seen>, InjectError> {
    on_capturing_thread(pid, start_time, || {
        let mut session = CaptureSession::new(pid, mappings, view);
        session.capture_some(chosen)?;
        Ok(session.done)
    })
}

/// Does the work in a thread of its own, and counts the sampling signals that were withheld.
fn on_capturing_thread<T: Send>(
    pid: i32,
    start_time: u64,
    work: impl FnOnce() -> Result<Vec<Capture<T>>, InjectError> + Send,
) -> Result<Captures<T>, InjectError> {
    let system = |error: nix::Error| InjectError::system("keeping signals away", &error.into());
    // Threads that start from here on inherit the mask.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(system)?;
    let outcome = on_tracing_thread(|| {
        let _sigchld = DefaultSigchld::install().map_err(system)?;
        raise_priority();
        identity::check(pid, start_time)?;
        work()
    });
    // Reset after a failure, too, because the next capture has its own count.
    let (signals, extra_expiries) = take_withheld();
    before.thread_set_mask().map_err(system)?;
    outcome.map(|threads| Captures { threads, withheld: signals + extra_expiries })
}

struct CaptureSession<'a, V: ThreadView> {
    pid: i32,
    mappings: &'a [Mapping],
    view: V,
    /// Threads that are interrupted and not yet seen to stop.
    pending: Vec<(StopRequest, V::Seen)>,
    done: Vec<Capture<V::Seen>>,
    /// The number of bytes of all copies so far.
    copied: u64,
}

impl<'a, V: ThreadView> CaptureSession<'a, V> {
    fn new(pid: i32, mappings: &'a [Mapping], view: V) -> Self {
        Self { pid, mappings, view, pending: Vec::new(), done: Vec::new(), copied: 0 }
    }

    fn capture_all(&mut self) -> Result<(), InjectError> {
        let mut known = HashSet::new();
        for _ in 0..LISTS_MAX {
            let tids = match proc::tasks(self.pid) {
                Ok(tids) => tids,
                // The copies that were made before the process exited are worth keeping.
                Err(_) if !self.done.is_empty() => break,
                Err(error) => return Err(InjectError::reading("/proc/PID/task", &error)),
            };
            let new: Vec<i32> = tids.into_iter().filter(|&tid| known.insert(tid)).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                self.capture_one(tid)?;
            }
        }
        self.wait_for_late_threads(LATE_MAX)
    }

    fn capture_some(&mut self, chosen: CaptureSelection<'_>) -> Result<(), InjectError> {
        let since = Instant::now();
        let mut known = HashSet::new();
        for &tid in chosen.tids.iter().filter(|&&tid| known.insert(tid)) {
            // A withdrawn interrupt leaves a mark on a call that checks for signals later.
            if since.elapsed() >= chosen.time_max || self.is_uninterruptible(tid) {
                let seen = self.view.before_stop(tid);
                self.done.push(Capture { tid, seen, outcome: Err(NotCaptured::Late) });
            } else {
                self.capture_one(tid)?;
            }
        }
        self.wait_for_late_threads(chosen.time_max.saturating_sub(since.elapsed()))
    }

    /// Whether the thread is in uninterruptible sleep.
    fn is_uninterruptible(&self, tid: i32) -> bool {
        proc::task_stat(self.pid, tid).is_ok_and(|stat| stat.state == 'D')
    }

    /// Interrupts a thread, and waits a little for its stop.
    fn capture_one(&mut self, tid: i32) -> Result<(), InjectError> {
        let seen = self.view.before_stop(tid);
        match self.request_stop(tid) {
            Ok(request) => self.pending.push((request, seen)),
            Err(failure) => {
                let why_not_captured = self.why_not_captured(tid, failure)?;
                self.done.push(Capture { tid, seen, outcome: Err(why_not_captured) });
                return Ok(());
            }
        }
        let since = Instant::now();
        loop {
            let polled = Instant::now();
            self.poll()?;
            let is_pending = self.pending.iter().any(|(request, _)| request.tid() == tid);
            let waited = since.elapsed();
            if !is_pending || waited >= TURN || (waited >= STUCK_TURN && !proc::is_runnable(tid)) {
                return Ok(());
            }
            pause(polled);
        }
    }

    fn request_stop(&self, tid: i32) -> Result<StopRequest, NotStopped> {
        let since = Instant::now();
        loop {
            let denied = match StopRequest::send(self.pid, tid) {
                Err(NotStopped::Failed(error)) => error,
                outcome => return outcome,
            };
            let tracer = proc::task_status(self.pid, tid).map_or(0, |status| status.tracer);
            let is_guardian = tracer != 0 && tracer::is_guardian(tracer);
            if !is_guardian || since.elapsed() >= GUARDIAN_MAX {
                return Err(NotStopped::Failed(denied));
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Captures the threads that have stopped.
    fn poll(&mut self) -> Result<(), InjectError> {
        for (request, mut seen) in std::mem::take(&mut self.pending) {
            let tid = request.tid();
            let outcome = match request.poll() {
                Ok(StopPoll::NotYet(request)) => {
                    self.pending.push((request, seen));
                    continue;
                }
                Ok(StopPoll::Stopped(stopped)) => self.take_snapshot(*stopped, &mut seen),
                Err(failure) => Err(self.why_not_captured(tid, failure)?),
            };
            self.done.push(Capture { tid, seen, outcome });
        }
        Ok(())
    }

    fn take_snapshot(
        &mut self,
        stopped: Stopped,
        seen: &mut V::Seen,
    ) -> Result<ThreadSnapshot, NotCaptured> {
        let pointer = arch::thread_pointer(&stopped.saved().registers);
        let registers = arch::general(&stopped.saved().registers);
        let call = arch::interrupted_call(&stopped.saved().registers);
        let (stack_avma, stack) = self.copy(&stopped, registers.sp);
        self.copied += stack.len() as u64;
        let tid = stopped.tid();
        let view = StoppedThread { tid, pointer, registers: &registers, stack_avma, stack: &stack };
        self.view.while_stopped(view, seen);
        match stopped.release() {
            Ok(stopped) => {
                let stopped_ns = stopped.as_nanos() as u64;
                Ok(ThreadSnapshot { registers, call, stack_avma, stack, stopped_ns })
            }
            Err(error) if error.is_gone() => Err(NotCaptured::Gone),
            Err(error) => Err(NotCaptured::Failed(identity::explain(self.pid, tid, error))),
        }
    }

    /// Copies the stack, from the red zone below its stack pointer to its end.
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

    /// Returns the reason why one thread was not captured, or an error that concerns all of them.
    fn why_not_captured(&self, tid: i32, failure: NotStopped) -> Result<NotCaptured, InjectError> {
        match failure {
            NotStopped::Gone(InjectError::Executed) => Err(InjectError::Executed),
            NotStopped::Gone(_) => Ok(NotCaptured::Gone),
            NotStopped::Timeout => Ok(NotCaptured::Late),
            NotStopped::Foreign => Ok(NotCaptured::Foreign),
            NotStopped::Failed(error) => match identity::explain(self.pid, tid, error) {
                error if error.is_gone() => Ok(NotCaptured::Gone),
                error => Ok(NotCaptured::Failed(error)),
            },
        }
    }

    fn wait_for_late_threads(&mut self, late_max: Duration) -> Result<(), InjectError> {
        let since = Instant::now();
        while !self.pending.is_empty() {
            let polled = Instant::now();
            self.poll()?;
            let waited = since.elapsed();
            let is_queued = |pending: &(StopRequest, V::Seen)| proc::is_runnable(pending.0.tid());
            let some_run = waited < QUEUED_MAX && self.pending.iter().any(is_queued);
            if waited >= late_max && !some_run {
                break;
            }
            pause(polled);
        }
        for (request, seen) in std::mem::take(&mut self.pending) {
            self.done.push(Capture { tid: request.tid(), seen, outcome: Err(NotCaptured::Late) });
        }
        self.done.sort_by_key(|capture| capture.tid);
        Ok(())
    }
}

/// Waits for a stop after a check that started at `polled`.
///
/// A shorter pause would show more precisely since when a thread has been stopped, but most of the
/// time belongs to the target.
fn pause(polled: Instant) {
    await_child(Instant::now() + PAUSE.max(polled.elapsed() * 4));
}
