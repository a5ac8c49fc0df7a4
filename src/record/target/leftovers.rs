//! Removal of what a recording left behind when both its recorder and its guardian were killed.

use crate::inject::{self, Guardian};
use crate::record::contract::error::{RecordError, guardian_error, inject_error, refusal_error};
use crate::record::target::namespace::check_proc;

/// The result of a removal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of agents that were left behind.
    pub agents: usize,
    /// The longest stop of the process's threads, in nanoseconds.
    pub stopped_ns: u64,
    /// What had to stay, and why.
    pub left: Option<String>,
}

/// Removes what killed recordings left in a process.
///
/// # Errors
/// The kind of [`RecordError`] determines the exit code; a process that is being recorded is left
/// alone.
pub fn detach(pid: i32) -> Result<Removed, RecordError> {
    check_proc()?;
    // The target's filter and limits did not prevent the attach of a leftover agent. Without an
    // agent this function changes nothing.
    let start_time = inject::preflight_to_capture(pid).map_err(refusal_error)?.start_time;
    let mut guardian = Guardian::start().map_err(guardian_error)?;
    let reports = guardian.remove_residue(pid, start_time).map_err(inject_error)?;
    Ok(Removed {
        agents: reports.len(),
        stopped_ns: reports.iter().map(|report| report.stopped_ns).max().unwrap_or(0),
        left: reports.into_iter().find_map(|report| report.residue),
    })
}

/// The result of restoring the target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Detached {
    /// How long the target was stopped, in nanoseconds, if it still existed.
    pub(crate) stopped_ns: Option<u64>,
    /// What stays behind, and why.
    pub(crate) residue: Option<String>,
}
