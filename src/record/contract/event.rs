//! The events and the progress that a recording reports to its observer.

use std::time::Duration;

/// A single event of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The recorder has attached, and sampling is on.
    Attached {
        /// Name of the sampling engine.
        engine: String,
        /// The reason for the choice of this engine.
        why: String,
        /// The number of threads that are sampled.
        threads: usize,
        /// The length of each stop of a thread, in nanoseconds.
        stops_ns: Vec<u64>,
        /// The process id of the started program, if the recorder started one.
        command_pid: Option<i32>,
        /// The name of the program, if the target executed it during the recording.
        executed: Option<String>,
    },
    /// A message for the user.
    Notice(String),
    /// Sampling ends, and the recorder restores the target.
    Detaching,
    /// An event of one of several processes.
    Of {
        /// The id and name of the process.
        process: String,
        /// Whether the process was not recorded from the start, like a child.
        is_later: bool,
        /// The event.
        event: Box<Event>,
    },
}

/// The progress of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Time since the attach.
    pub elapsed: Duration,
    /// The requested duration.
    pub duration: Option<Duration>,
    /// The number of samples stored.
    pub samples: u64,
    /// The number of samples lost, for any reason.
    pub lost: u64,
    /// The number of threads that are sampled now.
    pub threads: usize,
    /// Bytes written to the data file and its index.
    pub bytes: u64,
}
