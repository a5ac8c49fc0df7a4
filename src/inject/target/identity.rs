//! Checks that a process is still the intended one, and explains errors of ptrace.

use super::tracer;
use crate::inject::error::InjectError;
use crate::inject::yama::yama_refusal;
use crate::proc;

/// Checks that the process still runs and is the same. The kernel reuses pids, but a start time
/// stays unique.
pub(in crate::inject) fn check(pid: i32, start_time: u64) -> Result<(), InjectError> {
    let gone = match proc::start_time(pid) {
        Ok(started) => started != start_time,
        Err(_) => true,
    };
    // A leader that exited before its threads is a zombie without memory, but its process still
    // runs.
    let ended = || match proc::status(pid) {
        Ok(status) => !status.has_memory && status.threads <= 1,
        Err(_) => true,
    };
    if gone || ended() { Err(InjectError::Gone) } else { Ok(()) }
}

/// Replaces an `EPERM` by its cause, as `/proc` shows it.
pub(in crate::inject) fn explain(pid: i32, tid: i32, error: InjectError) -> InjectError {
    if !matches!(error, InjectError::System { errno: libc::EPERM | libc::EACCES, .. }) {
        return error;
    }
    match proc::task_status(pid, tid) {
        Err(_) => InjectError::Gone,
        Ok(status) if proc::has_ended(status.state) => InjectError::Gone,
        Ok(status) if status.tracer != 0 => tracer::already_traced(status.tracer).into(),
        Ok(_) => yama_refusal().map_or(InjectError::NotPermitted, InjectError::from),
    }
}
