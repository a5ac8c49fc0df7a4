//! The worker: the thread of the target that the guardian stops and uses.

pub(super) mod choice;
pub(super) mod execution;
pub(super) mod gadgets;
pub(super) mod remote_calls;
pub(super) mod stack;

use std::time::{Duration, Instant};

use super::error::InjectError;
use super::plan::AttachPlan;
use super::ptrace::tracing_thread::on_tracing_thread;
use super::stop::{self, Launched, NotStopped, Stopped};
use super::target::identity;
use crate::proc::{self, Mapping};

/// Longest wait for one thread to stop.
pub(super) const STOP_MAX: Duration = Duration::from_millis(200);
/// Longest wait for a thread that waits for a processor. The thread loses nothing by the wait, and
/// among a thousand others its turn comes after seconds.
pub(super) const QUEUED_MAX: Duration = Duration::from_secs(4);
/// Longest wait for a launched thread that still waits for a processor.
const TURN_MAX: Duration = Duration::from_secs(10);

/// A used thread, and the way in which it was used.
pub(super) struct UsedThread {
    /// The thread's tid.
    pub(super) tid: i32,
    /// How long the thread was stopped.
    pub(super) stopped: Duration,
    /// Whether the thread made a bare call, with no frame to return through.
    pub(super) bare_call: bool,
    /// The launched chain, if the thread was launched.
    pub(super) launched: Option<Launched>,
}

impl UsedThread {
    /// Creates the value for a launched thread.
    pub(super) fn launched(launched: Launched, bare_call: bool) -> UsedThread {
        let (tid, stopped) = (launched.tid(), launched.stopped);
        UsedThread { tid, stopped, bare_call, launched: Some(launched) }
    }

    /// Whether the thread's time is up and the thread does not merely wait for a processor.
    pub(super) fn is_overdue(&self, since: Instant, limit: Duration) -> bool {
        let waited = since.elapsed();
        waited >= limit && (waited >= TURN_MAX || !proc::is_runnable(self.tid))
    }

    /// Whether the last frame of the thread's chain is still to come.
    pub(super) fn is_returning(&self, pid: i32) -> bool {
        self.launched.as_ref().is_some_and(|launched| launched.is_masked(pid))
    }

    /// Takes the thread off its chain after a failure, and returns the failure. The thread would
    /// otherwise run the remaining steps after the restore.
    pub(super) fn abort(&self, plan: &AttachPlan, failure: InjectError) -> InjectError {
        if !failure.is_gone() {
            // The first failure is reported; the restore meets the second one as well.
            let _ = self.withdraw(plan);
        }
        failure
    }

    /// Takes an overdue thread off its chain. Returns `false` if the thread had already finished.
    pub(super) fn withdraw(&self, plan: &AttachPlan) -> Result<bool, InjectError> {
        self.launched.as_ref().map_or(Ok(false), |launched| launched.withdraw(plan))
    }
}

/// Reads the target's mappings. A target without any mapping is about to exit.
pub(super) fn read_mappings(pid: i32) -> Result<Vec<Mapping>, InjectError> {
    match proc::mappings(pid) {
        // The process is about to exit, and its memory is already released.
        Ok(mappings) if mappings.is_empty() => Err(InjectError::Gone),
        Ok(mappings) => Ok(mappings),
        Err(error) => Err(InjectError::reading("/proc/PID/maps", &error)),
    }
}

/// Does the same as [`with_a_listed_thread`], but reads the list of threads again when all of them
/// have exited. That is normal in a process whose threads live for a millisecond.
pub(super) fn with_a_thread(
    plan: &AttachPlan,
    mappings: &[Mapping],
    work: &(impl Fn(Stopped) -> Result<UsedThread, InjectError> + Sync),
) -> Result<UsedThread, InjectError> {
    const LISTS_MAX: usize = 20;
    let mut outcome = with_a_listed_thread(plan, mappings, work);
    for _ in 1..LISTS_MAX {
        match outcome {
            Err(InjectError::Gone) => identity::check(plan.pid, plan.start_time)?,
            outcome => return outcome,
        }
        outcome = with_a_listed_thread(plan, mappings, work);
    }
    outcome
}

/// Stops the best thread that can be stopped and passes it to `work`. Each attempt runs in a thread
/// of its own: only the end of that thread releases a tracee that did not stop.
fn with_a_listed_thread(
    plan: &AttachPlan,
    mappings: &[Mapping],
    work: &(impl Fn(Stopped) -> Result<UsedThread, InjectError> + Sync),
) -> Result<UsedThread, InjectError> {
    let mut last = InjectError::Gone;
    for tid in choice::candidates(plan.pid, mappings)? {
        identity::check(plan.pid, plan.start_time)?;
        let outcome = on_tracing_thread(|| match stop::stop(tid, STOP_MAX, QUEUED_MAX) {
            Ok(stopped) => Ok(work(stopped)),
            Err(failure) => Err(failure),
        });
        match outcome {
            Ok(Ok(used)) => return Ok(used),
            // The thread exited before it was launched; another one will do.
            Ok(Err(InjectError::Gone)) => last = InjectError::Gone,
            Ok(Err(error)) => return Err(error),
            Err(NotStopped::Timeout) => {
                let state = proc::task_stat(plan.pid, tid).map_or('?', |stat| stat.state);
                last = InjectError::WouldNotStop { tid, state };
            }
            Err(NotStopped::Gone(InjectError::Gone)) => last = InjectError::Gone,
            Err(NotStopped::Failed(error)) => {
                last = identity::explain(plan.pid, tid, error);
            }
            Err(failure) => last = failure.into(),
        }
    }
    identity::check(plan.pid, plan.start_time)?;
    Err(last)
}
