//! What the live table says above its rows.

use std::time::Duration;

use crate::view::escape::escaped;
use crate::view::rows::counted;

/// The state of a recording and of its target.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Head {
    /// The target.
    pub pid: i32,
    /// Its command line, as the system has it.
    pub command: String,
    /// Since the start.
    pub elapsed: Duration,
    /// How long the last interval was.
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
    /// What samples, and how often.
    pub engine: String,
    /// The last thing that the recording had to tell.
    pub notice: Option<String>,
}

impl Head {
    /// Who it is about.
    pub(super) fn target(&self) -> String {
        let seconds = self.elapsed.as_secs_f64();
        let command = escaped(&self.command);
        format!("pid {} {command}  {seconds:.1} s  {}", self.pid, escaped(&self.engine))
    }

    /// What it does, and what that costs.
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
