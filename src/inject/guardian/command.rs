//! The requests of a recorder to its guardian.

use serde::{Deserialize, Serialize};

use crate::inject::plan::AttachPlan;
use crate::inject::preflight::ProcessFacts;
use crate::inject::seccomp::Permits;

/// A request to the guardian. The guardian answers all requests but the last.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    Hold(i32),
    WaitExec,
    CheckSeccomp(Box<ProcessFacts>, Permits),
    Attach(Box<AttachPlan>),
    /// The number of a [`traceprof_abi::layout::Operation`].
    Enter(u64),
    Detach,
    Forget,
    Remove {
        pid: i32,
        start_time: u64,
    },
    /// The recorder continues without the guardian. The guardian does not answer.
    Leave,
}
