//! The options of a recording: validated values without the command line's types.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::record::contract::pattern::{Occasion, OutputPattern};
use crate::record::contract::trigger::Trigger;
use crate::trace::{RotateAfter, WriterOptions};

/// The target of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A running process.
    Pid(i32),
    /// Several running processes; the list is never empty.
    Pids(Vec<i32>),
    /// All processes whose name matches.
    Name(NamedProcesses),
    /// A program to start, with its arguments; the list is never empty.
    Command(Vec<OsString>),
}

/// A selection of processes by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedProcesses {
    /// A regular expression, matched against the name and the command line.
    pub pattern: String,
    /// Whether to wait if no process matches, and the timeout of that wait, if any.
    pub wait: Option<Option<Duration>>,
}

/// The sampling engine that the user requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The best engine that works and is safe here.
    #[default]
    Auto,
    /// Perf events; an error if they do not work.
    Perf,
    /// Perf events with a signal that is ignored by default; an error if they do not work.
    Signal,
    /// CPU timers of the target's threads.
    Timer,
}

/// The kinds of thread time that are measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Measure {
    /// CPU time.
    #[default]
    Cpu,
    /// All time, running or not. Threads are checked once in each interval of this length, which is
    /// also the period of CPU samples.
    Wall(Duration),
    /// All time, with this interval between checks and an independent CPU sampling rate.
    Both(Duration),
}

impl Measure {
    /// Returns the interval between checks, if time off the CPU is measured.
    pub fn wall_interval(self) -> Option<Duration> {
        match self {
            Self::Cpu => None,
            Self::Wall(interval) | Self::Both(interval) => Some(interval),
        }
    }

    /// Returns its name in the trace.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Wall(_) => "wall",
            Self::Both(_) => "cpu,wall",
        }
    }
}

/// Which descendants of the target are recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Children {
    /// None.
    #[default]
    None,
    /// All, until the program that the recorder started has exited.
    OfCommand,
    /// All, until the last of them has exited.
    All,
}

impl Children {
    /// Returns whether descendants are recorded.
    pub fn are_recorded(self) -> bool {
        self != Self::None
    }
}

/// The number of files of a recording, and their size limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Files {
    /// One trace of unlimited size.
    #[default]
    One,
    /// One trace whose data and index together have at most this many bytes. At the limit the
    /// recording ends.
    Limited(u64),
    /// Consecutive parts, each of which is a trace.
    Parts {
        /// The limit at which the next part begins.
        turn: RotateAfter,
        /// The number of parts to keep; the oldest are removed.
        keep: Option<u32>,
    },
    /// A ring with the latest samples, which is saved as a trace on request.
    Ring {
        /// The length of time that the ring covers.
        time: Duration,
        /// Whether the ring is also saved at the end, if nobody requested a save before.
        at_end: bool,
    },
}

/// The options of a recording.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The processes to record, or the program to start.
    pub target: Target,
    /// The path of the data file. The index has the same path with `.idx` appended.
    pub output: PathBuf,
    /// The pattern that `output` was made from. The id of a started program is filled in once it is
    /// known.
    pub pattern: OutputPattern,
    /// The number of files, and their size limit.
    pub files: Files,
    /// The conditions under which a ring is saved.
    pub triggers: Vec<Trigger>,
    /// The options of the trace writer.
    pub writer: WriterOptions,
    /// The duration; without it the recording runs until the target exits or the user stops it.
    pub duration: Option<Duration>,
    /// Samples per second of each thread's CPU time.
    pub freq_hz: u32,
    /// The overhead budget in percent of the target's CPU time. Above it, the recorder lowers the
    /// rate.
    pub max_overhead_percent: Option<f64>,
    /// The kinds of thread time to measure.
    pub measure: Measure,
    /// The requested sampling engine.
    pub engine: EngineChoice,
    /// Whether to record even if a seccomp filter may kill the target.
    pub allow_seccomp: bool,
    /// Whether to include time in the kernel where permitted.
    pub kernel: bool,
    /// Whether samples of that time show the kernel's own functions where permitted.
    pub kernel_stacks: bool,
    /// Whether to request missing debug files from debuginfod servers.
    pub debuginfod: bool,
    /// Whether to record the target's descendants as well.
    pub children: Children,
    /// Whether to continue with the programs that the target executes.
    pub follow_exec: bool,
    /// The number of heaviest call traces that keep their ids across rotations.
    pub preserve: usize,
    /// Whether to compare the target before the attach and after the detach, and report the
    /// differences.
    pub verify_detach: bool,
}

impl Options {
    /// Returns the requested period, in nanoseconds of CPU time.
    pub(crate) fn period_ns(&self) -> u64 {
        1_000_000_000 / u64::from(self.freq_hz.max(1))
    }

    /// Returns the options with the output path filled in, with this process id if it is known.
    pub fn named(mut self, pid: Option<i32>) -> Self {
        let occasion = Occasion::now(pid);
        if !matches!(self.files, Files::Ring { .. }) {
            self.pattern = self.pattern.settled(occasion);
        }
        self.output = match self.files {
            Files::One | Files::Limited(_) | Files::Ring { .. } => self.pattern.path(occasion),
            Files::Parts { .. } => {
                self.pattern = self.pattern.with_number();
                self.part(1)
            }
        };
        self
    }

    /// Returns the directory of a ring's parts.
    pub(crate) fn ring_directory(&self) -> PathBuf {
        // Appended to the complete name: with the extension replaced, two outputs could share it.
        let mut name = self.output.clone().into_os_string();
        name.push(".ring");
        name.into()
    }

    /// Returns the path of the part with this number.
    pub(crate) fn part(&self, number: u32) -> PathBuf {
        self.pattern.numbered(Occasion::now(None), &format!("{number:04}"))
    }
}
