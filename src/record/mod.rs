//! A recording from attach to detach.

mod options;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

pub use options::{Options, Target};

/// Watches a recording while it runs.
pub trait Observer {
    /// Something happened once.
    fn event(&mut self, event: Event);
    /// The state some time later; called several times a second.
    fn tick(&mut self, progress: &Progress);
}

/// Something that happens once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Sampling is on.
    Attached {
        /// Name of the sampling engine.
        engine: String,
        /// Threads that are sampled.
        threads: usize,
        /// How long each stop of a thread took, in nanoseconds.
        stops_ns: Vec<u64>,
        /// Pid of the program that was started.
        command_pid: Option<i32>,
    },
    /// Something the user should know.
    Notice(String),
    /// Sampling ends, the target is cleaned up.
    Detaching,
}

/// How far a recording is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Time since the attach.
    pub elapsed: Duration,
    /// How long it was asked to last.
    pub duration: Option<Duration>,
    /// Samples stored.
    pub samples: u64,
    /// Samples lost, for whatever reason.
    pub lost: u64,
    /// Threads that are sampled now.
    pub threads: usize,
    /// Bytes written, data and index.
    pub bytes: u64,
}

/// What a recording came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Label and value of each line of the trailer, ready to print.
    pub text: Vec<(String, String)>,
    /// Samples stored.
    pub samples: u64,
    /// Samples whose stack reaches the thread's root.
    pub rooted: u64,
    /// How the started program ended, if it did.
    pub command_status: Option<ExitStatus>,
    /// The data file.
    pub output: PathBuf,
    /// The figure that `--fail-under` looks at.
    pub quality_percent: f64,
}

/// Why there is no recording.
#[derive(Debug)]
pub enum RecordError {
    /// The target may not be traced by this user.
    NotPermitted(anyhow::Error),
    /// The target ended before there was any data.
    TargetGone(anyhow::Error),
    /// The files could not be written.
    Output(anyhow::Error),
    /// What was asked for makes no sense.
    Usage(String),
    /// Anything else.
    Other(anyhow::Error),
}

/// Records a target until its end, the asked duration or a signal.
pub fn record(_options: &Options, _observer: &mut dyn Observer) -> Result<Summary, RecordError> {
    Err(RecordError::Other(anyhow::anyhow!("this build has no recorder")))
}
