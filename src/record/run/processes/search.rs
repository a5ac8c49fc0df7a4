//! The search for processes that match `--name`, until the recorder has attached to one.
//!
//! # Invariants
//! - The time limit of `--wait` covers all attempts together.
//! - Once the trace exists, the search is over.

use crate::record::run::failed::Failed;
use std::time::{Duration, Instant};

use crate::record::contract::error::RecordError;
use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::contract::options::{NamedProcesses, Options, Target};
use crate::record::contract::stop::StopCondition;
use crate::record::run::opened::TargetProcess;
use crate::record::run::processes::named;

/// The number of failed attempts that get a notice each.
const NOTICES_MAX: u32 = 3;
/// Pause between a failed attempt and the next one.
const PAUSE: Duration = Duration::from_millis(10);

/// The search for processes that match `--name`.
pub(crate) struct Search {
    since: Instant,
    /// The number of failed attempts.
    failed: u32,
}

impl Search {
    /// Starts the search now.
    pub(crate) fn begin() -> Self {
        Self { since: Instant::now(), failed: 0 }
    }

    /// Returns the processes that match. With `--wait` it waits for one.
    pub(crate) fn next(
        &self,
        named: &NamedProcesses,
        stop: &StopCondition,
        observer: &mut dyn Observer,
    ) -> Result<Vec<TargetProcess>, RecordError> {
        named::find_or_wait(named, (self.since, self.failed > 0), stop, observer)
    }

    /// Whether to search again after a failure, because the processes that matched exited too soon.
    pub(crate) fn should_retry(
        &mut self,
        options: &Options,
        failed: &Failed,
        stop: &StopCondition,
        observer: &mut dyn Observer,
    ) -> bool {
        let is_wanted = matches!(&options.target, Target::Name(named) if named.wait.is_some());
        let is_too_short = matches!(failed.error, RecordError::TargetGone(_)) && !failed.has_begun;
        if !is_wanted || !is_too_short || stop.is_requested() {
            return false;
        }
        self.failed += 1;
        if self.failed <= NOTICES_MAX {
            let text = format!("{}: waiting for the next one", failed.error.text());
            observer.event(Event::Notice(text));
        }
        std::thread::sleep(PAUSE);
        true
    }
}
