//! What waits for a thread that is stopped: signals that it takes before anything else is done, and
//! hits of ours that it must not take.

use std::time::{Duration, Instant};

use super::super::arch::Interrupted;
use super::super::error::InjectError;
use super::super::ptrace::{Pending, Resume, Stop};
use super::{NotStopped, SETTLED_MAX, Stopped, failed, system, wait_interrupt};
use crate::fault::{self, Point};
use crate::proc;

/// Attempts to stop a thread with no signal pending.
const QUIET_TRIES: usize = 16;
/// Longest wait for a pending signal to be reported.
const DELIVERY_MAX: Duration = Duration::from_millis(5);

impl Stopped {
    /// Saves the state; if a signal is about to be delivered, lets that happen first. Delivered
    /// on a chain its handler might jump away and the chain would never run; and to issue an
    /// interrupted system call again as if there were no signal would lose the signal's effect.
    pub(super) fn settle(&mut self, deadline: Instant) -> Result<(), NotStopped> {
        for _ in 0..QUIET_TRIES {
            self.save_native()?;
            if self.is_quiet() || self.group {
                return Ok(());
            }
            self.group = self.deliver(deadline)?;
        }
        // It gets no processor to take the signal, or one comes after the other. It has run since.
        self.save().map_err(|error| failed("reading registers", &error))
    }

    /// Lets a pending signal be delivered, and stops the thread anew before its handler's first
    /// instruction. To ask for the stop first would have the thread stop again before it takes the
    /// signal: only a thread that reports the signal is sure to take it.
    ///
    /// A hit of ours is not delivered to a thread in a call. The kernel raises it when the thread
    /// leaves the kernel; a timer that expires on the way into a call has its hit wait for the call's
    /// end, which nobody sees. It is our stop that took the thread out of the call too early, and the
    /// handler would end a `poll` or an `epoll_wait` with EINTR.
    fn deliver(&mut self, deadline: Instant) -> Result<bool, NotStopped> {
        self.is_current = false;
        let resume = |signal| {
            self.tracee.resume(Resume::Run, signal).map_err(|error| failed("PTRACE_CONT", &error))
        };
        resume(0)?;
        let reported = deadline.min(Instant::now() + DELIVERY_MAX);
        let stop = self.tracee.wait(reported).map_err(|error| failed("waitpid", &error))?;
        match stop {
            Stop::Exec => return Err(NotStopped::Gone(InjectError::Executed)),
            Stop::Ended(_) => return Err(NotStopped::Gone(InjectError::Gone)),
            Stop::Group => return Ok(true),
            Stop::Interrupt => return Ok(false),
            // Another thread of the process took it.
            Stop::Timeout | Stop::Syscall | Stop::Signal(_) => {}
        }
        self.tracee.interrupt().map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
        let in_call = self.interrupted != Interrupted::User;
        match stop {
            Stop::Signal(_) if in_call && self.forgoes_hit() => resume(0)?,
            Stop::Signal(signal) => {
                fault::at(Point::ThreadTakesSignal);
                resume(signal)?;
                fault::at(Point::ThreadTookSignal);
            }
            Stop::Syscall => resume(0)?,
            _ => {}
        }
        wait_interrupt(&self.tracee, deadline)
    }

    /// No signal is about to be delivered that the program would see.
    pub(super) fn is_quiet(&self) -> bool {
        self.due().is_empty()
    }

    /// The signals that are about to be delivered. The kernel drops one that is ignored as it is sent,
    /// but not while its receiver is traced: it then waits here, has ended the call of a thread that it
    /// woke, and is dropped in the end all the same.
    fn due(&self) -> Vec<Pending> {
        let mut due = self.tracee.pending().unwrap_or_default();
        if !due.is_empty() {
            // Of one that is gone it makes no difference.
            let mask = self.mask().unwrap_or(0);
            due.retain(|signal| signal.bit() & !mask != 0);
        }
        if !due.is_empty() {
            let unseen = proc::status(self.tracee.tid()).map_or(0, |status| status.unseen());
            due.retain(|signal| signal.bit() & !unseen != 0);
        }
        due
    }

    /// It may be set going on a chain and let go. Not from within a call: the chain's last frame can
    /// only issue it again, after the handlers of signals that came meanwhile, which should have ended
    /// it (a `pause` would wait for ever); and it would drop a restart block. Nor where it would wait
    /// for SIGCONT.
    pub(in super::super) fn may_be_launched(&self) -> bool {
        !self.group && self.interrupted == Interrupted::User && self.is_quiet()
    }

    /// The stop has ended its call, which is issued again.
    pub(in super::super) fn is_in_broken_call(&self) -> bool {
        self.interrupted == Interrupted::Broken
    }

    /// It was stopped in a call that a signal which waits would end.
    pub(super) fn ignores_a_signal(&self) -> bool {
        !self.group && self.interrupted != Interrupted::User && !self.is_quiet()
    }

    /// Hits of ours wait that it does not block, and nothing else does.
    fn owes_only_hits(&self) -> bool {
        let due = self.due();
        !due.is_empty() && due.iter().all(|one| one.is_hit())
    }

    /// A call that a pending signal should end is not ours to issue again. Where one signal follows
    /// the other that is tried until then only: the next one ends it.
    pub(super) fn take_signals(&mut self, until: Instant) -> Result<(), NotStopped> {
        while self.ignores_a_signal() && Instant::now() < until {
            self.settle(Instant::now() + SETTLED_MAX)?;
        }
        Ok(())
    }

    /// A hit of a sampling event waits for the thread to unblock the signal.
    pub(in super::super) fn owes_hit(&self, signal: i32) -> bool {
        match self.tracee.own_pending() {
            Ok(pending) => pending.iter().any(|one| one.number == signal && one.is_hit()),
            // Unknown: the cure then takes the way that is safe for the target.
            Err(_) => true,
        }
    }

    /// Notes the hits that wait for a thread which is only held. Nothing adds to them as long as nobody
    /// runs who could: its timers go by its own CPU time, its events are closed. `true` if a signal that
    /// is the thread's alone, as hits are, is about to be taken when it is let go: it is to be settled.
    pub(in super::super) fn note_hits(&mut self) -> bool {
        let Ok(waiting) = self.tracee.own_pending() else {
            // Unknown: the cure then takes the way that is safe for the target.
            self.hits = u64::MAX;
            return true;
        };
        let hits = waiting.iter().filter(|signal| signal.is_hit());
        self.hits = hits.fold(0, |bits, signal| bits | signal.bit());
        !waiting.is_empty() && !self.group && !self.is_quiet()
    }

    /// A hit was noted.
    pub(in super::super) fn has_noted_hit(&self, signal: i32) -> bool {
        self.hits >> (signal - 1) & 1 == 1
    }

    /// Settles a thread that was only held; `false` if it has stood still for that.
    pub(in super::super) fn settle_held(&mut self, deadline: Instant) -> Result<bool, NotStopped> {
        let is_settled = self.is_quiet() || self.group;
        if !is_settled {
            self.settle(deadline)?;
        }
        Ok(!is_settled)
    }

    /// Takes from a thread that is back in its call the hits of ours that it earned while it was led:
    /// the handler of one would end a `pause` or a `nanosleep` with EINTR. A signal of the
    /// application's that waits as well ends the call by itself.
    pub(super) fn drop_hits(&mut self) -> Result<(), InjectError> {
        let deadline = Instant::now() + SETTLED_MAX;
        let resume =
            |signal| self.tracee.resume(Resume::Run, signal).map_err(|e| system("PTRACE_CONT", &e));
        while self.owes_only_hits() && Instant::now() < deadline {
            resume(0)?;
            let stop = self.tracee.wait(deadline).map_err(|e| system("waitpid", &e))?;
            match stop {
                Stop::Ended(_) => return Err(InjectError::Gone),
                Stop::Exec => return Err(InjectError::Executed),
                Stop::Syscall | Stop::Interrupt | Stop::Group => continue,
                Stop::Signal(_) | Stop::Timeout => {}
            }
            // Asked before it goes on, so that it stops again without having run.
            self.tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
            match stop {
                Stop::Signal(_) if self.forgoes_hit() => resume(0)?,
                Stop::Signal(signal) => resume(signal)?,
                _ => {}
            }
            wait_interrupt(&self.tracee, Instant::now() + SETTLED_MAX)?;
        }
        Ok(())
    }
}
