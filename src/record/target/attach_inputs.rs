//! What is known and decided about a target before the attach.

use traceprof_abi::layout::{self, ClockMode};

use crate::record::contract::sampling::{Choice, Setup};
use crate::record::target::signals::LeftOutThread;

/// The facts and decisions from before anything is changed in the target.
#[derive(Debug, Clone)]
pub(crate) struct AttachInputs {
    /// The process id.
    pub(crate) pid: i32,
    /// The descriptor that a started program parks on.
    pub(crate) hold_fd: Option<i32>,
    /// The setup of sampling.
    pub(crate) setup: Setup,
    /// The engine, and the reason for it.
    pub(crate) choice: Choice,
    /// The agent's signals, of perf events and of timers; 0 for an unused one.
    pub(crate) signals: [i32; layout::SIGNALS],
    /// Threads that get no timer, since they would mistake its signal for one that they wait for.
    pub(crate) waiting: Vec<LeftOutThread>,
    /// The clock that the handler reads.
    pub(crate) clock_mode: ClockMode,
    /// Samples per second and thread.
    pub(crate) freq_hz: u32,
}
