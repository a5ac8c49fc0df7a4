//! The activity of the target over time, in one line.
//!
//! Invariant: the weights of all cells add up to the selected samples.

use std::fmt::Write;

use crate::trace::{RunState, Sample};
use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::recording::unit::WeightUnit;
use crate::view::select::selection::Selected;
use crate::view::text::text_style::TextStyle;

/// Maximum number of cells: with their scale they fit on a line.
const CELLS_MAX: usize = 32;
/// Minimum length of a cell in periods. In shorter cells a thread that always runs would seem to
/// start and stop.
const PERIODS_MIN: f64 = 5.0;
/// Width of a terminal on which the line and its label always fit.
const WIDTH: usize = 78;
/// Bars from empty to the maximum, in eighths.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Characters for these heights on terminals without block characters.
const SIGNS: [char; 9] = [' ', '.', ':', '-', '=', '+', '*', '#', '@'];

/// The weight of one cell of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ActivityCell {
    /// The weight in sampling periods, or in microseconds of wall clock time.
    pub weight: u64,
    /// The part of the wall clock time in which threads ran.
    pub running: u64,
}

/// The weights over time. The default has no cells.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ActivityProfile {
    /// The start, on the clock of the samples.
    pub from_ns: u64,
    /// The end, on the clock of the samples.
    pub to_ns: u64,
    /// Cells of equal length, in time order.
    pub cells: Vec<ActivityCell>,
}

impl ActivityProfile {
    /// Creates empty cells for the selected part of the recording.
    pub(in crate::view) fn new(recording: &RecordingInfo, selected: &Selected) -> Self {
        let (from_ns, to_ns) = bounds(recording, selected);
        if from_ns >= to_ns || to_ns == u64::MAX {
            return Self::default();
        }
        let length_ns = (to_ns - from_ns) as f64;
        let shortest_ns = match selected.filter.mode {
            Mode::Cpu => recording.period_ns().unwrap_or(0.0) * PERIODS_MIN,
            Mode::Wall => 0.0,
        };
        let parts = (length_ns / shortest_ns).clamp(1.0, CELLS_MAX as f64) as usize;
        Self { from_ns, to_ns, cells: vec![ActivityCell::default(); parts] }
    }

    /// Adds a sample. A sample of wall clock time stands for the time before it and counts in every
    /// cell of that time.
    pub(in crate::view) fn add(&mut self, mode: Mode, sample: &Sample) {
        let weight = u64::from(sample.weight);
        let runs = mode == Mode::Wall && sample.state == RunState::Running as u8;
        let last = self.index(sample.time_ns);
        let begin_ns = match mode {
            Mode::Cpu => sample.time_ns,
            Mode::Wall => sample.time_ns.saturating_sub(weight.saturating_mul(1000)),
        };
        let first = self.index(begin_ns);
        let mut left = weight;
        for index in first..last {
            let past_ns = self.end_ns(index).saturating_sub(begin_ns);
            let share = (past_ns / 1000).saturating_sub(weight - left).min(left);
            self.put(index, share, runs);
            left -= share;
        }
        self.put(last, left, runs);
    }

    fn put(&mut self, index: usize, weight: u64, runs: bool) {
        // Without cells nothing is counted.
        let Some(cell) = self.cells.get_mut(index) else { return };
        cell.weight = cell.weight.saturating_add(weight);
        if runs {
            cell.running = cell.running.saturating_add(weight);
        }
    }

    /// Returns the index of the cell of a time. Times outside count in the nearest cell.
    fn index(&self, time_ns: u64) -> usize {
        let length_ns = self.to_ns.saturating_sub(self.from_ns).max(1);
        let since_ns = time_ns.saturating_sub(self.from_ns);
        let parts = self.cells.len() as u64;
        let index = match since_ns.checked_mul(parts) {
            Some(parts_ns) => parts_ns / length_ns,
            // The time is years after the end.
            None => u64::MAX,
        };
        usize::try_from(index).unwrap_or(usize::MAX).min(self.cells.len().saturating_sub(1))
    }

    fn end_ns(&self, index: usize) -> u64 {
        let length_ns = u128::from(self.to_ns - self.from_ns);
        let past_ns = length_ns * (index as u128 + 1) / self.cells.len() as u128;
        self.from_ns.saturating_add(past_ns as u64)
    }

    /// Returns the length of a cell in seconds.
    pub(in crate::view) fn cell_s(&self) -> f64 {
        self.to_ns.saturating_sub(self.from_ns) as f64 / 1e9 / self.cells.len().max(1) as f64
    }

    /// Returns the line, or `None` without a sample. Its times count from `base_ns`.
    pub(in crate::view) fn line(
        &self,
        unit: WeightUnit,
        base_ns: u64,
        style: &TextStyle,
    ) -> Option<String> {
        if self.cells.iter().all(|cell| cell.weight == 0) {
            return None;
        }
        // Two cells become one if there is not enough space.
        let is_narrow = style.width.is_some_and(|width| width < WIDTH);
        let parts = self.cells.chunks(if is_narrow { 2 } else { 1 });
        let height = |cell: &ActivityCell| match unit {
            WeightUnit::Periods(_) => cell.weight as f64,
            // The share of all time would be misleading: a moment with few threads would seem busy.
            WeightUnit::Microseconds => cell.running as f64,
        };
        let mean =
            |cells: &[ActivityCell]| cells.iter().map(height).sum::<f64>() / cells.len() as f64;
        let highest = parts.clone().map(mean).fold(0.0, f64::max);
        let signs = if style.ascii { SIGNS } else { BLOCKS };
        let sign = |cells: &[ActivityCell]| {
            let eighths = if highest > 0.0 { mean(cells) / highest * 8.0 } else { 0.0 };
            // A cell with any weight never appears empty.
            signs[(eighths.ceil() as usize).min(8)]
        };
        let digits = if self.to_ns - self.from_ns < 10_000_000_000 { 3 } else { 1 };
        let since =
            |time_ns: u64| format!("{:.digits$} s", time_ns.saturating_sub(base_ns) as f64 / 1e9);
        let full = signs[8];
        let highest = match unit {
            WeightUnit::Periods(Some(period_ns)) => {
                let cpus = highest * period_ns / 1e9 / self.cell_s();
                format!("{cpus:.2} cpus")
            }
            WeightUnit::Periods(None) => format!("{highest} periods"),
            WeightUnit::Microseconds => format!("{:.2} running", highest / 1e6 / self.cell_s()),
        };
        let mut line = format!("{} |", since(self.from_ns));
        line.extend(parts.map(sign));
        // Writing to a string does not fail.
        let _ = write!(line, "| {}; {full} {highest}", since(self.to_ns));
        Some(line)
    }
}

/// Returns the selected time, limited to the time of the recording.
pub(in crate::view) fn bounds(recording: &RecordingInfo, selected: &Selected) -> (u64, u64) {
    let (begin_ns, end_ns) =
        (recording.begin_ns().unwrap_or(0), recording.end_ns().unwrap_or(u64::MAX));
    let from_ns = selected.windows.iter().map(|window| window.from_ns).min().unwrap_or(0);
    let to_ns = selected.windows.iter().map(|window| window.to_ns).max().unwrap_or(u64::MAX);
    (from_ns.max(begin_ns), to_ns.min(end_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn activity() -> ActivityProfile {
        ActivityProfile {
            from_ns: 1000 * MS,
            to_ns: 1400 * MS,
            cells: vec![ActivityCell::default(); 40],
        }
    }

    fn weights(activity: &ActivityProfile) -> Vec<u64> {
        activity.cells.iter().map(|cell| cell.weight).collect()
    }

    #[test]
    fn waiting_time_counts_in_every_cell_of_it() {
        let mut activity = activity();
        let waits = |time_ns, weight| Sample { time_ns, weight, state: 2, ..Sample::default() };
        activity.add(Mode::Wall, &waits(1035 * MS, 25_000));
        assert_eq!(weights(&activity)[..5], [0, 10_000, 10_000, 5_000, 0]);
        activity.add(Mode::Wall, &Sample { state: 0, ..waits(1012 * MS, 1_000) });
        assert_eq!(activity.cells[1], ActivityCell { weight: 11_000, running: 1_000 });
        // Longer than the line, before it and after it: nothing is lost.
        for (time_ns, weight) in [(1400 * MS, 900_000), (5, 7), (u64::MAX, 3)] {
            activity.add(Mode::Wall, &waits(time_ns, weight));
        }
        assert_eq!(weights(&activity).iter().sum::<u64>(), 26_000 + 900_000 + 10);
    }

    #[test]
    fn periods_count_at_their_sample_and_scale_to_the_highest() {
        let mut activity = activity();
        for (ms, weight) in [(1000, 5), (1005, 5), (1399, 5), (1400, 0), (1100, 1)] {
            let sample = Sample { time_ns: ms * MS, weight, ..Sample::default() };
            activity.add(Mode::Cpu, &sample);
        }
        let all = weights(&activity);
        assert_eq!((all[0], all[10], all[39], all.iter().sum::<u64>()), (10, 1, 5, 16));
        let line = |style: TextStyle| {
            activity.line(WeightUnit::Periods(Some(1e6)), 1000 * MS, &style).unwrap()
        };
        let (nine, more) = (" ".repeat(9), " ".repeat(28));
        assert_eq!(
            line(TextStyle::default()),
            format!("0.000 s |█{nine}▁{more}▄| 0.400 s; █ 1.00 cpus")
        );
        let plain = line(TextStyle { ascii: true, ..TextStyle::default() });
        assert_eq!(plain, format!("0.000 s |@{nine}.{more}=| 0.400 s; @ 1.00 cpus"));
    }

    #[test]
    fn without_time_or_samples_there_is_no_line() {
        let unit = WeightUnit::Periods(None);
        assert_eq!(activity().line(unit, 0, &TextStyle::default()), None);
        let mut empty = ActivityProfile::default();
        empty.add(Mode::Cpu, &Sample { time_ns: 5, weight: 1, ..Sample::default() });
        assert_eq!(empty.line(unit, 0, &TextStyle::default()), None);
    }
}
