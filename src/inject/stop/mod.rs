//! A stopped thread with its saved state, and the ways to let it run something.
//!
//! There are three ways; the caller takes the safest that the thread bears:
//! - `launch` sets it on a chain and detaches it at once. It finishes whatever happens to us.
//! - `run_stepwise` steps it through a chain and reads the results. If we die, the rest of the
//!   chain runs by itself; at worst a restart block is lost (one EINTR).
//! - `run_bare_call` makes one system call with nothing behind it, for a thread whose stack must
//!   not be written before a segment of ours is mapped. If we die in these microseconds, the thread
//!   is lost.
//!
//! # Invariants
//! - A detach follows after the registers are put back: only then does the kernel look at the
//!   restart codes again.
//! - Whatever fails, a thread is put back before it is released, also when it is dropped.

use std::io;
use std::time::{Duration, Instant};

use super::arch::{self, Interrupted, Registers};
use super::error::InjectError;
use super::ptrace::{self, FilterInstruction, Resume, Tracee, TraceeEvent};
use super::sigreturn_chain::SavedState;
use crate::fault::{self, Point};
use crate::proc;

mod launched;
mod pending_signals;
mod request;
mod stepping;
mod withheld_signals;

pub(super) use self::launched::Launched;
pub(super) use self::request::{StopPoll, StopRequest};
pub(super) use self::withheld_signals::{count_withheld, take_withheld};

/// Longest time that a thread takes to settle after it had to wait for its stop.
const SETTLED_MAX: Duration = Duration::from_secs(1);
/// Pause between two checks whether a thread still waits for a processor.
const QUEUE_CHECK: Duration = Duration::from_millis(20);
const ALL_SIGNALS: u64 = u64::MAX;

/// A stopped thread with its saved state.
#[derive(Debug)]
pub(super) struct Stopped {
    tracee: Tracee,
    /// The state to return to.
    pub(super) saved: SavedState,
    /// The state that the stop interrupted.
    pub(super) interrupted: Interrupted,
    /// Job control has stopped the process: a launched chain would not run until SIGCONT.
    group: bool,
    since: Instant,
    /// The thread has not run by itself since its state was saved.
    is_current: bool,
    masked: bool,
    touched: bool,
    /// It has run the agent, which uses vector registers, and no frame has restored them.
    entered: bool,
    /// It was resumed and not yet seen to stop.
    in_flight: bool,
    /// A signal that it had stopped for while it was in flight.
    undelivered_signal: i32,
    /// SIGSTOP came while it was stepped.
    stop_requested: bool,
    /// No step starts after this time, because other threads are held.
    held_until: Option<Instant>,
    /// Sampling signals that were pending when they were last noted.
    sampling_signals: u64,
    is_released: bool,
}

/// Why a thread could not be stopped for use.
#[derive(Debug)]
pub(super) enum NotStopped {
    /// It is gone, or executed another program.
    Gone(InjectError),
    /// It did not stop in time; only the end of the tracing thread releases it.
    Timeout,
    /// It runs 32-bit code just now.
    Foreign,
    /// A system call failed.
    Failed(InjectError),
}

impl From<NotStopped> for InjectError {
    fn from(failure: NotStopped) -> Self {
        match failure {
            NotStopped::Gone(error) | NotStopped::Failed(error) => error,
            NotStopped::Timeout => InjectError::WouldNotStop { tid: 0, state: '?' },
            NotStopped::Foreign => InjectError::BadPlan {
                reason: "the thread runs 32-bit code; only 64-bit code is supported".to_owned(),
            },
        }
    }
}

fn failed(call: &str, error: &io::Error) -> NotStopped {
    match InjectError::system(call, error) {
        InjectError::Gone => NotStopped::Gone(InjectError::Gone),
        other => NotStopped::Failed(other),
    }
}

impl Stopped {
    /// Waits for the requested stop, delivers signals meanwhile, and saves the thread's state. A
    /// thread that waits for a processor has time until `last`.
    pub(super) fn collect(
        tracee: Tracee,
        since: Instant,
        deadline: Instant,
        last: Instant,
    ) -> Result<Stopped, NotStopped> {
        let group = await_stop(&tracee, deadline, last)?;
        Self::take(tracee, group, since, deadline.max(last.min(Instant::now() + SETTLED_MAX)))
    }

    /// As [`Stopped::collect`], for a thread that is only held and released: its pending signals
    /// stay unread.
    pub(super) fn hold(
        tracee: Tracee,
        since: Instant,
        deadline: Instant,
        last: Instant,
    ) -> Result<Stopped, NotStopped> {
        let group = await_stop(&tracee, deadline, last)?;
        let mut stopped = Self::new(tracee, group, since);
        stopped.save_native()?;
        fault::at(Point::ThreadStopped);
        Ok(stopped)
    }

    /// Takes over a thread that was stopped before its program's first instruction.
    pub(super) fn adopt(tracee: Tracee) -> Result<Stopped, NotStopped> {
        let now = Instant::now();
        Self::take(tracee, false, now, now + SETTLED_MAX)
    }

    fn take(
        tracee: Tracee,
        group: bool,
        since: Instant,
        deadline: Instant,
    ) -> Result<Stopped, NotStopped> {
        let mut stopped = Self::new(tracee, group, since);
        stopped.settle(deadline)?;
        fault::at(Point::ThreadStopped);
        Ok(stopped)
    }

    fn new(tracee: Tracee, group: bool, since: Instant) -> Stopped {
        Stopped {
            tracee,
            saved: SavedState {
                registers: arch::zeroed(),
                xstate: Vec::new(),
                vectors: Vec::new(),
                mask: 0,
            },
            interrupted: Interrupted::User,
            group,
            since,
            is_current: false,
            masked: false,
            touched: false,
            entered: false,
            in_flight: false,
            undelivered_signal: 0,
            stop_requested: false,
            held_until: None,
            sampling_signals: 0,
            is_released: false,
        }
    }

    /// Saves the registers, and at once hands a broken call back to the kernel's decision. If we
    /// die then, the thread sees no EINTR, and a later signal still ends the call.
    fn save(&mut self) -> io::Result<()> {
        let Some(mut registers) = self.tracee.registers()? else {
            self.saved.registers = arch::zeroed();
            return Ok(());
        };
        self.interrupted = arch::interrupted(&registers);
        if self.interrupted == Interrupted::Broken {
            registers = arch::mended(&registers);
            self.tracee.set_registers(&registers)?;
        }
        self.saved.registers = registers;
        self.is_current = true;
        Ok(())
    }

    /// Saves the registers; an error if the thread runs 32-bit code.
    fn save_native(&mut self) -> Result<(), NotStopped> {
        self.save().map_err(|error| failed("reading registers", &error))?;
        if !arch::is_native(&self.saved.registers) {
            // The registers of a 32-bit thread are never written back: the detach leaves it as it
            // is.
            self.is_current = false;
            return Err(NotStopped::Foreign);
        }
        Ok(())
    }

    /// Completes the saved state before anything is run: mask, vector state, restartable sequences.
    /// A thread that is only released does not need it.
    pub(super) fn prepare(&mut self) -> Result<(), InjectError> {
        self.saved.mask = self.mask().map_err(|e| system("PTRACE_GETSIGMASK", &e))?;
        let raw = self.tracee.xstate().map_err(|e| system("NT_X86_XSTATE", &e))?;
        self.saved.xstate = arch::frame_xstate(&raw).ok_or_else(|| InjectError::BadPlan {
            reason: "the processor has no XSAVE state, which frames need".to_owned(),
        })?;
        self.saved.vectors = raw;
        if let Some(abort) = self.rseq_abort() {
            self.saved.registers.rip = abort;
            self.touched = true;
        }
        Ok(())
    }

    /// The address at which a thread inside a restartable sequence must continue. Moving it away
    /// and back would make the kernel forget the sequence, which would then commit although other
    /// threads ran on its processor.
    fn rseq_abort(&self) -> Option<u64> {
        if self.interrupted != Interrupted::User {
            return None;
        }
        let area = self.tracee.rseq()?;
        let mut pointer = [0; 8];
        self.tracee.read(area + 8, &mut pointer).ok()?;
        let descriptor = u64::from_le_bytes(pointer);
        if descriptor == 0 {
            return None;
        }
        let mut bytes = [0; 32];
        self.tracee.read(descriptor, &mut bytes).ok()?;
        let word = |index: usize| {
            bytes[index * 8..index * 8 + 8].iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b))
        };
        let (start, length, abort) = (word(1), word(2), word(3));
        (self.saved.registers.rip.wrapping_sub(start) < length).then_some(abort)
    }

    pub(super) fn tid(&self) -> i32 {
        self.tracee.tid()
    }

    /// The thread's own signal mask.
    pub(super) fn mask(&self) -> io::Result<u64> {
        if self.masked { Ok(self.saved.mask) } else { self.tracee.mask() }
    }

    /// Whether these bytes are at this address.
    pub(super) fn holds(&self, address: u64, bytes: &[u8]) -> bool {
        let mut found = vec![0; bytes.len()];
        self.tracee.read(address, &mut found).is_ok() && found == bytes
    }

    /// The thread's seccomp filters.
    pub(super) fn filters(&self) -> io::Result<Vec<Vec<FilterInstruction>>> {
        self.tracee.filters()
    }

    /// Issues an interrupted sleep anew: a filter forbids the call that the kernel would restart it
    /// with. The sleep may last longer then.
    pub(super) fn forgo_restart(&mut self) {
        if self.interrupted == Interrupted::RestartBlock {
            self.saved.registers = arch::issued_anew(&self.saved.registers);
            self.interrupted = Interrupted::User;
            self.touched = true;
        }
    }

    /// Reads the target's memory up to its first unmapped page.
    pub(super) fn read_part(&self, address: u64, into: &mut [u8]) -> usize {
        ptrace::read_part(self.tracee.tid(), address, into)
    }

    /// Lets a thread that has run nothing of ours run for a moment, stops it again and saves its
    /// new state.
    pub(super) fn nudge(&mut self, for_: Duration, deadline: Instant) -> Result<(), InjectError> {
        self.put_back()?;
        (self.is_current, self.touched) = (false, false);
        self.tracee.resume(Resume::Run, 0).map_err(|e| system("PTRACE_CONT", &e))?;
        std::thread::sleep(for_);
        self.tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
        self.group = wait_interrupt(&self.tracee, deadline)?;
        self.settle(deadline)?;
        Ok(())
    }

    fn put(&mut self, registers: &Registers) -> Result<(), InjectError> {
        self.touched = true;
        self.tracee.set_registers(registers).map_err(|e| system("PTRACE_SETREGSET", &e))
    }

    fn put_back(&mut self) -> Result<(), InjectError> {
        if !self.is_current {
            return Ok(());
        }
        let was_masked = self.masked;
        if self.touched {
            self.skip_syscall()?;
        }
        if self.entered {
            let vectors = &self.saved.vectors;
            self.tracee.set_xstate(vectors).map_err(|e| system("NT_X86_XSTATE", &e))?;
            self.entered = false;
        }
        if self.masked {
            // The mask first: the registers are still on a chain, whose last frame holds the mask,
            // too.
            self.tracee.set_mask(self.saved.mask).map_err(|e| system("PTRACE_SETSIGMASK", &e))?;
            self.masked = false;
            fault::at(Point::BackMasked);
        }
        if self.touched {
            self.put(&self.saved.registers.clone())?;
            fault::at(Point::BackSet);
        }
        let is_in_call = self.interrupted != Interrupted::User;
        if was_masked && is_in_call { self.withhold_sampling_signals() } else { Ok(()) }
    }

    /// Replaces the state to return to.
    fn put_back_to(&mut self, saved: SavedState) {
        self.interrupted = arch::interrupted(&saved.registers);
        self.saved = saved;
        // The chain has its own mask, and may have run the entry.
        (self.masked, self.touched, self.entered) = (true, true, true);
    }

    /// Limits the time of further steps, because other threads are held.
    pub(super) fn hold_until(&mut self, last: Instant) {
        self.held_until = Some(last);
    }

    /// Puts the thread back as it was and detaches it. A thread that was resumed is waited for
    /// without a time limit.
    pub(super) fn release(mut self) -> Result<Duration, InjectError> {
        self.await_next_stop()?;
        self.put_back()?;
        self.detach()?;
        fault::at(Point::BackGone);
        Ok(self.since.elapsed())
    }

    fn detach(&mut self) -> Result<(), InjectError> {
        self.is_released = true;
        self.tracee.detach(self.undelivered_signal).map_err(|e| system("PTRACE_DETACH", &e))?;
        if self.stop_requested {
            // If the signal cannot be sent, the thread is gone.
            let _ = self.tracee.send(libc::SIGSTOP);
        }
        Ok(())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if !self.is_released {
            // If it cannot be put back, it is gone.
            let _ =
                self.await_next_stop().and_then(|()| self.put_back()).and_then(|()| self.detach());
        }
    }
}

fn system(call: &str, error: &io::Error) -> InjectError {
    InjectError::system(call, error)
}

/// As [`wait_interrupt`], but a thread that waits for a processor has time until `last`.
fn await_stop(tracee: &Tracee, deadline: Instant, last: Instant) -> Result<bool, NotStopped> {
    let mut until = deadline;
    loop {
        match wait_interrupt(tracee, until) {
            Err(NotStopped::Timeout)
                if Instant::now() < last && proc::is_runnable(tracee.tid()) =>
            {
                until = Instant::now() + QUEUE_CHECK;
            }
            outcome => return outcome,
        }
    }
}

/// Waits for the requested stop, and delivers signals that come before it. `true` if job control
/// has stopped the process.
fn wait_interrupt(tracee: &Tracee, deadline: Instant) -> Result<bool, NotStopped> {
    loop {
        match tracee.wait(deadline).map_err(|error| failed("waitpid", &error))? {
            TraceeEvent::Interrupt => return Ok(false),
            TraceeEvent::Group => return Ok(true),
            TraceeEvent::Signal(signal) => {
                tracee.resume(Resume::Run, signal).map_err(|error| failed("PTRACE_CONT", &error))?
            }
            TraceeEvent::Syscall => {
                tracee.resume(Resume::Run, 0).map_err(|error| failed("PTRACE_CONT", &error))?
            }
            TraceeEvent::Exec => return Err(NotStopped::Gone(InjectError::Executed)),
            TraceeEvent::Ended(_) => return Err(NotStopped::Gone(InjectError::Gone)),
            TraceeEvent::Timeout => return Err(NotStopped::Timeout),
        }
    }
}

/// Seizes a thread, stops it and saves its state. A thread that waits for a processor loses nothing
/// by the wait, so it has `queued_limit`.
pub(super) fn stop(
    tid: i32,
    limit: Duration,
    queued_limit: Duration,
) -> Result<Stopped, NotStopped> {
    let tracee = Tracee::seize(tid).map_err(|error| failed("PTRACE_SEIZE", &error))?;
    fault::at(Point::ThreadSeized);
    let since = Instant::now();
    tracee.interrupt().map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
    fault::at(Point::ThreadInterrupted);
    let mut stopped = Stopped::collect(tracee, since, since + limit, since + queued_limit)?;
    stopped.take_signals(since + limit)?;
    Ok(stopped)
}
