//! What happens during a recording, as an observer hears it.

use std::time::Duration;

/// Something that happens once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Sampling is on.
    Attached {
        /// Name of the sampling engine.
        engine: String,
        /// Why it is this one.
        why: String,
        /// Threads that are sampled.
        threads: usize,
        /// How long each stop of a thread took, in nanoseconds.
        stops_ns: Vec<u64>,
        /// Pid of the program that was started.
        command_pid: Option<i32>,
        /// The program, if the target executed it during the recording.
        executed: Option<String>,
    },
    /// Something the user should know.
    Notice(String),
    /// Sampling ends, the target is cleaned up.
    Detaching,
    /// Something happened to one of several processes.
    Of {
        /// Its id and its name.
        process: String,
        /// What.
        event: Box<Event>,
    },
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
