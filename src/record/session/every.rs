//! A thing that the loop does every so often.

use std::time::{Duration, Instant};

/// A thing to do every so often.
pub(super) struct Every {
    interval: Duration,
    due: Instant,
}

impl Every {
    /// Due an interval from now, and then again.
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, due: Instant::now() + interval }
    }

    /// Whether it is time; if so, the next interval begins.
    pub(super) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.due;
        if due {
            self.due = now + self.interval;
        }
        due
    }

    /// It is due no more often than takes a twentieth of the time, if it took so long.
    pub(super) fn spare(&mut self, took: Duration) {
        self.due = self.due.max(Instant::now() + took * 20);
    }

    /// It is due at once.
    pub(super) fn hasten(&mut self) {
        self.due = Instant::now();
    }
}
