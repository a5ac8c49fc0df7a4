//! The lines above the live table.

use std::time::Duration;

use crate::view::text::escape::escaped;
use crate::view::text::number::counted;

/// The state of a recording and of its target.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LiveStatus {
    /// The target.
    pub pid: i32,
    /// The command line from the system.
    pub command: String,
    /// Since the start.
    pub elapsed: Duration,
    /// The length of the last interval.
    pub interval: Duration,
    /// Threads that are sampled.
    pub threads: usize,
    /// CPU time that the target used in the interval, in percent of one processor.
    pub cpu_percent: Option<f64>,
    /// Samples of the interval.
    pub samples: u64,
    /// Samples that were lost since the start.
    pub lost: u64,
    /// CPU time of this process in the interval, in percent of one processor.
    pub own_percent: Option<f64>,
    /// The engine and its rate.
    pub engine: String,
    /// The last message of the recording.
    pub notice: Option<String>,
}

impl LiveStatus {
    /// The line about the target.
    pub(super) fn target(&self) -> String {
        let seconds = self.elapsed.as_secs_f64();
        let command = escaped(&self.command);
        format!("pid {} {command}  {seconds:.1} s  {}", self.pid, escaped(&self.engine))
    }

    /// The line about its activity, and the cost of the profiler.
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
