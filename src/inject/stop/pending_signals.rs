//! The pending signals of a stopped thread. The application's signals are delivered first; sampling
//! signals may be withheld.

use std::time::{Duration, Instant};

use super::withheld_signals::{passed_on, withholds_sampling_signal};
use super::{NotStopped, SETTLED_MAX, failed, system, wait_interrupt};
use crate::fault::{self, FaultPoint};
use crate::inject::error::InjectError;
use crate::inject::ptrace::{PendingSignal, Resume, Tracee, TraceeEvent};
use crate::proc;

/// Longest wait for the report of a pending signal.
const DELIVERY_MAX: Duration = Duration::from_millis(5);

/// The pending signals of a thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingSignals<'a> {
    tracee: &'a Tracee,
    /// The thread's own mask, if all its signals are blocked meanwhile.
    mask: Option<u64>,
}

impl<'a> PendingSignals<'a> {
    /// Creates the view of this thread's signals. `mask` is the thread's own mask if all its
    /// signals are blocked meanwhile.
    pub(super) fn of(tracee: &'a Tracee, mask: Option<u64>) -> Self {
        Self { tracee, mask }
    }

    /// Delivers a pending signal, and stops the thread again before its handler's first
    /// instruction. The tracer requests the stop only after the thread has reported the signal:
    /// otherwise the thread would stop again without taking it.
    pub(super) fn deliver(&self, deadline: Instant) -> Result<bool, NotStopped> {
        let resume = |signal| {
            self.tracee.resume(Resume::Run, signal).map_err(|error| failed("PTRACE_CONT", &error))
        };
        resume(0)?;
        let reported = deadline.min(Instant::now() + DELIVERY_MAX);
        let stop = self.tracee.wait(reported).map_err(|error| failed("waitpid", &error))?;
        match stop {
            TraceeEvent::Exec => return Err(NotStopped::Gone(InjectError::Executed)),
            TraceeEvent::Exited(_) => return Err(NotStopped::Gone(InjectError::Gone)),
            TraceeEvent::Group => return Ok(true),
            TraceeEvent::Interrupt => return Ok(false),
            // Another thread of the process took the signal.
            TraceeEvent::Timeout | TraceeEvent::Syscall | TraceeEvent::Signal(_) => {}
        }
        self.tracee.interrupt().map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
        match stop {
            TraceeEvent::Signal(signal) => {
                fault::at(FaultPoint::ThreadTakesSignal);
                resume(passed_on(self.tracee, signal))?;
                fault::at(FaultPoint::ThreadTookSignal);
            }
            TraceeEvent::Syscall => resume(0)?,
            _ => {}
        }
        wait_interrupt(self.tracee, deadline)
    }

    /// Whether no signal is about to be delivered that the program would see.
    pub(super) fn is_quiet(&self) -> bool {
        self.due().is_empty()
    }

    /// Returns the signals that are about to be delivered. The kernel drops an ignored signal when
    /// it is sent, but not while its receiver is traced. Then the signal is pending here, has ended
    /// the call of a thread that it woke, and is still dropped later.
    fn due(&self) -> Vec<PendingSignal> {
        let mut due = self.tracee.pending().unwrap_or_default();
        if !due.is_empty() {
            // For a thread that no longer exists this makes no difference.
            let mask = self.mask.map_or_else(|| self.tracee.mask(), Ok).unwrap_or(0);
            due.retain(|signal| signal.bit() & !mask != 0);
        }
        if !due.is_empty() {
            let unseen = proc::status(self.tracee.tid()).map_or(0, |status| status.unseen());
            due.retain(|signal| signal.bit() & !unseen != 0);
        }
        due
    }

    /// Whether signals are about to be delivered, and all of them are sampling signals.
    fn only_sampling_due(&self) -> bool {
        let due = self.due();
        !due.is_empty() && due.iter().all(|one| one.is_sampling())
    }

    /// Whether a sampling signal is pending until the thread unblocks it.
    pub(super) fn has_sampling_signal(&self, signal: i32) -> bool {
        match self.tracee.own_pending() {
            Ok(pending) => pending.iter().any(|one| one.number == signal && one.is_sampling()),
            // Unknown: the restore then does what is safe for the target.
            Err(_) => true,
        }
    }

    /// Withholds the sampling signals that were raised while the thread was stepped, before the
    /// thread continues its call. Their handler would make a `pause` or a `nanosleep` return EINTR.
    /// A pending signal of the application ends the call by itself.
    pub(super) fn withhold_sampling(&self) -> Result<(), InjectError> {
        let deadline = Instant::now() + SETTLED_MAX;
        let resume =
            |signal| self.tracee.resume(Resume::Run, signal).map_err(|e| system("PTRACE_CONT", &e));
        while self.only_sampling_due() && Instant::now() < deadline {
            resume(0)?;
            let stop = self.tracee.wait(deadline).map_err(|e| system("waitpid", &e))?;
            match stop {
                TraceeEvent::Exited(_) => return Err(InjectError::Gone),
                TraceeEvent::Exec => return Err(InjectError::Executed),
                TraceeEvent::Syscall | TraceeEvent::Interrupt | TraceeEvent::Group => continue,
                TraceeEvent::Signal(_) | TraceeEvent::Timeout => {}
            }
            // The stop is requested before the thread continues, so that it stops again without
            // having run.
            self.tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
            match stop {
                TraceeEvent::Signal(_) if withholds_sampling_signal(self.tracee) => resume(0)?,
                TraceeEvent::Signal(signal) => resume(signal)?,
                _ => {}
            }
            wait_interrupt(self.tracee, Instant::now() + SETTLED_MAX)?;
        }
        Ok(())
    }
}
