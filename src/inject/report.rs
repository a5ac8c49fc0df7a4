//! The outcome of an injection.

use serde::{Deserialize, Serialize};

/// The cost of an attach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachReport {
    /// The length of each stop, from the request to the detach.
    pub stops_ns: Vec<u64>,
    /// A system call was made with nothing behind it, because the thread's stack could not be used.
    pub bare_call: bool,
    /// The thread that mapped the segments.
    pub tid: i32,
}

/// The cost of one run of the agent's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryReport {
    /// How long a thread was stopped for it.
    pub stopped_ns: u64,
}

/// The cost of a restore, and what it left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachReport {
    /// From the first interrupt until the last thread was released.
    pub stopped_ns: u64,
    /// Threads that were stopped; 0 if the target had ended.
    pub threads: usize,
    /// The changes that are left in the target, and why.
    pub residue: Option<String>,
    /// The residue was not intended, and may be removed later.
    pub unfinished: bool,
}

impl DetachReport {
    /// Combines two attempts: the longest stop, and the residue of the later one.
    pub(super) fn and(self, later: DetachReport) -> DetachReport {
        DetachReport {
            stopped_ns: self.stopped_ns.max(later.stopped_ns),
            threads: self.threads.max(later.threads),
            residue: later.residue,
            unfinished: later.unfinished,
        }
    }
}
