//! The unit of weights: sampling periods, or microseconds.

use crate::view::recording::mode::Mode;
use crate::view::recording::recording_info::RecordingInfo;
use crate::view::text::number::{seconds, wall_seconds};

/// Weights as text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::view) enum Unit {
    /// Sampling periods of this length, if that is known.
    Periods(Option<f64>),
    /// Microseconds.
    Microseconds,
}

impl Unit {
    /// The unit of a recording's weights.
    pub(in crate::view) fn new(mode: Mode, recording: &RecordingInfo) -> Self {
        match mode {
            Mode::Cpu => Self::Periods(recording.period_ns()),
            Mode::Wall => Self::Microseconds,
        }
    }

    /// A weight in seconds, with the digits that it means.
    pub(in crate::view) fn seconds(self, weight: u64) -> Option<String> {
        match self {
            Self::Periods(period_ns) => Some(seconds(weight, period_ns?)),
            Self::Microseconds => Some(wall_seconds(weight)),
        }
    }
}

/// The whole that shares refer to, and the unit of weights.
#[derive(Debug, Clone, Copy)]
pub(in crate::view) struct Scale {
    /// Weight of all samples of the trace.
    pub(in crate::view) all: u64,
    /// The unit of a weight.
    pub(in crate::view) unit: Unit,
}
