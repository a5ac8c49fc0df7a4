//! A recording that is over, before its last words are written.

use traceprof_abi::sync::Ordering;

use super::account::Reckoning;
use super::aftermath::{Aftermath, Footprint};
use super::attach::{Attached, Detached};
use super::balance::Balanced;
use super::collect::Stats;
use super::failures::Unsampled;
use super::liveness::Heavy;
use super::scribe::Finished;
use super::session::{End, Relieved};
use super::threads::ThreadMetrics;

/// A recording whose target is cured and whose samples are written.
pub(super) struct Ended {
    /// Why it ended.
    pub(super) end: End,
    /// The writer before its last words.
    pub(super) finished: Finished,
    /// How long the target was stopped for the cure, and what stays behind.
    pub(super) detached: Detached,
    /// The agent, for its counters and its stops.
    pub(super) attached: Attached,
    /// CPU time that the target used while it was sampled.
    pub(super) cpu_ns: u64,
    /// Of it, time in the kernel, if the target was still there to be asked.
    pub(super) system_ns: Option<u64>,
    /// Of it, time of threads that block the signal.
    pub(super) blocked_ns: u64,
    /// Such threads: id and name.
    pub(super) blocked: Vec<(i32, String)>,
    /// Threads that could have no timer, and that nothing else sampled.
    pub(super) unsampled: Unsampled,
    /// Threads that could have none, and had events instead.
    pub(super) relieved: Relieved,
    /// Priming signals sent.
    pub(super) primed: u64,
    /// Periods that were given to the last stacks of threads that ended.
    pub(super) given: u64,
    /// Weights that were put right by the threads' own clocks.
    pub(super) balanced: Balanced,
    /// Wall-clock time of the recording in nanoseconds.
    pub(super) elapsed_ns: u64,
    /// Threads that were there at some time.
    pub(super) threads: ThreadMetrics,
    /// What rotations met.
    pub(super) storage: Stats,
    /// Kernel hits that found the ring buffer full.
    pub(super) kernel_lost: u64,
    /// The heaviest traces, if the user asked for them.
    pub(super) heaviest: Vec<Heavy>,
}

impl Ended {
    /// What a look at the target finds of the recording; `None` if there is no such target any more.
    pub(super) fn aftermath(&self, pid: i32, before: &Footprint) -> Option<Aftermath> {
        if matches!(self.end, End::Exited | End::Executed) {
            return None;
        }
        let places = &self.attached.data().control().signals;
        // Relaxed: written by this side.
        let signals = places.each_ref().map(|it| it.signal.load(Ordering::Relaxed) as i32);
        Aftermath::look(pid, before, &signals)
    }

    /// The reckoning.
    pub(super) fn reckoning(&self) -> Reckoning<'_> {
        let setup = self.attached.setup;
        Reckoning {
            control: self.attached.data().control(),
            totals: self.finished.totals(),
            period_ns: setup.period_ns,
            kernel: setup.kernel,
            cpu_ns: self.cpu_ns,
            system_ns: self.system_ns.filter(|_| !setup.kernel),
            blocked_ns: self.blocked_ns,
            blocked: self.blocked.clone(),
            unsampled: &self.unsampled,
            relieved: &self.relieved,
            primed: self.primed,
            given: self.given,
            balanced: self.balanced,
            choice: &self.attached.choice,
            entries_ns: self.attached.entries_ns,
            elapsed_ns: self.elapsed_ns,
            threads: self.threads,
            storage: self.storage,
            kernel_lost: self.kernel_lost,
            heaviest: self.heaviest.clone(),
            attach_stops_ns: self.attached.stops_ns.clone(),
            detach_stopped_ns: self.detached.stopped_ns,
            is_gone: matches!(self.end, End::Exited | End::Executed),
        }
    }
}
