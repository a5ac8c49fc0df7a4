//! The lines above the live table.

use std::time::Duration;

use crate::view::text::escape::escaped;
use crate::view::text::number::counted;

/// The state of a recording and of its target.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LiveStatus {
    /// The process id of the target.
    pub pid: i32,
    /// The command line from the system.
    pub command: String,
    /// The time since the start.
    pub elapsed: Duration,
    /// The length of the last interval.
    pub interval: Duration,
    /// The number of sampled threads.
    pub threads: usize,
    /// The target's CPU time in the interval, in percent of one processor.
    pub cpu_percent: Option<f64>,
    /// The number of samples in the interval.
    pub samples: u64,
    /// The number of samples lost since the start.
    pub lost: u64,
    /// This process's CPU time in the interval, in percent of one processor.
    pub own_percent: Option<f64>,
    /// The engine and its rate.
    pub engine: String,
    /// The last message of the recording.
    pub notice: Option<String>,
}

impl LiveStatus {
    /// Returns the line about the target.
    pub(super) fn target(&self) -> String {
        let seconds = self.elapsed.as_secs_f64();
        let command = escaped(&self.command);
        format!("pid {} {command}  {seconds:.1} s  {}", self.pid, escaped(&self.engine))
    }

    /// Returns the line about the target's activity and the cost of the profiler.
    pub(super) fn figures(&self) -> String {
        let mut parts = vec![counted(self.threads as u64, "thread")];
        parts.extend(self.cpu_percent.map(|percent| format!("{percent:.1} % CPU")));
        let seconds = self.interval.as_secs_f64();
        let rate = if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 };
        parts.push(format!("{rate:.0} samples/s"));
        parts.push(format!("{} lost", self.lost));
        parts.extend(self.own_percent.map(|percent| format!("profiler {percent:.1} % CPU")));
        parts.join("  ")
    }
}
