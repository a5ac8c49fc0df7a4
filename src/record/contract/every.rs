//! A thing that the loop does every so often.

use std::time::{Duration, Instant};

/// A thing to do every so often.
pub(crate) struct Every {
    interval: Duration,
    due: Instant,
    /// Before this it is not hastened.
    earliest: Instant,
}

/// It may be hastened at the cost of so much time at once, before it is spared.
const BURST: Duration = Duration::from_millis(50);
/// It takes one part of so many of the time.
const SHARE: u32 = 20;

impl Every {
    /// Due an interval from now, and then again.
    pub(crate) fn new(interval: Duration) -> Self {
        let now = Instant::now();
        let earliest = now.checked_sub(BURST * SHARE).unwrap_or(now);
        Self { interval, due: now + interval, earliest }
    }

    /// Whether it is time; if so, the next interval begins.
    pub(crate) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.due;
        if due {
            self.due = now + self.interval;
        }
        due
    }

    /// It is due no more often than takes a twentieth of the time, if it took so long.
    pub(crate) fn spare(&mut self, took: Duration) {
        self.due = self.due.max(Instant::now() + took * SHARE);
    }

    /// The same of one that is hastened: on the whole it takes no more than a twentieth of the
    /// time, but for what is done regularly.
    pub(crate) fn spend(&mut self, took: Duration) {
        let now = Instant::now();
        let least = now.checked_sub(BURST * SHARE).unwrap_or(now);
        let owed = took * SHARE;
        // No more than the longest one asks for: otherwise it would never be hastened again.
        let most = self.earliest.max(now + owed);
        self.earliest = (self.earliest.max(least) + owed).min(most);
    }

    /// It is due at once, or as soon as not too much was spent on it.
    pub(crate) fn hasten(&mut self) {
        self.due = self.due.min(self.earliest);
    }

    /// Not too much was spent on it.
    pub(crate) fn may_be_hastened(&self) -> bool {
        Instant::now() >= self.earliest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_hastened_to_a_twentieth_of_the_time() {
        let mut every = Every::new(Duration::from_secs(3600));
        assert!(!every.is_due());
        every.hasten();
        assert!(every.is_due() && !every.is_due());
        let mut hastened = |took_ms| {
            every.spend(Duration::from_millis(took_ms));
            every.hasten();
            every.is_due()
        };
        assert!((0..4).all(|_| hastened(10)), "a few at once");
        assert!(!hastened(1000));
        assert!(!hastened(0));
        every.earliest -= Duration::from_secs(20);
        every.hasten();
        assert!(every.is_due());
    }

    #[test]
    fn what_is_hastened_too_often_is_due_as_regularly_as_before() {
        let mut every = Every::new(Duration::from_secs(1));
        let regular = every.due;
        for _ in 0..100 {
            every.spend(Duration::from_millis(100));
        }
        assert!(!every.may_be_hastened());
        assert!(every.earliest <= Instant::now() + Duration::from_secs(2), "what was owed goes by");
        every.hasten();
        assert_eq!(every.due, regular);
    }
}
