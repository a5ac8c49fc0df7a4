//! The tracer of a process, and the names of traceprof's own processes.

use crate::inject::refusal::Refusal;
use crate::proc::{self, Status};

/// The guardian's process name, at most 15 bytes.
pub(in crate::inject) const GUARDIAN: &str = "traceprof-guard";
/// The fork server's process name.
pub(in crate::inject) const FORK_SERVER: &str = "traceprof-forks";

/// Whether a tracer is a guardian, which detaches after a moment.
pub(in crate::inject) fn is_guardian(tracer: i32) -> bool {
    proc::status(tracer).is_ok_and(|status| status.name == GUARDIAN)
}

/// Returns the refusal that names the tracer of a process.
pub(in crate::inject) fn already_traced(status: &Status) -> Refusal {
    let tracer = status.tracer;
    let name = proc::status(tracer).map_or_else(|_| "another program".to_owned(), |s| s.name);
    Refusal::AlreadyTraced { target: titled(status), tracer, name }
}

/// Returns how messages name a process.
pub(in crate::inject) fn titled(status: &Status) -> String {
    format!("process {} ({})", status.tgid, status.name)
}
