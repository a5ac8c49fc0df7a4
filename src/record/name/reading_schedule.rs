//! When the mappings of a process are read.
//!
//! They are read at intervals, and earlier if something suggests a change. Early readings have a
//! budget, because programs may map files without end.

use std::time::{Duration, Instant};

use crate::record::contract::periodic::Periodic;

/// The interval between two readings if nothing suggests a change.
const REFRESH: Duration = Duration::from_secs(1);
/// How long after the start the mappings are read in every turn of the loop.
const SETTLING: Duration = Duration::from_secs(1);

/// The schedule of the readings for one program.
pub(crate) struct ReadingSchedule {
    refresh: Periodic,
    settling_until: Instant,
}

impl ReadingSchedule {
    /// Makes a schedule for a program that has started now, or is recorded from now on.
    pub(crate) fn start() -> Self {
        Self { refresh: Periodic::new(REFRESH), settling_until: Instant::now() + SETTLING }
    }

    /// Returns whether a reading is due. `is_pending` says that the kernel has reported a change.
    pub(crate) fn is_due(&mut self, is_pending: bool) -> bool {
        // A program that has just started maps its libraries now.
        if is_pending || Instant::now() < self.settling_until {
            self.refresh.hasten();
        }
        self.refresh.is_due()
    }

    /// Makes the next reading due soon, since the mappings may have changed.
    pub(crate) fn hasten(&mut self) {
        self.refresh.hasten();
    }

    /// Returns whether the budget permits a reading now.
    pub(crate) fn may_be_early(&self) -> bool {
        self.refresh.may_be_hastened()
    }

    /// Charges a reading of this length. `has_new` says that it found new code.
    ///
    /// The tables of a program that starts are made once. If they used up the budget, its last
    /// libraries would have none for a second.
    pub(crate) fn spend(&mut self, took: Duration, has_new: bool) {
        if !has_new || Instant::now() >= self.settling_until {
            self.refresh.spend(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_millis(100);

    #[test]
    fn tables_of_a_program_that_starts_use_up_no_budget() {
        let mut schedule = ReadingSchedule::start();
        schedule.settling_until = Instant::now() + Duration::from_secs(3600);
        for _ in 0..20 {
            schedule.spend(LONG, true);
            assert!(schedule.may_be_early() && schedule.is_due(false));
        }
    }

    #[test]
    fn other_readings_use_up_the_budget() {
        let mut schedule = ReadingSchedule::start();
        schedule.settling_until = Instant::now() + Duration::from_secs(3600);
        (0..20).for_each(|_| schedule.spend(LONG, false));
        assert!(!schedule.may_be_early());
        let mut schedule = ReadingSchedule::start();
        schedule.settling_until = Instant::now();
        (0..20).for_each(|_| schedule.spend(LONG, true));
        assert!(!schedule.may_be_early());
        schedule.hasten();
        assert!(!schedule.is_due(true));
    }
}
