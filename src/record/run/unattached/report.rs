//! What the reader of the kernel's records reports.

use crate::record::batch::process::ProcessNumber;
use crate::record::write::writer::Tally;

/// A process whose samples have been passed to the writer.
pub(crate) struct EndedUnattached {
    pub(crate) number: ProcessNumber,
    pub(crate) pid: i32,
    pub(crate) start_ticks: u64,
    pub(crate) name: String,
    pub(crate) command_line: Vec<std::ffi::OsString>,
    /// The start and the end of the sampling, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) times_ns: (u64, u64),
    pub(crate) threads: usize,
    /// The CPU time in nanoseconds, as the kernel reports it, or by its samples.
    pub(crate) cpu_ns: u64,
    /// The number of periods that were credited to threads that exited.
    pub(crate) credited: u64,
    /// The number of records of all processes that found a buffer full since the last process.
    pub(crate) lost: u64,
    /// Whether an agent samples it from then on.
    pub(crate) has_agent: bool,
    /// Whether it exited.
    pub(crate) has_exited: bool,
    pub(crate) tally: Tally,
}

/// What the reader reports.
pub(crate) enum ReaderReport {
    /// A process has ended.
    Ended(Box<EndedUnattached>),
    /// A message for the user.
    Notice(String),
}
