//! The setup of sampling: the engine, the reason for it, and the period.

/// A sampling engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Perf events that the recorder opens.
    Perf,
    /// Perf events that the recorder opens, with a signal that is ignored by default.
    Signal,
    /// CPU timers of the target's threads.
    Timer,
}

impl Engine {
    /// Returns its name in the trace and in the closing report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Perf => "perf task clock",
            Self::Signal => "perf task clock, ignorable signal",
            Self::Timer => "thread CPU timer",
        }
    }

    /// Returns whether perf events are the source of the expiries.
    pub(crate) fn has_events(self) -> bool {
        self != Self::Timer
    }
}

/// The engine that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    /// The sampling engine.
    pub(crate) engine: Engine,
    /// The reason, worded to follow a colon.
    pub(crate) why: String,
    /// Whether the user left the choice open, so that the other engine may replace a failing one.
    pub(crate) is_free: bool,
    /// Whether the program is started for the recording.
    pub(crate) is_started: bool,
}

/// The setup of a recording's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Setup {
    /// Nanoseconds of CPU time between two samples of a thread.
    pub(crate) period_ns: u64,
    /// Whether time in the kernel is sampled too (`kernel::KernelEvents`).
    pub(crate) kernel: bool,
    /// The session's cookie.
    pub(crate) cookie: u16,
}
