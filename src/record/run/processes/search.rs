//! The search for processes that a name means, until one of them has been attached to.
//!
//! # Invariants
//! - The time to wait is that of all attempts together.
//! - When there is a trace, nothing else is searched for.

use crate::record::run::failed::Failed;
use std::time::{Duration, Instant};

use crate::record::contract::error::RecordError;
use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::contract::options::{Named, Options, Target};
use crate::record::contract::stop::Stop;
use crate::record::run::opened::Process;
use crate::record::run::processes::named;

/// Attempts that are told of one by one.
const TOLD: u32 = 3;
/// Between an attempt that failed and the next one.
const PAUSE: Duration = Duration::from_millis(10);

/// See the module.
pub(crate) struct Search {
    since: Instant,
    /// Attempts that have failed.
    failed: u32,
}

impl Search {
    /// Begins now.
    pub(crate) fn begin() -> Self {
        Self { since: Instant::now(), failed: 0 }
    }

    /// Those that match; if there are none they are waited for, where that is wanted.
    pub(crate) fn next(
        &self,
        named: &Named,
        stop: &Stop,
        observer: &mut dyn Observer,
    ) -> Result<Vec<Process>, RecordError> {
        named::find_or_wait(named, (self.since, self.failed > 0), stop, observer)
    }

    /// Whether the next ones are waited for after this: those that were found have ended too soon.
    pub(crate) fn goes_on(
        &mut self,
        options: &Options,
        failed: &Failed,
        stop: &Stop,
        observer: &mut dyn Observer,
    ) -> bool {
        let is_wanted = matches!(&options.target, Target::Name(named) if named.wait.is_some());
        let is_too_short = matches!(failed.error, RecordError::TargetGone(_)) && !failed.has_begun;
        if !is_wanted || !is_too_short || stop.is_requested() {
            return false;
        }
        self.failed += 1;
        if self.failed <= TOLD {
            let text = format!("{}: waiting for the next one", failed.error.text());
            observer.event(Event::Notice(text));
        }
        std::thread::sleep(PAUSE);
        true
    }
}
