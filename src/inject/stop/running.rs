//! The ways to let a stopped thread run something.
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
//! - The signals are blocked only while the registers are on a chain whose last frame holds the
//!   thread's own mask.

use std::time::{Duration, Instant};

use super::launched::Launched;
use super::stepper::{QUEUED_STEP_MAX, STEP_MAX};
use super::{Stopped, system, wait_interrupt};
use crate::fault::{self, Point};
use crate::inject::arch;
use crate::inject::error::InjectError;
use crate::inject::ptrace::{Resume, TraceeEvent};
use crate::inject::sigreturn_chain::{Chain, ChainStep};
use crate::inject::syscall::Syscall;

/// Attempts at a bare call between arriving signals.
const BARE_TRIES: usize = 16;

impl Stopped {
    /// Sets the thread on a chain and detaches it.
    pub(in crate::inject) fn launch(mut self, chain: Chain) -> Result<Launched, InjectError> {
        self.thread
            .tracee
            .write(chain.base, &chain.bytes)
            .map_err(|e| system("writing frames", &e))?;
        fault::at(Point::LaunchWritten);
        self.put(&chain.start)?;
        fault::at(Point::LaunchSet);
        // A handler that ran on the chain could jump away. Until this call the first frame would
        // block the signals, if we died. From here on the thread needs no tracer: the last frame
        // holds its mask.
        self.thread.block_signals()?;
        fault::at(Point::LaunchMasked);
        self.back.is_current = false;
        self.detach()?;
        fault::at(Point::LaunchGone);
        let (tid, stopped) = (self.tid(), self.since.elapsed());
        Ok(Launched::new(tid, self.back.saved.clone(), chain, stopped))
    }

    /// Steps the thread through a chain and returns the results of its calls. Afterwards the thread
    /// is still held, on the chain; another chain or `release` must follow.
    pub(in crate::inject) fn run_stepwise(
        &mut self,
        chain: &Chain,
        steps: &[ChainStep],
    ) -> Result<Vec<i64>, InjectError> {
        self.thread
            .tracee
            .write(chain.base, &chain.bytes)
            .map_err(|e| system("writing frames", &e))?;
        fault::at(Point::StepWritten);
        let mut results = Vec::with_capacity(steps.len());
        for (index, (registers, step)) in chain.steps.iter().zip(steps).enumerate() {
            if self.held_until.is_some_and(|until| Instant::now() >= until) {
                return Err(InjectError::EntrySilent);
            }
            self.put(registers)?;
            fault::at(Point::StepSet);
            if !self.thread.is_masked {
                self.thread.block_signals()?;
            }
            fault::at(Point::StepMasked);
            match step {
                ChainStep::Syscall(_) => results.push(self.thread.through_call()?),
                ChainStep::Enter { .. } => {
                    self.back.entered = true;
                    self.thread.through_entry(chain.frame_after(index))?;
                }
            }
        }
        Ok(results)
    }

    /// Makes one system call with nothing behind it.
    pub(in crate::inject) fn run_bare_call(
        &mut self,
        instruction: u64,
        call: &Syscall,
    ) -> Result<i64, InjectError> {
        if self.thread.is_masked {
            // If we die now the thread is probably lost, but its signals must not stay blocked.
            self.thread.unblock_signals(self.back.saved.mask)?;
        }
        for _ in 0..BARE_TRIES {
            let sp = self.back.saved.registers.rsp;
            let registers = arch::calling(&self.back.saved.registers, instruction, call, sp);
            self.put(&registers)?;
            fault::at(Point::BareSet);
            if self.bare_entry(registers.rip)? {
                fault::at(Point::BareEntry);
                self.thread.run_to_syscall(QUEUED_STEP_MAX)?;
                fault::at(Point::BareExit);
                return Ok(arch::result(&self.thread.now()?));
            }
        }
        Err(InjectError::EntrySilent)
    }

    /// Resumes up to the entry of our call. A signal that arrives before is delivered to the thread
    /// as it was, and the thread is stopped again: `false`.
    fn bare_entry(&mut self, instruction: u64) -> Result<bool, InjectError> {
        loop {
            match self.thread.step(QUEUED_STEP_MAX)? {
                TraceeEvent::Syscall
                    if self.thread.now()?.rip == instruction + arch::SYSCALL.len() as u64 =>
                {
                    return Ok(true);
                }
                TraceeEvent::Syscall | TraceeEvent::Timeout => {
                    return Err(InjectError::EntrySilent);
                }
                TraceeEvent::Group | TraceeEvent::Interrupt => {}
                TraceeEvent::Signal(signal) => {
                    self.put(&self.back.saved.registers.clone())?;
                    self.redeliver(signal, Instant::now() + STEP_MAX)?;
                    return Ok(false);
                }
                TraceeEvent::Exec => return Err(InjectError::Executed),
                TraceeEvent::Ended(_) => return Err(InjectError::Gone),
            }
        }
    }

    fn redeliver(&mut self, signal: i32, deadline: Instant) -> Result<(), InjectError> {
        self.thread.tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
        (self.back.is_current, self.back.touched) = (false, false);
        self.thread.tracee.resume(Resume::Run, signal).map_err(|e| system("PTRACE_CONT", &e))?;
        self.group = wait_interrupt(&self.thread.tracee, deadline)?;
        self.settle(deadline)?;
        self.prepare()
    }

    /// Lets a thread that has run nothing of ours run for a moment, stops it again and saves its
    /// new state.
    pub(in crate::inject) fn nudge(
        &mut self,
        for_: Duration,
        deadline: Instant,
    ) -> Result<(), InjectError> {
        self.put_back()?;
        (self.back.is_current, self.back.touched) = (false, false);
        self.thread.tracee.resume(Resume::Run, 0).map_err(|e| system("PTRACE_CONT", &e))?;
        std::thread::sleep(for_);
        self.thread.tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
        self.group = wait_interrupt(&self.thread.tracee, deadline)?;
        self.settle(deadline)?;
        Ok(())
    }
}
