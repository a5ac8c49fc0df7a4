//! Counts of the wall-clock measurement.

use crate::trace::RunState;

/// The counts of a program's wall-clock measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WallStats {
    /// The number of checks of a thread's account.
    pub(crate) checks: u64,
    /// The number of sleepers found at a known location.
    pub(crate) known: u64,
    /// The number of new stacks that were read without a stop.
    pub(crate) read: u64,
    /// The number of new stacks that required a stop.
    pub(crate) stopped: u64,
    /// The longest of these stops, in nanoseconds.
    pub(crate) stop_ns_max: u64,
    /// The number of sleepers that ran again before their stack was read.
    pub(crate) moved: u64,
    /// The number of attempts to read a sleeper's stack that failed.
    pub(crate) missed: u64,
    /// The number of new stacks without managed frames because the thread's block was not found.
    pub(crate) unsearched: u64,
    /// Whether the kernel does not let this user read its frames, which are wanted.
    pub(crate) kernel_hidden: bool,
    /// The number of turns that left threads to the next turn, and the number of these threads.
    pub(crate) capped: (u64, u64),
    /// The largest number of threads at a time whose accounts are opened at each check, since there
    /// are too few descriptors to keep them open.
    pub(crate) reopened: u64,
    /// The largest number of threads at a time whose accounts could not be opened.
    pub(crate) unwatched: u64,
    /// The number of accounts that cannot belong to the thread, since a thread that called exec has
    /// taken over its id.
    pub(crate) impossible: u64,
    /// The number of threads that exited before their first check.
    pub(crate) ended_unseen: u64,
    /// Reported microseconds, by [`RunState`].
    pub(crate) reported_us: [u64; RunState::ALL.len()],
    /// Reported microseconds without a stack.
    pub(crate) stackless_us: u64,
}

impl WallStats {
    /// Adds the counts of a later program.
    pub(crate) fn add(&mut self, later: &Self) {
        self.checks += later.checks;
        self.known += later.known;
        self.read += later.read;
        self.stopped += later.stopped;
        self.stop_ns_max = self.stop_ns_max.max(later.stop_ns_max);
        self.moved += later.moved;
        self.missed += later.missed;
        self.unsearched += later.unsearched;
        self.kernel_hidden |= later.kernel_hidden;
        self.capped.0 += later.capped.0;
        self.capped.1 += later.capped.1;
        self.reopened = self.reopened.max(later.reopened);
        self.unwatched = self.unwatched.max(later.unwatched);
        self.ended_unseen += later.ended_unseen;
        self.impossible += later.impossible;
        for (sum, more) in self.reported_us.iter_mut().zip(later.reported_us) {
            *sum += more;
        }
        self.stackless_us += later.stackless_us;
    }
}
