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
//! - Whatever fails, a thread is put back before it is let go, also when it is dropped.

use std::io;
use std::time::{Duration, Instant};

use super::arch::{self, Interrupted, Registers};
use super::chain::Saved;
use super::error::InjectError;
use super::filter::Instruction;
use super::ptrace::{self, Resume, Stop, Tracee};
use crate::fault::{self, Point};
use crate::proc;

mod asked;
mod launched;
mod lead;
mod waiting;
mod withheld;

pub(super) use self::asked::{Asked, Look};
pub(super) use self::launched::Launched;
pub(super) use self::withheld::{count_withheld, take_withheld};

/// Longest time that a thread takes to settle after it had to wait for its stop.
const SETTLED_MAX: Duration = Duration::from_secs(1);
/// Between two looks at whether a thread still waits for a processor.
const QUEUE_LOOK: Duration = Duration::from_millis(20);
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
    group: bool,
    since: Instant,
    /// The thread has not run on its own since its state was saved.
    is_current: bool,
    masked: bool,
    touched: bool,
    /// It has run code of ours, which uses vector registers, and no frame has put them back.
    entered: bool,
    /// Set going under our hand, and not yet seen to stop.
    on_the_way: bool,
    /// A signal that it was about to take when it was caught on its way.
    owed_signal: i32,
    /// It was asked to stop while it was led.
    stop_asked: bool,
    /// It is led through no call after this, while others are held.
    held_until: Option<Instant>,
    /// Signals of which a hit of ours waits, as last noted.
    hits: u64,
    is_let_go: bool,
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
    /// Waits for the stop that was asked for, passing signals on, and saves the thread's state. A
    /// thread that waits for a processor is waited for until `last`.
    pub(super) fn collect(
        tracee: Tracee,
        since: Instant,
        deadline: Instant,
        last: Instant,
    ) -> Result<Stopped, NotStopped> {
        let group = await_stop(&tracee, deadline, last)?;
        Self::take(tracee, group, since, deadline.max(last.min(Instant::now() + SETTLED_MAX)))
    }

    /// As [`Stopped::collect`] for a thread that is only held and let go: signals wait for it as long,
    /// and nothing is asked about them.
    pub(super) fn hold(
        tracee: Tracee,
        since: Instant,
        deadline: Instant,
        last: Instant,
    ) -> Result<Stopped, NotStopped> {
        let group = await_stop(&tracee, deadline, last)?;
        let mut stopped = Self::new(tracee, group, since);
        stopped.save_native()?;
        fault::at(Point::ThreadStopped);
        Ok(stopped)
    }

    /// Takes a thread over that was stopped before its program's first instruction.
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
        fault::at(Point::ThreadStopped);
        Ok(stopped)
    }

    fn new(tracee: Tracee, group: bool, since: Instant) -> Stopped {
        Stopped {
            tracee,
            saved: Saved {
                registers: arch::zeroed(),
                xstate: Vec::new(),
                vectors: Vec::new(),
                mask: 0,
            },
            interrupted: Interrupted::User,
            group,
            since,
            is_current: false,
            masked: false,
            touched: false,
            entered: false,
            on_the_way: false,
            owed_signal: 0,
            stop_asked: false,
            held_until: None,
            hits: 0,
            is_let_go: false,
        }
    }

    /// Has the kernel decide anew about a call that the stop has broken at once, not when the thread is let
    /// go: should we die before that, it sees no EINTR. And a signal that comes later still ends the call.
    fn save(&mut self) -> io::Result<()> {
        let Some(mut registers) = self.tracee.registers()? else {
            self.saved.registers = arch::zeroed();
            return Ok(());
        };
        self.interrupted = arch::interrupted(&registers);
        if self.interrupted == Interrupted::Broken {
            registers = arch::mended(&registers);
            self.tracee.set_registers(&registers)?;
        }
        self.saved.registers = registers;
        self.is_current = true;
        Ok(())
    }

    /// The same; an error if it runs 32-bit code.
    fn save_native(&mut self) -> Result<(), NotStopped> {
        self.save().map_err(|error| failed("reading registers", &error))?;
        if !arch::is_native(&self.saved.registers) {
            // What was saved of a foreign thread is never put back: detach leaves it as it is.
            self.is_current = false;
            return Err(NotStopped::Foreign);
        }
        Ok(())
    }

    /// Makes the state complete before anything is run: mask, vector state, restartable sequences. Not
    /// needed to let the thread go as it is.
    pub(super) fn prepare(&mut self) -> Result<(), InjectError> {
        self.saved.mask = self.mask().map_err(|e| system("PTRACE_GETSIGMASK", &e))?;
        let raw = self.tracee.xstate().map_err(|e| system("NT_X86_XSTATE", &e))?;
        self.saved.xstate = arch::frame_xstate(&raw).ok_or_else(|| InjectError::BadPlan {
            reason: "the processor has no XSAVE state, which frames need".to_owned(),
        })?;
        self.saved.vectors = raw;
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

    /// Its own signal mask.
    pub(super) fn mask(&self) -> io::Result<u64> {
        if self.masked { Ok(self.saved.mask) } else { self.tracee.mask() }
    }

    /// These bytes are at this address.
    pub(super) fn holds(&self, address: u64, bytes: &[u8]) -> bool {
        let mut found = vec![0; bytes.len()];
        self.tracee.read(address, &mut found).is_ok() && found == bytes
    }

    /// The thread's seccomp filters.
    pub(super) fn filters(&self) -> io::Result<Vec<Vec<Instruction>>> {
        self.tracee.filters()
    }

    /// An interrupted sleep is issued anew, not restarted: a filter does not permit the call that the
    /// kernel would restart it with. It may then last longer than it would have.
    pub(super) fn forgo_restart(&mut self) {
        if self.interrupted == Interrupted::RestartBlock {
            self.saved.registers = arch::issued_anew(&self.saved.registers);
            self.interrupted = Interrupted::User;
            self.touched = true;
        }
    }

    /// Reads the target's memory as far as it is there.
    pub(super) fn read_part(&self, address: u64, into: &mut [u8]) -> usize {
        ptrace::read_part(self.tracee.tid(), address, into)
    }

    /// Lets a thread that has run nothing of ours go on for a moment, and stops it anew. Its state
    /// is saved anew.
    pub(super) fn nudge(&mut self, for_: Duration, deadline: Instant) -> Result<(), InjectError> {
        self.put_back()?;
        (self.is_current, self.touched) = (false, false);
        self.tracee.resume(Resume::Run, 0).map_err(|e| system("PTRACE_CONT", &e))?;
        std::thread::sleep(for_);
        self.tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
        self.group = wait_interrupt(&self.tracee, deadline)?;
        self.settle(deadline)?;
        Ok(())
    }

    fn put(&mut self, registers: &Registers) -> Result<(), InjectError> {
        self.touched = true;
        self.tracee.set_registers(registers).map_err(|e| system("PTRACE_SETREGSET", &e))
    }

    fn put_back(&mut self) -> Result<(), InjectError> {
        if !self.is_current {
            return Ok(());
        }
        let was_masked = self.masked;
        if self.touched {
            self.pass_entry()?;
        }
        if self.entered {
            let vectors = &self.saved.vectors;
            self.tracee.set_xstate(vectors).map_err(|e| system("NT_X86_XSTATE", &e))?;
            self.entered = false;
        }
        if self.masked {
            // The mask first: the registers are still on a chain, which restores it as well.
            self.tracee.set_mask(self.saved.mask).map_err(|e| system("PTRACE_SETSIGMASK", &e))?;
            self.masked = false;
            fault::at(Point::BackMasked);
        }
        if self.touched {
            self.put(&self.saved.registers.clone())?;
            fault::at(Point::BackSet);
        }
        let is_in_call = self.interrupted != Interrupted::User;
        if was_masked && is_in_call { self.drop_hits() } else { Ok(()) }
    }

    /// What it goes on with is this.
    fn put_on(&mut self, saved: Saved) {
        self.interrupted = arch::interrupted(&saved.registers);
        self.saved = saved;
        // The chain has its own mask, and may have been through the entry.
        (self.masked, self.touched, self.entered) = (true, true, true);
    }

    /// Lets it be led no further than until then: others are held meanwhile.
    pub(super) fn hold_until(&mut self, last: Instant) {
        self.held_until = Some(last);
    }

    /// Puts the thread back as it was and lets it go. One that was set going and has not stopped
    /// since is waited for, however long that takes.
    pub(super) fn release(mut self) -> Result<Duration, InjectError> {
        self.catch()?;
        self.put_back()?;
        self.let_go()?;
        fault::at(Point::BackGone);
        Ok(self.since.elapsed())
    }

    fn let_go(&mut self) -> Result<(), InjectError> {
        self.is_let_go = true;
        self.tracee.detach(self.owed_signal).map_err(|e| system("PTRACE_DETACH", &e))?;
        if self.stop_asked {
            // If it cannot be sent the thread is gone.
            let _ = self.tracee.send(libc::SIGSTOP);
        }
        Ok(())
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if !self.is_let_go {
            // If it cannot be put back it is gone.
            let _ = self.catch().and_then(|()| self.put_back()).and_then(|()| self.let_go());
        }
    }
}

fn system(call: &str, error: &io::Error) -> InjectError {
    InjectError::system(call, error)
}

/// As [`wait_interrupt`]; a thread that waits for a processor is waited for until `last`.
fn await_stop(tracee: &Tracee, deadline: Instant, last: Instant) -> Result<bool, NotStopped> {
    let mut until = deadline;
    loop {
        match wait_interrupt(tracee, until) {
            Err(NotStopped::Timeout)
                if Instant::now() < last && proc::is_runnable(tracee.tid()) =>
            {
                until = Instant::now() + QUEUE_LOOK;
            }
            outcome => return outcome,
        }
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
    fault::at(Point::ThreadSeized);
    let since = Instant::now();
    tracee.interrupt().map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
    fault::at(Point::ThreadAsked);
    let mut stopped = Stopped::collect(tracee, since, since + limit, since + queued_limit)?;
    stopped.take_signals(since + limit)?;
    Ok(stopped)
}
