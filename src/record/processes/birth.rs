//! The first moments of a child, in which it must not be attached to.
//!
//! # Invariants
//! - A child of `vfork` uses its parent's memory until it executes a program or ends: what would be
//!   attached to it would be in the parent.

use std::time::{Duration, Instant};

use anyhow::anyhow;

use super::super::recording::is_settled;
use super::super::stop::Stop;
use super::super::{RecordError, target_error};
use crate::{inject, proc};

/// As long as this a child is waited for that has not executed a program: what a shell starts does so in
/// a millisecond, and an attach before it would be in vain. A worker that is forked loses so much.
const EXEC_SOON: Duration = Duration::from_millis(10);
/// Longest wait for an exec to be over: the program may lie on a slow disk.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// Between two looks at it.
const LOOK: Duration = Duration::from_micros(500);

/// Waits until a child may be attached to. One that `is_new` is about to execute a program, maybe.
pub(super) fn wait(pid: i32, parent: i32, is_new: bool, stop: &Stop) -> Result<(), RecordError> {
    let born = Instant::now();
    loop {
        // An error of one that is gone.
        let own = proc::drawn_bytes(pid);
        if stop.is_due() || proc::start_time(pid).is_err() {
            return Err(RecordError::TargetGone(anyhow!("process {pid} is gone")));
        }
        let status = proc::status(pid).map_err(|error| target_error(pid, error))?;
        if proc::has_ended(status.state) && status.threads <= 1 {
            return Err(RecordError::TargetGone(anyhow!("process {pid} is gone")));
        }
        let is_forked = own.is_ok() && own.ok() == proc::drawn_bytes(parent).ok();
        let is_early = is_new && is_forked && born.elapsed() < EXEC_SOON;
        let is_unsettled = !is_settled(pid) && born.elapsed() < SETTLED_MAX;
        if !is_in_memory_of(pid, parent) && !is_early && !is_unsettled {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

/// It uses its parent's memory. Where the kernel does not say, a parent that waits in the kernel may
/// wait for it.
fn is_in_memory_of(pid: i32, parent: i32) -> bool {
    inject::shares_memory(parent, pid).unwrap_or_else(|| {
        let state = |tid: &i32| proc::task_stat(parent, *tid).map_or('?', |stat| stat.state);
        proc::tasks(parent).is_ok_and(|tids| tids.iter().any(|tid| state(tid) == 'D'))
    })
}
