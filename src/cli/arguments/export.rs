//! The arguments of `export`.

use std::path::PathBuf;

use clap::Args;

use super::SelectionArguments;
use super::headings::{SHOWN, WHERE};
use crate::view::GroupBy;
use crate::view::export::Format;

/// Arguments of `export`.
#[derive(Debug, Args)]
pub struct ExportArguments {
    /// Trace file to convert
    pub file: PathBuf,

    /// Output format, such as flamegraph or pprof
    ///
    /// One of folded, flamegraph, pprof, firefox, speedscope, perf-script, otlp and html.
    ///
    /// Default: the format of the output's name: .folded or .collapsed, .svg, .pb.gz or .pprof,
    /// .json, .speedscope.json, .perf, .otlp, .html.
    #[arg(short, long, help_heading = WHERE)]
    pub format: Option<Format>,

    /// File to write (default, and with -: the standard output)
    #[arg(short, long, value_name = "FILE", help_heading = WHERE)]
    pub output: Option<PathBuf>,

    /// Replace an existing file
    #[arg(long, help_heading = WHERE)]
    pub force: bool,

    /// Make the thread's name the first frame
    ///
    /// For folded stacks and flame graphs.
    ///
    /// Processes are always separate: with several, the first frame is `NAME/PID`.
    #[arg(short, long, help_heading = SHOWN)]
    pub threads: bool,

    /// Make span, root-span, task or tag:NAME the first frame
    ///
    /// For folded stacks and flame graphs.
    ///
    /// The frame is `span=ID` or the like, and `(none)` for samples without one. With --threads the
    /// thread's name comes after it.
    #[arg(long, value_name = "KEY", help_heading = SHOWN)]
    pub by: Option<GroupBy>,

    /// Mark functions by the kind of their code
    ///
    /// For folded stacks. `_[k]`: of the kernel; `_[i]`: inlined; `_[0]`: interpreted Java or
    /// JavaScript; `_[1]`: compiled by a first compiler; `_[j]`: by an optimizing compiler, or by
    /// an unknown one; `_[p]`: Python. Other native functions stay as they are.
    #[arg(long, help_heading = SHOWN, hide_short_help = true)]
    pub annotate: bool,

    /// Leave out threads that only wait for work
    ///
    /// For wall-clock time. These are the threads that `print` sums up as idle.
    #[arg(long, help_heading = SHOWN)]
    pub no_idle: bool,

    /// Which samples.
    #[command(flatten)]
    pub selection: SelectionArguments,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        export: ExportArguments,
    }

    #[test]
    fn help_names_all_formats_and_extensions() {
        let help = Command::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for format in Format::ALL {
            let names = [format.name()].into_iter().chain(format.extensions().iter().copied());
            names.for_each(|name| assert!(help.contains(name), "{name}"));
        }
    }
}
