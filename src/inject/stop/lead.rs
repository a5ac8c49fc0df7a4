//! A stopped thread that is led: step by step on a chain, or through one bare system call.
//!
//! # Invariants
//! - A thread that was set going under our hand is never let go on its way, whatever else failed:
//!   whoever lets it go first waits for its next stop. Among a thousand others, or in a control
//!   group that has used up its share, that comes after seconds. Left alone it would return from a
//!   bare call into nothing, or run the rest of a chain at some later time, on whatever is there by
//!   then (both seen in a starved target).
//! - The signal mask is blocked only while the registers are on a chain whose last frame holds
//!   the thread's own mask.

use std::time::{Duration, Instant};

use super::super::arch::{self, Registers};
use super::super::chain::{Call, Chain, Step};
use super::super::error::InjectError;
use super::super::ptrace::{Resume, Stop};
use super::{ALL_SIGNALS, QUEUE_LOOK, Stopped, system, wait_interrupt};
use crate::fault::{self, Point};
use crate::proc;

/// Longest time for one step of a thread that we hold.
const STEP_MAX: Duration = Duration::from_secs(1);
/// The same for a thread that only waits for a processor.
const QUEUED_STEP_MAX: Duration = Duration::from_secs(5);
/// Attempts at a bare call between the arrivals of signals.
const BARE_TRIES: usize = 16;

impl Stopped {
    /// Leads the thread through a chain and gives the results of its calls. Afterwards it is still
    /// held, on the chain: another walk, or `release`, must follow.
    pub(in super::super) fn walk(
        &mut self,
        chain: &Chain,
        steps: &[Step],
    ) -> Result<Vec<i64>, InjectError> {
        self.tracee.write(chain.base, &chain.bytes).map_err(|e| system("writing frames", &e))?;
        fault::at(Point::LeadWritten);
        let mut results = Vec::with_capacity(steps.len());
        for (index, (registers, step)) in chain.steps.iter().zip(steps).enumerate() {
            if self.held_until.is_some_and(|until| Instant::now() >= until) {
                return Err(InjectError::EntrySilent);
            }
            self.put(registers)?;
            fault::at(Point::LeadSet);
            if !self.masked {
                self.tracee.set_mask(ALL_SIGNALS).map_err(|e| system("PTRACE_SETSIGMASK", &e))?;
                self.masked = true;
            }
            fault::at(Point::LeadMasked);
            match step {
                Step::Call(_) => results.push(self.through_call()?),
                Step::Enter { .. } => {
                    self.entered = true;
                    self.through_entry(chain.frame_after(index))?;
                }
            }
        }
        Ok(results)
    }

    fn through_call(&mut self) -> Result<i64, InjectError> {
        self.run_to_syscall(QUEUED_STEP_MAX)?;
        fault::at(Point::LeadEntry);
        self.run_to_syscall(QUEUED_STEP_MAX)?;
        fault::at(Point::LeadExit);
        Ok(arch::result(&self.now()?))
    }

    /// Without a time limit: what the entry does must not be left half done, it ends, and no other
    /// thread is held meanwhile.
    fn through_entry(&mut self, ucontext: u64) -> Result<(), InjectError> {
        loop {
            self.run_to_syscall(Duration::MAX)?;
            if arch::is_sigreturn(&self.now()?, ucontext) {
                fault::at(Point::LeadEntered);
                return Ok(());
            }
            self.run_to_syscall(Duration::MAX)?;
        }
    }

    fn now(&self) -> Result<Registers, InjectError> {
        let registers = self.tracee.registers().map_err(|e| system("PTRACE_GETREGSET", &e))?;
        registers.ok_or(InjectError::Gone)
    }

    /// Runs to the next system call stop. Signals are blocked, so that only job control and faults
    /// can come between.
    fn run_to_syscall(&mut self, queued_max: Duration) -> Result<(), InjectError> {
        loop {
            match self.step(queued_max)? {
                Stop::Syscall => return Ok(()),
                // The first resume out of a group stop only reports it again.
                Stop::Group | Stop::Interrupt => {}
                Stop::Signal(_) => return Err(InjectError::EntryFailed { error: 0, errno: 0 }),
                Stop::Exec => return Err(InjectError::Executed),
                Stop::Ended(_) => return Err(InjectError::Gone),
                Stop::Timeout => return Err(InjectError::EntrySilent),
            }
        }
    }

    /// Runs to the next stop. A thread that waits for a processor is given so long.
    fn step(&mut self, queued_max: Duration) -> Result<Stop, InjectError> {
        self.set_going()?;
        let since = Instant::now();
        let mut until = since + STEP_MAX;
        loop {
            match self.tracee.wait(until).map_err(|e| system("waitpid", &e))? {
                // The one signal that no mask keeps away; the chain is not the place to stop at.
                Stop::Signal(libc::SIGSTOP) if self.masked => {
                    self.stop_asked = true;
                    self.set_going()?;
                }
                Stop::Timeout => {
                    let is_queued = proc::is_runnable(self.tid());
                    let is_limited = queued_max != Duration::MAX;
                    if is_limited && (!is_queued || since.elapsed() >= queued_max) {
                        return Ok(Stop::Timeout);
                    }
                    until = Instant::now() + QUEUE_LOOK;
                }
                stop => {
                    self.on_the_way = false;
                    return Ok(stop);
                }
            }
        }
    }

    /// Lets it go on to its next system call stop.
    fn set_going(&mut self) -> Result<(), InjectError> {
        self.tracee.resume(Resume::ToSyscall, 0).map_err(|e| system("PTRACE_SYSCALL", &e))?;
        self.on_the_way = true;
        Ok(())
    }

    /// Waits for the next stop of a thread that was set going, however long that takes.
    pub(super) fn catch(&mut self) -> Result<(), InjectError> {
        while self.on_the_way {
            let slice = Instant::now() + STEP_MAX;
            match self.tracee.wait(slice).map_err(|e| system("waitpid", &e))? {
                Stop::Timeout => {}
                Stop::Ended(_) => return Err(InjectError::Gone),
                Stop::Exec => {
                    // Nothing of what was saved is this program's.
                    (self.on_the_way, self.is_current) = (false, false);
                }
                stop => {
                    self.on_the_way = false;
                    match stop {
                        Stop::Signal(libc::SIGSTOP) if self.masked => self.stop_asked = true,
                        // On a chain it can only be a fault of the chain's own.
                        Stop::Signal(signal) if !self.masked => self.owed_signal = signal,
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Leads a thread that is at the entry of a system call past it, without its being made: another
    /// is made that does nothing, as no signal has number 0. To have none made at all would show a
    /// seccomp filter a number that it forbids; this one the agent's entry has made before. Should we die
    /// before the thread has its registers back, it goes on behind the call: on a chain to the next
    /// frame, in our restorer to the call that was left out.
    pub(super) fn pass_entry(&mut self) -> Result<(), InjectError> {
        if !self.tracee.is_at_entry() {
            return Ok(());
        }
        let now = self.now()?;
        self.put(&arch::instead(&now, &Call::sigaction(0, 0, 0)))?;
        self.set_going()?;
        self.catch()
    }

    /// Makes one system call with nothing behind it.
    pub(in super::super) fn call_bare(
        &mut self,
        instruction: u64,
        call: &Call,
    ) -> Result<i64, InjectError> {
        if self.masked {
            // Should we die now, it is lost, or lucky; it must not be deaf as well.
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

    /// Runs to the entry of our call. A signal that arrives before it is delivered to the thread
    /// as it was, which is then stopped anew: `false`.
    fn bare_entry(&mut self, instruction: u64) -> Result<bool, InjectError> {
        loop {
            match self.step(QUEUED_STEP_MAX)? {
                Stop::Syscall if self.now()?.rip == instruction + arch::SYSCALL.len() as u64 => {
                    return Ok(true);
                }
                Stop::Syscall | Stop::Timeout => return Err(InjectError::EntrySilent),
                Stop::Group | Stop::Interrupt => {}
                Stop::Signal(signal) => {
                    self.put(&self.saved.registers.clone())?;
                    self.redeliver(signal, Instant::now() + STEP_MAX)?;
                    return Ok(false);
                }
                Stop::Exec => return Err(InjectError::Executed),
                Stop::Ended(_) => return Err(InjectError::Gone),
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
