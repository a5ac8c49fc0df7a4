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

/// What samples in the kernel show of its own functions, the most first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KernelFrames {
    /// Its call chain.
    Chain,
    /// One frame, since this user may not know the names.
    Nameless,
    /// Nothing: the user does not want it.
    #[default]
    Unwanted,
    /// Nothing: the kernel gives no call chain.
    NoChain,
    /// Nothing: time in the kernel is not sampled.
    NotSampled,
    /// Nothing: timers count time in the kernel when a thread leaves it.
    Timers,
}

impl KernelFrames {
    /// Whether samples have frames of the kernel.
    pub(crate) fn are_shown(self) -> bool {
        matches!(self, Self::Chain | Self::Nameless)
    }
}

/// The setup of a recording's events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Setup {
    /// Nanoseconds of CPU time between two samples of a thread.
    pub(crate) period_ns: u64,
    /// Whether time in the kernel is sampled too (`kernel::KernelEvents`).
    pub(crate) kernel: bool,
    /// What the samples of this time show of the kernel's functions.
    pub(crate) frames: KernelFrames,
    /// The session's cookie.
    pub(crate) cookie: u16,
}

impl Setup {
    /// Notes that timers take the samples: they count both modes.
    pub(crate) fn use_timers(&mut self) {
        self.kernel = true;
        if self.frames != KernelFrames::Unwanted {
            self.frames = KernelFrames::Timers;
        }
    }

    /// Notes that time in the kernel is not sampled.
    pub(crate) fn leave_out_kernel(&mut self) {
        self.kernel = false;
        if self.frames != KernelFrames::Unwanted {
            self.frames = KernelFrames::NotSampled;
        }
    }
}
