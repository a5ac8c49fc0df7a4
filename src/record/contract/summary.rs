//! What a recording came to.

use std::path::PathBuf;
use std::process::ExitStatus;

use crate::trace::{Metadata, Saved, Written};

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
    /// The data file; `None` of a ring that nobody asked to be saved.
    pub output: Option<PathBuf>,
    /// Its bytes, those of its index, and what else is known of them.
    pub written: Written,
    /// The data files that are kept of a recording in parts, and how many there were.
    pub parts: (Vec<PathBuf>, u32),
    /// What was saved of a ring.
    pub saves: Vec<Saved>,
    /// All figures of the recording under the names that the trace has them by.
    pub figures: Metadata,
    /// Why it ended, if nobody asked for that.
    pub ended: Option<String>,
    /// Why not all of it could be written, what is kept, and what to do.
    pub cut_short: Option<String>,
    /// The target.
    pub pid: i32,
    /// What was found in it after the detach, if it was looked for, or is known to be there.
    pub left: Vec<String>,
    /// What is known of the reason why there is no sample, if there is none.
    pub nothing: Option<String>,
    /// The figure that `--fail-under` looks at: samples that reached a root, in percent.
    pub quality_percent: f64,
}
