//! The gap rule: whether two samples are too far apart to assume that calls continued between them.

/// The number of recent intervals that are kept.
const WINDOW: usize = 16;

/// The recent intervals between samples of a thread.
#[derive(Debug, Clone, Default)]
pub(super) struct Intervals {
    recent_ns: [u64; WINDOW],
    count: usize,
}

impl Intervals {
    /// Adds an interval and returns whether it is a gap. A gap is longer than 2.5 periods, times
    /// the weight of the sample, and longer than three times the median absolute deviation of the
    /// recent intervals.
    pub(super) fn add(&mut self, interval_ns: u64, period_ns: u64, weight: u32) -> bool {
        let expected_ns = period_ns.saturating_mul(weight.max(1).into());
        let long = period_ns > 0 && interval_ns > two_and_a_half(expected_ns);
        let is_gap = long && interval_ns > self.deviation_ns().saturating_mul(3);
        self.recent_ns[self.count % WINDOW] = interval_ns;
        self.count += 1;
        is_gap
    }

    fn deviation_ns(&self) -> u64 {
        let mut recent_ns = self.recent_ns;
        let known = &mut recent_ns[..self.count.min(WINDOW)];
        let middle = median(known);
        known.iter_mut().for_each(|interval| *interval = interval.abs_diff(middle));
        median(known)
    }
}

fn two_and_a_half(value: u64) -> u64 {
    value.saturating_mul(2).saturating_add(value / 2)
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rhythm_has_no_gap_and_a_pause_is_one() {
        let mut intervals = Intervals::default();
        assert!((0..40).all(|n| !intervals.add(1000 + n % 7 * 200, 1000, 1)));
        assert!(!intervals.add(2500, 1000, 1));
        assert!(intervals.add(2501, 1000, 1));
        assert!(!intervals.add(2501, 1000, 2));
        assert!(!intervals.add(1 << 40, 0, 1));
        assert!(intervals.add(u64::MAX, u64::MAX / 4, 1));
        assert!(!intervals.add(u64::MAX, u64::MAX / 4, u32::MAX));
    }

    #[test]
    fn scattered_intervals_raise_the_bar() {
        let mut intervals = Intervals::default();
        for n in 0..WINDOW as u64 {
            intervals.add(if n % 2 == 0 { 1000 } else { 9000 }, 1000, 1);
        }
        assert!(!intervals.add(5000, 1000, 1));
        assert!(intervals.add(90_000, 1000, 1));
    }
}
