//! The unit of weights: sampling periods, or microseconds.

use super::mode::Mode;
use super::number::{seconds, wall_seconds};
use super::recording_info::RecordingInfo;

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
    pub(super) fn new(mode: Mode, recording: &RecordingInfo) -> Self {
        match mode {
            Mode::Cpu => Self::Periods(recording.period_ns()),
            Mode::Wall => Self::Microseconds,
        }
    }

    /// A weight in seconds, with the digits that it means.
    pub(super) fn seconds(self, weight: u64) -> Option<String> {
        match self {
            Self::Periods(period_ns) => Some(seconds(weight, period_ns?)),
            Self::Microseconds => Some(wall_seconds(weight)),
        }
    }
}

/// The whole that shares refer to, and the unit of weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    /// Weight of all samples of the trace.
    pub(super) all: u64,
    /// The unit of a weight.
    pub(super) unit: Unit,
}
