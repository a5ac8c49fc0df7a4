//! Makes the weights of the samples add up to the CPU time that the threads used, and measures and
//! limits what the recording itself uses.
//!
//! A sample comes with the weight that its source gave it: the periods that a perf event's or a
//! timer's expiry stands for. For perf events, the threads' own CPU clocks correct these weights,
//! and time that no sample covers is credited to a thread's last stack.

use std::time::Instant;

use traceprof_abi::layout::ControlBlock;

use self::balance::{Balance, Balanced, ThreadCpuReading};
use self::cpu_clock::CpuClock;
use self::overhead::{CostInputs, Overhead, OverheadSummary};
use self::parents::{PARENTS_MAX, Parents};
use self::remainder::Remainder;
use crate::proc;
use crate::record::batch::Batch;
use crate::record::batch::threads::ThreadKey;
use crate::record::contract::clock::{Clock, monotonic_now_ns};
use crate::record::contract::periodic::Periodic;
use crate::record::contract::sampling::Setup;
use crate::record::source::perf::{EventFamily, open_anchor};
use crate::record::source::signal_blocked::{Blocked, blocks};
use crate::record::store::threads::{Exit, Registry, Usage};

pub(crate) mod balance;
pub(crate) mod cpu_clock;
pub(crate) mod overhead;
pub(crate) mod parents;
pub(crate) mod remainder;

/// Most threads whose clocks are read at the end of a recording. One takes about 20 us.
const LAST_READINGS_MAX: usize = 1024;

/// Decides how much CPU time each sample of one program stands for, and at which rate the program
/// is sampled.
pub(crate) struct Weigher {
    pid: i32,
    /// The CPU time that the target has used.
    pub(crate) cpu: CpuClock,
    cpu_check: Periodic,
    /// The target's CPU time in the kernel at the start, in nanoseconds.
    system_start_ns: u64,
    period_ns: u64,
    balance: Balance,
    remainder: Remainder,
    parents: Parents,
    overhead: Overhead,
    /// The clocks of threads just before sampling stopped.
    last_readings: Vec<(Usage, ThreadCpuReading)>,
}

/// How the samples of a batch were taken.
#[derive(Clone, Copy)]
pub(crate) struct BatchOrigin {
    /// Whether perf events took the samples. Only their expiries are comparable with the threads'
    /// clocks.
    pub(crate) has_events: bool,
    /// Whether the batch contains all samples up to the time of the rotation.
    pub(crate) is_complete: bool,
    /// The time of the rotation, in CLOCK_MONOTONIC nanoseconds; `None` for the last batch.
    pub(crate) until_ns: Option<u64>,
    /// The sampling signal.
    pub(crate) signal: i32,
    /// Whether CPU time in the kernel is sampled.
    pub(crate) has_kernel: bool,
}

/// Totals of the weights of one program, or of several.
#[derive(Debug, Clone, Default)]
pub(crate) struct WeightTotals {
    /// The number of periods that were credited to the last stacks of threads: of those that
    /// exited, of those that started others, and of all at the end.
    pub(crate) credited: u64,
    /// Corrections of weights by the threads' own clocks.
    pub(crate) balanced: Balanced,
    /// The target's CPU time in the kernel, in nanoseconds, if it was not sampled and could be
    /// read.
    pub(crate) system_ns: Option<u64>,
}

impl WeightTotals {
    /// Adds the totals of another program or process.
    pub(crate) fn add(&mut self, other: &Self) {
        self.credited += other.credited;
        self.balanced.add(other.balanced);
        self.system_ns = match (self.system_ns, other.system_ns) {
            (Some(sum), Some(more)) => Some(sum + more),
            (sum, more) => sum.or(more),
        };
    }
}

impl Weigher {
    /// Starts to weigh the samples of a process that is sampled with this period, in nanoseconds.
    pub(crate) fn start(pid: i32, period_ns: u64, overhead: Overhead) -> Self {
        Self {
            pid,
            cpu: CpuClock::start(pid),
            cpu_check: Periodic::new(std::time::Duration::ZERO),
            system_start_ns: proc::system_time_ns(pid).unwrap_or(0),
            period_ns: period_ns.max(1),
            balance: Balance::new(period_ns),
            remainder: Remainder::new(period_ns),
            parents: Parents::new(period_ns),
            overhead,
            last_readings: Vec::new(),
        }
    }

    /// Notes that sampling starts.
    pub(crate) fn begin(&mut self, control: &ControlBlock) {
        self.overhead.begin(control, monotonic_now_ns());
    }

    /// Reads and returns the target's CPU time in nanoseconds, unless that takes too long.
    ///
    /// The kernel adds up all threads for it, which takes milliseconds for ten thousand. So the
    /// readings may take a hundredth of the time.
    pub(crate) fn read_cpu_clock(&mut self) -> Option<u64> {
        if !self.cpu_check.is_due() {
            return None;
        }
        let start = Instant::now();
        self.cpu.advance();
        self.cpu_check.spare(start.elapsed() * 5);
        Some(self.cpu.used_ns())
    }

    /// Returns the event family, and with it the rate, that is in force.
    pub(crate) fn family(&self) -> EventFamily {
        self.overhead.family()
    }

    /// Checks the cost of sampling when a check is due, and returns the new rate if the cost calls
    /// for another.
    pub(crate) fn check_overhead(&mut self, counts: CostCounts<'_>) -> Option<EventFamily> {
        if !self.overhead.is_due() {
            return None;
        }
        self.cpu.advance();
        self.overhead.check(counts.with(&self.cpu))
    }

    /// Notes that this rate is in force.
    pub(crate) fn rate_changed(&mut self, family: EventFamily) {
        self.overhead.change(family, monotonic_now_ns());
        self.set_rate_shift(family.shift);
    }

    /// Notes that the rate cannot be changed.
    pub(crate) fn rate_refused(&mut self, why: &str) {
        self.overhead.refuse(why);
    }

    /// Makes each expiry stand for 2 to the power of `shift` periods from now on.
    pub(crate) fn set_rate_shift(&mut self, shift: u32) {
        self.balance.set_rate_shift(shift);
        self.remainder.set_rate_shift(shift);
        self.parents.set_rate_shift(shift);
    }

    /// Returns the final cost of sampling.
    pub(crate) fn end_overhead(&mut self, counts: CostCounts<'_>) -> OverheadSummary {
        self.overhead.end(counts.with(&self.cpu))
    }

    /// Decides the weights of the samples in the batch.
    ///
    /// Only perf events are comparable with clocks. A timer's first expiry comes at any point of a
    /// period, so no time is missing on average.
    pub(crate) fn weigh(
        &mut self,
        batch: &mut Batch,
        origin: BatchOrigin,
        threads: &mut Registry,
        blocked: &Blocked,
    ) {
        if !origin.has_events {
            return;
        }
        // In an incomplete batch, samples that were not read yet would seem to be missing. Without
        // kernel samples, the CPU time that the samples must cover is unknown.
        if let Some(until_ns) = origin.until_ns
            && origin.is_complete
            && origin.has_kernel
        {
            self.balance(batch, until_ns, threads, blocked);
        }
        self.settle(batch, origin, threads);
    }

    /// Corrects the weights of the samples up to `until_ns` by the clocks of the threads.
    fn balance(&mut self, batch: &mut Batch, until_ns: u64, threads: &Registry, blocked: &Blocked) {
        let late_ns = monotonic_now_ns().saturating_sub(until_ns);
        let remainder = &self.remainder;
        let clock = |key| read_clock(key, threads, blocked).map(|(_, reading)| reading);
        self.balance.correct(batch, late_ns, |key| remainder.weight(key), clock);
    }

    /// Reads the clocks of the threads with the most samples. The caller stops sampling afterwards.
    pub(crate) fn read_last_clocks(&mut self, threads: &Registry, blocked: &Blocked) {
        let keys = self.remainder.heaviest(LAST_READINGS_MAX).into_iter();
        self.last_readings = keys.filter_map(|key| read_clock(key, threads, blocked)).collect();
    }

    /// Adds samples for CPU time that threads used by the end of the recording and that no sample
    /// covers. Most of these threads sleep: those that run on get the next expiry in time.
    fn settle_last(&mut self, batch: &mut Batch, exits: &[Exit], process_ns: u64) {
        for (usage, reading) in std::mem::take(&mut self.last_readings) {
            if exits.iter().any(|exit| exit.key == usage.key) {
                continue;
            }
            let weight = self.remainder.weight(usage.key);
            let missing = self.balance.missing_at_end(usage.key, reading, weight);
            let most = self.remainder.unsampled_ns(process_ns) / self.period_ns;
            let weight = u32::try_from(missing.min(most)).unwrap_or(u32::MAX);
            if weight > 0 {
                self.remainder.credit(&usage, weight, monotonic_now_ns(), batch);
            }
        }
    }

    /// Adds samples for CPU time that no sample covers: of threads that have exited, and of threads
    /// that start others.
    fn settle(&mut self, batch: &mut Batch, origin: BatchOrigin, threads: &mut Registry) {
        self.remainder.note(&batch.samples);
        let before = batch.samples.len();
        let exits = threads.exits(origin.is_complete);
        if !exits.is_empty() {
            let sampled = if origin.has_kernel { 1000 } else { self.user_share() };
            // The process's clock is read after the exits, so it includes all their CPU time.
            self.remainder.settle(&exits, sampled, self.cpu.used_at_most_ns(), batch);
            self.balance.forget(&exits);
        }
        if origin.until_ns.is_some() {
            self.settle_parents(batch, origin, threads);
        } else if origin.has_kernel {
            self.settle_last(batch, &exits, self.cpu.used_ns());
        }
        if batch.samples.len() > before {
            for sample in &batch.samples[before..] {
                threads.announce((sample.slot, sample.generation), &mut batch.threads);
            }
            batch.sort();
        }
    }

    /// Anchors threads that start others if expiries do not keep up with their CPU time, and
    /// credits the missing time.
    fn settle_parents(&mut self, batch: &mut Batch, origin: BatchOrigin, threads: &Registry) {
        // CPU time in a mode that is not sampled is not missing. How much of it is one thread's is
        // unknown, so nothing is credited then.
        let sampled = if origin.has_kernel { 1000 } else { self.user_share() };
        let process_ns = self.cpu.used_ns();
        self.parents.begin_turn();
        let is_due = |key| self.parents.is_due(key, process_ns);
        for mut parent in threads.parents(PARENTS_MAX, is_due) {
            parent.cpu_ns = parent.cpu_ns / 1000 * sampled;
            let weight = self.remainder.weight(parent.key);
            let unsampled_ns = self.remainder.unsampled_ns(process_ns);
            let is_signal_blocked = || blocks(self.pid, parent.tid, origin.signal).is_some();
            let advice =
                self.parents.check(&parent, weight, (process_ns, unsampled_ns), is_signal_blocked);
            if advice.anchor {
                self.parents.keep(&parent, open_anchor(parent.tid));
            }
            if advice.weight > 0 && origin.has_kernel {
                self.remainder.credit(&parent, advice.weight, monotonic_now_ns(), batch);
            }
        }
    }

    /// Returns the share of user mode in the target's CPU time, in thousandths.
    fn user_share(&self) -> u64 {
        let (user, system) = proc::mode_times_ns(self.pid).unwrap_or((1, 0));
        user.saturating_mul(1000) / user.saturating_add(system).max(1)
    }

    /// Returns the target's CPU time in the kernel since the start, in nanoseconds, if it was not
    /// sampled and `now_ns`, its total by now, is known.
    pub(crate) fn unsampled_system_ns(&self, now_ns: Option<u64>, setup: Setup) -> Option<u64> {
        now_ns.filter(|_| !setup.kernel).map(|now| now.saturating_sub(self.system_start_ns))
    }

    /// Returns the totals.
    pub(crate) fn totals(&self, system_ns: Option<u64>) -> WeightTotals {
        WeightTotals { credited: self.remainder.credited, balanced: self.balance.sum, system_ns }
    }
}

/// Reads the CPU clock of a thread that is alive.
fn read_clock(
    key: ThreadKey,
    threads: &Registry,
    blocked: &Blocked,
) -> Option<(Usage, ThreadCpuReading)> {
    let usage = threads.usage_of(key)?;
    let is_signal_blocked = blocked.holds(usage.tid);
    let reading = ThreadCpuReading { cpu_ns: usage.cpu_ns, is_signal_blocked };
    Some((usage, reading))
}

/// The counts that the cost of sampling is computed from.
#[derive(Clone, Copy)]
pub(crate) struct CostCounts<'a> {
    /// The control block with the handlers' counters.
    pub(crate) control: &'a ControlBlock,
    /// The clock of the samples.
    pub(crate) clock: &'a Clock,
    /// The number of expiries in the kernel.
    pub(crate) in_kernel: u64,
}

impl<'a> CostCounts<'a> {
    fn with(self, cpu: &CpuClock) -> CostInputs<'a> {
        let Self { control, clock, in_kernel } = self;
        CostInputs { control, clock, used_ns: cpu.used_ns(), in_kernel }
    }
}
