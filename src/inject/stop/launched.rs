//! A launched thread: it was set on a chain and detached, and can be taken off the chain again.
//!
//! A chain finishes by itself, but a thread without a processor may run it seconds later. By then
//! the chain could collide with another attach, and detach a segment from an address that belongs
//! to another agent. So a chain that does not finish in time is withdrawn.

use std::time::{Duration, Instant};

use super::{NotStopped, Stopped, failed};
use crate::fault::{self, FaultPoint};
use crate::inject::error::InjectError;
use crate::inject::plan::AttachPlan;
use crate::inject::ptrace::tracing_thread::on_tracing_thread;
use crate::inject::ptrace::{Tracee, watchdog};
use crate::inject::sigreturn_chain::{Chain, SavedState};
use crate::inject::target::identity;
use crate::proc::{self, TaskActivity};

/// Pause between two checks of a thread that runs the agent's entry.
const RETRY: Duration = Duration::from_millis(5);
/// How long a withdrawal is tried again when a system call failed.
const FAILED_MAX: Duration = Duration::from_secs(1);
/// The signals that no mask contains: SIGKILL and SIGSTOP.
const UNBLOCKABLE: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
/// Longest wait for a stop before the thread's state is checked again.
const SLICE: Duration = Duration::from_secs(1);

/// A released thread on a chain.
#[derive(Debug)]
pub(in crate::inject) struct Launched {
    tid: i32,
    saved: SavedState,
    chain: Chain,
    /// How long the thread was stopped.
    pub(in crate::inject) stopped: Duration,
}

/// The outcome of an attempt to withdraw a thread.
enum Withdrawal {
    /// The thread had already finished its chain.
    Finished,
    /// The thread was put back to its saved state.
    PutBack,
    /// The thread runs the agent's entry, which will finish.
    InEntry,
}

impl Launched {
    /// Creates the value for a thread that was set on this chain and detached. `stopped` is the
    /// duration of its stop.
    pub(super) fn new(tid: i32, saved: SavedState, chain: Chain, stopped: Duration) -> Self {
        Self { tid, saved, chain, stopped }
    }

    pub(in crate::inject) fn tid(&self) -> i32 {
        self.tid
    }

    /// Whether the thread has the chain's signal mask, and not its own.
    pub(in crate::inject) fn is_masked(&self, pid: i32) -> bool {
        let is_all = |mask: u64| mask | UNBLOCKABLE == u64::MAX;
        let status = proc::task_status(pid, self.tid);
        !is_all(self.saved.mask) && status.is_ok_and(|status| is_all(status.blocked))
    }

    /// Takes the thread off its chain and puts it back to its state. Returns `false` if the thread
    /// had already finished. There is no time limit, because nothing else may be done to the target
    /// before.
    pub(in crate::inject) fn withdraw(&self, plan: &AttachPlan) -> Result<bool, InjectError> {
        let since = Instant::now();
        loop {
            if identity::is_gone(plan.pid, plan.start_time) {
                return Err(InjectError::Gone);
            }
            if self.is_elsewhere(plan) {
                return Ok(false);
            }
            match on_tracing_thread(|| self.try_to_withdraw(plan)) {
                Ok(Withdrawal::Finished) => return Ok(false),
                Ok(Withdrawal::PutBack) => return Ok(true),
                Ok(Withdrawal::InEntry) | Err(NotStopped::Timeout) => watchdog::sleep(RETRY),
                // The thread exited, or its process executed another program, so the chain no
                // longer exists.
                Err(NotStopped::Gone(_)) => return Ok(false),
                Err(NotStopped::Failed(_)) if since.elapsed() < FAILED_MAX => {
                    watchdog::sleep(RETRY);
                }
                Err(failure) => {
                    return Err(identity::explain(plan.pid, self.tid, failure.into()));
                }
            }
        }
    }

    /// Whether the thread has exited, or sleeps in a call from outside of the chain. Does not stop
    /// the thread.
    fn is_elsewhere(&self, plan: &AttachPlan) -> bool {
        match proc::task_stat(plan.pid, self.tid) {
            Ok(stat) if !proc::has_ended(stat.state) => {}
            Err(error) if !proc::is_gone(&error) => return false,
            _ => return true,
        }
        let end = self.chain.base + self.chain.bytes.len() as u64;
        match proc::task_activity(plan.pid, self.tid) {
            Ok(TaskActivity::Syscall { sp, .. }) => {
                !(self.chain.base..end).contains(&sp) && !plan.data.contains(sp)
            }
            _ => false,
        }
    }

    fn try_to_withdraw(&self, plan: &AttachPlan) -> Result<Withdrawal, NotStopped> {
        let tracee = Tracee::seize(self.tid).map_err(|error| failed("PTRACE_SEIZE", &error))?;
        if let Err(error) = proc::task_stat(plan.pid, self.tid) {
            // The tid belongs to another process now, or that is unknown; the end of this thread
            // detaches it.
            return Err(NotStopped::from_reading("/proc/PID/task", &error));
        }
        fault::at(FaultPoint::WithdrawSeized);
        let since = Instant::now();
        tracee.interrupt().map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
        let mut stopped = Stopped::collect(tracee, since, since + SLICE, since + SLICE)?;
        let withdraw = if self.is_on_chain(&stopped).map_err(NotStopped::of)? {
            fault::at(FaultPoint::WithdrawStopped);
            stopped.put_back_to(self.saved.clone());
            Withdrawal::PutBack
        } else if plan.code.contains(stopped.saved().registers.rip) {
            Withdrawal::InEntry
        } else {
            Withdrawal::Finished
        };
        stopped.release().map_err(NotStopped::Failed)?;
        if matches!(withdraw, Withdrawal::PutBack) {
            fault::at(FaultPoint::WithdrawDone);
        }
        Ok(withdraw)
    }

    /// Whether the thread is on its chain: its pc belongs to a step, and the chain is unchanged
    /// above its stack pointer. Code of the program that ran at this depth would have overwritten
    /// all of that.
    fn is_on_chain(&self, stopped: &Stopped) -> Result<bool, InjectError> {
        let now = &stopped.saved().registers;
        let Some(offset) = now.rsp.checked_sub(self.chain.base) else { return Ok(false) };
        let Some(rest) = self.chain.bytes.get(offset as usize..).filter(|r| !r.is_empty()) else {
            return Ok(false);
        };
        Ok(self.chain.gadgets.contains(now.rip) && stopped.holds(now.rsp, rest)?)
    }
}
