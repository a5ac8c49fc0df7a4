//! The options for trees and tables: the kind of step, which threads share a tree, and the limits.

use crate::view::profile::flat_profile::RowType;
use crate::view::profile::thread_labels::LabelBy;
use crate::view::text::text_style::TextStyle;

/// Which threads share a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Split {
    /// Threads of one process whose names differ only by their trailing digits.
    #[default]
    Pools,
    /// Each thread has its own tree.
    Threads,
    /// All threads share a tree.
    Together,
    /// All threads share a tree with a first level of threads.
    ByThread,
    /// All threads share a tree with a first level of processes.
    ByProcess,
    /// As pools, but over all processes of a program.
    PoolsOfPrograms,
    /// All threads share a tree with a first level of programs.
    ByProgram,
}

impl Split {
    /// Returns the kind of the first level, if it is threads or processes.
    pub(in crate::view) fn part(self) -> Option<LabelBy> {
        match self {
            Self::ByThread => Some(LabelBy::Threads),
            Self::ByProcess => Some(LabelBy::Processes),
            Self::ByProgram => Some(LabelBy::Programs),
            Self::Pools | Self::PoolsOfPrograms | Self::Threads | Self::Together => None,
        }
    }
}

/// The options for printing a profile.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TreeOptions {
    /// Whether to show the source location or module of each function.
    pub verbose: bool,
    /// The kind of a tree's step: a function, a module or a line.
    pub steps: RowType,
    /// Which threads share a tree. All do if the samples are grouped.
    pub split: Split,
    /// Whether trees are inverted: below each function with samples are its callers.
    pub inverted: bool,
    /// The limits of a tree.
    pub limits: PrintLimits,
    /// Table rows below this share are left out: functions, threads or groups.
    pub rows_min_percent: f64,
    /// Whether to show the trees of idle threads too. CPU time has no idle threads.
    pub idle: bool,
    /// The style of the output.
    pub style: TextStyle,
}

/// The limits of a tree. The default shows everything.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PrintLimits {
    /// Calls below this share of the tree are summed up in one line per caller.
    pub min_percent: f64,
    /// Calls deeper than this are summed up in one line per caller.
    pub depth: Option<usize>,
}
