//! What the seccomp filters of a process do to the system calls that are made in it.

use super::preflight::Facts;
use super::refusal::Refusal;
use crate::proc;

/// What the user permits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Permits {
    /// Attach although a seccomp filter might kill the target for our system calls.
    pub seccomp_filter: bool,
}

/// Judges the filters of all threads; refused unless they permit what will be done.
pub fn judge(facts: &Facts, permits: Permits) -> Result<String, Refusal> {
    let tids = proc::tasks(facts.pid).unwrap_or_default();
    let mut seen = tids.into_iter().filter_map(|tid| proc::task_status(facts.pid, tid).ok());
    match seen.any(|status| status.seccomp != 0) {
        false => Ok("no filter".to_owned()),
        true if permits.seccomp_filter => Ok("permitted by --allow-seccomp".to_owned()),
        true => Err(Refusal::SeccompFilter),
    }
}
