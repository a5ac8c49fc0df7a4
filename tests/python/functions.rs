//! The shares of functions in two profiles of one run, compared with each other.
//!
//! A share of a function is the part of the samples with it on their stack, or with it as the
//! innermost one. A sample is a draw: two correct profilers differ by chance, the less, the more
//! samples they have.

use std::collections::{BTreeMap, HashSet};

/// Difference of two shares that is permitted.
const LIMIT: f64 = 0.02;
/// Standard deviations of chance on top of that.
const CHANCE: f64 = 4.0;
/// What each thread's function begins with.
const THREAD: &str = "thread ";
/// The functions in which threads sleep, with the end of their file's name.
const WAITS: [(&str, &str); 9] = [
    ("wait", "/threading.py"),
    ("select", "/selectors.py"),
    ("_recv", "/multiprocessing/connection.py"),
    ("wait", "/multiprocessing/connection.py"),
    ("__enter__", "/multiprocessing/synchronize.py"),
    ("_handle_tasks", "/multiprocessing/pool.py"),
    ("main", "/multiprocessing/resource_tracker.py"),
    ("sleep", "/gunicorn/arbiter.py"),
    ("wait", "/gunicorn/workers/sync.py"),
];

/// A profile: for each function the weight of the stacks in which it is, and in which it is the
/// innermost one. A function is written `name (file:line)`, with the line at which it begins.
#[derive(Default)]
pub(super) struct FunctionShares {
    total: f64,
    /// The weight of all stacks, those included that are left out.
    offered: f64,
    /// The weight of stacks with functions whose names were gone.
    nameless: f64,
    squares: f64,
    of: BTreeMap<String, [f64; 2]>,
    /// Whether the thread of each stack is known.
    has_threads: bool,
}

/// A function with unequal shares.
#[derive(Debug)]
#[allow(dead_code, reason = "messages show all of it")]
pub(super) struct Disagreement {
    pub(super) function: String,
    pub(super) is_self: bool,
    pub(super) shares: [f64; 2],
    pub(super) permitted: f64,
}

/// Two profiles side by side.
pub(super) struct SideBySide {
    /// The greatest difference of two shares.
    pub(super) largest: f64,
    pub(super) disagreements: Vec<Disagreement>,
}

impl FunctionShares {
    pub(super) fn new() -> Self {
        Self { has_threads: true, ..Self::default() }
    }

    /// Adds stacks, root first, whose samples have this weight together. The thread counts as the
    /// outermost function.
    ///
    /// Leaves out stacks without functions, and those that end where threads sleep or whose functions
    /// had gone before their names were read. py-spy stops
    /// sleeping threads, too, after which they run for a moment.
    pub(super) fn add(&mut self, thread: Option<i32>, stack: &[String], weight: u64, samples: u64) {
        let (weight, samples) = (weight as f64, samples as f64);
        self.offered += weight;
        if stack.iter().any(|function| function.starts_with('[')) {
            self.nameless += weight;
            return;
        }
        let Some(innermost) = stack.last().filter(|innermost| !is_waiting(innermost)) else {
            return;
        };
        self.total += weight;
        self.squares += weight * weight / samples;
        self.has_threads &= thread.is_some();
        let thread = thread.map(|tid| format!("{THREAD}{tid}"));
        self.of.entry(innermost.clone()).or_default()[1] += weight;
        for function in stack.iter().chain(&thread).collect::<HashSet<_>>() {
            self.of.entry(function.clone()).or_default()[0] += weight;
        }
    }

    /// Returns the weight of the stacks.
    pub(super) fn total(&self) -> f64 {
        self.total
    }

    /// Returns the part of the stacks that was not left out.
    pub(super) fn kept(&self) -> f64 {
        self.total / self.offered.max(1.0)
    }

    /// Returns the part of the stacks that had a function without a name.
    pub(super) fn nameless(&self) -> f64 {
        self.nameless / self.offered.max(1.0)
    }

    /// Returns the number of samples that would give the same precision if all had the same weight.
    pub(super) fn draws(&self) -> f64 {
        self.total * self.total / self.squares.max(1.0)
    }

    /// Returns the sum of the shares of the functions with this name, which is not a qualified one.
    pub(super) fn share_of(&self, name: &str) -> f64 {
        let is_it = |function: &str| {
            let full = function.rsplit_once(" (").map_or(function, |(full, _)| full);
            full.rsplit_once('.').map_or(full, |(_, simple)| simple) == name
        };
        let named = self.of.iter().filter(|(function, _)| is_it(function));
        named.map(|(_, both)| both[0]).sum::<f64>() / self.total.max(1.0)
    }

    fn share(&self, function: &str, kind: usize) -> f64 {
        self.of.get(function).map_or(0.0, |both| both[kind]) / self.total.max(1.0)
    }

    /// Adds another profile to this one.
    pub(super) fn merge(&mut self, other: Self) {
        self.total += other.total;
        self.offered += other.offered;
        self.nameless += other.nameless;
        self.squares += other.squares;
        self.has_threads &= other.has_threads;
        for (function, both) in other.of {
            let sums = self.of.entry(function).or_default();
            (sums[0], sums[1]) = (sums[0] + both[0], sums[1] + both[1]);
        }
    }

    /// Compares two profiles. Of the other one, the part `foreign` may be in any functions.
    pub(super) fn compare(&self, other: &Self, foreign: f64) -> SideBySide {
        let functions: HashSet<&String> = self.of.keys().chain(other.of.keys()).collect();
        let scatter = 1.0 / self.draws().max(1.0) + 1.0 / other.draws().max(1.0);
        let with_threads = self.has_threads && other.has_threads;
        let (mut disagreements, mut largest) = (Vec::new(), 0.0_f64);
        for function in functions {
            if function.starts_with(THREAD) && !with_threads {
                continue;
            }
            for kind in 0..2 {
                let shares = [self.share(function, kind), other.share(function, kind)];
                let mean = (shares[0] + shares[1]) / 2.0;
                let permitted = LIMIT + foreign + CHANCE * (mean * (1.0 - mean) * scatter).sqrt();
                let difference = (shares[0] - shares[1]).abs();
                largest = largest.max(difference);
                if difference > permitted {
                    let (function, is_self) = (function.clone(), kind == 1);
                    disagreements.push(Disagreement { function, is_self, shares, permitted });
                }
            }
        }
        disagreements.sort_by(|a, b| f64::total_cmp(&b.excess(), &a.excess()));
        SideBySide { largest, disagreements }
    }
}

impl Disagreement {
    fn excess(&self) -> f64 {
        (self.shares[0] - self.shares[1]).abs() - self.permitted
    }
}

fn is_waiting(function: &str) -> bool {
    let Some((name, place)) = function.rsplit_once(" (") else { return false };
    let file = place.rsplit_once(':').map_or(place, |(file, _)| file);
    let name = name.rsplit_once('.').map_or(name, |(_, simple)| simple);
    WAITS.iter().any(|(wait, end)| name == *wait && file.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(stacks: &[(&str, u64)]) -> FunctionShares {
        let mut shares = FunctionShares::new();
        for (stack, count) in stacks {
            let functions: Vec<String> = stack.split(';').map(str::to_owned).collect();
            shares.add(Some(functions.len() as i32), &functions, *count, *count);
        }
        shares
    }

    fn disagreements(other: &[(&str, u64)], foreign: f64) -> Vec<(String, bool)> {
        let one = shares(&[("main (a:1);f (a:2)", 5000), ("main (a:1);g (a:3)", 5000)]);
        let found = one.compare(&shares(other), foreign).disagreements;
        let mut found: Vec<_> = found.into_iter().map(|it| (it.function, it.is_self)).collect();
        found.sort();
        found
    }

    #[test]
    fn shares_that_differ_are_found() {
        let of = |f: u64, g: u64| [("main (a:1);f (a:2)", f), ("main (a:1);g (a:3)", g)];
        assert_eq!(disagreements(&of(5100, 4900), 0.0), []);
        let both = ["f (a:2)", "f (a:2)", "g (a:3)", "g (a:3)"];
        let found = disagreements(&of(5900, 4100), 0.0);
        assert_eq!(found.iter().map(|it| it.0.as_str()).collect::<Vec<_>>(), both);
        assert_eq!(disagreements(&of(5900, 4100), 0.1), [], "a tenth may be anywhere");
        assert_eq!(disagreements(&of(59, 41), 0.0), [], "a hundred samples say little");
    }

    #[test]
    fn other_functions_threads_and_lines_are_found() {
        let deeper = [("main (a:1);f (a:2)", 5000), ("main (a:1);f (a:2);g (a:3)", 5000)];
        let names: Vec<_> = disagreements(&deeper, 0.0).into_iter().map(|it| it.0).collect();
        assert_eq!(names, ["f (a:2)", "thread 2", "thread 3"]);
        let elsewhere = [("main (a:1);f (a:2)", 5000), ("main (a:1);g (a:4)", 5000)];
        let names: Vec<_> = disagreements(&elsewhere, 0.0).into_iter().map(|it| it.0).collect();
        assert_eq!(names, ["g (a:3)", "g (a:3)", "g (a:4)", "g (a:4)"]);
    }

    #[test]
    fn stacks_that_wait_are_left_out() {
        let waits = ["select (/lib/selectors.py:451)", "Condition.wait (/lib/threading.py:280)"];
        let mut one = shares(&[("f (a:2)", 10), (waits[0], 30), (waits[1], 30)]);
        one.add(None, &[], 5, 5);
        assert!((one.draws() - 10.0).abs() < 1e-9 && (one.share_of("f") - 1.0).abs() < 1e-9);
        assert!((one.kept() - 10.0 / 75.0).abs() < 1e-9);
        let work = shares(&[("wait (/lib/workers.py:280)", 10)]);
        assert!((work.draws() - 10.0).abs() < 1e-9);
    }

    #[test]
    fn samples_with_large_weights_are_few() {
        let mut shares = FunctionShares::new();
        for _ in 0..10 {
            shares.add(Some(1), &["f (a:2)".to_owned()], 40, 1);
        }
        assert!((shares.draws() - 10.0).abs() < 1e-9);
    }
}
