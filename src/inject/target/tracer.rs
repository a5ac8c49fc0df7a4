//! The tracer that a process has, and the names of our own processes.

use crate::inject::refusal::Refusal;
use crate::proc;

/// The guardian's process name, of 15 bytes at most.
pub(in crate::inject) const GUARDIAN: &str = "traceprof-guard";
/// The fork server's process name.
pub(in crate::inject) const FORK_SERVER: &str = "traceprof-forks";

/// Whether a tracer is a guardian, which detaches after a moment.
pub(in crate::inject) fn is_guardian(tracer: i32) -> bool {
    proc::status(tracer).is_ok_and(|status| status.name == GUARDIAN)
}

/// The refusal that names the tracer.
pub(in crate::inject) fn already_traced(tracer: i32) -> Refusal {
    let name = proc::status(tracer).map_or_else(|_| "another program".to_owned(), |s| s.name);
    Refusal::AlreadyTraced { tracer, name }
}
