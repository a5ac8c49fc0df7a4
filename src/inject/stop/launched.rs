//! A thread that was set going on a chain and let go, and the way to take it off again.
//!
//! A chain comes home by itself, but not when: a thread that gets no processor runs it seconds
//! later. What it does then must not meet another attach (a segment detached from an address that
//! is another agent's by then), so a chain that has not come to its end in time is recalled.

use std::time::{Duration, Instant};

use super::super::arch::{self, Registers};
use super::super::chain::{Chain, Saved};
use super::super::error::InjectError;
use super::super::identity;
use super::super::plan::AttachPlan;
use super::super::ptrace::{Resume, Stop, Tracee};
use super::{ALL_SIGNALS, Stopped, system};

/// Between two looks at a thread that runs the agent's entry.
const RETRY: Duration = Duration::from_millis(5);
/// A wait for a stop is repeated until it comes; so often it is asked for the target's end.
const SLICE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(in super::super) struct Launched {
    tid: i32,
    saved: Saved,
    chain: Chain,
    /// How long the thread was stopped.
    pub(in super::super) stopped: Duration,
}

/// What a recall came to.
enum Recall {
    /// The thread had come home by itself.
    Home,
    /// It was put back.
    Back,
    /// It runs the agent's entry, which ends.
    Inside,
}

impl Stopped {
    /// Sets the thread going on a chain and lets it go.
    pub(in super::super) fn launch(mut self, chain: Chain) -> Result<Launched, InjectError> {
        self.tracee.write(chain.base, &chain.bytes).map_err(|e| system("writing frames", &e))?;
        self.put(&chain.start)?;
        // A handler that ran on the chain could jump away. If we die before this, the first frame
        // does it; from here on the thread is its own, as the last frame holds its mask.
        self.tracee.set_mask(ALL_SIGNALS).map_err(|e| system("PTRACE_SETSIGMASK", &e))?;
        self.masked = true;
        self.is_current = false;
        self.let_go()?;
        let (tid, stopped) = (self.tid(), self.since.elapsed());
        Ok(Launched { tid, saved: self.saved.clone(), chain, stopped })
    }
}

impl Launched {
    pub(in super::super) fn tid(&self) -> i32 {
        self.tid
    }

    /// Takes the thread off the chain if it is still on it, and puts it back as it was; `false` if
    /// it had come home. Waits until the thread stops: without a time limit, as nothing else may be
    /// done to the target before.
    pub(in super::super) fn recall(&self, plan: &AttachPlan) -> Result<bool, InjectError> {
        loop {
            identity::check(plan.pid, plan.start_time)?;
            match identity::disposable(|| self.try_to_recall(plan))? {
                Recall::Home => return Ok(false),
                Recall::Back => return Ok(true),
                Recall::Inside => std::thread::sleep(RETRY),
            }
        }
    }

    fn try_to_recall(&self, plan: &AttachPlan) -> Result<Recall, InjectError> {
        let tracee = match Tracee::seize(self.tid) {
            Ok(tracee) => tracee,
            Err(error) => {
                let error = system("PTRACE_SEIZE", &error);
                return Err(identity::explain(plan.pid, self.tid, error));
            }
        };
        tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
        if !await_stop(&tracee)? {
            return Ok(Recall::Home);
        }
        let now = tracee.registers().map_err(|e| system("PTRACE_GETREGSET", &e))?;
        let recall = match now {
            Some(now) if self.is_on_chain(&tracee, &now) => {
                // The mask first, as the chain restores it as well.
                tracee.set_mask(self.saved.mask).map_err(|e| system("PTRACE_SETSIGMASK", &e))?;
                let own = arch::resumed(&self.saved.registers);
                tracee.set_registers(&own).map_err(|e| system("PTRACE_SETREGSET", &e))?;
                Recall::Back
            }
            Some(now) if plan.code.contains(now.rip) => Recall::Inside,
            _ => Recall::Home,
        };
        tracee.detach(0).map_err(|e| system("PTRACE_DETACH", &e))?;
        Ok(recall)
    }

    /// The stack pointer and the instruction are those of a step, and from the stack pointer on the
    /// chain is as it was written: the program's own code that came by here would have overwritten
    /// what lies above its stack pointer, all of it at once.
    fn is_on_chain(&self, tracee: &Tracee, now: &Registers) -> bool {
        let Some(offset) = now.rsp.checked_sub(self.chain.base) else { return false };
        let Some(rest) = self.chain.bytes.get(offset as usize..).filter(|r| !r.is_empty()) else {
            return false;
        };
        let mut found = vec![0; rest.len()];
        self.chain.landing.contains(now.rip)
            && tracee.read(now.rsp, &mut found).is_ok()
            && found == rest
    }
}

/// Waits for the stop that was asked for; `false` if the thread runs another program now.
fn await_stop(tracee: &Tracee) -> Result<bool, InjectError> {
    loop {
        let stop = tracee.wait(Instant::now() + SLICE).map_err(|e| system("waitpid", &e))?;
        let signal = match stop {
            Stop::Interrupt | Stop::Group => return Ok(true),
            Stop::Exec => {
                tracee.detach(0).map_err(|e| system("PTRACE_DETACH", &e))?;
                return Ok(false);
            }
            Stop::Ended(_) => return Err(InjectError::Gone),
            Stop::Timeout => continue,
            Stop::Signal(signal) => signal,
            Stop::Syscall => 0,
        };
        tracee.resume(Resume::Run, signal).map_err(|e| system("PTRACE_CONT", &e))?;
    }
}
