//! The arguments of `top`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use super::ProcessArguments;
use super::headings::{ADVANCED, HOW, SHOWN, WHERE};
use crate::cli::number_values::{count, number};
use crate::cli::option_values::{EngineName, ModeName, Rate, WallInterval, YesOrNo};
use crate::quantity;
use crate::view::live::{Order, RowKind};

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArguments {
    /// Which processes.
    #[command(flatten)]
    pub processes: ProcessArguments,

    /// Time between two tables: 1s to 1h
    ///
    /// The table is a little more than a second behind, the time to write and read the samples.
    #[arg(short, long, value_name = "TIME", default_value = "1s", help_heading = SHOWN)]
    pub interval: TableInterval,

    /// Print N tables as plain text, and end
    #[arg(short = 'n', long, value_name = "N", value_parser = number::<u32>(1..=u32::MAX.into()))]
    #[arg(help_heading = SHOWN)]
    pub iterations: Option<u32>,

    /// function, thread, module, line or process
    ///
    /// Default: function, and process for several processes.
    #[arg(long, value_name = "KIND", help_heading = SHOWN)]
    pub by: Option<RowKind>,

    /// Sort order: self or total
    #[arg(long, value_name = "COLUMN", default_value = "self", help_heading = SHOWN)]
    pub sort: Order,

    /// Sort by the time since the start
    #[arg(long, help_heading = SHOWN)]
    pub cumulative: bool,

    /// Rows of a printed table
    #[arg(long, value_name = "N", default_value = "20", value_parser = count, help_heading = SHOWN)]
    pub top: usize,

    /// Show idle threads, too (wall-clock time)
    ///
    /// By default one line sums them up. An idle thread ran for less than 1 % of the last interval,
    /// slept for the rest in one place, and does not wait for a lock. If all threads are idle, all
    /// of them are shown. On a terminal, the key i does the same.
    #[arg(long, help_heading = SHOWN)]
    pub idle: bool,

    /// Show the native frames of interpreters, too (see `print --help`)
    #[arg(long, help_heading = SHOWN, hide_short_help = true)]
    pub native_frames: bool,

    /// Measure cpu, wall or cpu,wall
    ///
    /// With cpu,wall the table shows one of the two, and the key w changes it.
    #[arg(short, long, value_name = "MODE", default_value = "cpu", help_heading = HOW)]
    pub mode: ModeName,

    /// How often threads are checked in mode wall: 1ms to 10s
    #[arg(long, value_name = "TIME", default_value = "20ms", help_heading = HOW)]
    #[arg(hide_short_help = true)]
    pub wall_interval: WallInterval,

    /// Samples per second of CPU time [default: 199]
    ///
    /// The rate of each thread, from 1 to 50000, or max.
    #[arg(short = 'F', long = "freq", value_name = "HZ", help_heading = HOW)]
    pub rate: Option<Rate>,

    /// What takes the samples: auto, signal, perf, or timer (see `record --help`)
    #[arg(long, value_name = "NAME", default_value = "auto", help_heading = HOW)]
    #[arg(hide_short_help = true)]
    pub engine: EngineName,

    /// Leave out time spent in the kernel (not with --engine timer)
    #[arg(long, help_heading = HOW, hide_short_help = true)]
    pub no_kernel: bool,

    /// Whether samples in the kernel show its own functions (see `record --help`)
    #[arg(long, value_name = "YES-OR-NO", default_value = "yes", help_heading = HOW)]
    #[arg(hide_short_help = true)]
    pub kernel_stacks: YesOrNo,

    /// Keep the trace in this file
    ///
    /// Without this option no trace remains.
    #[arg(short, long, value_name = "FILE", help_heading = WHERE)]
    pub output: Option<PathBuf>,

    /// Replace an existing trace file
    #[arg(long, requires = "output", help_heading = WHERE)]
    pub force: bool,

    /// Start a new temporary trace at this size: 16K to 1T
    ///
    /// The recorder then detaches and attaches again, and some tenths of a second are not sampled.
    /// The columns since the start go on. A trace that is kept is never split.
    #[arg(long, value_name = "BYTES", default_value = "256M", conflicts_with = "output")]
    #[arg(help_heading = WHERE, hide_short_help = true)]
    pub max_size: TraceSize,

    /// Print nothing but tables and errors
    #[arg(short, long, help_heading = WHERE)]
    pub quiet: bool,

    /// Sample although a seccomp filter may forbid the system calls
    #[arg(long, help_heading = ADVANCED, hide_short_help = true)]
    pub allow_seccomp: bool,
}

/// The time between two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableInterval(pub Duration);

impl FromStr for TableInterval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Duration::from_secs(1)..=Duration::from_secs(3600);
        match quantity::time(text)? {
            time if known.contains(&time) => Ok(Self(time)),
            _ => Err("expected a time from 1s to 1h, such as 2, 2s or 1m".to_owned()),
        }
    }
}

/// The largest size of a temporary trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceSize(pub u64);

impl FromStr for TraceSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match quantity::bytes(text)? {
            bytes if (16 << 10..=1 << 40).contains(&bytes) => Ok(Self(bytes)),
            _ => Err("expected a size from 16K to 1T, such as 256M".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_sizes_have_units_and_limits() {
        let interval = |text: &str| text.parse::<TableInterval>().ok().map(|it| it.0.as_millis());
        assert_eq!(interval("2"), Some(2000));
        assert_eq!(interval("1500ms"), Some(1500));
        assert_eq!((interval("500ms"), interval("2h"), interval("x")), (None, None, None));
        let size = |text: &str| text.parse::<TraceSize>().ok().map(|it| it.0);
        assert_eq!(
            (size("1M"), size("3g"), size("1048576")),
            (Some(1 << 20), Some(3 << 30), Some(1 << 20))
        );
        assert_eq!(
            (size("1K"), size("-1M"), size("M"), size(""), size("9999T")),
            (None, None, None, None, None)
        );
    }
}
