//! A stopped thread with its saved state.
//!
//! # Invariants
//! - The detach comes after the registers are restored: only at the detach does the kernel check
//!   the restart codes again.
//! - Whatever fails, a thread is put back to its state before it is released, also when it is
//!   dropped.

use std::io;
use std::time::{Duration, Instant};

use super::arch::{self, Interrupted, Registers};
use super::error::InjectError;
use super::ptrace::{self, FilterInstruction, Resume, Tracee, TraceeEvent, watchdog};
use super::sigreturn_chain::SavedState;
use super::syscall::Syscall;
use crate::fault::{self, FaultPoint};
use crate::proc;

mod launched;
mod pending_signals;
mod request;
mod restartable_sequence;
mod return_state;
mod running;
mod stepper;
mod withheld_signals;

pub(super) use self::launched::Launched;
use self::pending_signals::PendingSignals;
pub(super) use self::request::{StopPoll, StopRequest};
use self::return_state::ReturnState;
use self::stepper::Stepper;
use self::withheld_signals::passed_on;
pub(super) use self::withheld_signals::{count_withheld, take_withheld};

/// Longest time that a thread may take to settle after it had to wait for its stop.
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
    /// The state that the thread returns to.
    back: ReturnState,
    /// Whether job control has stopped the process. A launched chain would not run until SIGCONT.
    group: bool,
    since: Instant,
    /// The time after which no step starts, because other threads are held.
    held_until: Option<Instant>,
    /// The sampling signals that were pending at the last check, as a bit set.
    sampling_signals: u64,
    is_released: bool,
}

/// The reason why a thread could not be stopped for use.
#[derive(Debug)]
pub(super) enum NotStopped {
    /// The thread no longer exists, or its process executed another program.
    Gone(InjectError),
    /// The thread did not stop in time. Only the end of the tracing thread releases it.
    Timeout,
    /// The thread currently runs 32-bit code.
    Foreign,
    /// A system call failed.
    Failed(InjectError),
}

/// The reason why a thread is not held.
#[derive(Debug)]
pub(super) enum NotHeld {
    /// The thread did not stop in time. If it is released before its stop was seen, its call
    /// breaks.
    Late(Tracee),
    Other(NotStopped),
}

impl From<NotStopped> for NotHeld {
    fn from(failure: NotStopped) -> Self {
        NotHeld::Other(failure)
    }
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

impl NotStopped {
    fn of(error: InjectError) -> NotStopped {
        match error {
            InjectError::Gone => NotStopped::Gone(InjectError::Gone),
            other => NotStopped::Failed(other),
        }
    }

    /// Returns the failure of a thread whose file in `/proc` cannot be read.
    fn from_reading(file: &str, error: &io::Error) -> NotStopped {
        Self::of(InjectError::reading(file, error))
    }
}

fn failed(call: &str, error: &io::Error) -> NotStopped {
    NotStopped::of(InjectError::system(call, error))
}

impl Stopped {
    /// Waits for the requested stop, delivers signals meanwhile, and saves the thread's state. A
    /// thread that waits for a processor may take until `last`.
    pub(super) fn collect(
        tracee: Tracee,
        since: Instant,
        deadline: Instant,
        last: Instant,
    ) -> Result<Stopped, NotStopped> {
        let group = await_stop(&tracee, deadline, last)?;
        Self::take(tracee, group, since, deadline.max(last.min(Instant::now() + SETTLED_MAX)))
    }

    /// Does the same as [`Stopped::collect`] for a thread that is only held and released. Its
    /// pending signals stay unread.
    pub(super) fn hold(
        tracee: Tracee,
        since: Instant,
        deadline: Instant,
        last: Instant,
    ) -> Result<Stopped, NotHeld> {
        let group = match await_stop(&tracee, deadline, last) {
            Err(NotStopped::Timeout) => return Err(NotHeld::Late(tracee)),
            outcome => outcome?,
        };
        let mut stopped = Self::new(tracee, group, since);
        stopped.back.save_native(&stopped.thread.tracee)?;
        fault::at(FaultPoint::ThreadStopped);
        Ok(stopped)
    }

    /// Adopts a thread that is stopped before its program's first instruction.
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
        fault::at(FaultPoint::ThreadStopped);
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

    /// Saves the state, after the delivery of pending signals that are not blocked.
    ///
    /// If a signal were delivered on a chain, its handler might jump away, and the chain would
    /// never run. If an interrupted call were issued again in spite of a signal, the signal would
    /// not end the call.
    fn settle(&mut self, deadline: Instant) -> Result<(), NotStopped> {
        for _ in 0..QUIET_TRIES {
            self.back.save_native(&self.thread.tracee)?;
            if self.pending().is_quiet() || self.group {
                return Ok(());
            }
            self.back.is_current = false;
            self.group = self.pending().deliver(deadline)?;
        }
        // The thread gets no processor to take the signal, or signals follow one another. It has
        // run since the state was saved.
        self.back.save(&self.thread.tracee).map_err(|error| failed("reading registers", &error))
    }

    fn pending(&self) -> PendingSignals<'_> {
        let mask = self.thread.is_masked.then_some(self.back.saved.mask);
        PendingSignals::of(&self.thread.tracee, mask)
    }

    /// Completes the saved state before the thread runs anything. A thread that is only released
    /// does not need this.
    pub(super) fn prepare(&mut self) -> Result<(), InjectError> {
        let mask = self.mask().map_err(|e| system("PTRACE_GETSIGMASK", &e))?;
        self.back.complete(&self.thread.tracee, mask)
    }

    pub(super) fn tid(&self) -> i32 {
        self.thread.tracee.tid()
    }

    /// Returns the state that the thread returns to.
    pub(super) fn saved(&self) -> &SavedState {
        &self.back.saved
    }

    /// Returns the state that the stop interrupted.
    pub(super) fn interrupted(&self) -> Interrupted {
        self.back.interrupted
    }

    /// Returns the thread's own signal mask.
    pub(super) fn mask(&self) -> io::Result<u64> {
        if self.thread.is_masked { Ok(self.back.saved.mask) } else { self.thread.tracee.mask() }
    }

    /// Whether the target has these bytes at this address.
    ///
    /// # Errors
    /// Fails if the kernel could not read them, although they may be there.
    pub(super) fn holds(&self, address: u64, bytes: &[u8]) -> Result<bool, InjectError> {
        let mut found = vec![0; bytes.len()];
        match self.thread.tracee.read(address, &mut found) {
            Ok(()) => Ok(found == bytes),
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(false),
            Err(error) => Err(system("process_vm_readv", &error)),
        }
    }

    /// Whether one of the thread's registers may contain this word.
    pub(super) fn registers_hold(&self, word: u64) -> bool {
        let bytes = word.to_ne_bytes();
        let is_in = |state: Vec<u8>| state.windows(bytes.len()).any(|window| window == bytes);
        arch::words(&self.back.saved.registers).contains(&word)
            || self.thread.tracee.xstate().map_or(true, is_in)
    }

    /// Returns the thread's seccomp filters.
    pub(super) fn filters(&self) -> io::Result<Vec<Vec<FilterInstruction>>> {
        self.thread.tracee.filters()
    }

    /// Issues an interrupted sleep again, because a filter forbids the call with which the kernel
    /// would restart the sleep. The sleep may then last longer.
    pub(super) fn forgo_restart(&mut self) {
        self.back.forgo_restart();
    }

    /// Whether the thread may be set on a chain and detached.
    ///
    /// A thread within a call must not be launched: the last frame of the chain can only issue the
    /// call again. It would do so after the handlers of signals that should have ended the call,
    /// and a `pause` would wait for ever. The chain would also drop a restart block. Nor must a
    /// thread be launched while job control stops the process.
    pub(super) fn may_be_launched(&self) -> bool {
        !self.group && !self.back.is_in_call() && self.pending().is_quiet()
    }

    /// Whether the stop has broken the thread's call, which is then issued again.
    pub(super) fn is_in_broken_call(&self) -> bool {
        self.back.interrupted == Interrupted::Broken
    }

    /// Whether the thread was stopped in a call that a pending signal would end.
    fn ignores_a_signal(&self) -> bool {
        !self.group && self.back.is_in_call() && !self.pending().is_quiet()
    }

    /// Lets the thread take the signals that end its call: such a call must not be issued again. If
    /// signals keep coming, this stops at the given time, and the next signal ends the call.
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
    /// no thread runs: timers count the thread's own CPU time, and the perf events are closed.
    ///
    /// Returns whether the release would deliver a signal of the thread's own, so that the thread
    /// must be settled first.
    pub(super) fn note_sampling_signals(&mut self) -> bool {
        let Ok(waiting) = self.thread.tracee.own_pending() else {
            // Unknown: the restore then does what is safe for the target.
            self.sampling_signals = u64::MAX;
            return true;
        };
        let sampling_signals = waiting.iter().filter(|signal| signal.is_sampling());
        self.sampling_signals = sampling_signals.fold(0, |bits, signal| bits | signal.bit());
        !waiting.is_empty() && !self.group && !self.pending().is_quiet()
    }

    /// Whether a sampling signal with this number was noted.
    pub(super) fn has_noted_sampling_signal(&self, signal: i32) -> bool {
        self.sampling_signals >> (signal - 1) & 1 == 1
    }

    /// Settles a thread that was only held. Returns `false` if the thread did not have to run for
    /// it.
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
            // Restore the mask first: the registers are still on a chain, whose last frame holds
            // the mask, too.
            self.thread.unblock_signals(self.back.saved.mask)?;
            fault::at(FaultPoint::BackMasked);
        }
        if self.back.touched {
            self.put(&self.back.saved.registers.clone())?;
            watchdog::set_may_kill(true);
            fault::at(FaultPoint::BackSet);
        }
        let is_in_call = self.back.is_in_call();
        if was_masked && is_in_call { self.pending().withhold_sampling() } else { Ok(()) }
    }

    /// Replaces the state to return to. The thread is on a chain, which has its own mask.
    fn put_back_to(&mut self, saved: SavedState) {
        self.back = ReturnState::on_chain(saved, self.back.is_current);
        self.thread.is_masked = true;
    }

    /// Moves a thread from the entry of a system call past the call, without making it.
    ///
    /// The thread makes a harmless call instead: no signal has number 0. With no call at all, a
    /// seccomp filter would see a number that it forbids, whereas the agent's entry has made this
    /// call before. If the tracer dies before the registers are restored, the thread continues
    /// after the call. On a chain it continues with the next frame, and in our restorer with the
    /// skipped call.
    fn skip_syscall(&mut self) -> Result<(), InjectError> {
        if !self.thread.tracee.is_at_entry() {
            return Ok(());
        }
        let now = self.thread.registers()?;
        self.put(&arch::instead(&now, &Syscall::sigaction(0, 0, 0)))?;
        self.thread.resume_to_syscall()?;
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

    /// Puts the thread back to its state and detaches it. If the thread was resumed, this waits for
    /// its stop without a time limit.
    pub(super) fn release(mut self) -> Result<Duration, InjectError> {
        self.await_next_stop()?;
        self.put_back()?;
        self.detach()?;
        fault::at(FaultPoint::BackGone);
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
            // A thread that cannot be put back no longer exists.
            let _ =
                self.await_next_stop().and_then(|()| self.put_back()).and_then(|()| self.detach());
        }
    }
}

fn system(call: &str, error: &io::Error) -> InjectError {
    InjectError::system(call, error)
}

/// Does the same as [`wait_interrupt`], but a thread that waits for a processor may take until
/// `last`.
fn await_stop(tracee: &Tracee, deadline: Instant, last: Instant) -> Result<bool, NotStopped> {
    let mut until = deadline;
    loop {
        match wait_interrupt(tracee, until) {
            Err(NotStopped::Timeout)
                if Instant::now() < last && proc::is_runnable(tracee.tid()) =>
            {
                until = Instant::now() + QUEUE_CHECK;
            }
            // On a busy machine the tracer may wait for a processor between its check for the stop
            // and this one. A thread that is not runnable any more may have stopped meanwhile.
            Err(NotStopped::Timeout) if tracee.has_stopped() => until = Instant::now(),
            outcome => return outcome,
        }
    }
}

/// Waits for the requested stop, and delivers signals that come before it. Returns `true` if job
/// control has stopped the process.
fn wait_interrupt(tracee: &Tracee, deadline: Instant) -> Result<bool, NotStopped> {
    loop {
        match tracee.wait(deadline).map_err(|error| failed("waitpid", &error))? {
            TraceeEvent::Interrupt => return Ok(false),
            TraceeEvent::Group => return Ok(true),
            TraceeEvent::Signal(signal) => tracee
                .resume(Resume::Run, passed_on(tracee, signal))
                .map_err(|error| failed("PTRACE_CONT", &error))?,
            TraceeEvent::Syscall => {
                tracee.resume(Resume::Run, 0).map_err(|error| failed("PTRACE_CONT", &error))?
            }
            TraceeEvent::Exec => return Err(NotStopped::Gone(InjectError::Executed)),
            TraceeEvent::Exited(_) => return Err(NotStopped::Gone(InjectError::Gone)),
            TraceeEvent::Timeout => return Err(NotStopped::Timeout),
        }
    }
}

/// Seizes a thread, stops it and saves its state. A thread that waits for a processor may take
/// `queued_limit`, as it loses nothing by the wait.
pub(super) fn stop(
    tid: i32,
    limit: Duration,
    queued_limit: Duration,
) -> Result<Stopped, NotStopped> {
    let tracee = Tracee::seize(tid).map_err(|error| failed("PTRACE_SEIZE", &error))?;
    fault::at(FaultPoint::ThreadSeized);
    let since = Instant::now();
    tracee.interrupt().map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
    fault::at(FaultPoint::ThreadInterrupted);
    let mut stopped = Stopped::collect(tracee, since, since + limit, since + queued_limit)?;
    stopped.take_signals(since + limit)?;
    Ok(stopped)
}
