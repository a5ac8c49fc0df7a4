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
/// The largest number of early rotations in a burst.
const EARLY_MAX: u32 = 50;
/// The interval after which one more early rotation is permitted.
const EARLY_EVERY: Duration = Duration::from_millis(200);
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
    /// The number of early rotations that are left, and when one was last added.
    early: (u32, Instant),
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
            early: (EARLY_MAX, Instant::now()),
            signals: Periodic::new(SIGNAL_CHECK),
            tick: Periodic::new(TICK),
        }
    }

    /// Makes the next rotation early, unless there were too many early ones.
    pub(super) fn hasten_rotation(&mut self) {
        let (left, since) = &mut self.early;
        while *left < EARLY_MAX && since.elapsed() >= EARLY_EVERY {
            (*left, *since) = (*left + 1, *since + EARLY_EVERY);
        }
        if *left == EARLY_MAX {
            *since = Instant::now();
        }
        if let Some(rest) = left.checked_sub(1) {
            *left = rest;
            self.rotation.hasten();
        }
    }

    /// Returns how long the loop may sleep.
    pub(super) fn nap(&self) -> Duration {
        if self.started.elapsed() < STARTING { START_NAP } else { NAP }
    }
}
