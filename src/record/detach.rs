//! Removing what is left of a recording whose recorder and guardian were both killed.

use anyhow::Context;

use super::report::{inject_error, refusal_error};
use super::{NO_GUARDIAN, RecordError, check_proc};
use crate::inject::{self, Guardian};

/// What was removed from a process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// How many recordings had left their agent.
    pub agents: usize,
    /// The longest time that the process's threads were stopped.
    pub stopped_ns: u64,
    /// What had to stay, and why.
    pub left: Option<String>,
}

/// Removes what killed recordings left in a process.
///
/// # Errors
/// [`RecordError`] tells by its kind which exit code fits; a process that is being recorded is left
/// alone.
pub fn detach(pid: i32) -> Result<Removed, RecordError> {
    check_proc()?;
    // What is there was attached in spite of its filter and of its limits, and nothing is done
    // where nothing is.
    let start_time = inject::preflight_to_look(pid).map_err(refusal_error)?.start_time;
    let guardian = Guardian::start().context(NO_GUARDIAN);
    let mut guardian = guardian.map_err(RecordError::Other)?;
    let reports = guardian.remove_rest(pid, start_time).map_err(inject_error)?;
    Ok(Removed {
        agents: reports.len(),
        stopped_ns: reports.iter().map(|report| report.stopped_ns).max().unwrap_or(0),
        left: reports.into_iter().find_map(|report| report.residue),
    })
}
