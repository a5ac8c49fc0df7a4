//! Checks that a process is still the intended one, and explains why it cannot be traced.

use super::tracer;
use crate::inject::error::InjectError;
use crate::proc;

/// Checks that the process still runs and is still the same. A pid is reused, a start time is not.
pub(in crate::inject) fn check(pid: i32, start_time: u64) -> Result<(), InjectError> {
    let gone = match proc::start_time(pid) {
        Ok(started) => started != start_time,
        Err(_) => true,
    };
    // A leader that left its threads behind is a zombie without memory, but the process has not
    // ended.
    let ended = || match proc::status(pid) {
        Ok(status) => !status.has_memory && status.threads <= 1,
        Err(_) => true,
    };
    if gone || ended() { Err(InjectError::Gone) } else { Ok(()) }
}

/// Finds out from `/proc` which of several things `EPERM` means.
pub(in crate::inject) fn explain(pid: i32, tid: i32, error: InjectError) -> InjectError {
    if !matches!(error, InjectError::System { errno: libc::EPERM | libc::EACCES, .. }) {
        return error;
    }
    match proc::task_status(pid, tid) {
        Err(_) => InjectError::Gone,
        Ok(status) if proc::has_ended(status.state) => InjectError::Gone,
        Ok(status) if status.tracer != 0 => tracer::already_traced(status.tracer).into(),
        Ok(_) => InjectError::NotPermitted,
    }
}
