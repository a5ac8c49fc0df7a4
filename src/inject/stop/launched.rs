//! A thread that was set going on a chain and let go, and the way to take it off again.
//!
//! A chain comes home by itself, but not when: a thread that gets no processor runs it seconds
//! later. What it does then must not meet another attach (a segment detached from an address that
//! is another agent's by then), so a chain that has not come to its end in time is recalled.

use std::time::{Duration, Instant};

use super::super::chain::{Chain, Saved};
use super::super::error::InjectError;
use super::super::identity;
use super::super::plan::AttachPlan;
use super::super::ptrace::Tracee;
use super::{ALL_SIGNALS, NotStopped, Stopped, failed, system};
use crate::fault::{self, Point};
use crate::proc::{self, Activity};

/// Between two looks at a thread that runs the agent's entry.
const RETRY: Duration = Duration::from_millis(5);
/// A wait for a stop is repeated until it comes; so often it is asked what the thread does.
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
        fault::at(Point::LaunchWritten);
        self.put(&chain.start)?;
        fault::at(Point::LaunchSet);
        // A handler that ran on the chain could jump away. If we die before this, the first frame
        // does it; from here on the thread is its own, as the last frame holds its mask.
        self.tracee.set_mask(ALL_SIGNALS).map_err(|e| system("PTRACE_SETSIGMASK", &e))?;
        self.masked = true;
        fault::at(Point::LaunchMasked);
        self.is_current = false;
        self.let_go()?;
        fault::at(Point::LaunchGone);
        let (tid, stopped) = (self.tid(), self.since.elapsed());
        Ok(Launched { tid, saved: self.saved.clone(), chain, stopped })
    }
}

impl Launched {
    pub(in super::super) fn tid(&self) -> i32 {
        self.tid
    }

    /// Takes the thread off the chain if it is still on it, and puts it back as it was; `false` if
    /// it had come home. Waits until that is known: without a time limit, as nothing else may be
    /// done to the target before.
    pub(in super::super) fn recall(&self, plan: &AttachPlan) -> Result<bool, InjectError> {
        loop {
            identity::check(plan.pid, plan.start_time)?;
            if self.is_elsewhere(plan) {
                return Ok(false);
            }
            match identity::disposable(|| self.try_to_recall(plan)) {
                Ok(Recall::Home) => return Ok(false),
                Ok(Recall::Back) => return Ok(true),
                Ok(Recall::Inside) | Err(NotStopped::Timeout) => std::thread::sleep(RETRY),
                // It ended, or its process executed: the chain is gone with it.
                Err(NotStopped::Gone(_)) => return Ok(false),
                Err(failure) => {
                    return Err(identity::explain(plan.pid, self.tid, failure.into()));
                }
            }
        }
    }

    /// Without stopping it: it is gone, or sleeps in a call that it made from outside of the chain.
    fn is_elsewhere(&self, plan: &AttachPlan) -> bool {
        let Ok(stat) = proc::task_stat(plan.pid, self.tid) else { return true };
        if proc::has_ended(stat.state) {
            return true;
        }
        let end = self.chain.base + self.chain.bytes.len() as u64;
        match proc::task_activity(plan.pid, self.tid) {
            Ok(Activity::Syscall { sp, .. }) => {
                !(self.chain.base..end).contains(&sp) && !plan.data.contains(sp)
            }
            _ => false,
        }
    }

    fn try_to_recall(&self, plan: &AttachPlan) -> Result<Recall, NotStopped> {
        let tracee = Tracee::seize(self.tid).map_err(|error| failed("PTRACE_SEIZE", &error))?;
        if proc::task_stat(plan.pid, self.tid).is_err() {
            // The number is another process's by now; this thread's end lets go of it.
            return Ok(Recall::Home);
        }
        fault::at(Point::RecallSeized);
        let since = Instant::now();
        tracee.interrupt().map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
        let mut stopped = Stopped::collect(tracee, since, since + SLICE, since + SLICE)?;
        let recall = if self.is_on_chain(&stopped) {
            fault::at(Point::RecallStopped);
            stopped.put_on(self.saved.clone());
            Recall::Back
        } else if plan.code.contains(stopped.saved.registers.rip) {
            Recall::Inside
        } else {
            Recall::Home
        };
        stopped.release().map_err(NotStopped::Failed)?;
        if matches!(recall, Recall::Back) {
            fault::at(Point::RecallDone);
        }
        Ok(recall)
    }

    /// The stack pointer and the instruction are those of a step, and from the stack pointer on the
    /// chain is as it was written: the program's own code that came by here would have overwritten
    /// what lies above its stack pointer, all of it at once.
    fn is_on_chain(&self, stopped: &Stopped) -> bool {
        let now = &stopped.saved.registers;
        let Some(offset) = now.rsp.checked_sub(self.chain.base) else { return false };
        let Some(rest) = self.chain.bytes.get(offset as usize..).filter(|r| !r.is_empty()) else {
            return false;
        };
        self.chain.landing.contains(now.rip) && stopped.holds(now.rsp, rest)
    }
}
