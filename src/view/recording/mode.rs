//! The measured time: CPU time or wall clock time.

use std::str::FromStr;

use traceprof_abi::storage::log::flags::WALL;

use crate::trace::Sample;

/// The measured time. Each mode has its own samples, and the two are never added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// CPU time, in sampling periods.
    #[default]
    Cpu,
    /// The time of all threads, whether they run or not, in microseconds.
    Wall,
}

impl Mode {
    /// Both modes.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Wall];

    /// Returns the name on the command line.
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

/// Returns whether a sample measures wall clock time instead of counting CPU periods.
pub(in crate::view) fn is_wall(sample: &Sample) -> bool {
    sample.flags & WALL != 0
}
