//! A thread of the target that is stopped and used, whichever bears it best and lets itself be
//! stopped.

use std::time::{Duration, Instant};

use super::error::InjectError;
use super::plan::AttachPlan;
use super::stop::{self, Launched, NotStopped, Stopped};
use super::{identity, threads};
use crate::proc::{self, Mapping};

/// Longest wait for one thread to stop.
pub(super) const STOP_MAX: Duration = Duration::from_millis(200);
/// The same for a thread that waits for a processor: it loses nothing by being waited for, and
/// among a thousand others its turn comes after seconds.
pub(super) const QUEUED_MAX: Duration = Duration::from_secs(4);
/// Longest wait for a thread that was set going and still waits for a processor.
const TURN_MAX: Duration = Duration::from_secs(10);

/// What became of a thread that was used.
pub(super) struct Used {
    /// It.
    pub(super) tid: i32,
    /// How long it was stopped.
    pub(super) stopped: Duration,
    /// It made a system call with nothing behind it.
    pub(super) naked: bool,
    /// It was set going on a chain.
    pub(super) launched: Option<Launched>,
}

impl Used {
    /// A thread that was set going and let go.
    pub(super) fn launched(launched: Launched, naked: bool) -> Used {
        let (tid, stopped) = (launched.tid(), launched.stopped);
        Used { tid, stopped, naked, launched: Some(launched) }
    }

    /// The time is up for what the thread was to do, and it is not just waiting for its turn.
    pub(super) fn is_overdue(&self, since: Instant, limit: Duration) -> bool {
        let waited = since.elapsed();
        waited >= limit && (waited >= TURN_MAX || !proc::is_runnable(self.tid))
    }

    /// Takes a thread that is overdue off its chain; `false` if it had come to the end of it.
    pub(super) fn recall(&self, plan: &AttachPlan) -> Result<bool, InjectError> {
        self.launched.as_ref().map_or(Ok(false), |launched| launched.recall(plan))
    }
}

/// The target's mappings; one without any is about to end.
pub(super) fn read_mappings(pid: i32) -> Result<Vec<Mapping>, InjectError> {
    match proc::mappings(pid) {
        // It is about to end, and has no memory any more.
        Ok(mappings) if mappings.is_empty() => Err(InjectError::Gone),
        Ok(mappings) => Ok(mappings),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(InjectError::Gone),
        Err(error) => Err(InjectError::system("reading maps", &error)),
    }
}

/// As [`with_a_listed_thread`], with a new list when all of a list's threads have ended meanwhile:
/// in a process of threads that live for a millisecond that is an ordinary case.
pub(super) fn with_a_thread(
    plan: &AttachPlan,
    mappings: &[Mapping],
    work: &(impl Fn(Stopped) -> Result<Used, InjectError> + Sync),
) -> Result<Used, InjectError> {
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

/// Stops the best thread that lets itself be stopped and hands it to `work`. Each attempt runs in
/// a thread of its own, whose end lets go of a tracee that would not stop: nothing else does.
fn with_a_listed_thread(
    plan: &AttachPlan,
    mappings: &[Mapping],
    work: &(impl Fn(Stopped) -> Result<Used, InjectError> + Sync),
) -> Result<Used, InjectError> {
    let mut last = InjectError::Gone;
    for tid in threads::candidates(plan.pid, mappings) {
        identity::check(plan.pid, plan.start_time)?;
        let outcome = identity::disposable(|| match stop::stop(tid, STOP_MAX, QUEUED_MAX) {
            Ok(stopped) => Ok(work(stopped)),
            Err(failure) => Err(failure),
        });
        match outcome {
            Ok(Ok(used)) => return Ok(used),
            // The thread went away before it was set going; another one does as well.
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
