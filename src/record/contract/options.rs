//! What to record: values that are valid already, free of the command line's types.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::record::contract::pattern::{Occasion, OutputPattern};
use crate::record::contract::trigger::Trigger;
use crate::trace::{Turn, WriterOptions};

/// What is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A running process.
    Pid(i32),
    /// Several running processes; never empty.
    Pids(Vec<i32>),
    /// Those that a name means.
    Name(Named),
    /// A program to start, with its arguments; never empty.
    Command(Vec<OsString>),
}

/// Processes by their name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// A regular expression that the name or the command line matches.
    pub pattern: String,
    /// If there is none, wait until there is, for so long at most if that is said.
    pub wait: Option<Option<Duration>>,
}

/// Which engine samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The best one that works and is safe here.
    #[default]
    Auto,
    /// Perf events, or an error.
    Perf,
    /// CPU timers of the target's threads.
    Timer,
}

/// What is measured of threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Measure {
    /// Where they use CPU time.
    #[default]
    Cpu,
    /// Where they spend all their time. They are looked at once in each interval of this length,
    /// and CPU time is sampled with that period.
    Wall(Duration),
    /// Both, each at a rate of its own.
    Both(Duration),
}

impl Measure {
    /// The length of the intervals, if time is measured that threads do not run.
    pub fn wall_interval(self) -> Option<Duration> {
        match self {
            Self::Cpu => None,
            Self::Wall(interval) | Self::Both(interval) => Some(interval),
        }
    }

    /// Its name in the trace.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Wall(_) => "wall",
            Self::Both(_) => "cpu,wall",
        }
    }
}

/// Into how many files a recording goes, and how large they may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Files {
    /// One trace, of any size.
    #[default]
    One,
    /// One trace whose two files have at most so many bytes together; then the recording ends.
    Limited(u64),
    /// Parts that follow one another, each a trace.
    Parts {
        /// When the next one begins.
        turn: Turn,
        /// How many are kept; the oldest are removed.
        keep: Option<u32>,
    },
    /// The last so much time, of which a trace is made on request.
    Ring {
        /// How much.
        time: Duration,
        /// One is made at the end, too, if nobody has asked for it.
        at_end: bool,
    },
}

/// All that a recording is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// What to record.
    pub target: Target,
    /// The data file; the index is beside it, with `.idx` appended.
    pub output: PathBuf,
    /// How it got this name; the id of a program is put in when it is started.
    pub pattern: OutputPattern,
    /// How many files.
    pub files: Files,
    /// What asks for a ring to be saved.
    pub triggers: Vec<Trigger>,
    /// How the trace is written.
    pub writer: WriterOptions,
    /// How long; without it until the target ends or the user stops it.
    pub duration: Option<Duration>,
    /// Samples per second of CPU time and thread.
    pub freq_hz: u32,
    /// What profiling may cost, in percent of the target's CPU time: the rate is lowered for it.
    pub max_overhead_percent: Option<f64>,
    /// What is measured.
    pub measure: Measure,
    /// What samples.
    pub engine: EngineChoice,
    /// Record although a seccomp filter may kill the target.
    pub allow_seccomp: bool,
    /// Include time in the kernel where permitted.
    pub kernel: bool,
    /// Ask servers for debug files that are not here.
    pub debuginfod: bool,
    /// Ask a Java virtual machine for the names of what it compiled.
    pub jvm_names: bool,
    /// Record the target's descendants as well.
    pub subprocesses: bool,
    /// Go on with the programs that the target executes.
    pub follow_exec: bool,
    /// How many of the heaviest call traces keep their ids.
    pub preserve: usize,
    /// Look at the target before and after, and tell what differs.
    pub verify_detach: bool,
}

impl Options {
    /// The same with the name of the output, of this process if it is known.
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

    /// The directory of a ring's parts.
    pub(crate) fn ring_directory(&self) -> PathBuf {
        // Appended: what is replaced might be what makes the name another one's, or its own.
        let mut name = self.output.clone().into_os_string();
        name.push(".ring");
        name.into()
    }

    /// The name of a part.
    pub(crate) fn part(&self, number: u32) -> PathBuf {
        self.pattern.numbered(Occasion::now(None), &format!("{number:04}"))
    }
}
