//! Shares of a trace's samples, and whether chance explains their difference from given shares.
//!
//! A sample that stands for several periods is one draw. The error is that of independent draws. A
//! sampler with a fixed period is more even than that, so the test is lenient.

use std::fmt;
use std::path::Path;

use traceprof::trace;

/// The most standard errors by which a share may differ: one in a million exceeds it by chance, and
/// about forty are checked. On a machine with ten times more work than it can do, 4.3 were seen
/// once with timers, where few draws have large weights.
const ERRORS_MAX: f64 = 5.0;

/// Fewer samples, each of the same weight, say too little about shares.
pub(super) const DRAWS_MIN: f64 = 500.0;

/// The weights of a trace by function.
pub(super) struct Shares {
    functions: Vec<String>,
    /// Weight of each function, in periods.
    counts: Vec<f64>,
    /// Sum of the squares of the weights.
    squares: f64,
}

/// The additional time that a function takes, as a share, with its standard error.
pub(super) struct Slowdown {
    share: f64,
    error: f64,
}

impl Shares {
    /// Adds up the trace by the innermost of these functions on each stack. Other stacks are left
    /// out.
    pub(super) fn of(path: &Path, functions: &[&str]) -> Self {
        let trace = trace::load(path).expect("a trace");
        let place = |id: trace::LocationId| {
            let method = trace.locations[id.0 as usize].method;
            let name = &trace.methods[method.0 as usize].name;
            functions.iter().position(|function| function == name)
        };
        let (mut counts, mut squares) = (vec![0.0; functions.len()], 0.0);
        for thread in &trace.threads {
            thread.for_each_sample(&mut |sample, stack| {
                if let Some(function) = stack.iter().rev().find_map(|id| place(*id)) {
                    let weight = f64::from(sample.weight);
                    counts[function] += weight;
                    squares += weight * weight;
                }
            });
        }
        let functions = functions.iter().map(|name| (*name).to_owned()).collect();
        Self { functions, counts, squares }
    }

    fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Returns the number of samples that would give the same precision if all had the same weight.
    pub(super) fn draws(&self) -> f64 {
        self.total() * self.total() / self.squares.max(1.0)
    }

    /// Returns how many standard errors each share differs beyond `allowance`.
    fn errors(&self, truth: &[u64], allowance: f64) -> Vec<f64> {
        let all: u64 = truth.iter().sum();
        let pairs = self.counts.iter().zip(truth);
        let error = |(count, own): (&f64, &u64)| {
            let expected = *own as f64 / all as f64;
            let deviation = (expected * (1.0 - expected) / self.draws()).sqrt();
            let off = count / self.total().max(1.0) - expected;
            (off.abs() - allowance).max(0.0).copysign(off) / deviation
        };
        pairs.map(error).collect()
    }

    /// Checks that no share differs by more than `allowance` and chance.
    pub(super) fn assert_drawn_from(&self, truth: &[u64], allowance: f64, title: &str) {
        assert!(self.draws() > DRAWS_MIN, "{title}: {} draws", self.draws());
        let worst = self.errors(truth, allowance).into_iter().fold(0.0, |a: f64, b| a.max(b.abs()));
        assert!(worst < ERRORS_MAX, "{}", self.row(title, truth));
    }

    /// Returns a line with each share and the true share.
    pub(super) fn row(&self, title: &str, truth: &[u64]) -> String {
        let all: u64 = truth.iter().sum();
        let (total, errors) = (self.total().max(1.0), self.errors(truth, 0.0));
        let parts = self.functions.iter().enumerate().map(|(at, name)| {
            let share = 100.0 * self.counts[at] / total;
            let expected = 100.0 * truth[at] as f64 / all as f64;
            format!("{name} {share:.2} of {expected:.2} % ({:+.1})", errors[at])
        });
        let parts: Vec<_> = parts.collect();
        format!("{title}, {:.0} draws: {}", self.draws(), parts.join(", "))
    }

    /// Returns the slowdown of a function relative to all other functions.
    pub(super) fn slowdown_since(&self, before: &Self, function: usize) -> Slowdown {
        self.slowdown(before, function, |_| true)
    }

    /// Returns the slowdown of a function that was not slowed down, relative to the others that
    /// were not.
    pub(super) fn slowdown_of_other_since(
        &self,
        before: &Self,
        function: usize,
        slowed: usize,
    ) -> Slowdown {
        self.slowdown(before, function, |other| other != slowed)
    }

    fn slowdown(&self, before: &Self, at: usize, counts: impl Fn(usize) -> bool) -> Slowdown {
        let others = |shares: &Self| -> f64 {
            let others = (0..shares.counts.len()).filter(|other| *other != at && counts(*other));
            others.map(|other| shares.counts[other]).sum()
        };
        let ratio = |shares: &Self| shares.counts[at] / others(shares);
        let factor = ratio(self) / ratio(before);
        let variance = |shares: &Self| {
            let share_of_draws = shares.draws() / shares.total();
            (1.0 / shares.counts[at] + 1.0 / others(shares)) / share_of_draws
        };
        let error = factor * (variance(self) + variance(before)).sqrt();
        Slowdown { share: factor - 1.0, error }
    }
}

impl Slowdown {
    /// Whether the slowdown may have this true value.
    pub(super) fn is(&self, share: f64) -> bool {
        (self.share - share).abs() < ERRORS_MAX * self.error
    }
}

impl fmt::Display for Slowdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:+.2} % with an error of {:.2} %", 100.0 * self.share, 100.0 * self.error)
    }
}

#[cfg(test)]
fn shares(counts: &[f64], weight: f64) -> Shares {
    let functions = (0..counts.len()).map(|at| at.to_string()).collect();
    let squares = counts.iter().sum::<f64>() * weight;
    Shares { functions, counts: counts.to_vec(), squares }
}

#[test]
fn shares_are_drawn_or_not() {
    shares(&[520.0, 480.0], 1.0).assert_drawn_from(&[50, 50], 0.0, "near");
    let off = shares(&[580.0, 420.0], 1.0);
    assert!(off.errors(&[50, 50], 0.0)[0] > ERRORS_MAX, "{}", off.row("off", &[50, 50]));
    assert!(off.errors(&[50, 50], 0.05)[0] < ERRORS_MAX);
    // The same with a fourth of the draws.
    assert!(shares(&[580.0, 420.0], 4.0).errors(&[50, 50], 0.0)[0] < ERRORS_MAX);
}

#[test]
fn slowdowns_are_seen() {
    let before = shares(&[10_000.0, 20_000.0, 30_000.0], 1.0);
    let after = shares(&[12_000.0, 20_000.0, 30_000.0], 1.0);
    assert!(after.slowdown_since(&before, 0).is(0.2));
    assert!(!after.slowdown_since(&before, 0).is(0.0));
    assert!(after.slowdown_of_other_since(&before, 1, 0).is(0.0));
    let other = shares(&[12_000.0, 24_000.0, 30_000.0], 1.0);
    assert!(!other.slowdown_of_other_since(&before, 1, 0).is(0.0));
}
