//! The weights of a thread's hits against its own CPU clock.
//!
//! User mode and kernel mode are hit by events of two families (`kernel`), whose periods begin
//! independently of each other. Each is right on average, and so is their sum; but of N periods, a
//! share p of them in the kernel, the one misses about `sqrt(N p (1 - p))` or has as many too many,
//! the other one half as many again, and nothing makes these errors equal. Measured with events
//! that only count: one that takes hits in both modes is within 0.3 % of its clock, the sum of the
//! two is off by 0.7 % (sigma, 3000 periods, all in user mode but for the interrupts) to 1.6 % (a
//! third in the kernel); a loop of nearly one period, or half of one, has one of them hit the same
//! place over and over. How long a thread ran is known, though. So whenever it has been hit often
//! enough, its hits are made to stand for what its clock says.
//!
//! # Invariants
//! - A thread's hits keep their proportion: which of the families erred is not known, and what both
//!   miss, late timers and stolen time, is lacking in both. Kernel time alone, which is the smaller
//!   part, would be off by many times what is put right.
//! - Weights are compared with all that was used since the beginning, so what was put right is not
//!   put right again, neither here nor by `remainder` and `parents`, and what an inexact clock does
//!   to one look the next one undoes.
//! - Hits that were lost for another reason, with the signal blocked for a while, say, are not made
//!   up for beyond [`BELIEVED_PERIODS`] each time, and not at all where the reason is known.
//!
//! # Does not
//! - read a clock more often than once in [`LOOK_PERIODS`] hits, whatever the number of threads.
//! - look at the end of the recording, when threads have gone on without being sampled.

use std::collections::HashMap;

use traceprof_abi::storage::log::{Sample, flags};

use crate::record::batch::rotation::Batch;
use crate::record::batch::threads::Key;
use crate::record::store::threads::Exit;

/// How many of a thread's hits there must be since the last look at it, by what they stand for, and
/// at least in time.
const LOOK_PERIODS: u64 = 16;
const LOOK_MIN_NS: u64 = 16_000_000;
/// What sampling errors may add up to before they can be put right, in periods: so long one family
/// may miss, if its hits fall into the other's part each time.
const BELIEVED_PERIODS: i64 = 256;
/// By how much the scheduler's count of a running thread may be late: a tick of most kernels.
const TICK_NS: i64 = 4_000_000;

/// A thread's CPU clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// What it has used while it was sampled, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// It blocks the signal.
    pub(crate) is_signal_blocked: bool,
}

/// The last look at a thread.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    /// Periods of its samples then.
    weight: u64,
    /// Time that no hit stands for, or that hits stand for in excess, and that is left so.
    excused_ns: i64,
}

/// Weights that were put right in one recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Balanced {
    /// Periods that were added.
    pub(crate) more: u64,
    /// Periods that were taken away.
    pub(crate) less: u64,
}

impl Balanced {
    /// Adds what was put right later.
    pub(crate) fn add(&mut self, later: Balanced) {
        self.more += later.more;
        self.less += later.less;
    }
}

/// The looks at the threads of one recording.
#[derive(Debug)]
pub(crate) struct Balance {
    period_ns: i64,
    /// Periods that a hit stands for, at least.
    hit: i64,
    looks: HashMap<Key, Look>,
    /// What was put right.
    pub(crate) sum: Balanced,
}

impl Balance {
    /// With so many nanoseconds to a period.
    pub(crate) fn new(period_ns: u64) -> Self {
        let period_ns = i64::try_from(period_ns).unwrap_or(i64::MAX).max(1);
        Self { period_ns, hit: 1, looks: HashMap::new(), sum: Balanced::default() }
    }

    /// From now on a hit stands for 2 to the power of `shift` periods: errors are so much larger.
    pub(crate) fn slow(&mut self, shift: u32) {
        self.hit = 1 << shift;
    }

    /// What a hit stands for, in nanoseconds.
    fn hit_ns(&self) -> i64 {
        self.period_ns.saturating_mul(self.hit)
    }

    /// Puts right the weights in a batch, which is in order. `before` is the sum of a thread's
    /// weights before it; `clock` is read when a thread is due, at most `late_ns` after the batch
    /// was closed.
    pub(crate) fn put_right(
        &mut self,
        batch: &mut Batch,
        late_ns: u64,
        before: impl Fn(Key) -> u64,
        mut clock: impl FnMut(Key) -> Option<Reading>,
    ) {
        let key_of = |sample: &Sample| (sample.slot, sample.generation);
        let late_ns = i64::try_from(late_ns).unwrap_or(i64::MAX);
        let mut taken = false;
        for hits in batch.samples.chunk_by_mut(|a, b| key_of(a) == key_of(b)) {
            let Some(key) = hits.first().map(key_of) else { continue };
            let weight: u64 = hits.iter().map(|hit| u64::from(hit.weight)).sum();
            let whole = before(key).saturating_add(weight);
            let mut look = self.looks.get(&key).copied().unwrap_or_default();
            if !self.is_due(&look, whole) {
                continue;
            }
            let Some(reading) = clock(key) else { continue };
            let lacking_ns = look.lacking_ns(reading, whole, (self.period_ns, self.hit_ns()));
            let periods = beyond(lacking_ns, self.hit_ns(), late_ns) / self.period_ns;
            // What one batch cannot take is left to the next look.
            let most = weight as i64 / 2;
            let change = periods.clamp(-most, most);
            scale(hits, weight as i64, change);
            taken |= change < 0;
            self.count(change);
            look.weight = whole.saturating_add_signed(change);
            self.looks.insert(key, look);
        }
        if taken {
            // A hit that stands for nothing would be taken for a gap; the first one tells more.
            batch.samples.retain(|hit| hit.weight > 0 || hit.flags & flags::FIRST != 0);
        }
    }

    /// Threads have ended: `remainder` settles the rest.
    pub(crate) fn forget(&mut self, exits: &[Exit]) {
        for exit in exits {
            self.looks.remove(&exit.key);
        }
    }

    fn is_due(&self, look: &Look, whole: u64) -> bool {
        let hit = whole.saturating_sub(look.weight);
        hit >= (LOOK_PERIODS * self.hit as u64).max(LOOK_MIN_NS / self.period_ns as u64)
    }

    fn count(&mut self, change: i64) {
        match change {
            0.. => self.sum.more += change.unsigned_abs(),
            _ => self.sum.less += change.unsigned_abs(),
        }
    }
}

impl Look {
    /// What hits that weigh so much lack, or have too much (negative), that sampling errors
    /// explain. The rest is left alone from now on, and so is all of a thread that blocks the
    /// signal.
    fn lacking_ns(&mut self, reading: Reading, whole: u64, (period_ns, hit_ns): (i64, i64)) -> i64 {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let stands_ns = signed(whole).saturating_mul(period_ns);
        let lacks_ns = signed(reading.cpu_ns).saturating_sub(stands_ns);
        let lacks_ns = lacks_ns.saturating_sub(self.excused_ns);
        let believed = if reading.is_signal_blocked { 0 } else { BELIEVED_PERIODS };
        let most_ns = hit_ns.saturating_mul(believed);
        let believed_ns = lacks_ns.clamp(-most_ns, most_ns);
        self.excused_ns = self.excused_ns.saturating_add(lacks_ns.saturating_sub(believed_ns));
        believed_ns
    }
}

/// What is left beyond what is open: time towards the next hit has begun, the clock was read later
/// than the batch was closed, or is itself late.
fn beyond(lacking_ns: i64, hit_ns: i64, late_ns: i64) -> i64 {
    let most_ns = hit_ns.saturating_add(late_ns);
    let least_ns = -hit_ns.saturating_add(TICK_NS);
    lacking_ns.saturating_sub(lacking_ns.clamp(least_ns, most_ns))
}

/// Changes the sum of hits' weights, which is `weight`, and spreads it in proportion.
fn scale(hits: &mut [Sample], weight: i64, change: i64) {
    if change == 0 {
        return;
    }
    let (weight, changed) = (i128::from(weight), i128::from(weight + change));
    let of = |part: i128| (part * changed + weight / 2) / weight;
    let mut part = 0;
    for hit in hits {
        let before = of(part);
        part += i128::from(hit.weight);
        hit.weight = u32::try_from(of(part) - before).unwrap_or(u32::MAX);
    }
}

#[cfg(test)]
mod tests;
