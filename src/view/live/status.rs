//! The lines above the live table.

use std::time::Duration;

use crate::view::text::escape::escaped;
use crate::view::text::number::counted;

/// The unit of the CPU time used.
const USE: &str = " % CPU";
/// Bars of a sparkline, lowest first.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The state of a recording and of its target.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LiveStatus {
    /// The process id of the target; of several the first.
    pub pid: i32,
    /// The number of other targets.
    pub others: usize,
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
    /// The same in the last intervals, oldest first.
    pub cpu_history: Vec<f64>,
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
        let others = match self.others {
            0 => String::new(),
            others => format!(" and {}", counted(others as u64, "other")),
        };
        format!("pid {} {command}{others}  {seconds:.1} s  {}", self.pid, escaped(&self.engine))
    }

    /// Returns the line about the target's activity with its history.
    pub(super) fn figures_with_history(&self) -> String {
        let figures = self.figures();
        match figures.split_once(USE) {
            Some((before, after)) if self.cpu_history.len() > 1 => {
                format!("{before}{USE} {}{after}", sparkline(&self.cpu_history))
            }
            _ => figures,
        }
    }

    /// Returns the line about the target's activity and the cost of the profiler.
    pub(super) fn figures(&self) -> String {
        let mut parts = vec![counted(self.threads as u64, "thread")];
        parts.extend(self.cpu_percent.map(|percent| format!("{percent:.1}{USE}")));
        let seconds = self.interval.as_secs_f64();
        let rate = if seconds > 0.0 { self.samples as f64 / seconds } else { 0.0 };
        parts.push(format!("{rate:.0} samples/s"));
        parts.push(format!("{} lost", self.lost));
        parts.extend(self.own_percent.map(|percent| format!("profiler {percent:.1} % CPU")));
        parts.join("  ")
    }
}

/// Returns a bar for each value. The highest bar is one processor, or the largest value.
fn sparkline(values: &[f64]) -> String {
    let top = values.iter().copied().fold(100.0, f64::max);
    let last = BARS.len() - 1;
    let bar = |value: &f64| BARS[((value / top * BARS.len() as f64) as usize).min(last)];
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_is_of_one_processor_or_of_all_that_were_used() {
        assert_eq!(sparkline(&[0.0, 12.4, 12.6, 50.0, 99.0, 100.0]), "▁▁▂▅██");
        assert_eq!(sparkline(&[100.0, 400.0]), "▃█");
        assert_eq!(sparkline(&[]), "");
    }
}
