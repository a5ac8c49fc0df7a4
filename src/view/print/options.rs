//! How a profile is shown as trees and tables: the kind of step, which threads share a tree, and
//! the limits.

use crate::view::profile::flat_profile::RowType;
use crate::view::profile::thread_labels::LabelBy;
use crate::view::text::text_style::TextStyle;

/// Which threads share a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Split {
    /// Threads of one process whose names differ by their trailing digits only.
    #[default]
    Pools,
    /// Each has its own.
    Threads,
    /// All threads.
    Together,
    /// All threads, with a first level of threads.
    ByThread,
    /// All threads, with a first level of processes.
    ByProcess,
}

impl Split {
    /// The kind of the first level, if it is threads or processes.
    pub(in crate::view) fn part(self) -> Option<LabelBy> {
        match self {
            Self::ByThread => Some(LabelBy::Threads),
            Self::ByProcess => Some(LabelBy::Processes),
            Self::Pools | Self::Threads | Self::Together => None,
        }
    }
}

/// How a profile is shown.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TreeOptions {
    /// Show the place of each function in the source or the module.
    pub verbose: bool,
    /// The kind of a tree's step: a function, a module or a line.
    pub steps: RowType,
    /// Which threads share a tree; all if the samples are grouped.
    pub split: Split,
    /// Callees first: below each function in which samples were taken those that called it.
    pub inverted: bool,
    /// The limits of a tree.
    pub limits: Limits,
    /// The rows of tables that are left out: functions, threads or groups below this share.
    pub rows_min_percent: f64,
    /// Show the trees of idle threads too; CPU time has no idle threads.
    pub idle: bool,
    /// The style of the output.
    pub style: TextStyle,
}

/// The limits of a tree. The default shows everything.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Limits {
    /// Calls below this share of the tree are summed up in one line per caller.
    pub min_percent: f64,
    /// Calls deeper than this are summed up in one line per caller.
    pub depth: Option<usize>,
}
