//! The arguments of `view`.

use std::path::PathBuf;

use clap::Args;

use super::SelectionArguments;

/// Arguments of `view`.
#[derive(Debug, Args)]
pub struct ViewArguments {
    /// Trace file to look at
    pub file: PathBuf,

    /// Page to write; - is the standard output
    ///
    /// Default: the trace's name, with .html instead of .trace.
    #[arg(short, long, value_name = "PAGE")]
    pub output: Option<PathBuf>,

    /// Open the page with the program that the desktop opens pages with (xdg-open)
    #[arg(long)]
    pub open: bool,

    /// Leave out threads that only wait for work; by default they are folded into one line
    #[arg(long)]
    pub no_idle: bool,

    /// What of the trace is looked at.
    #[command(flatten)]
    pub selection: SelectionArguments,

    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}
