//! The three ways to make a stopped thread run something.
//!
//! The caller uses the safest way that the thread permits:
//! - `launch` sets the thread on a chain and detaches it at once. The thread finishes whatever
//!   happens to the tracer.
//! - `run_stepwise` steps the thread through a chain and reads the results. If the tracer dies, the
//!   remaining chain runs by itself; at worst a restart block is lost (one EINTR).
//! - `run_bare_call` makes one system call with no frame to return through. It serves threads whose
//!   stack must not be written before one of our segments is mapped. If the tracer dies in these
//!   microseconds, the thread is lost.
//!
//! # Invariants
//! - The watchdog spares the tracer from the start of a bare call until the thread is on a chain or
//!   back in its own state.
//! - The signals are blocked only while the registers are on a chain whose last frame holds the
//!   thread's own mask.

use std::time::{Duration, Instant};

use super::launched::Launched;
use super::stepper::{QUEUED_STEP_MAX, STEP_MAX};
use super::{Stopped, system, wait_interrupt};
use crate::fault::{self, FaultPoint};
use crate::inject::arch;
use crate::inject::error::InjectError;
use crate::inject::ptrace::{Resume, TraceeEvent, watchdog};
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
        fault::at(FaultPoint::LaunchWritten);
        self.put(&chain.start)?;
        watchdog::set_may_kill(true);
        fault::at(FaultPoint::LaunchSet);
        // A handler on the chain could jump away. Before this call, the first frame would block the
        // signals if the tracer died. From here on the thread needs no tracer: the last frame holds
        // its mask.
        self.thread.block_signals()?;
        fault::at(FaultPoint::LaunchMasked);
        self.back.is_current = false;
        self.detach()?;
        fault::at(FaultPoint::LaunchGone);
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
        fault::at(FaultPoint::StepWritten);
        let mut results = Vec::with_capacity(steps.len());
        for (index, (registers, step)) in chain.steps.iter().zip(steps).enumerate() {
            if self.held_until.is_some_and(|until| Instant::now() >= until) {
                return Err(InjectError::EntryTimedOut);
            }
            self.put(registers)?;
            watchdog::set_may_kill(true);
            fault::at(FaultPoint::StepSet);
            if !self.thread.is_masked {
                self.thread.block_signals()?;
            }
            fault::at(FaultPoint::StepMasked);
            match step {
                ChainStep::Syscall(_) => results.push(self.thread.step_through_call()?),
                ChainStep::Enter { .. } => {
                    self.back.entered = true;
                    self.thread.step_through_entry(chain.frame_after(index))?;
                }
            }
        }
        Ok(results)
    }

    /// Makes one system call with no frame to return through.
    pub(in crate::inject) fn run_bare_call(
        &mut self,
        instruction: u64,
        call: &Syscall,
    ) -> Result<i64, InjectError> {
        if self.thread.is_masked {
            // If the tracer dies now, the thread is probably lost, but its signals must not stay
            // blocked.
            self.thread.unblock_signals(self.back.saved.mask)?;
        }
        for _ in 0..BARE_TRIES {
            let sp = self.back.saved.registers.rsp;
            let registers = arch::calling(&self.back.saved.registers, instruction, call, sp);
            watchdog::set_may_kill(false);
            self.put(&registers)?;
            fault::at(FaultPoint::BareSet);
            if self.bare_entry(registers.rip)? {
                fault::at(FaultPoint::BareEntry);
                self.thread.run_to_syscall(QUEUED_STEP_MAX)?;
                fault::at(FaultPoint::BareExit);
                return Ok(arch::result(&self.thread.registers()?));
            }
        }
        Err(InjectError::EntryTimedOut)
    }

    /// Resumes the thread up to the entry of our call. A signal that arrives before is delivered to
    /// the thread in its own state, and the thread is stopped again. Returns `false` in that case.
    fn bare_entry(&mut self, instruction: u64) -> Result<bool, InjectError> {
        loop {
            match self.thread.step(QUEUED_STEP_MAX)? {
                TraceeEvent::Syscall
                    if self.thread.registers()?.rip == instruction + arch::SYSCALL.len() as u64 =>
                {
                    return Ok(true);
                }
                TraceeEvent::Syscall | TraceeEvent::Timeout => {
                    return Err(InjectError::EntryTimedOut);
                }
                TraceeEvent::Group | TraceeEvent::Interrupt => {}
                TraceeEvent::Signal(signal) => {
                    self.put(&self.back.saved.registers.clone())?;
                    watchdog::set_may_kill(true);
                    self.redeliver(signal, Instant::now() + STEP_MAX)?;
                    return Ok(false);
                }
                TraceeEvent::Exec => return Err(InjectError::Executed),
                TraceeEvent::Exited(_) => return Err(InjectError::Gone),
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

    /// Lets a thread that runs nothing of ours run for a moment, stops it again and saves its new
    /// state.
    pub(in crate::inject) fn nudge(
        &mut self,
        for_: Duration,
        deadline: Instant,
    ) -> Result<(), InjectError> {
        self.put_back()?;
        (self.back.is_current, self.back.touched) = (false, false);
        self.thread.tracee.resume(Resume::Run, 0).map_err(|e| system("PTRACE_CONT", &e))?;
        watchdog::sleep(for_);
        self.thread.tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
        self.group = wait_interrupt(&self.thread.tracee, deadline)?;
        self.settle(deadline)?;
        Ok(())
    }
}
