//! The time for which threads run, and wait for a processor.

use std::fs;
use std::time::Duration;

/// For how long threads have run, and have waited for a processor.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ProcessorTime {
    pub(super) ran: Duration,
    waited: Duration,
}

impl ProcessorTime {
    /// Returns the sums of the threads of some processes.
    pub(super) fn of(pids: &[i32]) -> Self {
        let mut sum = Self::default();
        for pid in pids {
            for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
                // A thread may have ended.
                let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
                let mut times = text.split(' ').map(|ns| ns.parse().unwrap_or(0));
                sum.ran += Duration::from_nanos(times.next().unwrap_or(0));
                sum.waited += Duration::from_nanos(times.next().unwrap_or(0));
            }
        }
        sum
    }

    pub(super) fn since(self, then: Self) -> Self {
        let ran = self.ran.saturating_sub(then.ran);
        Self { ran, waited: self.waited.saturating_sub(then.waited) }
    }

    pub(super) fn and(self, more: Self) -> Self {
        Self { ran: self.ran + more.ran, waited: self.waited + more.waited }
    }

    /// Returns the time in which the threads ran or waited.
    pub(super) fn all(self) -> Duration {
        self.ran + self.waited
    }
}

/// Returns a process and its descendants.
pub(super) fn tree_of(pid: i32) -> Vec<i32> {
    let mut tree = vec![pid];
    let mut at = 0;
    while let Some(pid) = tree.get(at) {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let children = tasks.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
        let children: Vec<i32> = children
            .flat_map(|it| it.split(' ').flat_map(str::parse).collect::<Vec<_>>())
            .collect();
        tree.extend(children);
        at += 1;
    }
    tree
}
