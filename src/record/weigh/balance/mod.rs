//! Corrects the weights of a thread's samples by the thread's own CPU clock.
//!
//! Two families of events sample user mode and kernel mode (`record::source::kernel`). Their
//! periods begin independently of each other. Each family is right on average, and so is their sum,
//! but nothing cancels their errors. Of N periods with a share p in the kernel, one family misses
//! about `sqrt(N p (1 - p))` periods or has as many too many, and the other is off by one and a
//! half times as many. Measured with events that only count: an event for both modes is within
//! 0.3 % of the thread's clock. The sum of two events is off by 0.7 % (sigma, 3000 periods, all in
//! user mode except the interrupts) to 1.6 % (a third in the kernel). In a loop of nearly one
//! period, or of half a period, one family expires at the same point of the loop over and over. But
//! the thread's clock says how long the thread ran. So whenever a thread has enough new samples,
//! this module changes their weights until the samples cover the time on the clock.
//!
//! # Invariants
//! - The samples of a thread keep their proportions. It is unknown which family erred, and time
//!   that both miss (late timers, stolen time) is missing from both. If the kernel samples, the
//!   smaller part, took the correction alone, they would be off by many times the corrected share.
//! - The weights are compared with all CPU time since the start. So no error is corrected twice,
//!   neither here nor by `remainder` and `parents`, and the next check undoes what an inexact clock
//!   does to one check.
//! - Samples that are missing for another reason, as when the signal was blocked for a while, are
//!   made up for by at most [`BELIEVED_EXPIRIES`] in each check. If the reason is known, they are
//!   not made up for at all.
//!
//! - At the end of the recording, the clocks are read before sampling stops. So they tell how much
//!   time the samples must cover at least, and only missing time is corrected.
//!
//! # Does not
//! - read a thread's clock more often than once in [`CHECK_EXPIRIES`] samples, whatever the number
//!   of threads, and once at the end.

use std::collections::HashMap;

use traceprof_abi::storage::log::{Sample, flags};

use crate::record::batch::Batch;
use crate::record::batch::threads::ThreadKey;
use crate::record::store::threads::Exit;

/// The number of expiries of a thread, by the weight of its samples, between two checks of it.
const CHECK_EXPIRIES: u64 = 16;
/// The least sampled time between two checks of a thread, in nanoseconds.
const CHECK_MIN_NS: u64 = 16_000_000;
/// The largest error in one check that counts as a sampling error, in expiries.
///
/// One family can miss as many in a row if its expiries fall into the other's part each time.
const BELIEVED_EXPIRIES: i64 = 256;
/// How late the scheduler's count of a running thread may be, in nanoseconds: a tick of most
/// kernels.
const TICK_NS: i64 = 4_000_000;

/// A reading of a thread's CPU clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadCpuReading {
    /// The CPU time that the thread has used since its sampling began, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Whether the thread blocks the sampling signal.
    pub(crate) is_signal_blocked: bool,
}

/// The result of the last check of a thread.
#[derive(Debug, Clone, Copy, Default)]
struct BalanceCheck {
    /// The weight of its samples then, in periods.
    weight: u64,
    /// The error that stays uncorrected, in nanoseconds: CPU time that no sample covers, or
    /// (negative) time that samples cover in excess.
    excused_ns: i64,
}

/// The corrections of weights in one recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Balanced {
    /// The number of periods that were added.
    pub(crate) added: u64,
    /// The number of periods that were removed.
    pub(crate) removed: u64,
}

impl Balanced {
    /// Adds later corrections.
    pub(crate) fn add(&mut self, later: Balanced) {
        self.added += later.added;
        self.removed += later.removed;
    }
}

/// Checks the weights of one recording's threads.
#[derive(Debug)]
pub(crate) struct Balance {
    period_ns: i64,
    /// The least number of periods that one expiry stands for.
    expiry_periods: i64,
    checks: HashMap<ThreadKey, BalanceCheck>,
    /// The corrections so far.
    pub(crate) sum: Balanced,
}

impl Balance {
    /// Makes the checks of a recording with this period, in nanoseconds.
    pub(crate) fn new(period_ns: u64) -> Self {
        let period_ns = i64::try_from(period_ns).unwrap_or(i64::MAX).max(1);
        Self { period_ns, expiry_periods: 1, checks: HashMap::new(), sum: Balanced::default() }
    }

    /// Makes each expiry stand for 2 to the power of `shift` periods from now on. Sampling errors
    /// grow by the same factor.
    pub(crate) fn set_rate_shift(&mut self, shift: u32) {
        self.expiry_periods = 1 << shift;
    }

    /// Returns the CPU time that one expiry stands for, in nanoseconds.
    fn expiry_ns(&self) -> i64 {
        self.period_ns.saturating_mul(self.expiry_periods)
    }

    /// Corrects the weights of the samples in a batch, which is sorted by thread.
    ///
    /// `before` returns the sum of a thread's weights before this batch, in periods. `clock` reads
    /// the clock of a thread that is due, at most `late_ns` after the batch was closed.
    pub(crate) fn correct(
        &mut self,
        batch: &mut Batch,
        late_ns: u64,
        before: impl Fn(ThreadKey) -> u64,
        mut clock: impl FnMut(ThreadKey) -> Option<ThreadCpuReading>,
    ) {
        let key_of = |sample: &Sample| (sample.slot, sample.generation);
        let late_ns = i64::try_from(late_ns).unwrap_or(i64::MAX);
        let mut is_lowered = false;
        for samples in batch.samples.chunk_by_mut(|a, b| key_of(a) == key_of(b)) {
            let Some(key) = samples.first().map(key_of) else { continue };
            let weight: u64 = samples.iter().map(|sample| u64::from(sample.weight)).sum();
            let total = before(key).saturating_add(weight);
            let mut check = self.checks.get(&key).copied().unwrap_or_default();
            if !self.is_due(&check, total) {
                continue;
            }
            let Some(reading) = clock(key) else { continue };
            let missing_ns = check.missing_ns(reading, total, (self.period_ns, self.expiry_ns()));
            let periods = beyond(missing_ns, self.expiry_ns(), late_ns) / self.period_ns;
            // The next check corrects what would change this batch by more than half.
            let most = weight as i64 / 2;
            let change = periods.clamp(-most, most);
            scale(samples, weight as i64, change);
            is_lowered |= change < 0;
            self.count(change);
            check.weight = total.saturating_add_signed(change);
            self.checks.insert(key, check);
        }
        if is_lowered {
            // A sample with weight 0 would look like a gap, so it is dropped. A thread's first
            // sample stays: its flag says that the thread started during the recording.
            batch.samples.retain(|sample| sample.weight > 0 || sample.flags & flags::FIRST != 0);
        }
    }

    /// Returns the periods that the samples of a thread miss at the end of the recording.
    ///
    /// `weight` is the sum of the weights of all its samples, in periods. The clock was read before
    /// sampling stopped.
    pub(crate) fn missing_at_end(
        &mut self,
        key: ThreadKey,
        reading: ThreadCpuReading,
        weight: u64,
    ) -> u64 {
        let mut check = self.checks.remove(&key).unwrap_or_default();
        let missing_ns = check.missing_ns(reading, weight, (self.period_ns, self.expiry_ns()));
        let periods = beyond(missing_ns, self.expiry_ns(), 0) / self.period_ns;
        u64::try_from(periods).unwrap_or(0)
    }

    /// Forgets threads that have exited: `remainder` settles what their samples still miss.
    pub(crate) fn forget(&mut self, exits: &[Exit]) {
        for exit in exits {
            self.checks.remove(&exit.key);
        }
    }

    fn is_due(&self, check: &BalanceCheck, total: u64) -> bool {
        let new = total.saturating_sub(check.weight);
        let by_expiries = CHECK_EXPIRIES * self.expiry_periods as u64;
        new >= by_expiries.max(CHECK_MIN_NS / self.period_ns as u64)
    }

    fn count(&mut self, change: i64) {
        match change {
            0.. => self.sum.added += change.unsigned_abs(),
            _ => self.sum.removed += change.unsigned_abs(),
        }
    }
}

impl BalanceCheck {
    /// Returns the CPU time that samples of this total weight miss, or (negative) cover in excess,
    /// as far as sampling errors explain it.
    ///
    /// The remaining error is excused for good. For a thread that blocks the signal, that is all.
    fn missing_ns(
        &mut self,
        reading: ThreadCpuReading,
        total: u64,
        (period_ns, expiry_ns): (i64, i64),
    ) -> i64 {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let sampled_ns = signed(total).saturating_mul(period_ns);
        let missing_ns = signed(reading.cpu_ns).saturating_sub(sampled_ns);
        let missing_ns = missing_ns.saturating_sub(self.excused_ns);
        let believed = if reading.is_signal_blocked { 0 } else { BELIEVED_EXPIRIES };
        let most_ns = expiry_ns.saturating_mul(believed);
        let believed_ns = missing_ns.clamp(-most_ns, most_ns);
        self.excused_ns = self.excused_ns.saturating_add(missing_ns.saturating_sub(believed_ns));
        believed_ns
    }
}

/// Returns the part of an error that is certain.
///
/// The uncertain part is the time towards the next expiry, the time from the close of the batch to
/// the reading of the clock, and the lateness of the clock itself.
fn beyond(missing_ns: i64, expiry_ns: i64, late_ns: i64) -> i64 {
    let most_ns = expiry_ns.saturating_add(late_ns);
    let least_ns = -expiry_ns.saturating_add(TICK_NS);
    missing_ns.saturating_sub(missing_ns.clamp(least_ns, most_ns))
}

/// Adds `change` to the sum of the samples' weights, which is `weight`, in proportion to each.
fn scale(samples: &mut [Sample], weight: i64, change: i64) {
    if change == 0 {
        return;
    }
    let (weight, changed) = (i128::from(weight), i128::from(weight + change));
    let of = |part: i128| (part * changed + weight / 2) / weight;
    let mut part = 0;
    for sample in samples {
        let before = of(part);
        part += i128::from(sample.weight);
        sample.weight = u32::try_from(of(part) - before).unwrap_or(u32::MAX);
    }
}

#[cfg(test)]
mod tests;
