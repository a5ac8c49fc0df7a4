//! The arguments of `print`.

use std::path::PathBuf;

use clap::Args;

use super::SelectionArguments;
use crate::cli::values::Percent;
use crate::view::By;

/// Arguments of `print`.
#[derive(Debug, Args)]
pub struct PrintArguments {
    /// Trace file to print
    pub file: PathBuf,

    /// Say for every call where it is: file and line, or module and offset
    ///
    /// With --timeline also every sample: when it was taken, its weight, and what else is known.
    /// Without, also what the samples of each call worked on (span and tags), and of wall clock time how
    /// long each thread was in which state.
    #[arg(short, long)]
    pub verbose: bool,

    /// Print calls in the order of their times
    #[arg(long)]
    pub timeline: bool,

    /// Show idle threads too, which are summed up at the end otherwise
    ///
    /// Of wall clock time: a thread is idle that ran for less than 1 % of its time, slept for the rest
    /// of it in one place, and does not wait for a lock. If all threads are idle, all are shown.
    #[arg(long, conflicts_with = "timeline")]
    pub idle: bool,

    /// Go on with what is added to the trace, until its recording ends
    #[arg(long, conflicts_with = "output")]
    pub follow: bool,

    /// Group the calls of all threads by span, root-span or tag:NAME
    ///
    /// One tree for all threads, whose first level is the span (or its root, or the value of the tag),
    /// heaviest first; `(none)` stands for samples without. The ten heaviest are always shown.
    #[arg(long, value_name = "KEY", conflicts_with = "timeline")]
    pub by: Option<By>,

    /// What of the trace is looked at.
    #[command(flatten)]
    pub selection: SelectionArguments,

    /// Sum up calls and threads below this share; 0 shows everything
    ///
    /// Calls are measured against their thread, threads against what is printed of the trace.
    #[arg(long, value_name = "PERCENT", default_value = "0.5")]
    pub min_percent: Percent,

    /// Sum up calls deeper than this
    #[arg(long, value_name = "LEVELS")]
    pub depth: Option<usize>,

    /// File to write instead of the standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}
