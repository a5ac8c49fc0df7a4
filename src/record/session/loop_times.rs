//! The schedule of a session's loop.

use std::time::{Duration, Instant};

use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::periodic::Periodic;

/// The longest sleep of the loop.
const NAP: Duration = Duration::from_millis(10);
/// The longest sleep during [`STARTING`]. A new program maps its libraries in its first
/// milliseconds, and samples in them find no unwind table until the recorder reads these mappings.
const START_NAP: Duration = Duration::from_millis(1);
/// How long the short sleeps last after the start.
const STARTING: Duration = Duration::from_millis(50);
/// The interval between two rotations, unless a table fills up earlier.
const ROTATION: Duration = Duration::from_millis(100);
/// The interval between two checks that the agent's handler is still installed.
const SIGNAL_CHECK: Duration = Duration::from_millis(10);
/// The interval between two reports of the progress.
const TICK: Duration = Duration::from_millis(200);

/// The times of one session.
pub(super) struct LoopTimes {
    /// The start of sampling.
    pub(super) started: Instant,
    /// The start of sampling in CLOCK_MONOTONIC nanoseconds.
    pub(super) started_ns: u64,
    /// The requested duration of the recording.
    pub(super) duration: Option<Duration>,
    pub(super) rotation: Periodic,
    pub(super) signals: Periodic,
    pub(super) tick: Periodic,
}

impl LoopTimes {
    pub(super) fn start(duration: Option<Duration>) -> Self {
        Self {
            started: Instant::now(),
            started_ns: monotonic_now_ns(),
            duration,
            rotation: Periodic::new(ROTATION),
            signals: Periodic::new(SIGNAL_CHECK),
            tick: Periodic::new(TICK),
        }
    }

    /// Returns how long the loop may sleep.
    pub(super) fn nap(&self) -> Duration {
        if self.started.elapsed() < STARTING { START_NAP } else { NAP }
    }
}
