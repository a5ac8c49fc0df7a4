//! The figures of the sources, for the closing report.

use crate::record::source::narrow_threads::NarrowTotals;
use crate::record::source::timer_failures::Unsampled;
use crate::record::source::timerless::TimerlessTotals;
use crate::record::source::wall::WallStats;

/// Totals of the sources of one program, or of several.
#[derive(Debug, Clone, Default)]
pub(crate) struct SourceTotals {
    /// CPU time of threads that block the signal, in nanoseconds.
    pub(crate) blocked_ns: u64,
    /// The ids and names of these threads.
    pub(crate) blocked: Vec<(i32, String)>,
    /// Threads that got no signal, since their stack has no room for it.
    pub(crate) narrow: NarrowTotals,
    /// Threads that could not have a timer and that nothing else sampled.
    pub(crate) unsampled: Unsampled,
    /// Threads that could not have a timer and had events instead.
    pub(crate) timerless: TimerlessTotals,
    /// The number of priming signals sent.
    pub(crate) primed: u64,
    /// The number of kernel samples that found the ring buffer full.
    pub(crate) kernel_lost: u64,
    /// The counts of the wall-clock scans, if requested.
    pub(crate) wall: Option<WallStats>,
}

impl SourceTotals {
    /// Adds the totals of another program or process, but not the list of threads.
    pub(crate) fn add(&mut self, other: &Self) {
        self.blocked_ns += other.blocked_ns;
        self.narrow.add(&other.narrow);
        self.unsampled.add(&other.unsampled);
        self.timerless.add(other.timerless.clone());
        self.primed += other.primed;
        self.kernel_lost += other.kernel_lost;
        if let (Some(wall), Some(other)) = (&mut self.wall, &other.wall) {
            wall.add(other);
        }
    }
}
