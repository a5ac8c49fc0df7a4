//! Steps a stopped thread through a chain, or through one bare system call.
//!
//! # Invariants
//! - A thread that was resumed is never released before its next stop, whatever else failed. In a
//!   starved target that stop comes after seconds. Released too early, the thread would return from
//!   a bare call into nothing. Or it would run the rest of a chain later, on whatever is mapped by
//!   then. Both were seen.
//! - The signals are blocked only while the registers are on a chain whose last frame holds the
//!   thread's own mask.

use std::time::{Duration, Instant};

use super::{ALL_SIGNALS, QUEUE_CHECK, Stopped, system, wait_interrupt};
use crate::fault::{self, Point};
use crate::inject::arch::{self, Registers};
use crate::inject::error::InjectError;
use crate::inject::ptrace::{Resume, TraceeEvent};
use crate::inject::sigreturn_chain::{Chain, ChainStep};
use crate::inject::syscall::Syscall;
use crate::proc;

/// Longest time for one step.
const STEP_MAX: Duration = Duration::from_secs(1);
/// The same for a thread that only waits for a processor.
const QUEUED_STEP_MAX: Duration = Duration::from_secs(5);
/// Attempts at a bare call between arriving signals.
const BARE_TRIES: usize = 16;

impl Stopped {
    /// Steps the thread through a chain and returns the results of its calls. Afterwards the thread
    /// is still held, on the chain; another chain or `release` must follow.
    pub(in crate::inject) fn run_stepwise(
        &mut self,
        chain: &Chain,
        steps: &[ChainStep],
    ) -> Result<Vec<i64>, InjectError> {
        self.tracee.write(chain.base, &chain.bytes).map_err(|e| system("writing frames", &e))?;
        fault::at(Point::StepWritten);
        let mut results = Vec::with_capacity(steps.len());
        for (index, (registers, step)) in chain.steps.iter().zip(steps).enumerate() {
            if self.held_until.is_some_and(|until| Instant::now() >= until) {
                return Err(InjectError::EntrySilent);
            }
            self.put(registers)?;
            fault::at(Point::StepSet);
            if !self.masked {
                self.tracee.set_mask(ALL_SIGNALS).map_err(|e| system("PTRACE_SETSIGMASK", &e))?;
                self.masked = true;
            }
            fault::at(Point::StepMasked);
            match step {
                ChainStep::Syscall(_) => results.push(self.through_call()?),
                ChainStep::Enter { .. } => {
                    self.entered = true;
                    self.through_entry(chain.frame_after(index))?;
                }
            }
        }
        Ok(results)
    }

    fn through_call(&mut self) -> Result<i64, InjectError> {
        self.run_to_syscall(QUEUED_STEP_MAX)?;
        fault::at(Point::StepSyscallEntry);
        self.run_to_syscall(QUEUED_STEP_MAX)?;
        fault::at(Point::StepSyscallExit);
        Ok(arch::result(&self.now()?))
    }

    /// Steps through the agent's entry, without a time limit: the entry must not be left half done,
    /// it ends, and no other thread is held meanwhile.
    fn through_entry(&mut self, ucontext: u64) -> Result<(), InjectError> {
        loop {
            self.run_to_syscall(Duration::MAX)?;
            if arch::is_sigreturn(&self.now()?, ucontext) {
                fault::at(Point::StepEntryDone);
                return Ok(());
            }
            self.run_to_syscall(Duration::MAX)?;
        }
    }

    fn now(&self) -> Result<Registers, InjectError> {
        let registers = self.tracee.registers().map_err(|e| system("PTRACE_GETREGSET", &e))?;
        registers.ok_or(InjectError::Gone)
    }

    /// Resumes up to the next system call stop. Signals are blocked, so only job control and faults
    /// can come first.
    fn run_to_syscall(&mut self, queued_max: Duration) -> Result<(), InjectError> {
        loop {
            match self.step(queued_max)? {
                TraceeEvent::Syscall => return Ok(()),
                // The first resume out of a group stop only reports it again.
                TraceeEvent::Group | TraceeEvent::Interrupt => {}
                TraceeEvent::Signal(_) => {
                    return Err(InjectError::EntryFailed { error: 0, errno: 0 });
                }
                TraceeEvent::Exec => return Err(InjectError::Executed),
                TraceeEvent::Ended(_) => return Err(InjectError::Gone),
                TraceeEvent::Timeout => return Err(InjectError::EntrySilent),
            }
        }
    }

    /// Resumes up to the next stop. A thread that waits for a processor has more time.
    fn step(&mut self, queued_max: Duration) -> Result<TraceeEvent, InjectError> {
        self.set_going()?;
        let since = Instant::now();
        let mut until = since + STEP_MAX;
        loop {
            match self.tracee.wait(until).map_err(|e| system("waitpid", &e))? {
                // No mask blocks this signal, and the thread must not stop on the chain.
                TraceeEvent::Signal(libc::SIGSTOP) if self.masked => {
                    self.stop_requested = true;
                    self.set_going()?;
                }
                TraceeEvent::Timeout => {
                    let is_queued = proc::is_runnable(self.tid());
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

    /// Resumes up to its next system call stop.
    fn set_going(&mut self) -> Result<(), InjectError> {
        self.tracee.resume(Resume::ToSyscall, 0).map_err(|e| system("PTRACE_SYSCALL", &e))?;
        self.in_flight = true;
        Ok(())
    }

    /// Waits for the next stop of a resumed thread, without a time limit.
    pub(super) fn await_next_stop(&mut self) -> Result<(), InjectError> {
        while self.in_flight {
            let slice = Instant::now() + STEP_MAX;
            match self.tracee.wait(slice).map_err(|e| system("waitpid", &e))? {
                TraceeEvent::Timeout => {}
                TraceeEvent::Ended(_) => return Err(InjectError::Gone),
                TraceeEvent::Exec => {
                    // The saved state does not belong to the new program.
                    (self.in_flight, self.is_current) = (false, false);
                }
                stop => {
                    self.in_flight = false;
                    match stop {
                        TraceeEvent::Signal(libc::SIGSTOP) if self.masked => {
                            self.stop_requested = true
                        }
                        // On a chain it can only be a fault of the chain's own.
                        TraceeEvent::Signal(signal) if !self.masked => {
                            self.undelivered_signal = signal
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes a thread at the entry of a system call past it without making the call.
    ///
    /// A harmless call is made instead: no signal has number 0. No call at all would show a seccomp
    /// filter a number that it forbids, while the agent's entry has made this one before. If we die
    /// before the registers are back, the thread continues behind the call: with the next frame on
    /// a chain, or with the call that was skipped in our restorer.
    pub(super) fn skip_syscall(&mut self) -> Result<(), InjectError> {
        if !self.tracee.is_at_entry() {
            return Ok(());
        }
        let now = self.now()?;
        self.put(&arch::instead(&now, &Syscall::sigaction(0, 0, 0)))?;
        self.set_going()?;
        self.await_next_stop()
    }

    /// Makes one system call with nothing behind it.
    pub(in crate::inject) fn run_bare_call(
        &mut self,
        instruction: u64,
        call: &Syscall,
    ) -> Result<i64, InjectError> {
        if self.masked {
            // If we die now the thread is probably lost, but its signals must not stay blocked.
            self.tracee.set_mask(self.saved.mask).map_err(|e| system("PTRACE_SETSIGMASK", &e))?;
            self.masked = false;
        }
        for _ in 0..BARE_TRIES {
            let sp = self.saved.registers.rsp;
            let registers = arch::calling(&self.saved.registers, instruction, call, sp);
            self.put(&registers)?;
            fault::at(Point::BareSet);
            if self.bare_entry(registers.rip)? {
                fault::at(Point::BareEntry);
                self.run_to_syscall(QUEUED_STEP_MAX)?;
                fault::at(Point::BareExit);
                return Ok(arch::result(&self.now()?));
            }
        }
        Err(InjectError::EntrySilent)
    }

    /// Resumes up to the entry of our call. A signal that arrives before is delivered to the thread
    /// as it was, and the thread is stopped again: `false`.
    fn bare_entry(&mut self, instruction: u64) -> Result<bool, InjectError> {
        loop {
            match self.step(QUEUED_STEP_MAX)? {
                TraceeEvent::Syscall
                    if self.now()?.rip == instruction + arch::SYSCALL.len() as u64 =>
                {
                    return Ok(true);
                }
                TraceeEvent::Syscall | TraceeEvent::Timeout => {
                    return Err(InjectError::EntrySilent);
                }
                TraceeEvent::Group | TraceeEvent::Interrupt => {}
                TraceeEvent::Signal(signal) => {
                    self.put(&self.saved.registers.clone())?;
                    self.redeliver(signal, Instant::now() + STEP_MAX)?;
                    return Ok(false);
                }
                TraceeEvent::Exec => return Err(InjectError::Executed),
                TraceeEvent::Ended(_) => return Err(InjectError::Gone),
            }
        }
    }

    fn redeliver(&mut self, signal: i32, deadline: Instant) -> Result<(), InjectError> {
        self.tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
        (self.is_current, self.touched) = (false, false);
        self.tracee.resume(Resume::Run, signal).map_err(|e| system("PTRACE_CONT", &e))?;
        self.group = wait_interrupt(&self.tracee, deadline)?;
        self.settle(deadline)?;
        self.prepare()
    }
}
