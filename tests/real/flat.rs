//! Flat profiles of two profilers, compared with each other.

use std::collections::HashMap;
use std::hash::Hash;

/// Share of the total below which a function is cold.
const HOT: f64 = 0.01;

/// The periods of each function in two profiles of the same run.
pub(super) struct Flat<K> {
    counts: HashMap<K, [f64; 2]>,
}

impl<K: Hash + Eq> Default for Flat<K> {
    fn default() -> Self {
        Self { counts: HashMap::new() }
    }
}

impl<K: Hash + Eq + Clone> Flat<K> {
    /// Adds periods to a function, for the first profiler or the second.
    pub(super) fn add(&mut self, side: usize, place: K, periods: f64) {
        self.counts.entry(place).or_default()[side] += periods;
    }

    pub(super) fn totals(&self) -> [f64; 2] {
        let sum = |side: usize| self.counts.values().map(|both| both[side]).sum();
        [sum(0), sum(1)]
    }

    /// Returns the shares that both profilers give to each function, the largest first.
    pub(super) fn shares(&self) -> Vec<(K, [f64; 2])> {
        let [one, other] = self.totals().map(|total: f64| total.max(1.0));
        let share =
            |(place, both): (&K, &[f64; 2])| (place.clone(), [both[0] / one, both[1] / other]);
        let mut shares: Vec<_> = self.counts.iter().map(share).collect();
        shares.sort_by(|(_, a), (_, b)| f64::total_cmp(&(b[0] + b[1]), &(a[0] + a[1])));
        shares
    }

    /// Returns the sum of the lesser shares, which is 1 if both agree on everything.
    pub(super) fn overlap(&self) -> f64 {
        self.shares().iter().map(|(_, both)| both[0].min(both[1])).sum()
    }

    /// Returns the overlap with all cold functions as one.
    pub(super) fn overlap_of_hot(&self) -> f64 {
        self.shares_of_hot().iter().map(|both| both[0].min(both[1])).sum()
    }

    /// Returns the expected overlap of two correct profilers, whose expiries are random draws.
    pub(super) fn overlap_by_chance(&self) -> f64 {
        self.by_chance(self.shares().iter().map(|(_, both)| *both))
    }

    /// Returns the expected overlap with all cold functions as one.
    pub(super) fn overlap_of_hot_by_chance(&self) -> f64 {
        self.by_chance(self.shares_of_hot().into_iter())
    }

    /// Returns the shares of the hot functions, and of all others together.
    fn shares_of_hot(&self) -> Vec<[f64; 2]> {
        let shares = self.shares().into_iter().map(|(_, both)| both);
        let (mut hot, cold): (Vec<_>, Vec<_>) =
            shares.partition(|both| both[0].max(both[1]) >= HOT);
        let rest = |side: usize| cold.iter().map(|both| both[side]).sum::<f64>();
        hot.push([rest(0), rest(1)]);
        hot
    }

    fn by_chance(&self, shares: impl Iterator<Item = [f64; 2]>) -> f64 {
        let [one, other] = self.totals();
        let scatter = |both: [f64; 2]| {
            let share = (both[0] * one + both[1] * other) / (one + other);
            let variance = share * (1.0 - share) * (1.0 / one + 1.0 / other);
            (variance * std::f64::consts::FRAC_2_PI).sqrt()
        };
        1.0 - shares.map(scatter).sum::<f64>() / 2.0
    }
}

#[test]
fn overlaps() {
    let mut flat = Flat::default();
    for (place, one, other) in [("a", 60.0, 600.0), ("b", 40.0, 300.0), ("c", 0.0, 100.0)] {
        flat.add(0, place, one);
        flat.add(1, place, other);
    }
    assert!((flat.overlap() - 0.9).abs() < 1e-9, "{}", flat.overlap());
    assert!((flat.overlap_of_hot() - 0.9).abs() < 1e-9);
    assert_eq!(flat.shares()[0], ("a", [0.6, 0.6]));
    assert!((0.90..0.96).contains(&flat.overlap_by_chance()), "{}", flat.overlap_by_chance());
}

#[test]
fn cold_functions_are_one() {
    let mut flat = Flat::default();
    flat.add(0, 0, 900.0);
    flat.add(1, 0, 900.0);
    for place in 0..100 {
        flat.add(place % 2, 1 + place, 2.0);
    }
    assert!((flat.overlap() - 0.9).abs() < 1e-9, "{}", flat.overlap());
    assert!((flat.overlap_of_hot() - 1.0).abs() < 1e-9);
}
