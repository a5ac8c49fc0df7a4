//! What the processes of a recording have in common: the trace, the ids in it, and the end.
//!
//! # Invariants
//! - The files are created after the first attach, so that a refused one leaves nothing behind.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::attach::Attached;
use super::contexts::TagNames;
use super::instances::Instances;
use super::names::Names;
use super::overhead::Ledger;
use super::processes::search::Failed;
use super::scribe::{Answers, Finished, Number, Scribe, Writing};
use super::stop::Stop;
use super::trigger::Shared;
use super::{Opened, Options, RecordError, output};
use crate::fault::{self, Point};

/// What they share.
pub(super) struct Common<'a> {
    /// What was asked for.
    pub(super) options: &'a Options,
    /// Asks for the end.
    pub(super) stop: Arc<Stop>,
    /// The ids of call traces.
    pub(super) instances: Arc<Instances>,
    /// The names of tags.
    pub(super) tags: Arc<TagNames>,
    /// What triggers of all processes have in common.
    pub(super) triggers: Arc<Shared>,
    /// Who the recorder's CPU time is charged to.
    pub(super) ledger: Arc<Ledger>,
    /// There may be more processes than one.
    pub(super) is_several: bool,
    /// Since there is a trace.
    writing: Mutex<Option<Writing>>,
    /// The same options with the trace's name, since that is known.
    named: OnceLock<Options>,
}

impl<'a> Common<'a> {
    /// Before anything is attached to.
    pub(super) fn new(options: &'a Options, stop: Arc<Stop>, is_several: bool) -> Self {
        let (instances, tags, ledger, writing, named) = Default::default();
        let triggers = Arc::new(Shared::new(&options.triggers));
        Self { options, stop, instances, tags, triggers, ledger, is_several, writing, named }
    }

    /// The way into the trace for a process that has been attached to; the first one creates it.
    pub(super) fn join(
        &self,
        number: Number,
        (opened, attached): (&Opened, &Attached<'_>),
        names: impl FnOnce(Answers) -> io::Result<Names>,
    ) -> Result<Scribe, RecordError> {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let writing = match &mut *writing {
            Some(writing) => writing,
            none => {
                // The first process gives it its name, if that has a place for one.
                let options = output::named(self.options, opened.pid)?.into_owned();
                let options = self.named.get_or_init(|| options);
                let writer = super::create(options, opened, attached)?;
                fault::at(Point::RecordWriting);
                none.insert(Writing::start(writer).map_err(other)?)
            }
        };
        let scribe = writing.join(number, opened.pid, names).map_err(other)?;
        Ok(scribe.counted_in(self.ledger.handed(number)))
    }

    /// The failure of an attempt that this error ends.
    pub(super) fn failed(&self, error: RecordError) -> Failed {
        Failed { error, has_begun: self.named.get().is_some() }
    }

    /// What was asked for, with the name of the trace.
    pub(super) fn named(&self) -> &Options {
        self.named.get().unwrap_or(self.options)
    }

    /// Writes all that is queued; `None` if there never was a trace. All processes have left.
    pub(super) fn finish(&self) -> Option<Finished> {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner).take();
        writing.map(Writing::finish)
    }
}

fn other(error: io::Error) -> RecordError {
    RecordError::Other(error.into())
}
