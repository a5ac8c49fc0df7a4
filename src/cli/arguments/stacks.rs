//! The arguments of `stacks`.

use clap::Args;

use super::ProcessArguments;
use super::headings::SHOWN;

/// Arguments of `stacks`.
#[derive(Debug, Args)]
pub struct StacksArguments {
    /// Which processes.
    #[command(flatten)]
    pub processes: ProcessArguments,

    /// Add addresses, files, lines and stop times
    #[arg(short, long, conflicts_with = "json", help_heading = SHOWN)]
    pub verbose: bool,

    /// Write one JSON object for each process, one a line
    #[arg(long, help_heading = SHOWN)]
    pub json: bool,

    /// Add kernel functions of sleeping threads (root)
    #[arg(long, help_heading = SHOWN)]
    pub kernel: bool,

    /// Show the native frames of interpreters, too
    ///
    /// By default the functions of a language's runtime that only carry the functions of that
    /// language are left out: of a Python program, those of the interpreter.
    #[arg(long, help_heading = SHOWN)]
    pub native_frames: bool,
}
