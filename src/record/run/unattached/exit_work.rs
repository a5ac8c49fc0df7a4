//! The CPU time of exits.
//!
//! The kernel reports the CPU time of a thread that exits before it frees the memory of the
//! process. For a short program this is much: 14 % of the CPU time of a build of small C files
//! (measured, Linux 6.18). The counts of events go on until the end. What they have beyond the
//! reports is divided among the threads that exit.
//!
//! The counts do not have the time between fork and exec, which the reports have. So the two never
//! agree, and the larger one counts.

/// The longest work of an exit that is believed, in nanoseconds.
const WORK_MAX_NS: u64 = 20_000_000;

/// The CPU time of all threads that have exited.
#[derive(Debug, Default)]
pub(super) struct ExitWork {
    /// The sum of the reported CPU times in nanoseconds, and the number of reports.
    reported_ns: u64,
    exits: u64,
    /// The sum of what exits got besides, in nanoseconds.
    given_ns: u64,
}

impl ExitWork {
    /// Adds the reports of some exits.
    pub(super) fn add(&mut self, reported_ns: u64, exits: usize) {
        self.reported_ns += reported_ns;
        self.exits += exits as u64;
    }

    /// Returns what each of the last `exits` gets besides its report, in nanoseconds. `exited_ns`
    /// is the CPU time of all exited threads by the counts of events; `None` if these counts have
    /// the time of others as well. The exits then get the average of those before.
    pub(super) fn share(&mut self, exited_ns: Option<u64>, exits: usize) -> i64 {
        let exits = exits as u64;
        if exits == 0 {
            return 0;
        }
        let Some(exited_ns) = exited_ns else {
            let before = self.exits - exits;
            let each = self.given_ns.checked_div(before).unwrap_or(0);
            self.given_ns += each * exits;
            return i64::try_from(each).unwrap_or(0);
        };
        let wanted_ns = exited_ns.saturating_sub(self.reported_ns);
        if wanted_ns < self.given_ns {
            // The count of a process that has exited since was too high before.
            let back = (self.given_ns - wanted_ns) / exits;
            self.given_ns -= back * exits;
            return -i64::try_from(back).unwrap_or(0);
        }
        let each = ((wanted_ns - self.given_ns) / exits).min(WORK_MAX_NS);
        self.given_ns += each * exits;
        i64::try_from(each).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_get_what_their_reports_leave_out() {
        let mut work = ExitWork::default();
        work.add(10_000, 4);
        assert_eq!(work.share(Some(12_000), 4), 500);
        // The count of a process that had not exited was too high before.
        work.add(5_000, 2);
        assert_eq!(work.share(Some(15_000), 2), -1_000);
        assert_eq!(work.share(Some(15_000), 2), 0);
        work.add(0, 3);
        assert_eq!(work.share(Some(u64::MAX), 3), WORK_MAX_NS as i64);
        assert_eq!(work.share(Some(0), 0), 0);
    }

    #[test]
    fn reports_are_never_reduced() {
        let mut work = ExitWork::default();
        work.add(10_000, 4);
        assert_eq!(work.share(Some(2_000), 4), 0, "time before the first program");
    }

    #[test]
    fn exits_get_the_average_where_the_counts_are_of_no_use() {
        let mut work = ExitWork::default();
        work.add(1_000, 2);
        assert_eq!(work.share(None, 2), 0, "nothing is known yet");
        work.add(1_000, 2);
        assert_eq!(work.share(Some(6_000), 2), 2_000);
        work.add(1_000, 1);
        assert_eq!((work.share(None, 1), work.given_ns), (1_000, 5_000));
    }
}
