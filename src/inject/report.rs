//! Reports on the steps of an injection.

use serde::{Deserialize, Serialize};

/// The cost of an attach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachReport {
    /// The duration of each stop in nanoseconds, from the request to the detach.
    pub stops_ns: Vec<u64>,
    /// Whether the thread made a bare call, because its stack could not be used. If the tracer had
    /// died during that call, the thread would have been lost.
    pub bare_call: bool,
    /// The thread that mapped the segments.
    pub tid: i32,
}

/// The cost of one run of the agent's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryReport {
    /// How long a thread was stopped for the entry, in nanoseconds.
    pub stopped_ns: u64,
}

/// The cost of a restore, and the residue that it left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachReport {
    /// The time from the first interrupt until the last thread was released, in nanoseconds.
    pub stopped_ns: u64,
    /// The number of stopped threads; 0 if the target had exited.
    pub threads: usize,
    /// The changes that are left in the target, with the reason.
    pub residue: Option<String>,
}

impl DetachReport {
    /// Combines two attempts: takes the longest stop, and the residue of the later attempt.
    pub(super) fn and(self, later: DetachReport) -> DetachReport {
        DetachReport {
            stopped_ns: self.stopped_ns.max(later.stopped_ns),
            threads: self.threads.max(later.threads),
            residue: later.residue,
        }
    }
}
