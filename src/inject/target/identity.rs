//! Checks that a process is still the intended one, and explains errors of ptrace.

use super::tracer;
use crate::inject::error::InjectError;
use crate::inject::yama::yama_refusal;
use crate::proc;

/// Checks that the process still runs and is the same. The kernel reuses pids, but a start time
/// stays unique.
///
/// # Errors
/// `Gone` only if that is certain. Any other error may be this process's own, such as a shortage of
/// descriptors: a target that was given up for it would keep the agent.
pub(in crate::inject) fn check(pid: i32, start_time: u64) -> Result<(), InjectError> {
    let started =
        proc::start_time(pid).map_err(|error| InjectError::reading("/proc/PID/stat", &error))?;
    let status =
        proc::status(pid).map_err(|error| InjectError::reading("/proc/PID/status", &error))?;
    // A leader that exited before its threads is a zombie without memory, but its process still
    // runs.
    let has_ended = !status.has_memory && status.threads <= 1;
    if started != start_time || has_ended { Err(InjectError::Gone) } else { Ok(()) }
}

/// Whether the process has exited, or its pid belongs to another process.
pub(in crate::inject) fn is_gone(pid: i32, start_time: u64) -> bool {
    check(pid, start_time).is_err_and(|error| error.is_gone())
}

/// Replaces an `EPERM` by its cause, as `/proc` shows it.
pub(in crate::inject) fn explain(pid: i32, tid: i32, error: InjectError) -> InjectError {
    if !matches!(error, InjectError::System { errno: libc::EPERM | libc::EACCES, .. }) {
        return error;
    }
    match proc::task_status(pid, tid) {
        Err(unreadable) if proc::is_gone(&unreadable) => InjectError::Gone,
        Err(_) => error,
        Ok(status) if proc::has_ended(status.state) => InjectError::Gone,
        Ok(status) if status.tracer != 0 => tracer::already_traced(&status).into(),
        Ok(_) => yama_refusal().map_or(InjectError::NotPermitted, InjectError::from),
    }
}
