//! The schedule of scans of the target's threads.
//!
//! inotify reports nothing for `/proc/PID/task` (measured), so the recorder cannot wait for a
//! change. Where the kernel's side-band records are available ([`TaskEvents`]), they report every
//! change at once, and scans are rare. Elsewhere each turn of the loop reads the number of threads,
//! which costs almost nothing. A scan follows if that number changed. Rare scans follow in any
//! case, since a thread that exits as another starts leaves the number unchanged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::proc::TaskFolder;
use crate::record::source::machine_tasks::MachineTasks;
use crate::record::source::task_events::TaskEvents;
use crate::record::source::task_record::TaskEvent;

/// The shortest time between two scans, in a target that starts and ends threads.
const SCAN_MIN: Duration = Duration::from_millis(10);
/// The longest time between two scans, in a target that does not.
const SCAN_MAX: Duration = Duration::from_secs(1);
/// A scan may take one part in this many of the recorder's time: ten thousand threads take
/// milliseconds.
const SCAN_SHARE: u32 = 20;

/// The schedule of scans of one process's threads.
pub(crate) struct ScanSchedule {
    events: TaskEvents,
    folder: Option<TaskFolder>,
    /// The number of threads at the last scan.
    count: u64,
    last: Instant,
    period: Duration,
    /// The duration of the last scan.
    cost: Duration,
    /// The number of side-band records that were lost before the last scan.
    lost: u64,
}

impl ScanSchedule {
    /// Starts the schedule for a process.
    pub(crate) fn start(pid: i32, machine: &Arc<MachineTasks>) -> Self {
        Self {
            events: TaskEvents::open(pid, machine),
            folder: TaskFolder::open(pid).ok(),
            count: 0,
            last: Instant::now(),
            period: SCAN_MIN,
            cost: Duration::ZERO,
            lost: 0,
        }
    }

    /// Returns whether records report every start, exit and rename before a scan finds it.
    pub(crate) fn has_events(&self) -> bool {
        self.events.has_lives()
    }

    /// Returns the number of lost side-band records.
    pub(crate) fn lost(&self) -> u64 {
        self.events.lost
    }

    /// Returns the number of lost records of mappings.
    pub(crate) fn code_lost(&self) -> u64 {
        self.events.code_lost
    }

    /// Replaces the contents of `out` with all recorded changes since the last call.
    pub(crate) fn drain(&mut self, out: &mut Vec<TaskEvent>) {
        self.events.drain(out);
    }

    /// Returns whether a scan is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let passed = now.duration_since(self.last);
        if passed < SCAN_MIN.max(self.cost * SCAN_SHARE) {
            return false;
        }
        if passed >= self.period {
            return true;
        }
        if self.has_events() {
            return self.events.lost > self.lost;
        }
        let count = self.folder.as_ref().and_then(|folder| folder.count().ok());
        count.is_none_or(|count| count != self.count)
    }

    /// Notes a scan: its start, the number of threads, and how many started or exited since the
    /// last scan.
    pub(crate) fn note_scan(&mut self, before: Instant, count: usize, changes: usize) {
        self.last = Instant::now();
        self.cost = self.last.duration_since(before);
        self.count = count as u64;
        self.lost = self.events.lost;
        self.period = match changes {
            0 => (self.period * 2).min(SCAN_MAX),
            _ if self.has_events() => SCAN_MAX,
            _ => SCAN_MIN,
        };
    }

    /// Returns whether records carry the CPU time of exiting threads.
    #[cfg(test)]
    pub(crate) fn has_cpu_times(&self) -> bool {
        self.events.has_cpu_times()
    }

    #[cfg(test)]
    pub(crate) fn drop_events(&mut self) {
        self.events.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_follows_the_target() {
        let mut schedule = ScanSchedule::start(std::process::id() as i32, &Arc::default());
        schedule.drop_events();
        let scan = |schedule: &mut ScanSchedule, changes: usize| {
            let count = schedule.folder.as_ref().unwrap().count().unwrap() as usize;
            schedule.note_scan(Instant::now(), count, changes);
            schedule.period
        };
        assert_eq!(scan(&mut schedule, 3), SCAN_MIN);
        for _ in 0..10 {
            scan(&mut schedule, 0);
        }
        assert_eq!(schedule.period, SCAN_MAX);
        assert!(!schedule.is_due(schedule.last + SCAN_MIN / 2), "not twice in the shortest time");
        assert!(schedule.is_due(schedule.last + SCAN_MAX));
        // One more thread than there is.
        schedule.count += 1;
        assert!(schedule.is_due(schedule.last + SCAN_MIN), "the number changed");
        assert_eq!(scan(&mut schedule, 1), SCAN_MIN);
        schedule.cost = SCAN_MIN;
        schedule.count += 1;
        assert!(!schedule.is_due(schedule.last + SCAN_MIN * 2), "scans are costly here");
        assert!(schedule.is_due(schedule.last + SCAN_MIN * SCAN_SHARE));
    }

    #[test]
    fn with_side_band_records_scans_are_rare() {
        let mut schedule = ScanSchedule::start(std::process::id() as i32, &Arc::default());
        if !schedule.has_events() {
            return;
        }
        schedule.note_scan(Instant::now(), 1, 5);
        schedule.count += 1;
        assert!(!schedule.is_due(schedule.last + SCAN_MAX / 2));
        schedule.events.lost += 1;
        assert!(schedule.is_due(schedule.last + SCAN_MAX / 2), "a record was lost");
    }
}
