//! How soon threads that start during the recording are sampled.

use crate::record::store::threads::lives::Life;

/// Buckets for each doubling of a time: a quantile is at most a quarter too long.
const STEPS: u32 = 4;
const BUCKETS: usize = 64 * STEPS as usize;

/// A distribution of times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LatencyHistogram {
    counts: [u32; BUCKETS],
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS] }
    }
}

/// Returns the number of the bucket of a time.
fn bucket(ns: u64) -> usize {
    let ns = ns.max(u64::from(STEPS));
    let doublings = ns.ilog2();
    // The two bits below the highest one.
    let step = (ns >> (doublings - 2)) & 3;
    (doublings * STEPS) as usize + step as usize
}

/// Returns the longest time in a bucket.
fn longest(bucket: usize) -> u64 {
    let (doublings, step) = (bucket as u32 / STEPS, (bucket as u32 % STEPS) as u64);
    let width = (1u64 << doublings) / u64::from(STEPS);
    (1u64 << doublings).saturating_add((step + 1).saturating_mul(width)) - 1
}

impl LatencyHistogram {
    pub(crate) fn add(&mut self, ns: u64) {
        let count = &mut self.counts[bucket(ns)];
        *count = count.saturating_add(1);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// Returns the time that this many thousandths of the times do not exceed, in nanoseconds,
    /// at most a quarter too long; `None` without any time.
    pub(crate) fn quantile_ns(&self, thousandths: u64) -> Option<u64> {
        let wanted = (self.count() * thousandths).div_ceil(1000).max(1);
        let mut sum = 0;
        let index = self.counts.iter().position(|count| {
            sum += u64::from(*count);
            sum >= wanted
        });
        index.map(longest)
    }

    fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
    }
}

/// The threads whose starts the kernel has reported during the recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StartedThreads {
    /// Their number.
    pub(crate) count: u64,
    /// From their starts to their first samples.
    pub(crate) first_sample: LatencyHistogram,
    /// From their starts to their first samples by a handler, which has a slot for them.
    pub(crate) first_slot: LatencyHistogram,
    /// The CPU time of those that have exited, as the kernel reports it, in nanoseconds; and of
    /// those of them that have samples.
    pub(crate) cpu_ns: (u64, u64),
}

impl StartedThreads {
    /// Notes a sample of a thread. `by_handler` says whether a handler took it.
    pub(super) fn note_sample(&mut self, life: &mut Life, time_ns: u64, by_handler: bool) {
        if !life.is_start_reported {
            return;
        }
        let since_ns = time_ns.saturating_sub(life.start_ns);
        if !std::mem::replace(&mut life.has_sample, true) {
            self.first_sample.add(since_ns);
        }
        if by_handler && !std::mem::replace(&mut life.has_slot, true) {
            self.first_slot.add(since_ns);
        }
    }

    /// Notes that a thread is forgotten: it has exited, and its last sample has been read.
    pub(super) fn note_end(&mut self, life: &Life) {
        if let Some(cpu_ns) = life.cpu_ns.filter(|_| life.is_start_reported) {
            self.cpu_ns.0 += cpu_ns;
            self.cpu_ns.1 += if life.has_sample { cpu_ns } else { 0 };
        }
    }

    /// Adds the threads of a later program, or of another process.
    pub(crate) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.first_sample.merge(&other.first_sample);
        self.first_slot.merge(&other.first_slot);
        self.cpu_ns = (self.cpu_ns.0 + other.cpu_ns.0, self.cpu_ns.1 + other.cpu_ns.1);
    }

    /// Returns the numbers for the metadata.
    pub(crate) fn numbers(&self) -> Vec<(&'static str, u64)> {
        let mut numbers = vec![
            ("threads_started", self.count),
            ("threads_started_sampled", self.first_sample.count()),
            ("threads_started_with_slot", self.first_slot.count()),
            ("threads_started_cpu_ns", self.cpu_ns.0),
            ("threads_started_sampled_cpu_ns", self.cpu_ns.1),
        ];
        const QUANTILES: [(u64, &str, &str); 4] = [
            (500, "first_sample_ns.p50", "first_slot_ns.p50"),
            (900, "first_sample_ns.p90", "first_slot_ns.p90"),
            (990, "first_sample_ns.p99", "first_slot_ns.p99"),
            (1000, "first_sample_ns.max", "first_slot_ns.max"),
        ];
        for (thousandths, sample, slot) in QUANTILES {
            let sampled = self.first_sample.quantile_ns(thousandths).map(|ns| (sample, ns));
            let held = self.first_slot.quantile_ns(thousandths).map(|ns| (slot, ns));
            numbers.extend(sampled.into_iter().chain(held));
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_at_most_a_quarter_too_long() {
        for ns in (0..63).map(|bit| 1u64 << bit).chain([5, 6, 7, 99, 12_345, 987_654_321]) {
            let mut histogram = LatencyHistogram::default();
            histogram.add(ns);
            let found = histogram.quantile_ns(500).unwrap();
            assert!(found >= ns && found <= ns.max(4) + ns.max(4) / 4, "{ns}: {found}");
        }
        assert_eq!(LatencyHistogram::default().quantile_ns(500), None);
        let mut histogram = LatencyHistogram::default();
        (1..=1000).for_each(|us| histogram.add(us * 1000));
        for (thousandths, us) in [(500, 500), (990, 990), (1000, 1000)] {
            let found = histogram.quantile_ns(thousandths).unwrap() / 1000;
            assert!((us..=us * 5 / 4).contains(&found), "{us} us: {found}");
        }
        histogram.add(u64::MAX);
        assert!(histogram.quantile_ns(1000).unwrap() > u64::MAX / 2);
    }

    #[test]
    fn only_the_first_samples_of_started_threads_count() {
        let mut started = StartedThreads { count: 2, ..StartedThreads::default() };
        let life = |is_start_reported| Life {
            start_ns: 1_000,
            is_start_reported,
            cpu_ns: Some(7),
            ..Life::default()
        };
        let (mut new, mut old, mut idle) = (life(true), life(false), life(true));
        started.note_sample(&mut new, 3_000, false);
        started.note_sample(&mut new, 9_000, true);
        started.note_sample(&mut new, 99_000, true);
        started.note_sample(&mut old, 9_000, true);
        [&new, &old, &idle].into_iter().for_each(|life| started.note_end(life));
        idle.cpu_ns = None;
        started.note_end(&idle);
        assert_eq!((started.first_sample.count(), started.first_slot.count()), (1, 1));
        assert!((2_000..=2_500).contains(&started.first_sample.quantile_ns(500).unwrap()));
        assert!((8_000..=10_000).contains(&started.first_slot.quantile_ns(500).unwrap()));
        assert_eq!(started.cpu_ns, (14, 7));
        let twice = {
            started.add(&started.clone());
            started
        };
        assert_eq!((twice.count, twice.first_sample.count(), twice.cpu_ns), (4, 2, (28, 14)));
        let numbers = twice.numbers();
        assert!(numbers.contains(&("threads_started_sampled", 2)) && numbers.len() == 13);
    }
}
