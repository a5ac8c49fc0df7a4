//! The selected samples of a thread, and their sums by call.
//!
//! The calls of a trace contain samples of all kinds, and only the samples show which ones a view
//! selects.

use std::ops::Range;

use crate::trace::{LazyCall, LazyTrace, Sample, ThreadId, TraceError, Window};
use crate::view::profile::states::StateTimes;
use crate::view::recording::mode::Mode;
use crate::view::select::sample_filter::SampleFilter;

/// The selected samples of a thread: some bytes for each.
#[derive(Debug, Default)]
pub(super) struct TimelineSamples {
    main: Vec<SampleRow>,
    side: Vec<SampleRow>,
    /// The time by state, for wall clock time only.
    pub(super) states: StateTimes,
}

/// A selected sample.
#[derive(Debug, Clone, Copy)]
struct SampleRow {
    /// The number of the sample in its stream.
    number: u64,
    time_ns: u64,
    /// The weight of this and all earlier samples of the stream.
    sum: u64,
}

/// A sum of samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SampleShare {
    pub(super) samples: u64,
    /// Sampling periods, or microseconds of wall clock time.
    pub(super) weight: u64,
    /// The time from the first to the last sample.
    pub(super) span_ns: u64,
    /// The time of the first sample.
    pub(super) first_ns: u64,
    /// The weight of the first sample.
    pub(super) first_weight: u64,
}

impl SampleShare {
    /// Returns the sum of samples that have the weight of one period each.
    pub(super) fn even(samples: u64) -> Self {
        Self { samples, weight: samples, first_weight: samples.min(1), ..Self::default() }
    }
}

impl SampleShare {
    /// Returns the start of the time that the samples stand for.
    pub(super) fn begin_ns(&self, mode: Mode) -> u64 {
        match mode {
            Mode::Cpu => self.first_ns,
            // A sample stands for the time before it.
            Mode::Wall => self.first_ns.saturating_sub(self.first_weight.saturating_mul(1000)),
        }
    }
}

impl TimelineSamples {
    /// Reads the samples of a thread in a window that the filter keeps.
    pub(super) fn new(
        trace: &LazyTrace,
        (thread, window): (ThreadId, &Window),
        filter: &SampleFilter,
    ) -> Result<Self, TraceError> {
        let mut tally = Self::default();
        let times = window.from_ns..=window.to_ns;
        trace.for_each_sample_of(thread, times, &mut |side, number, sample: &Sample| {
            if filter.has(sample) {
                let TimelineSamples { main, side: of_side, states } = &mut tally;
                let rows = if side { of_side } else { main };
                let before = rows.last().map_or(0, |row| row.sum);
                let weight = u64::from(sample.weight);
                let sum = before.saturating_add(weight);
                states.add(sample.state, weight);
                rows.push(SampleRow { number, time_ns: sample.time_ns, sum });
            }
        })?;
        Ok(tally)
    }

    /// Returns the sum of all samples.
    pub(super) fn all(&self) -> SampleShare {
        let [main, side] = [&self.main, &self.side].map(|rows| share(rows, 0..u64::MAX));
        let samples = main.samples + side.samples;
        let weight = main.weight.saturating_add(side.weight);
        SampleShare { samples, weight, ..SampleShare::default() }
    }

    /// Returns the sum of the samples in a call.
    pub(super) fn of(&self, call: &LazyCall) -> SampleShare {
        let Some(numbers) = call.sample_numbers() else { return self.all() };
        share(if call.is_side() { &self.side } else { &self.main }, numbers)
    }
}

fn share(rows: &[SampleRow], numbers: Range<u64>) -> SampleShare {
    let begin = rows.partition_point(|row| row.number < numbers.start);
    let end = rows.partition_point(|row| row.number < numbers.end);
    let before = begin.checked_sub(1).and_then(|index| rows.get(index)).map_or(0, |row| row.sum);
    let some = rows.get(begin..end).unwrap_or_default();
    let (Some(first), Some(last)) = (some.first(), some.last()) else {
        return SampleShare::default();
    };
    SampleShare {
        samples: some.len() as u64,
        weight: last.sum - before,
        span_ns: last.time_ns.saturating_sub(first.time_ns),
        first_ns: first.time_ns,
        first_weight: first.sum - before,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_the_sum_of_a_range_of_numbers() {
        let row = |(number, time_ns, sum)| SampleRow { number, time_ns, sum };
        let rows = [(2, 10, 5), (3, 20, 6), (7, 50, 106)].map(row);
        for (numbers, [samples, weight, span_ns, first_ns, first_weight]) in [
            (0..2, [0; 5]),
            (0..3, [1, 5, 0, 10, 5]),
            (3..8, [2, 101, 30, 20, 1]),
            (0..u64::MAX, [3, 106, 40, 10, 5]),
            (4..7, [0; 5]),
        ] {
            let expected = SampleShare { samples, weight, span_ns, first_ns, first_weight };
            assert_eq!(share(&rows, numbers), expected);
        }
        assert_eq!(share(&[], 0..5), SampleShare::default());
    }
}
