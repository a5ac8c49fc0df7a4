//! When to look at the target's threads anew.
//!
//! inotify reports nothing for `/proc/PID/task` (measured), so there is no watch to wait on. Where
//! the kernel's side band may be had it tells of every thread as it happens ([`TaskEvents`]), and the
//! list is read now and then only. Elsewhere the number of threads is asked in each turn of the loop,
//! which costs nothing, and the list is read when it moved, and now and then: a thread that ended
//! while another one started leaves the number as it was.

use std::time::{Duration, Instant};

use super::task_events::{TaskEvent, TaskEvents};
use crate::proc::TaskFolder;

/// The shortest time between two looks at the list, in a target that starts and ends threads.
const SHORTEST: Duration = Duration::from_millis(10);
/// The longest, in one that does not.
const LONGEST: Duration = Duration::from_secs(1);
/// A look may take one part of so many of the recorder's time: the list of ten thousand threads
/// takes milliseconds.
const SHARE: u32 = 20;

/// The watch over one process's threads.
pub(super) struct Watch {
    events: TaskEvents,
    folder: Option<TaskFolder>,
    /// Threads at the last look.
    count: u64,
    last: Instant,
    period: Duration,
    /// What the last look cost.
    cost: Duration,
    /// Side-band records that were lost before the last look.
    lost: u64,
}

impl Watch {
    /// Of the process `pid`.
    pub(super) fn start(pid: i32) -> Self {
        Self {
            events: TaskEvents::open(pid),
            folder: TaskFolder::open(pid).ok(),
            count: 0,
            last: Instant::now(),
            period: SHORTEST,
            cost: Duration::ZERO,
            lost: 0,
        }
    }

    /// Every start, end and name is told: what a look at the list finds is known before.
    pub(super) fn is_told(&self) -> bool {
        self.events.has_lives()
    }

    /// Side-band records that were lost.
    pub(super) fn lost(&self) -> u64 {
        self.events.lost
    }

    /// The same of mappings.
    pub(super) fn code_lost(&self) -> u64 {
        self.events.code_lost
    }

    /// What was told since the last call.
    pub(super) fn listen(&mut self, out: &mut Vec<TaskEvent>) {
        self.events.drain(out);
    }

    /// Whether the list is to be read now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let passed = now.duration_since(self.last);
        if passed < SHORTEST.max(self.cost * SHARE) {
            return false;
        }
        if passed >= self.period {
            return true;
        }
        if self.is_told() {
            return self.events.lost > self.lost;
        }
        let count = self.folder.as_ref().and_then(|folder| folder.count().ok());
        count.is_none_or(|count| count != self.count)
    }

    /// The list was read: so many threads are there, and so many came or went since the look before.
    pub(super) fn looked(&mut self, before: Instant, count: usize, changes: usize) {
        self.last = Instant::now();
        self.cost = self.last.duration_since(before);
        self.count = count as u64;
        self.lost = self.events.lost;
        self.period = match changes {
            0 => (self.period * 2).min(LONGEST),
            _ if self.is_told() => LONGEST,
            _ => SHORTEST,
        };
    }

    /// The CPU time of threads that end is told.
    #[cfg(test)]
    pub(super) fn has_cpu_times(&self) -> bool {
        self.events.has_cpu_times()
    }

    #[cfg(test)]
    pub(super) fn deafen(&mut self) {
        self.events.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_follows_the_target() {
        let mut watch = Watch::start(std::process::id() as i32);
        watch.deafen();
        let look = |watch: &mut Watch, changes: usize| {
            let count = watch.folder.as_ref().unwrap().count().unwrap() as usize;
            watch.looked(Instant::now(), count, changes);
            watch.period
        };
        assert_eq!(look(&mut watch, 3), SHORTEST);
        for _ in 0..10 {
            look(&mut watch, 0);
        }
        assert_eq!(watch.period, LONGEST);
        assert!(!watch.is_due(watch.last + SHORTEST / 2), "not twice in the shortest time");
        assert!(watch.is_due(watch.last + LONGEST));
        // One more than there are.
        watch.count += 1;
        assert!(watch.is_due(watch.last + SHORTEST), "the number moved");
        assert_eq!(look(&mut watch, 1), SHORTEST);
        watch.cost = SHORTEST;
        watch.count += 1;
        assert!(!watch.is_due(watch.last + SHORTEST * 2), "looks are costly here");
        assert!(watch.is_due(watch.last + SHORTEST * SHARE));
    }

    #[test]
    fn who_is_told_looks_rarely() {
        let mut watch = Watch::start(std::process::id() as i32);
        if !watch.is_told() {
            return;
        }
        watch.looked(Instant::now(), 1, 5);
        watch.count += 1;
        assert!(!watch.is_due(watch.last + LONGEST / 2));
        watch.events.lost += 1;
        assert!(watch.is_due(watch.last + LONGEST / 2), "something was not told");
    }
}
