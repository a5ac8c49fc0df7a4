//! The result of a recording.

use std::path::PathBuf;
use std::process::ExitStatus;

use crate::runtime::ManagedLanguage;
use crate::trace::{Metadata, SavedTrace, Written};

/// The result of a recording.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Label and value of each line of the complete closing report, ready to print.
    pub text: Vec<(String, String)>,
    /// The same of the short report.
    pub brief: Vec<(String, String)>,
    /// The number of samples stored.
    pub samples: u64,
    /// The number of samples whose stack reaches the thread's root.
    pub rooted: u64,
    /// The exit status of the started program, if it has exited.
    pub command_status: Option<ExitStatus>,
    /// The data file; `None` for a ring that nobody requested to save.
    pub output: Option<PathBuf>,
    /// The sizes of the data file and its index, and other numbers from the writer.
    pub written: Written,
    /// The kept data files of a recording in parts, and the number of all parts written.
    pub parts: (Vec<PathBuf>, u32),
    /// The traces that were saved from a ring.
    pub saves: Vec<SavedTrace>,
    /// All numbers of the recording, by their metadata keys in the trace.
    pub figures: Metadata,
    /// The reason why the recording ended without a request.
    pub ended: Option<String>,
    /// The reason why the output is incomplete, what is kept, and what to do.
    pub cut_short: Option<String>,
    /// Which process died of a signal while it was sampled, if one did.
    pub died: Option<String>,
    /// The target's process id.
    pub pid: i32,
    /// What the recording left in the target, if that was checked or is known.
    pub left: Vec<String>,
    /// The reason why there is no sample, if there is none and the reason is known.
    pub nothing: Option<String>,
    /// The share of samples whose stack reaches a root, in percent; `--fail-under` checks it.
    pub quality_percent: f64,
    /// The shares of samples that have a name, by language of the managed frames.
    pub named: Vec<NamedShare>,
}

/// The share of samples that have a name, of those whose innermost managed frame is of a language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedShare {
    /// The language.
    pub language: ManagedLanguage,
    /// The number of samples.
    pub samples: u64,
    /// The number of those whose innermost managed frame has a name.
    pub named: u64,
}

impl NamedShare {
    /// Returns the share in percent; NaN without samples.
    pub fn percent(&self) -> f64 {
        self.named as f64 * 100.0 / self.samples as f64
    }
}
