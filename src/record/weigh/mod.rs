//! How much CPU time a sample stands for, and what the recording itself uses.

use std::time::Instant;

use traceprof_abi::layout::ControlBlock;

use self::balance::{Balance, Balanced, Reading};
use self::cpu_clock::CpuClock;
use self::overhead::{Counted, Overhead, Spent};
use self::parents::{PARENTS_MAX, Parents};
use self::remainder::Remainder;
use crate::proc;
use crate::record::batch::rotation::Batch;
use crate::record::contract::clock::{Clock, monotonic_now_ns};
use crate::record::contract::every::Every;
use crate::record::contract::sampling::Setup;
use crate::record::source::perf::{EventFamily, open_anchor};
use crate::record::source::signal_blocked::{Blocked, blocks};
use crate::record::store::threads::{Registry, Usage};

pub(crate) mod balance;
pub(crate) mod cpu_clock;
pub(crate) mod overhead;
pub(crate) mod parents;
pub(crate) mod remainder;

/// Decides how much CPU time each sample of one program stands for, and how often it is sampled.
pub(crate) struct Weigher {
    pid: i32,
    /// The CPU time that the target has used.
    pub(crate) cpu: CpuClock,
    cpu_check: Every,
    /// Its time in the kernel at the start, in nanoseconds.
    system_start_ns: u64,
    balance: Balance,
    remainder: Remainder,
    parents: Parents,
    overhead: Overhead,
}

/// How the samples of a batch were taken.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    /// Whether perf events took them, whose expiries are comparable with the threads' clocks.
    pub(crate) has_events: bool,
    /// Whether all samples up to the time of the rotation are in the batch.
    pub(crate) is_complete: bool,
    /// The time of the rotation, in CLOCK_MONOTONIC nanoseconds; `None` for the last batch.
    pub(crate) until_ns: Option<u64>,
    /// The sampling signal.
    pub(crate) signal: i32,
    /// Whether time in the kernel is sampled.
    pub(crate) has_kernel: bool,
}

/// Totals of the weights of one program, or of several.
#[derive(Debug, Clone, Default)]
pub(crate) struct WeightTotals {
    /// The number of periods given to the last stacks of threads that ended.
    pub(crate) given: u64,
    /// Weights that were corrected by the threads' own clocks.
    pub(crate) balanced: Balanced,
    /// The target's time in the kernel, in nanoseconds, where that was not sampled and was
    /// readable.
    pub(crate) system_ns: Option<u64>,
}

impl WeightTotals {
    /// Adds the totals of another program or process.
    pub(crate) fn add(&mut self, other: &Self) {
        self.given += other.given;
        self.balanced.add(other.balanced);
        self.system_ns = match (self.system_ns, other.system_ns) {
            (Some(sum), Some(more)) => Some(sum + more),
            (sum, more) => sum.or(more),
        };
    }
}

impl Weigher {
    /// Starts for a process that is sampled with this period.
    pub(crate) fn start(pid: i32, period_ns: u64, overhead: Overhead) -> Self {
        Self {
            pid,
            cpu: CpuClock::start(pid),
            cpu_check: Every::new(std::time::Duration::ZERO),
            system_start_ns: proc::system_time_ns(pid).unwrap_or(0),
            balance: Balance::new(period_ns),
            remainder: Remainder::new(period_ns),
            parents: Parents::new(period_ns),
            overhead,
        }
    }

    /// Notes that sampling begins.
    pub(crate) fn begin(&mut self, control: &ControlBlock) {
        self.overhead.begin(control, monotonic_now_ns());
    }

    /// Reads the target's CPU time, unless that takes too long: the kernel adds up the threads,
    /// which takes milliseconds for ten thousand. It gets a hundredth of the time.
    pub(crate) fn read_cpu_clock(&mut self) {
        if self.cpu_check.is_due() {
            let start = Instant::now();
            self.cpu.advance();
            self.cpu_check.spare(start.elapsed() * 5);
        }
    }

    /// Returns the present rate.
    pub(crate) fn family(&self) -> EventFamily {
        self.overhead.family()
    }

    /// Checks the cost when it is due, and returns the rate that it calls for if that is another.
    pub(crate) fn check_overhead(&mut self, counts: CostCounts<'_>) -> Option<EventFamily> {
        if !self.overhead.is_due() {
            return None;
        }
        self.cpu.advance();
        self.overhead.look(counts.with(&self.cpu))
    }

    /// Notes that this rate is in force.
    pub(crate) fn rate_changed(&mut self, family: EventFamily) {
        self.overhead.change(family, monotonic_now_ns());
        self.slow(family.shift);
    }

    /// Notes that the rate cannot be changed.
    pub(crate) fn rate_refused(&mut self, why: &str) {
        self.overhead.refuse(why);
    }

    /// Sets the base-2 logarithm of the number of periods that one expiry stands for.
    pub(crate) fn slow(&mut self, shift: u32) {
        self.balance.slow(shift);
        self.remainder.slow(shift);
        self.parents.slow(shift);
    }

    /// Returns the cost in the end.
    pub(crate) fn end_overhead(&mut self, counts: CostCounts<'_>) -> Spent {
        self.overhead.end(counts.with(&self.cpu))
    }

    /// Decides the weights of the batch.
    ///
    /// Only events are comparable with clocks: a timer's first expiry comes at any part of a
    /// period, so nothing is missing on average.
    pub(crate) fn weigh(
        &mut self,
        batch: &mut Batch,
        taken: Taken,
        threads: &mut Registry,
        blocked: &Blocked,
    ) {
        if !taken.has_events {
            return;
        }
        // Otherwise samples may seem to be missing that only have not been read. Without those in
        // the kernel, the sum that samples must stand for is unknown.
        if let Some(until_ns) = taken.until_ns
            && taken.is_complete
            && taken.has_kernel
        {
            self.balance(batch, until_ns, threads, blocked);
        }
        self.settle(batch, taken, threads);
    }

    /// Corrects the weights up to `until_ns` by the clocks of the threads.
    fn balance(&mut self, batch: &mut Batch, until_ns: u64, threads: &Registry, blocked: &Blocked) {
        let late_ns = monotonic_now_ns().saturating_sub(until_ns);
        let remainder = &self.remainder;
        let clock = |key| {
            let Usage { tid, cpu_ns, .. } = threads.usage_of(key)?;
            Some(Reading { cpu_ns, is_signal_blocked: blocked.holds(tid) })
        };
        self.balance.put_right(batch, late_ns, |key| remainder.weight(key), clock);
    }

    /// Adds what the samples lack of the time of threads that have ended, and of threads that start
    /// others.
    fn settle(&mut self, batch: &mut Batch, taken: Taken, threads: &mut Registry) {
        self.remainder.note(&batch.samples);
        let before = batch.samples.len();
        let exits = threads.exits(taken.is_complete);
        if !exits.is_empty() {
            let sampled = if taken.has_kernel { 1000 } else { self.user_share() };
            // After the ends, so that it includes all that they used.
            self.remainder.settle(&exits, sampled, self.cpu.used_at_most_ns(), batch);
            self.balance.forget(&exits);
        }
        if taken.until_ns.is_some() {
            self.settle_parents(batch, taken, threads);
        }
        if batch.samples.len() > before {
            for sample in &batch.samples[before..] {
                threads.announce((sample.slot, sample.generation), &mut batch.threads);
            }
            batch.sort();
        }
    }

    /// Anchors threads that start others where expiries do not keep up with them, and adds what
    /// they lack.
    fn settle_parents(&mut self, batch: &mut Batch, taken: Taken, threads: &Registry) {
        // Time that is not sampled is not lacking. One thread's part of it is unknown: nothing is
        // added then.
        let sampled = if taken.has_kernel { 1000 } else { self.user_share() };
        let process_ns = self.cpu.used_ns();
        self.parents.begin_turn();
        let is_due = |key| self.parents.is_due(key, process_ns);
        for mut parent in threads.parents(PARENTS_MAX, is_due) {
            parent.cpu_ns = parent.cpu_ns / 1000 * sampled;
            let weight = self.remainder.weight(parent.key);
            let lacks_ns = self.remainder.lacking_ns(process_ns);
            let is_signal_blocked = || blocks(self.pid, parent.tid, taken.signal).is_some();
            let advice =
                self.parents.look(&parent, weight, (process_ns, lacks_ns), is_signal_blocked);
            if advice.anchor {
                self.parents.keep(&parent, open_anchor(parent.tid));
            }
            if advice.weight > 0 && taken.has_kernel {
                self.remainder.give(&parent, advice.weight, monotonic_now_ns(), batch);
            }
        }
    }

    /// Returns the part of the target's CPU time in user mode, in thousandths.
    fn user_share(&self) -> u64 {
        let (user, system) = proc::mode_times_ns(self.pid).unwrap_or((1, 0));
        user.saturating_mul(1000) / user.saturating_add(system).max(1)
    }

    /// Returns the target's time in the kernel since the start, in nanoseconds, if that was not
    /// sampled and `now_ns` is known.
    pub(crate) fn unsampled_system_ns(&self, now_ns: Option<u64>, setup: Setup) -> Option<u64> {
        now_ns.filter(|_| !setup.kernel).map(|now| now.saturating_sub(self.system_start_ns))
    }

    /// Returns the totals.
    pub(crate) fn totals(&self, system_ns: Option<u64>) -> WeightTotals {
        WeightTotals { given: self.remainder.given, balanced: self.balance.sum, system_ns }
    }
}

/// What the cost of sampling is computed from.
#[derive(Clone, Copy)]
pub(crate) struct CostCounts<'a> {
    /// The counters of the handlers.
    pub(crate) control: &'a ControlBlock,
    /// The clock of the samples.
    pub(crate) clock: &'a Clock,
    /// The number of kernel samples.
    pub(crate) in_kernel: u64,
}

impl<'a> CostCounts<'a> {
    fn with(self, cpu: &CpuClock) -> Counted<'a> {
        let Self { control, clock, in_kernel } = self;
        Counted { control, clock, used_ns: cpu.used_ns(), in_kernel }
    }
}
