//! The pending signals of a stopped thread: the application's are delivered first, ours may be
//! withheld.

use std::time::{Duration, Instant};

use super::{NotStopped, SETTLED_MAX, Stopped, failed, system, wait_interrupt};
use crate::fault::{self, Point};
use crate::inject::arch::Interrupted;
use crate::inject::error::InjectError;
use crate::inject::ptrace::{PendingSignal, Resume, TraceeEvent};
use crate::proc;

/// Attempts to stop a thread without a pending signal.
const QUIET_TRIES: usize = 16;
/// Longest wait for a pending signal to be reported.
const DELIVERY_MAX: Duration = Duration::from_millis(5);

impl Stopped {
    /// Saves the state, after signals that are about to be delivered.
    ///
    /// Delivered on a chain, a signal's handler might jump away, and the chain would never run. An
    /// interrupted call that is issued again in spite of a signal would lose the signal's effect.
    pub(super) fn settle(&mut self, deadline: Instant) -> Result<(), NotStopped> {
        for _ in 0..QUIET_TRIES {
            self.save_native()?;
            if self.is_quiet() || self.group {
                return Ok(());
            }
            self.group = self.deliver(deadline)?;
        }
        // It gets no processor to take the signal, or signals follow one another. It has run since.
        self.save().map_err(|error| failed("reading registers", &error))
    }

    /// Delivers a pending signal, and stops the thread again before its handler's first
    /// instruction. The stop is requested only after the thread has reported the signal: otherwise
    /// the thread would stop again without taking it.
    ///
    /// A sampling signal is not delivered to a thread in a call. A timer that expires on the way
    /// into a call keeps its signal pending until the call ends. Our stop ended the call too early,
    /// and the handler would make a `poll` or an `epoll_wait` return EINTR.
    fn deliver(&mut self, deadline: Instant) -> Result<bool, NotStopped> {
        self.is_current = false;
        let resume = |signal| {
            self.tracee.resume(Resume::Run, signal).map_err(|error| failed("PTRACE_CONT", &error))
        };
        resume(0)?;
        let reported = deadline.min(Instant::now() + DELIVERY_MAX);
        let stop = self.tracee.wait(reported).map_err(|error| failed("waitpid", &error))?;
        match stop {
            TraceeEvent::Exec => return Err(NotStopped::Gone(InjectError::Executed)),
            TraceeEvent::Ended(_) => return Err(NotStopped::Gone(InjectError::Gone)),
            TraceeEvent::Group => return Ok(true),
            TraceeEvent::Interrupt => return Ok(false),
            // Another thread of the process took it.
            TraceeEvent::Timeout | TraceeEvent::Syscall | TraceeEvent::Signal(_) => {}
        }
        self.tracee.interrupt().map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
        let in_call = self.interrupted != Interrupted::User;
        match stop {
            TraceeEvent::Signal(_) if in_call && self.withholds_sampling_signal() => resume(0)?,
            TraceeEvent::Signal(signal) => {
                fault::at(Point::ThreadTakesSignal);
                resume(signal)?;
                fault::at(Point::ThreadTookSignal);
            }
            TraceeEvent::Syscall => resume(0)?,
            _ => {}
        }
        wait_interrupt(&self.tracee, deadline)
    }

    /// Whether no signal is about to be delivered that the program would see.
    pub(super) fn is_quiet(&self) -> bool {
        self.due().is_empty()
    }

    /// The signals that are about to be delivered. The kernel drops an ignored signal when it is
    /// sent, but not while its receiver is traced. Then it is pending here, has ended the call of a
    /// thread that it woke, and is dropped later all the same.
    fn due(&self) -> Vec<PendingSignal> {
        let mut due = self.tracee.pending().unwrap_or_default();
        if !due.is_empty() {
            // For a thread that is gone this makes no difference.
            let mask = self.mask().unwrap_or(0);
            due.retain(|signal| signal.bit() & !mask != 0);
        }
        if !due.is_empty() {
            let unseen = proc::status(self.tracee.tid()).map_or(0, |status| status.unseen());
            due.retain(|signal| signal.bit() & !unseen != 0);
        }
        due
    }

    /// Whether the thread may be set on a chain and detached.
    ///
    /// Not from within a call: the chain's last frame can only issue it again, after the handlers
    /// of signals that should have ended it (a `pause` would wait for ever). It would also drop a
    /// restart block. And not while job control stops the process.
    pub(in crate::inject) fn may_be_launched(&self) -> bool {
        !self.group && self.interrupted == Interrupted::User && self.is_quiet()
    }

    /// Whether the stop has ended its call, which is issued again.
    pub(in crate::inject) fn is_in_broken_call(&self) -> bool {
        self.interrupted == Interrupted::Broken
    }

    /// Whether it was stopped in a call that a pending signal would end.
    pub(super) fn ignores_a_signal(&self) -> bool {
        !self.group && self.interrupted != Interrupted::User && !self.is_quiet()
    }

    /// Whether all signals that are about to be delivered are sampling signals.
    fn only_sampling_signals_due(&self) -> bool {
        let due = self.due();
        !due.is_empty() && due.iter().all(|one| one.is_sampling())
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
    pub(in crate::inject) fn has_sampling_signal(&self, signal: i32) -> bool {
        match self.tracee.own_pending() {
            Ok(pending) => pending.iter().any(|one| one.number == signal && one.is_sampling()),
            // Unknown: the restore then takes the way that is safe for the target.
            Err(_) => true,
        }
    }

    /// Notes the pending sampling signals of a thread that is only held. Nothing adds to them while
    /// no thread runs: timers count the thread's own CPU time, and events are closed.
    ///
    /// Returns whether a signal of the thread's own is about to be delivered at its release, so
    /// that the thread must be settled first.
    pub(in crate::inject) fn note_sampling_signals(&mut self) -> bool {
        let Ok(waiting) = self.tracee.own_pending() else {
            // Unknown: the restore then takes the way that is safe for the target.
            self.sampling_signals = u64::MAX;
            return true;
        };
        let sampling_signals = waiting.iter().filter(|signal| signal.is_sampling());
        self.sampling_signals = sampling_signals.fold(0, |bits, signal| bits | signal.bit());
        !waiting.is_empty() && !self.group && !self.is_quiet()
    }

    /// Whether such a sampling signal was noted.
    pub(in crate::inject) fn has_noted_sampling_signal(&self, signal: i32) -> bool {
        self.sampling_signals >> (signal - 1) & 1 == 1
    }

    /// Settles a thread that was only held; `false` if it has not run for that.
    pub(in crate::inject) fn settle_held(&mut self, deadline: Instant) -> Result<bool, NotStopped> {
        let is_settled = self.is_quiet() || self.group;
        if !is_settled {
            self.settle(deadline)?;
        }
        Ok(!is_settled)
    }

    /// Withholds the sampling signals that a thread earned while it was stepped, before it
    /// continues its call. Their handler would make a `pause` or a `nanosleep` return EINTR. A
    /// pending signal of the application ends the call by itself.
    pub(super) fn withhold_sampling_signals(&mut self) -> Result<(), InjectError> {
        let deadline = Instant::now() + SETTLED_MAX;
        let resume =
            |signal| self.tracee.resume(Resume::Run, signal).map_err(|e| system("PTRACE_CONT", &e));
        while self.only_sampling_signals_due() && Instant::now() < deadline {
            resume(0)?;
            let stop = self.tracee.wait(deadline).map_err(|e| system("waitpid", &e))?;
            match stop {
                TraceeEvent::Ended(_) => return Err(InjectError::Gone),
                TraceeEvent::Exec => return Err(InjectError::Executed),
                TraceeEvent::Syscall | TraceeEvent::Interrupt | TraceeEvent::Group => continue,
                TraceeEvent::Signal(_) | TraceeEvent::Timeout => {}
            }
            // Requested before it continues, so that it stops again without having run.
            self.tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
            match stop {
                TraceeEvent::Signal(_) if self.withholds_sampling_signal() => resume(0)?,
                TraceeEvent::Signal(signal) => resume(signal)?,
                _ => {}
            }
            wait_interrupt(&self.tracee, Instant::now() + SETTLED_MAX)?;
        }
        Ok(())
    }
}
