//! Estimates shares of a recording, their errors, and the changes between two sides.
//!
//! # Method
//! Samples that are close in time are alike, so they do not count as independent. The time of each
//! side is cut into [`BLOCKS`] equal blocks, and the error of a share comes from how much the share
//! differs between blocks. These are batch means (Schmeiser 1982 finds 10 to 30 batches enough) of
//! a ratio, because blocks have unequal weights (Cochran 1977, 6.3). Let `x` be the weight of a
//! function in a block, `t` the weight of all samples in it, and `p` the function's share of all
//! time. Then the variance is `k / (k - 1) * sum((x - p t)^2) / sum(t)^2`. Here `k` is the number
//! of equal blocks that would be as uneven, `sum(t)^2 / sum(t^2)`. It has `k - 1` degrees of
//! freedom. The variance is never less than that of independent samples after Agresti and Caffo
//! (2000). They add one success and one failure, which makes it right for functions in hardly any
//! or in almost all samples. The number of samples is Kish's, `sum(w)^2 / sum(w^2)`.
//!
//! A change is the difference of two shares. Its degrees of freedom are Welch's, and its interval
//! covers 95 % for each function by itself. Of a thousand unchanged functions fifty are outside
//! their intervals. So the reported changes are chosen after Benjamini and Hochberg (1995): on
//! average 5 % of them are false.
//!
//! # Limits
//! Activity that lasts longer than a block (a phase of minutes in a recording of minutes) changes
//! its share between blocks and makes intervals wide. One recording of each side cannot distinguish
//! a change from a difference that is constant within each run.

use std::ops::AddAssign;

use super::student_t::{quantile, two_sided};

/// Number of time blocks of each side.
pub const BLOCKS: usize = 20;
/// The probability that an interval misses, and the fraction of reported changes that are false.
const ALPHA: f64 = 0.05;

/// Weights by time block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BlockWeights(pub(super) [u64; BLOCKS]);

impl BlockWeights {
    /// Adds a sample of this weight.
    pub(super) fn add(&mut self, block: usize, weight: u32) {
        if let Some(sum) = self.0.get_mut(block) {
            *sum = sum.saturating_add(weight.into());
        }
    }

    /// Returns the weight of all blocks.
    pub(super) fn sum(&self) -> u64 {
        self.0.iter().fold(0, |sum, weight| sum.saturating_add(*weight))
    }
}

impl AddAssign<&BlockWeights> for BlockWeights {
    fn add_assign(&mut self, other: &BlockWeights) {
        for (weight, more) in self.0.iter_mut().zip(&other.0) {
            *weight = weight.saturating_add(*more);
        }
    }
}

/// The weight of one complete side.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SideTotal {
    pub(super) series: BlockWeights,
    pub(super) samples: u64,
    /// The sum of the squared weights of all samples.
    pub(super) squares: f64,
}

impl SideTotal {
    /// Adds a sample.
    pub(super) fn add(&mut self, block: usize, weight: u32) {
        self.series.add(block, weight);
        self.samples += 1;
        self.squares += f64::from(weight) * f64::from(weight);
    }

    /// Returns the number of equal blocks that would be as uneven.
    pub(super) fn blocks(&self) -> f64 {
        let squares: f64 = self.series.0.iter().map(|weight| (*weight as f64).powi(2)).sum();
        if squares > 0.0 { (self.series.sum() as f64).powi(2) / squares } else { 0.0 }
    }

    /// Returns the number of equal samples that would be as uneven.
    fn effective_samples(&self) -> f64 {
        if self.squares > 0.0 { (self.series.sum() as f64).powi(2) / self.squares } else { 0.0 }
    }

    /// Estimates the share of a part.
    pub(super) fn share(&self, part: &BlockWeights) -> ShareEstimate {
        let independent = self.independent(part);
        let between = self.between(part, independent.value);
        between.filter(|it| it.variance > independent.variance).unwrap_or(independent)
    }

    /// Estimates the share under the assumption that samples are independent.
    fn independent(&self, part: &BlockWeights) -> ShareEstimate {
        let sum = self.series.sum() as f64;
        let value = if sum > 0.0 { part.sum() as f64 / sum } else { 0.0 };
        let samples = self.effective_samples();
        let assumed = (value * samples + 1.0) / (samples + 2.0);
        let variance = assumed * (1.0 - assumed) / (samples + 2.0);
        ShareEstimate { value, variance, freedom: samples.max(1.0) }
    }

    /// Estimates the share and its variance between blocks. Returns `None` if there are too few
    /// blocks.
    fn between(&self, part: &BlockWeights, value: f64) -> Option<ShareEstimate> {
        let (sum, blocks) = (self.series.sum() as f64, self.blocks());
        if blocks < 2.0 {
            return None;
        }
        let pairs = part.0.iter().zip(&self.series.0);
        let off = |(part, all): (&u64, &u64)| (*part as f64 - value * *all as f64).powi(2);
        let variance = blocks / (blocks - 1.0) * pairs.map(off).sum::<f64>() / (sum * sum);
        Some(ShareEstimate { value, variance, freedom: blocks - 1.0 })
    }

    /// Estimates the mean weight of a block. Samples come at regular intervals, so their number is
    /// more certain than a number of independent samples.
    pub(super) fn mean(&self) -> ShareEstimate {
        let count = BLOCKS as f64;
        let value = self.series.sum() as f64 / count;
        let off = |weight: &u64| (*weight as f64 - value).powi(2);
        let squares: f64 = self.series.0.iter().map(off).sum();
        let variance = squares / (count - 1.0) / count;
        ShareEstimate { value, variance, freedom: count - 1.0 }
    }
}

/// An estimated value with its variance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ShareEstimate {
    /// The value, from 0 to 1 if it is a share.
    pub(super) value: f64,
    variance: f64,
    freedom: f64,
}

impl ShareEstimate {
    /// Converts the estimate to another unit.
    pub(super) fn times(self, factor: f64) -> Self {
        let Self { value, variance, freedom } = self;
        Self { value: value * factor, variance: variance * factor * factor, freedom }
    }
}

/// The change of a share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShareChange {
    /// The share before, from 0 to 1.
    pub before: f64,
    /// The share after, from 0 to 1.
    pub after: f64,
    /// Half the width of the 95 % interval around the difference.
    pub margin: f64,
    /// The probability of a difference at least this large without a change.
    pub chance: f64,
    /// Whether the change may be noise.
    pub noise: bool,
}

impl ShareChange {
    /// Returns the change between two estimates. It is noise if its own interval contains 0.
    pub(super) fn new(before: ShareEstimate, after: ShareEstimate) -> Self {
        let variance = before.variance + after.variance;
        let part = |share: &ShareEstimate| share.variance * share.variance / share.freedom;
        let parts = part(&before) + part(&after);
        let freedom = if parts > 0.0 { variance * variance / parts } else { 1.0 };
        let error = variance.sqrt();
        let difference = after.value - before.value;
        let chance = match error > 0.0 {
            true => two_sided(difference / error, freedom),
            false => f64::from(u8::from(difference == 0.0)),
        };
        let margin = quantile(ALPHA, freedom) * error;
        let (before, after) = (before.value, after.value);
        Self { before, after, margin, chance, noise: chance > ALPHA }
    }

    /// Returns the difference of the two shares.
    pub fn difference(&self) -> f64 {
        self.after - self.before
    }
}

/// Marks the changes that are noise, given that many are tested.
pub(super) fn mark_noise<'a>(changes: impl Iterator<Item = &'a mut ShareChange>) {
    let mut changes: Vec<&mut ShareChange> = changes.collect();
    changes.sort_by(|a, b| a.chance.total_cmp(&b.chance));
    let all = changes.len() as f64;
    let within = |(index, change): (usize, &&mut ShareChange)| {
        change.chance <= ALPHA * (index + 1) as f64 / all
    };
    let reported = changes.iter().enumerate().rposition(within).map_or(0, |last| last + 1);
    for (index, change) in changes.into_iter().enumerate() {
        change.noise = index >= reported;
    }
}

#[cfg(test)]
mod tests;
