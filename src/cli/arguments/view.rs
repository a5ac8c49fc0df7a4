//! The arguments of `view`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::SelectionArguments;
use super::headings::{SHOWN, WHERE};

/// Arguments of `view`.
#[derive(Debug, Default, Args)]
pub struct ViewArguments {
    /// Trace file
    pub file: PathBuf,

    /// Page to write; - is the standard output
    ///
    /// Default: the trace's name, with .html instead of .trace.
    #[arg(short, long, value_name = "PAGE", help_heading = WHERE)]
    pub output: Option<PathBuf>,

    /// Open the page in a browser (xdg-open)
    #[arg(long, help_heading = WHERE)]
    pub open: bool,

    /// Replace any existing file
    ///
    /// A page that traceprof made of a trace of this name is replaced without it.
    #[arg(long, help_heading = WHERE)]
    pub force: bool,

    /// Leave out threads that only wait for work
    ///
    /// By default they are folded into one line.
    #[arg(long, help_heading = SHOWN)]
    pub no_idle: bool,

    /// Show source lines with their weights, from the files below this directory
    ///
    /// The page then contains these files, 4 MiB at most. Without it, no source is read.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = SHOWN)]
    pub source: Option<PathBuf>,

    /// Show the instructions of the heaviest functions with their weights
    ///
    /// The page then contains the machine code of 200 functions as text, 2 MiB at most. It is read
    /// now, from the files that were recorded, if their build ids are still the same.
    #[arg(long, help_heading = SHOWN)]
    pub assembly: bool,

    /// Which samples.
    #[command(flatten)]
    pub selection: SelectionArguments,
}
