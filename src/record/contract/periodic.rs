//! The schedule of a task that a loop runs at intervals.

use std::time::{Duration, Instant};

/// The schedule of a task that runs at intervals, or earlier on request within a time budget.
pub(crate) struct Periodic {
    interval: Duration,
    due: Instant,
    /// The earliest moment for which an early run may be requested.
    earliest: Instant,
}

/// The time that early runs may take in a burst before the budget throttles them.
const BURST: Duration = Duration::from_millis(50);
/// A throttled task may take one part in this many of the elapsed time.
const SHARE: u32 = 20;

impl Periodic {
    /// Makes a schedule whose first run is due one interval from now.
    pub(crate) fn new(interval: Duration) -> Self {
        let now = Instant::now();
        let earliest = now.checked_sub(BURST * SHARE).unwrap_or(now);
        Self { interval, due: now + interval, earliest }
    }

    /// Returns whether a run is due; if so, the next interval begins.
    pub(crate) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.due;
        if due {
            self.due = now + self.interval;
        }
        due
    }

    /// Returns whether a run is due within this time.
    pub(crate) fn is_close(&self, within: Duration) -> bool {
        Instant::now() + within >= self.due
    }

    /// Delays the next run after one of this length, so that runs take at most a twentieth of the
    /// time.
    pub(crate) fn spare(&mut self, took: Duration) {
        self.due = self.due.max(Instant::now() + took * SHARE);
    }

    /// Charges a run of this length to the budget for early runs.
    ///
    /// Early runs take at most a twentieth of the time on average; regular runs are not limited.
    pub(crate) fn spend(&mut self, took: Duration) {
        let now = Instant::now();
        let least = now.checked_sub(BURST * SHARE).unwrap_or(now);
        let owed = took * SHARE;
        // Capped at the debt of the longest run: otherwise regular runs alone would postpone early
        // ones for ever.
        let most = self.earliest.max(now + owed);
        self.earliest = (self.earliest.max(least) + owed).min(most);
    }

    /// Requests a run at once, or as soon as the budget permits it.
    pub(crate) fn hasten(&mut self) {
        self.due = self.due.min(self.earliest);
    }

    /// Returns whether the budget permits an early run now.
    pub(crate) fn may_be_hastened(&self) -> bool {
        Instant::now() >= self.earliest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_runs_take_at_most_a_twentieth_of_the_time() {
        let mut every = Periodic::new(Duration::from_secs(3600));
        assert!(!every.is_due());
        every.hasten();
        assert!(every.is_due() && !every.is_due());
        let mut hastened = |took_ms| {
            every.spend(Duration::from_millis(took_ms));
            every.hasten();
            every.is_due()
        };
        assert!((0..4).all(|_| hastened(10)), "a burst is permitted");
        assert!(!hastened(1000));
        assert!(!hastened(0));
        every.earliest -= Duration::from_secs(20);
        every.hasten();
        assert!(every.is_due());
    }

    #[test]
    fn too_many_early_runs_do_not_delay_regular_ones() {
        let mut every = Periodic::new(Duration::from_secs(1));
        let regular = every.due;
        for _ in 0..100 {
            every.spend(Duration::from_millis(100));
        }
        assert!(!every.may_be_hastened());
        assert!(every.earliest <= Instant::now() + Duration::from_secs(2), "the debt is capped");
        every.hasten();
        assert_eq!(every.due, regular);
    }
}
