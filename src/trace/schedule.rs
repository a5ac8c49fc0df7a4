//! The schedule for syncing the data file.

use std::time::Duration;

use super::Durability;

/// The interval between syncs: a little less than the promised second, since a flush just before it
/// must not wait for the next one.
const AFTER: Duration = Duration::from_millis(850);
/// The most unsynced bytes of the data file; the index groups of this data wait in memory.
const AFTER_BYTES: u64 = 8 << 20;

/// Decides when to sync.
#[derive(Debug)]
pub(super) struct Schedule {
    durability: Durability,
    last: Duration,
    bytes: u64,
}

impl Schedule {
    /// Creates a schedule that starts at this time.
    pub(super) fn new(durability: Durability, now: Duration) -> Self {
        Self { durability, last: now, bytes: 0 }
    }

    /// Returns whether anything is ever synced.
    pub(super) fn is_used(&self) -> bool {
        self.durability != Durability::None
    }

    /// Records a written frame.
    pub(super) fn wrote(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Returns whether a sync is due.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        let waited = self.bytes >= AFTER_BYTES || now.saturating_sub(self.last) >= AFTER;
        match self.durability {
            Durability::None => false,
            Durability::Interval => self.bytes > 0 && waited,
            Durability::Frame => self.bytes > 0,
        }
    }

    /// Records a sync of everything.
    pub(super) fn synced(&mut self, now: Duration) {
        self.last = now;
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(durability: Durability, bytes: u64, ms: u64) -> bool {
        let mut schedule = Schedule::new(durability, Duration::from_secs(5));
        schedule.wrote(bytes);
        let due = schedule.is_due(Duration::from_secs(5) + Duration::from_millis(ms));
        schedule.synced(Duration::from_secs(9));
        assert!(!schedule.is_due(Duration::from_secs(9)), "just synced");
        due
    }

    #[test]
    fn an_interval_ends_by_time_or_by_size() {
        assert!(!due(Durability::Interval, 1, 0));
        assert!(!due(Durability::Interval, AFTER_BYTES - 1, 849));
        assert!(due(Durability::Interval, AFTER_BYTES, 0));
        assert!(due(Durability::Interval, 1, 850));
        assert!(!due(Durability::Interval, 0, 5000), "nothing to sync");
    }

    #[test]
    fn every_frame_or_none() {
        assert!(due(Durability::Frame, 1, 0));
        assert!(!due(Durability::Frame, 0, 5000));
        assert!(!due(Durability::None, 1 << 30, 1 << 30));
    }
}
