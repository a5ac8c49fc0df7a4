//! The first moments of a child, in which the recorder must not attach to it.
//!
//! # Invariants
//! - A child of `vfork` shares its parent's memory until it calls exec or exits. An attach before
//!   that would put the agent into the parent.
//! - The other processes do not wait long for a child that stays in its parent's memory. The
//!   recorder reports the child, and attaches to it after its exec.

use std::time::{Duration, Instant};

use anyhow::anyhow;

use crate::proc;
use crate::record::contract::error::{RecordError, target_error};
use crate::record::contract::stop::StopCondition;
use crate::record::run::exec_in_progress::is_settled;

/// How long the recorder waits for a new child to call exec. A shell's child does so within a
/// millisecond, and an attach before that is wasted. A forked worker loses this much of its
/// recording.
pub(super) const EXEC_WAIT: Duration = Duration::from_millis(10);
/// Longest wait for the end of an exec: the program may be on a slow disk.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// How long the other processes wait for a child that shares its parent's memory.
const SHARED_MEMORY_MAX: Duration = Duration::from_secs(3);
/// How long a child shared its parent's memory that exited without an exec.
const UNTIL_EXIT: &str = "until it exited";
/// Interval between checks of the child.
const POLL_INTERVAL: Duration = Duration::from_micros(500);
/// Interval between checks once no other process waits for the child.
const LATE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until the recorder may attach to a child. A child that `is_new` may be about to call exec.
/// Calls `late` with the reason when the other processes should stop waiting for the child, and
/// then returns the length of the wait.
pub(super) fn wait(
    (pid, parent): (i32, i32),
    is_new: bool,
    stop: &StopCondition,
    late: impl FnOnce(String),
) -> Result<Option<Duration>, RecordError> {
    let born = Instant::now();
    let start_time = proc::start_time(pid).ok();
    // The time of the first check that found memory of its own.
    let mut own_memory_since: Option<Instant> = None;
    let mut late = Some(late);
    loop {
        // An error if the child has exited.
        let own = proc::random_bytes(pid);
        // Another process may have the same id by now.
        let is_there = start_time.is_some() && proc::start_time(pid).ok() == start_time;
        if stop.is_due() || !is_there {
            let until = if is_there { "until the recording ended" } else { UNTIL_EXIT };
            return Err(left_out((pid, parent), late.is_none().then_some(until)));
        }
        let status = proc::status(pid).map_err(|error| target_error(pid, error))?;
        if proc::has_ended(status.state) && status.threads <= 1 {
            return Err(left_out((pid, parent), late.is_none().then_some(UNTIL_EXIT)));
        }
        let is_forked = own.is_ok() && own.ok() == proc::random_bytes(parent).ok();
        let is_early = is_new && is_forked && born.elapsed() < EXEC_WAIT;
        if is_in_memory_of(pid, parent) {
            if born.elapsed() >= SHARED_MEMORY_MAX
                && let Some(late) = late.take()
            {
                late(format!(
                    "is not recorded yet: it shares the memory of process {parent}, its parent; \
                     the recorder attaches after its exec"
                ));
            }
        } else {
            let since = *own_memory_since.get_or_insert_with(Instant::now);
            let is_unsettled = !is_settled(pid) && since.elapsed() < SETTLED_MAX;
            if !is_early && !is_unsettled {
                return Ok(late.is_none().then(|| born.elapsed()));
            }
        }
        std::thread::sleep(if late.is_none() { LATE_POLL_INTERVAL } else { POLL_INTERVAL });
    }
}

/// Returns the error for a child that exited, or that is left out because the recording ends.
/// `until` says how long the child shared its parent's memory, if that was reported.
fn left_out((pid, parent): (i32, i32), until: Option<&str>) -> RecordError {
    match until {
        Some(until) => RecordError::Other(anyhow!(
            "it shared the memory of process {parent}, its parent, {until}: an attach would have \
             put the agent into the parent"
        )),
        None => RecordError::TargetGone(anyhow!("process {pid} has exited")),
    }
}

/// Whether a child shares its parent's memory. If the kernel does not tell, a parent thread in
/// uninterruptible sleep may be waiting for the child.
fn is_in_memory_of(pid: i32, parent: i32) -> bool {
    proc::shares_memory(parent, pid).unwrap_or_else(|| {
        let state = |tid: &i32| proc::task_stat(parent, *tid).map_or('?', |stat| stat.state);
        proc::tasks(parent).is_ok_and(|tids| tids.iter().any(|tid| state(tid) == 'D'))
    })
}
