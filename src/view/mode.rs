//! What a view measures: time on the processor, or all time.

use std::str::FromStr;

use traceprof_abi::storage::log::flags::WALL;

use super::recording::Recording;
use crate::trace::Sample;

/// What the weights of a profile are. The two are never added up unconverted.
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

/// Converts the weights of a thread's samples.
#[derive(Debug, Clone, Copy, Default)]
pub struct Measure {
    mode: Mode,
    period_ns: u64,
    /// Of CPU samples, what is no whole microsecond yet: in all nothing is lost.
    rest_ns: u64,
}

impl Measure {
    /// For the samples of a recording.
    pub fn new(mode: Mode, recording: &Recording) -> Self {
        let period_ns = recording.period_ns().unwrap_or(0.0).round() as u64;
        Self { mode, period_ns, rest_ns: 0 }
    }

    /// What its weights are.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The weight of the next sample: periods, or microseconds.
    pub fn weigh(&mut self, sample: &Sample) -> u64 {
        let weight = u64::from(sample.weight);
        if self.mode == Mode::Cpu || is_wall(sample) {
            return weight;
        }
        let ns = weight.saturating_mul(self.period_ns).saturating_add(self.rest_ns);
        self.rest_ns = ns % 1000;
        ns / 1000
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
    use crate::trace::Value;

    fn weights(mode: Mode, samples: &[(u32, u32)]) -> Vec<u64> {
        let mut recording = Recording::default();
        recording.metadata.insert("period_ns".to_owned(), Value::Unsigned(1_000_333));
        let mut measure = Measure::new(mode, &recording);
        let sample = |(flags, weight): &(u32, u32)| Sample {
            flags: *flags,
            weight: *weight,
            ..Sample::default()
        };
        samples.iter().map(|it| measure.weigh(&sample(it))).collect()
    }

    #[test]
    fn periods_become_microseconds_and_nothing_is_lost() {
        let samples = [(0, 1), (0, 1), (WALL, 20_000), (0, 1), (0, 3)];
        assert_eq!(weights(Mode::Wall, &samples), [1000, 1000, 20_000, 1000, 3001]);
        assert_eq!(weights(Mode::Wall, &[(0, 1); 3000]).iter().sum::<u64>(), 3_000_999);
        assert_eq!(weights(Mode::Cpu, &[(0, 7), (0, 1)]), [7, 1]);
    }

    #[test]
    fn microseconds_are_rounded_to_milliseconds() {
        for (us, text) in
            [(0, "0.000"), (499, "0.000"), (500, "0.001"), (9_980_000_400, "9980.000")]
        {
            assert_eq!(wall_seconds(us), text);
        }
    }
}
