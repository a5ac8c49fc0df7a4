//! A stopped thread with its saved state.
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
use super::syscall::Syscall;
use crate::fault::{self, Point};
use crate::proc;

mod launched;
mod pending_signals;
mod request;
mod return_state;
mod running;
mod stepper;
mod withheld_signals;

pub(super) use self::launched::Launched;
use self::pending_signals::PendingSignals;
pub(super) use self::request::{StopPoll, StopRequest};
use self::return_state::ReturnState;
use self::stepper::Stepper;
pub(super) use self::withheld_signals::{count_withheld, take_withheld};

/// Longest time that a thread takes to settle after it had to wait for its stop.
const SETTLED_MAX: Duration = Duration::from_secs(1);
/// Pause between two checks whether a thread still waits for a processor.
const QUEUE_CHECK: Duration = Duration::from_millis(20);
/// Attempts to stop a thread without a pending signal.
const QUIET_TRIES: usize = 16;
const ALL_SIGNALS: u64 = u64::MAX;

/// A stopped thread with its saved state.
#[derive(Debug)]
pub(super) struct Stopped {
    thread: Stepper,
    /// What it goes back to.
    back: ReturnState,
    /// Job control has stopped the process: a launched chain would not run until SIGCONT.
    group: bool,
    since: Instant,
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
        stopped.back.save_native(&stopped.thread.tracee)?;
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
            thread: Stepper::new(tracee),
            back: ReturnState::unsaved(),
            group,
            since,
            held_until: None,
            sampling_signals: 0,
            is_released: false,
        }
    }

    /// Saves the state, after signals that are about to be delivered.
    ///
    /// Delivered on a chain, a signal's handler might jump away, and the chain would never run. An
    /// interrupted call that is issued again in spite of a signal would lose the signal's effect.
    fn settle(&mut self, deadline: Instant) -> Result<(), NotStopped> {
        for _ in 0..QUIET_TRIES {
            self.back.save_native(&self.thread.tracee)?;
            if self.pending().is_quiet() || self.group {
                return Ok(());
            }
            self.back.is_current = false;
            self.group = self.pending().deliver(self.back.is_in_call(), deadline)?;
        }
        // It gets no processor to take the signal, or signals follow one another. It has run since.
        self.back.save(&self.thread.tracee).map_err(|error| failed("reading registers", &error))
    }

    fn pending(&self) -> PendingSignals<'_> {
        let mask = self.thread.is_masked.then_some(self.back.saved.mask);
        PendingSignals::of(&self.thread.tracee, mask)
    }

    /// Completes the saved state before anything is run. A thread that is only released does not
    /// need it.
    pub(super) fn prepare(&mut self) -> Result<(), InjectError> {
        let mask = self.mask().map_err(|e| system("PTRACE_GETSIGMASK", &e))?;
        self.back.complete(&self.thread.tracee, mask)
    }

    pub(super) fn tid(&self) -> i32 {
        self.thread.tracee.tid()
    }

    /// The state to return to.
    pub(super) fn saved(&self) -> &SavedState {
        &self.back.saved
    }

    /// The state that the stop interrupted.
    pub(super) fn interrupted(&self) -> Interrupted {
        self.back.interrupted
    }

    /// The thread's own signal mask.
    pub(super) fn mask(&self) -> io::Result<u64> {
        if self.thread.is_masked { Ok(self.back.saved.mask) } else { self.thread.tracee.mask() }
    }

    /// Whether these bytes are at this address.
    pub(super) fn holds(&self, address: u64, bytes: &[u8]) -> bool {
        let mut found = vec![0; bytes.len()];
        self.thread.tracee.read(address, &mut found).is_ok() && found == bytes
    }

    /// The thread's seccomp filters.
    pub(super) fn filters(&self) -> io::Result<Vec<Vec<FilterInstruction>>> {
        self.thread.tracee.filters()
    }

    /// Issues an interrupted sleep anew: a filter forbids the call that the kernel would restart it
    /// with. The sleep may last longer then.
    pub(super) fn forgo_restart(&mut self) {
        self.back.forgo_restart();
    }

    /// Whether the thread may be set on a chain and detached.
    ///
    /// Not from within a call: the chain's last frame can only issue it again, after the handlers
    /// of signals that should have ended it (a `pause` would wait for ever). It would also drop a
    /// restart block. And not while job control stops the process.
    pub(super) fn may_be_launched(&self) -> bool {
        !self.group && !self.back.is_in_call() && self.pending().is_quiet()
    }

    /// Whether the stop has ended its call, which is issued again.
    pub(super) fn is_in_broken_call(&self) -> bool {
        self.back.interrupted == Interrupted::Broken
    }

    /// Whether it was stopped in a call that a pending signal would end.
    fn ignores_a_signal(&self) -> bool {
        !self.group && self.back.is_in_call() && !self.pending().is_quiet()
    }

    /// Lets the thread take the signals that end its call: such a call must not be issued again. If
    /// signals follow one another it stops at the given time, and the next signal ends the call.
    pub(super) fn take_signals(&mut self, until: Instant) -> Result<(), NotStopped> {
        while self.ignores_a_signal() && Instant::now() < until {
            self.settle(Instant::now() + SETTLED_MAX)?;
        }
        Ok(())
    }

    /// Whether a sampling signal is pending until the thread unblocks it.
    pub(super) fn has_sampling_signal(&self, signal: i32) -> bool {
        self.pending().has_sampling_signal(signal)
    }

    /// Notes the pending sampling signals of a thread that is only held. Nothing adds to them while
    /// no thread runs: timers count the thread's own CPU time, and events are closed.
    ///
    /// Returns whether a signal of the thread's own is about to be delivered at its release, so
    /// that the thread must be settled first.
    pub(super) fn note_sampling_signals(&mut self) -> bool {
        let Ok(waiting) = self.thread.tracee.own_pending() else {
            // Unknown: the restore then takes the way that is safe for the target.
            self.sampling_signals = u64::MAX;
            return true;
        };
        let sampling_signals = waiting.iter().filter(|signal| signal.is_sampling());
        self.sampling_signals = sampling_signals.fold(0, |bits, signal| bits | signal.bit());
        !waiting.is_empty() && !self.group && !self.pending().is_quiet()
    }

    /// Whether such a sampling signal was noted.
    pub(super) fn has_noted_sampling_signal(&self, signal: i32) -> bool {
        self.sampling_signals >> (signal - 1) & 1 == 1
    }

    /// Settles a thread that was only held; `false` if it has not run for that.
    pub(super) fn settle_held(&mut self, deadline: Instant) -> Result<bool, NotStopped> {
        let is_settled = self.pending().is_quiet() || self.group;
        if !is_settled {
            self.settle(deadline)?;
        }
        Ok(!is_settled)
    }

    /// Reads the target's memory up to its first unmapped page.
    pub(super) fn read_part(&self, address: u64, into: &mut [u8]) -> usize {
        ptrace::read_part(self.thread.tracee.tid(), address, into)
    }

    fn put(&mut self, registers: &Registers) -> Result<(), InjectError> {
        self.back.touched = true;
        self.thread.tracee.set_registers(registers).map_err(|e| system("PTRACE_SETREGSET", &e))
    }

    fn put_back(&mut self) -> Result<(), InjectError> {
        if !self.back.is_current {
            return Ok(());
        }
        let was_masked = self.thread.is_masked;
        if self.back.touched {
            self.skip_syscall()?;
        }
        if self.back.entered {
            let vectors = &self.back.saved.vectors;
            self.thread.tracee.set_xstate(vectors).map_err(|e| system("NT_X86_XSTATE", &e))?;
            self.back.entered = false;
        }
        if self.thread.is_masked {
            // The mask first: the registers are still on a chain, whose last frame holds the mask,
            // too.
            self.thread.unblock_signals(self.back.saved.mask)?;
            fault::at(Point::BackMasked);
        }
        if self.back.touched {
            self.put(&self.back.saved.registers.clone())?;
            fault::at(Point::BackSet);
        }
        let is_in_call = self.back.is_in_call();
        if was_masked && is_in_call { self.pending().withhold_sampling() } else { Ok(()) }
    }

    /// Replaces the state to return to. The thread is on a chain, which has its own mask.
    fn put_back_to(&mut self, saved: SavedState) {
        self.back = ReturnState::on_chain(saved, self.back.is_current);
        self.thread.is_masked = true;
    }

    /// Takes a thread at the entry of a system call past it without making the call.
    ///
    /// A harmless call is made instead: no signal has number 0. No call at all would show a seccomp
    /// filter a number that it forbids, while the agent's entry has made this one before. If we die
    /// before the registers are back, the thread continues behind the call: with the next frame on
    /// a chain, or with the call that was skipped in our restorer.
    fn skip_syscall(&mut self) -> Result<(), InjectError> {
        if !self.thread.tracee.is_at_entry() {
            return Ok(());
        }
        let now = self.thread.now()?;
        self.put(&arch::instead(&now, &Syscall::sigaction(0, 0, 0)))?;
        self.thread.set_going()?;
        self.await_next_stop()
    }

    /// Waits for the next stop of a resumed thread, without a time limit.
    fn await_next_stop(&mut self) -> Result<(), InjectError> {
        if self.thread.await_next_stop()? {
            // The saved state does not belong to the new program.
            self.back.is_current = false;
        }
        Ok(())
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
        self.thread.detach()
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
