//! What a view measures: time on the processor, or all time.

use std::str::FromStr;

use traceprof_abi::storage::log::flags::WALL;

use super::recording::Recording;
use crate::trace::Sample;

/// What the weights of a profile are. Each mode has samples of its own: the two are never added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// CPU time, in sampling periods.
    #[default]
    Cpu,
    /// The time of all threads, whether they run or not, in microseconds.
    Wall,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Wall];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Wall => "wall",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|mode| mode.name() == text);
        known.ok_or_else(|| "expected cpu or wall".to_owned())
    }
}

/// A sample of time that was measured, not counted in periods.
pub(super) fn is_wall(sample: &Sample) -> bool {
    sample.flags & WALL != 0
}

/// Weights as text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Unit {
    /// Sampling periods of this length, if that is known.
    Periods(Option<f64>),
    /// Microseconds.
    Microseconds,
}

impl Unit {
    /// The unit of a recording's weights.
    pub(super) fn new(mode: Mode, recording: &Recording) -> Self {
        match mode {
            Mode::Cpu => Self::Periods(recording.period_ns()),
            Mode::Wall => Self::Microseconds,
        }
    }

    /// A weight in seconds, with the digits that it means.
    pub(super) fn seconds(self, weight: u64) -> Option<String> {
        match self {
            Self::Periods(period_ns) => Some(super::rows::seconds(weight, period_ns?)),
            Self::Microseconds => Some(wall_seconds(weight)),
        }
    }
}

/// Microseconds in seconds.
pub(super) fn wall_seconds(us: u64) -> String {
    // Not by way of a float, so that times of one precision add up.
    let ms = us.saturating_add(500) / 1000;
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn microseconds_are_rounded_to_milliseconds() {
        for (us, text) in
            [(0, "0.000"), (499, "0.000"), (500, "0.001"), (9_980_000_400, "9980.000")]
        {
            assert_eq!(wall_seconds(us), text);
        }
    }
}
