//! A thread stopped with its whole state saved, and the ways to let it run something.
//!
//! Three ways, the safest that the thread bears:
//! - `launch`: set going on a chain and detached at once. Whatever happens to us, it comes home.
//! - `walk`: led through a chain's steps one by one, its results read. Should we die, the rest of
//!   the chain runs by itself; all that can be lost is a restart block (one EINTR).
//! - `call_bare`: one system call with nothing behind it, for a thread whose stack must not be
//!   written while no segment of ours is mapped. Should we die in these microseconds, it is lost.
//!
//! # Invariants
//! - Between putting the registers back and running there is a detach: only there does the kernel
//!   look at the restart codes again.
//! - The signal mask is blocked only while the registers are on a chain whose last frame holds
//!   the thread's own mask.

use std::io;
use std::time::{Duration, Instant};

use super::arch::{self, Interrupted, Registers};
use super::chain::{Call, Chain, Saved, Step};
use super::error::InjectError;
use super::ptrace::{Resume, Stop, Tracee};
use crate::proc;

/// Longest time for one step of a thread that we hold.
const STEP_MAX: Duration = Duration::from_secs(1);
/// Between two looks at whether a thread still waits for a processor.
const QUEUE_LOOK: Duration = Duration::from_millis(20);
/// Attempts to stop a thread with no signal pending.
const QUIET_TRIES: usize = 16;
/// Longest wait for a pending signal to be reported.
const DELIVERY_MAX: Duration = Duration::from_millis(5);
/// Attempts at a bare call between the arrivals of signals.
const BARE_TRIES: usize = 16;
const ALL_SIGNALS: u64 = u64::MAX;

/// A thread stopped, its state saved.
#[derive(Debug)]
pub(super) struct Stopped {
    tracee: Tracee,
    /// The state to come back to.
    pub(super) saved: Saved,
    /// What the stop interrupted.
    pub(super) interrupted: Interrupted,
    /// Job control has stopped the process: a launched chain would not run until SIGCONT.
    pub(super) group: bool,
    since: Instant,
    entry_stop: bool,
    masked: bool,
    touched: bool,
}

/// Why a thread could not be stopped so that it can be used.
#[derive(Debug)]
pub(super) enum NotStopped {
    /// It is gone, or executed another program.
    Gone(InjectError),
    /// It did not stop in time: the tracing thread must end for it to be let go.
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
    /// Waits for the stop that was asked for, passing signals on, and saves the thread's state.
    pub(super) fn collect(
        tracee: Tracee,
        since: Instant,
        deadline: Instant,
    ) -> Result<Stopped, NotStopped> {
        let group = wait_interrupt(&tracee, deadline)?;
        Self::take(tracee, group, since, deadline)
    }

    /// As [`Self::collect`], but a thread that waits for a processor is waited for until `last`.
    fn collect_queued(
        tracee: Tracee,
        since: Instant,
        deadline: Instant,
        last: Instant,
    ) -> Result<Stopped, NotStopped> {
        let mut until = deadline;
        let group = loop {
            match wait_interrupt(&tracee, until) {
                Err(NotStopped::Timeout)
                    if Instant::now() < last && proc::is_runnable(tracee.tid()) =>
                {
                    until = Instant::now() + QUEUE_LOOK;
                }
                outcome => break outcome?,
            }
        };
        Self::take(tracee, group, since, deadline.max(Instant::now() + STEP_MAX))
    }

    /// Takes a thread over that was stopped before its program's first instruction.
    pub(super) fn adopt(tracee: Tracee) -> Result<Stopped, NotStopped> {
        let now = Instant::now();
        Self::take(tracee, false, now, now + STEP_MAX)
    }

    fn take(
        tracee: Tracee,
        group: bool,
        since: Instant,
        deadline: Instant,
    ) -> Result<Stopped, NotStopped> {
        let mut stopped = Stopped {
            tracee,
            saved: Saved { registers: arch::zeroed(), xstate: Vec::new(), mask: 0 },
            interrupted: Interrupted::User,
            group,
            since,
            entry_stop: false,
            masked: false,
            touched: false,
        };
        stopped.settle(deadline)?;
        Ok(stopped)
    }

    /// Saves the state; if a signal is about to be delivered, lets that happen first. Delivered
    /// on a chain its handler might jump away and the chain would never run; and to issue an
    /// interrupted system call again as if there were no signal would lose the signal's effect.
    fn settle(&mut self, deadline: Instant) -> Result<(), NotStopped> {
        for _ in 0..QUIET_TRIES {
            self.save().map_err(|error| failed("reading registers", &error))?;
            if !arch::is_native(&self.saved.registers) {
                // What was saved of a foreign thread is never put back: detach leaves it as it is.
                return Err(NotStopped::Foreign);
            }
            if self.group || self.is_quiet() {
                return Ok(());
            }
            self.group = self.deliver(deadline)?;
        }
        Ok(())
    }

    /// Lets a pending signal be delivered, and stops the thread anew before its handler's first
    /// instruction. To ask for the stop first would have the thread stop again before it takes the
    /// signal: only a thread that reports the signal is sure to take it.
    fn deliver(&self, deadline: Instant) -> Result<bool, NotStopped> {
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
        match stop {
            Stop::Signal(signal) => resume(signal)?,
            Stop::Syscall => resume(0)?,
            _ => {}
        }
        wait_interrupt(&self.tracee, deadline)
    }

    /// No signal is about to be delivered.
    fn is_quiet(&self) -> bool {
        let pending = self.tracee.pending().unwrap_or_default();
        pending.iter().all(|signal| signal.bit() & !self.saved.mask == 0)
    }

    /// A hit of a sampling event waits for the thread to unblock the signal.
    pub(super) fn owes_hit(&self, signal: i32) -> bool {
        match self.tracee.pending() {
            Ok(pending) => pending.iter().any(|one| one.number == signal && one.is_hit()),
            // Unknown: the cure then takes the way that is safe for the target.
            Err(_) => true,
        }
    }

    fn save(&mut self) -> io::Result<()> {
        let Some(registers) = self.tracee.registers()? else {
            self.saved.registers = arch::zeroed();
            return Ok(());
        };
        self.saved.mask = self.tracee.mask()?;
        self.interrupted = arch::interrupted(&registers);
        self.saved.registers = registers;
        Ok(())
    }

    /// Makes the state complete before anything is run: vector state, restartable sequences. Not
    /// needed to let the thread go as it is.
    pub(super) fn prepare(&mut self) -> Result<(), InjectError> {
        let raw = self.tracee.xstate().map_err(|e| InjectError::system("NT_X86_XSTATE", &e))?;
        self.saved.xstate = arch::frame_xstate(&raw).ok_or_else(|| InjectError::BadPlan {
            reason: "the processor has no XSAVE state, which frames need".to_owned(),
        })?;
        if let Some(abort) = self.rseq_abort() {
            self.saved.registers.rip = abort;
            self.touched = true;
        }
        Ok(())
    }

    /// Where the thread must go on if it was inside a restartable sequence. Moving it elsewhere
    /// and back makes the kernel forget the sequence, which would then commit although other
    /// threads ran on its processor meanwhile.
    fn rseq_abort(&self) -> Option<u64> {
        if self.interrupted != Interrupted::User {
            return None;
        }
        let area = self.tracee.rseq()?;
        let mut pointer = [0; 8];
        self.tracee.read(area + 8, &mut pointer).ok()?;
        let descriptor = u64::from_le_bytes(pointer);
        if descriptor == 0 {
            return None;
        }
        let mut bytes = [0; 32];
        self.tracee.read(descriptor, &mut bytes).ok()?;
        let word = |index: usize| {
            bytes[index * 8..index * 8 + 8].iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b))
        };
        let (start, length, abort) = (word(1), word(2), word(3));
        (self.saved.registers.rip.wrapping_sub(start) < length).then_some(abort)
    }

    pub(super) fn tid(&self) -> i32 {
        self.tracee.tid()
    }

    /// These bytes are at this address.
    pub(super) fn holds(&self, address: u64, bytes: &[u8]) -> bool {
        let mut found = vec![0; bytes.len()];
        self.tracee.read(address, &mut found).is_ok() && found == bytes
    }

    /// Reads the target's memory.
    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> io::Result<()> {
        self.tracee.read(address, into)
    }

    /// Sets the thread going on a chain and lets it go.
    pub(super) fn launch(self, chain: &Chain) -> Result<Duration, InjectError> {
        let write = |e| InjectError::system("writing frames", &e);
        self.tracee.write(chain.base, &chain.bytes).map_err(write)?;
        let set = |e| InjectError::system("PTRACE_SETREGSET", &e);
        self.tracee.set_registers(&chain.start).map_err(set)?;
        self.tracee.detach().map_err(|e| InjectError::system("PTRACE_DETACH", &e))?;
        Ok(self.since.elapsed())
    }

    /// Leads the thread through a chain and gives the results of its calls. Afterwards it is still
    /// stopped, on the chain: another walk, or `release`, must follow.
    pub(super) fn walk(&mut self, chain: &Chain, steps: &[Step]) -> Result<Vec<i64>, InjectError> {
        self.tracee
            .write(chain.base, &chain.bytes)
            .map_err(|e| InjectError::system("writing frames", &e))?;
        let mut results = Vec::with_capacity(steps.len());
        for (index, (registers, step)) in chain.steps.iter().zip(steps).enumerate() {
            self.put(registers)?;
            if !self.masked {
                self.tracee
                    .set_mask(ALL_SIGNALS)
                    .map_err(|e| InjectError::system("PTRACE_SETSIGMASK", &e))?;
                self.masked = true;
            }
            match step {
                Step::Call(_) => results.push(self.through_call()?),
                Step::Enter { .. } => self.through_entry(chain.frame_after(index))?,
            }
        }
        Ok(results)
    }

    fn through_call(&mut self) -> Result<i64, InjectError> {
        self.run_to_syscall()?;
        self.run_to_syscall()?;
        Ok(arch::result(&self.now()?))
    }

    fn through_entry(&mut self, ucontext: u64) -> Result<(), InjectError> {
        loop {
            self.run_to_syscall()?;
            if arch::is_sigreturn(&self.now()?, ucontext) {
                self.entry_stop = true;
                return Ok(());
            }
            self.run_to_syscall()?;
        }
    }

    fn now(&self) -> Result<Registers, InjectError> {
        let registers =
            self.tracee.registers().map_err(|e| InjectError::system("PTRACE_GETREGSET", &e))?;
        registers.ok_or(InjectError::Gone)
    }

    fn put(&mut self, registers: &Registers) -> Result<(), InjectError> {
        self.touched = true;
        self.tracee
            .set_registers(registers)
            .map_err(|e| InjectError::system("PTRACE_SETREGSET", &e))
    }

    /// Runs to the next system call stop. Signals are blocked, so that only job control and faults
    /// can come between.
    fn run_to_syscall(&mut self) -> Result<(), InjectError> {
        let deadline = Instant::now() + STEP_MAX;
        loop {
            self.tracee
                .resume(Resume::ToSyscall, 0)
                .map_err(|e| InjectError::system("PTRACE_SYSCALL", &e))?;
            match self.wait(deadline)? {
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

    fn wait(&self, deadline: Instant) -> Result<Stop, InjectError> {
        self.tracee.wait(deadline).map_err(|e| InjectError::system("waitpid", &e))
    }

    /// Makes one system call with nothing behind it.
    pub(super) fn call_bare(&mut self, instruction: u64, call: &Call) -> Result<i64, InjectError> {
        for _ in 0..BARE_TRIES {
            let sp = self.saved.registers.rsp;
            let registers = arch::calling(&self.saved.registers, instruction, call, sp);
            self.put(&registers)?;
            if self.bare_entry(registers.rip)? {
                self.run_to_syscall()?;
                return Ok(arch::result(&self.now()?));
            }
        }
        Err(InjectError::EntrySilent)
    }

    /// Runs to the entry of our call. A signal that arrives before it is delivered to the thread
    /// as it was, which is then stopped anew: `false`.
    fn bare_entry(&mut self, instruction: u64) -> Result<bool, InjectError> {
        let deadline = Instant::now() + STEP_MAX;
        loop {
            self.tracee
                .resume(Resume::ToSyscall, 0)
                .map_err(|e| InjectError::system("PTRACE_SYSCALL", &e))?;
            match self.wait(deadline)? {
                Stop::Syscall if self.now()?.rip == instruction + arch::SYSCALL.len() as u64 => {
                    return Ok(true);
                }
                Stop::Syscall => return Err(InjectError::EntrySilent),
                Stop::Group | Stop::Interrupt => {}
                Stop::Signal(signal) => {
                    let own = self.saved.registers;
                    self.put(&own)?;
                    self.redeliver(signal, deadline)?;
                    return Ok(false);
                }
                Stop::Exec => return Err(InjectError::Executed),
                Stop::Ended(_) => return Err(InjectError::Gone),
                Stop::Timeout => return Err(InjectError::EntrySilent),
            }
        }
    }

    fn redeliver(&mut self, signal: i32, deadline: Instant) -> Result<(), InjectError> {
        self.tracee.interrupt().map_err(|e| InjectError::system("PTRACE_INTERRUPT", &e))?;
        self.tracee
            .resume(Resume::Run, signal)
            .map_err(|e| InjectError::system("PTRACE_CONT", &e))?;
        self.touched = false;
        self.group = wait_interrupt(&self.tracee, deadline)?;
        self.settle(deadline)?;
        self.prepare()
    }

    /// Lets a thread that has run nothing of ours go on for a moment, and stops it anew. Its state
    /// is saved anew.
    pub(super) fn nudge(&mut self, for_: Duration, deadline: Instant) -> Result<(), InjectError> {
        self.put_back()?;
        self.tracee.resume(Resume::Run, 0).map_err(|e| InjectError::system("PTRACE_CONT", &e))?;
        std::thread::sleep(for_);
        self.tracee.interrupt().map_err(|e| InjectError::system("PTRACE_INTERRUPT", &e))?;
        self.group = wait_interrupt(&self.tracee, deadline)?;
        self.settle(deadline)?;
        Ok(())
    }

    fn put_back(&mut self) -> Result<(), InjectError> {
        if self.masked {
            // The mask first: the registers are still on a chain, which restores it as well.
            self.tracee
                .set_mask(self.saved.mask)
                .map_err(|e| InjectError::system("PTRACE_SETSIGMASK", &e))?;
            self.masked = false;
        }
        if self.touched || (self.interrupted == Interrupted::Broken && self.is_quiet()) {
            // At the entry of our rt_sigreturn the call is skipped, and no exit looks at restart
            // codes: the registers must already be those of the call issued again.
            let own = if self.entry_stop {
                arch::resumed(&self.saved.registers)
            } else {
                arch::untouched(&self.saved.registers)
            };
            self.put(&own)?;
            self.entry_stop = false;
        }
        Ok(())
    }

    /// Puts the thread back as it was and lets it go.
    pub(super) fn release(mut self) -> Result<Duration, InjectError> {
        self.put_back()?;
        self.tracee.detach().map_err(|e| InjectError::system("PTRACE_DETACH", &e))?;
        Ok(self.since.elapsed())
    }
}

/// Waits for the stop that was asked for. Signals that come before it are delivered. `true`: the
/// process is stopped by job control.
fn wait_interrupt(tracee: &Tracee, deadline: Instant) -> Result<bool, NotStopped> {
    loop {
        match tracee.wait(deadline).map_err(|error| failed("waitpid", &error))? {
            Stop::Interrupt => return Ok(false),
            Stop::Group => return Ok(true),
            Stop::Signal(signal) => {
                tracee.resume(Resume::Run, signal).map_err(|error| failed("PTRACE_CONT", &error))?
            }
            Stop::Syscall => {
                tracee.resume(Resume::Run, 0).map_err(|error| failed("PTRACE_CONT", &error))?
            }
            Stop::Exec => return Err(NotStopped::Gone(InjectError::Executed)),
            Stop::Ended(_) => return Err(NotStopped::Gone(InjectError::Gone)),
            Stop::Timeout => return Err(NotStopped::Timeout),
        }
    }
}

/// Seizes a thread, stops it and saves its state. One that waits for a processor loses nothing by
/// being waited for: it gets `queued_limit`.
pub(super) fn stop(
    tid: i32,
    limit: Duration,
    queued_limit: Duration,
) -> Result<Stopped, NotStopped> {
    let tracee = Tracee::seize(tid).map_err(|error| failed("PTRACE_SEIZE", &error))?;
    let since = Instant::now();
    tracee.interrupt().map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
    Stopped::collect_queued(tracee, since, since + limit, since + queued_limit)
}
