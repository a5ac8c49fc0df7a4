//! The arguments of `export`.

use std::path::PathBuf;

use clap::Args;

use super::SelectionArguments;
use crate::view::By;
use crate::view::export::Format;

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArguments {
    /// Trace file to convert
    pub file: PathBuf,

    /// Format to write: folded, flamegraph, pprof, firefox, speedscope, perf-script, otlp or html
    ///
    /// By default that of the output's name: .folded or .collapsed, .svg, .pb.gz or .pprof, .json,
    /// .speedscope.json, .perf, .otlp, .html.
    #[arg(short, long)]
    pub format: Option<Format>,

    /// File to write; - or none is the standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Keep threads apart in folded stacks and flame graphs: the thread's name is the first frame
    ///
    /// Processes are kept apart in any case: where there are several, the first frame is `NAME/PID`.
    #[arg(short, long)]
    pub threads: bool,

    /// Leave out threads that only wait for work
    ///
    /// Of wall clock time; the threads that `print` sums up as idle.
    #[arg(long)]
    pub no_idle: bool,

    /// Group folded stacks and flame graphs by span, root-span or tag:NAME, which is the first frame
    ///
    /// It is `span=ID` or the like, and `(none)` for samples without. With --threads the thread's name
    /// comes behind it.
    #[arg(long, value_name = "KEY")]
    pub by: Option<By>,

    /// What of the trace is looked at.
    #[command(flatten)]
    pub selection: SelectionArguments,

    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}
