//! The unit of weights: sampling periods, or microseconds.

use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::text::number::{seconds, wall_seconds};

/// The unit of weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::view) enum WeightUnit {
    /// Sampling periods of this length in nanoseconds, if known.
    Periods(Option<f64>),
    /// Microseconds.
    Microseconds,
}

impl WeightUnit {
    /// Returns the unit of a recording's weights.
    pub(in crate::view) fn new(mode: Mode, recording: &RecordingInfo) -> Self {
        match mode {
            Mode::Cpu => Self::Periods(recording.period_ns()),
            Mode::Wall => Self::Microseconds,
        }
    }

    /// Returns a weight in seconds, with as many digits as are significant.
    pub(in crate::view) fn seconds(self, weight: u64) -> Option<String> {
        match self {
            Self::Periods(period_ns) => Some(seconds(weight, period_ns?)),
            Self::Microseconds => Some(wall_seconds(weight)),
        }
    }
}

/// The total weight that shares refer to, and the unit of weights.
#[derive(Debug, Clone, Copy)]
pub(in crate::view) struct Scale {
    /// The weight of all samples of the trace.
    pub(in crate::view) all: u64,
    /// The unit of a weight.
    pub(in crate::view) unit: WeightUnit,
}
