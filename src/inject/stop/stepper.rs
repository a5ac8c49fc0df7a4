//! A traced thread that the tracer resumes from stop to stop.
//!
//! # Invariants
//! - A resumed thread is never released before its next stop, whatever else failed. In a starved
//!   target that stop comes after seconds. Released too early, the thread would return from a bare
//!   call into nothing. Or it would run the remaining chain later, on whatever is mapped by then.
//!   Both were seen.

use std::time::{Duration, Instant};

use super::{ALL_SIGNALS, QUEUE_CHECK, system};
use crate::fault::{self, FaultPoint};
use crate::inject::arch::{self, Registers};
use crate::inject::error::InjectError;
use crate::inject::ptrace::{Resume, Tracee, TraceeEvent};
use crate::proc;

/// Longest time for one step.
pub(super) const STEP_MAX: Duration = Duration::from_secs(1);
/// Longest time for one step of a thread that only waits for a processor.
pub(super) const QUEUED_STEP_MAX: Duration = Duration::from_secs(5);

/// A traced thread, and the signals that reached it between two stops.
#[derive(Debug)]
pub(super) struct Stepper {
    pub(super) tracee: Tracee,
    /// Whether the tracer has blocked all signals of the thread.
    pub(super) is_masked: bool,
    /// Whether the thread was resumed and not yet seen to stop.
    in_flight: bool,
    /// A signal that the thread stopped for while it was in flight; 0 for none.
    undelivered_signal: i32,
    /// Whether SIGSTOP came while the thread was stepped.
    stop_requested: bool,
}

impl Stepper {
    /// Creates a stepper for a stopped thread.
    pub(super) fn new(tracee: Tracee) -> Self {
        Self {
            tracee,
            is_masked: false,
            in_flight: false,
            undelivered_signal: 0,
            stop_requested: false,
        }
    }

    /// Blocks all signals.
    pub(super) fn block_signals(&mut self) -> Result<(), InjectError> {
        self.tracee.set_mask(ALL_SIGNALS).map_err(|e| system("PTRACE_SETSIGMASK", &e))?;
        self.is_masked = true;
        Ok(())
    }

    /// Restores the thread's own mask.
    pub(super) fn unblock_signals(&mut self, mask: u64) -> Result<(), InjectError> {
        self.tracee.set_mask(mask).map_err(|e| system("PTRACE_SETSIGMASK", &e))?;
        self.is_masked = false;
        Ok(())
    }

    /// Steps through a system call and returns its result.
    pub(super) fn step_through_call(&mut self) -> Result<i64, InjectError> {
        self.run_to_syscall(QUEUED_STEP_MAX)?;
        fault::at(FaultPoint::StepSyscallEntry);
        self.run_to_syscall(QUEUED_STEP_MAX)?;
        fault::at(FaultPoint::StepSyscallExit);
        Ok(arch::result(&self.registers()?))
    }

    /// Steps through the agent's entry, without a time limit. The entry always finishes, it must
    /// not be left half done, and no other thread is held meanwhile.
    pub(super) fn step_through_entry(&mut self, ucontext: u64) -> Result<(), InjectError> {
        loop {
            self.run_to_syscall(Duration::MAX)?;
            if arch::is_sigreturn(&self.registers()?, ucontext) {
                fault::at(FaultPoint::StepEntryDone);
                return Ok(());
            }
            self.run_to_syscall(Duration::MAX)?;
        }
    }

    /// Returns the thread's registers.
    pub(super) fn registers(&self) -> Result<Registers, InjectError> {
        let registers = self.tracee.registers().map_err(|e| system("PTRACE_GETREGSET", &e))?;
        registers.ok_or(InjectError::Gone)
    }

    /// Resumes the thread up to the next system call stop. Signals are blocked, so only job control
    /// and faults can come first.
    pub(super) fn run_to_syscall(&mut self, queued_max: Duration) -> Result<(), InjectError> {
        loop {
            match self.step(queued_max)? {
                TraceeEvent::Syscall => return Ok(()),
                // The first resume out of a group stop only reports the group stop again.
                TraceeEvent::Group | TraceeEvent::Interrupt => {}
                TraceeEvent::Signal(_) => {
                    return Err(InjectError::EntryFailed { error: 0, errno: 0 });
                }
                TraceeEvent::Exec => return Err(InjectError::Executed),
                TraceeEvent::Exited(_) => return Err(InjectError::Gone),
                TraceeEvent::Timeout => return Err(InjectError::EntryTimedOut),
            }
        }
    }

    /// Resumes the thread up to the next stop. A thread that waits for a processor gets more time.
    pub(super) fn step(&mut self, queued_max: Duration) -> Result<TraceeEvent, InjectError> {
        self.resume_to_syscall()?;
        let since = Instant::now();
        let mut until = since + STEP_MAX;
        loop {
            match self.tracee.wait(until).map_err(|e| system("waitpid", &e))? {
                // No mask blocks this signal, and the thread must not stop on the chain.
                TraceeEvent::Signal(libc::SIGSTOP) if self.is_masked => {
                    self.stop_requested = true;
                    self.resume_to_syscall()?;
                }
                TraceeEvent::Timeout => {
                    let is_queued = proc::is_runnable(self.tracee.tid());
                    let is_limited = queued_max != Duration::MAX;
                    if is_limited && (!is_queued || since.elapsed() >= queued_max) {
                        return Ok(TraceeEvent::Timeout);
                    }
                    until = Instant::now() + QUEUE_CHECK;
                }
                stop => {
                    self.in_flight = false;
                    return Ok(stop);
                }
            }
        }
    }

    /// Resumes the thread up to its next system call stop, without waiting.
    pub(super) fn resume_to_syscall(&mut self) -> Result<(), InjectError> {
        self.tracee.resume(Resume::ToSyscall, 0).map_err(|e| system("PTRACE_SYSCALL", &e))?;
        self.in_flight = true;
        Ok(())
    }

    /// Waits for the next stop of a resumed thread, without a time limit. Returns `true` if the
    /// process has executed another program meanwhile.
    pub(super) fn await_next_stop(&mut self) -> Result<bool, InjectError> {
        let mut has_executed = false;
        while self.in_flight {
            let slice = Instant::now() + STEP_MAX;
            match self.tracee.wait(slice).map_err(|e| system("waitpid", &e))? {
                TraceeEvent::Timeout => {}
                TraceeEvent::Exited(_) => return Err(InjectError::Gone),
                TraceeEvent::Exec => {
                    (self.in_flight, has_executed) = (false, true);
                }
                stop => {
                    self.in_flight = false;
                    match stop {
                        TraceeEvent::Signal(libc::SIGSTOP) if self.is_masked => {
                            self.stop_requested = true
                        }
                        // On a chain, this can only be a fault of the chain itself.
                        TraceeEvent::Signal(signal) if !self.is_masked => {
                            self.undelivered_signal = signal
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(has_executed)
    }

    /// Detaches the thread, with the signals that were kept from it.
    pub(super) fn detach(&mut self) -> Result<(), InjectError> {
        self.tracee.detach(self.undelivered_signal).map_err(|e| system("PTRACE_DETACH", &e))?;
        if self.stop_requested {
            // If the signal cannot be sent, the thread no longer exists.
            let _ = self.tracee.send(libc::SIGSTOP);
        }
        Ok(())
    }
}
