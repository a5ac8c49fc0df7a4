//! The arguments of `top`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use crate::cli::values::{EngineName, Mode, Rate, WallInterval};
use crate::quantity;
use crate::view::live::{Kind, Order};

/// Arguments of `top`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("process").required(true).args(["pid", "bare_pid"]))]
pub struct TopArguments {
    /// Process to look at
    #[arg(short, long, value_parser = clap::value_parser!(i32).range(1..))]
    pub pid: Option<i32>,

    /// The same, as it is typed for other tools
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub bare_pid: Option<i32>,

    /// How often the table is made anew: 1s to 1h
    ///
    /// The table is some more than a second behind: as long as it takes to write and read the samples.
    #[arg(short, long, value_name = "TIME", default_value = "1s")]
    pub interval: Interval,

    /// Print so many tables one after the other, and end
    ///
    /// They are plain text, also on a terminal.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub iterations: Option<u32>,

    /// What has a row: function, thread, module or line
    #[arg(long, value_name = "KIND", default_value = "function")]
    pub by: Kind,

    /// What rows are sorted by: self or total
    #[arg(long, value_name = "COLUMN", default_value = "self")]
    pub sort: Order,

    /// Sort by the time since the start, not by the last interval
    #[arg(long)]
    pub cumulative: bool,

    /// Rows of a table that is printed; what is left out is summed up
    #[arg(long, value_name = "N", default_value = "20")]
    pub top: usize,

    /// What is measured: cpu, wall, or cpu,wall, which shows one of the two (key w)
    #[arg(short, long, value_name = "MODE", default_value = "cpu")]
    pub mode: Mode,

    /// Show idle threads too, which have a line together otherwise
    ///
    /// Of wall clock time: a thread is idle that ran for less than 1 % of the last interval, slept for the
    /// rest of it in one place, and does not wait for a lock. If all threads are idle, all of them are
    /// shown. On a terminal the key i does the same.
    #[arg(long)]
    pub idle: bool,

    /// How often threads are looked at in mode wall: 1ms to 10s
    #[arg(long, value_name = "TIME", default_value = "20ms")]
    pub wall_interval: WallInterval,

    /// Samples per second of CPU time of each thread: 1 to 50000, or max (default: 199)
    #[arg(short = 'F', long = "freq", value_name = "HZ")]
    pub rate: Option<Rate>,

    /// What samples: auto, perf, or timer; `record --help` tells them apart
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub engine: EngineName,

    /// Keep the trace in this file
    ///
    /// Without this there is none after the end.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Replace an existing trace file
    #[arg(long, requires = "output")]
    pub force: bool,

    /// Begin a new temporary trace when one has grown to so much: 16K to 1T
    ///
    /// The process is detached from and attached to again then, and some tenths of a second are not
    /// sampled. The columns since the start go on. A trace that is kept is never begun anew.
    #[arg(long, value_name = "BYTES", default_value = "256M", conflicts_with = "output")]
    pub max_size: TraceSize,

    /// Leave out time spent in the kernel, also where it could be seen
    #[arg(long)]
    pub no_kernel: bool,

    /// Look at a process whose seccomp filter is not known to permit what is done
    #[arg(long)]
    pub allow_seccomp: bool,

    /// Ask a Java virtual machine (JDK 17 or later) for the names of its compiled methods
    #[arg(long)]
    pub jvm_names: bool,

    /// Print nothing but tables and errors
    #[arg(short, long)]
    pub quiet: bool,
}

impl TopArguments {
    /// The process, however it was given.
    pub fn pid(&self) -> i32 {
        // One of them is required.
        self.pid.or(self.bare_pid).unwrap_or_default()
    }
}

/// Between two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval(pub Duration);

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Duration::from_secs(1)..=Duration::from_secs(3600);
        match quantity::time(text)? {
            time if known.contains(&time) => Ok(Self(time)),
            _ => Err("expected a time from 1s to 1h, such as 2, 2s or 1m".to_owned()),
        }
    }
}

/// Bytes that a trace may have.
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
        let interval = |text: &str| text.parse::<Interval>().ok().map(|it| it.0.as_millis());
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
