//! What the processes of a recording have in common: the trace, the ids in it, and the end.
//!
//! # Invariants
//! - The files are created after the first attach, so that a refused one leaves nothing behind.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::fault::{self, Point};
use crate::record::batch::process::Number;
use crate::record::contract::error::RecordError;
use crate::record::contract::options::Options;
use crate::record::contract::stop::Stop;
use crate::record::name::contexts::TagNames;
use crate::record::name::frames::FrameNames;
use crate::record::run::failed::Failed;
use crate::record::run::opened::Opened;
use crate::record::run::opening;
use crate::record::store::trace_ids::Instances;
use crate::record::target::attach::Attached;
use crate::record::weigh::overhead::Ledger;
use crate::record::write::output;
use crate::record::write::trigger::Shared;
use crate::record::write::writer::{Answers, Finished, Writer, Writing};

/// What they share.
pub(crate) struct Common<'a> {
    /// What was asked for.
    pub(crate) options: &'a Options,
    /// Asks for the end.
    pub(crate) stop: Arc<Stop>,
    /// The ids of call traces.
    pub(crate) instances: Arc<Instances>,
    /// The names of tags.
    pub(crate) tags: Arc<TagNames>,
    /// What triggers of all processes have in common.
    pub(crate) triggers: Arc<Shared>,
    /// Who the recorder's CPU time is charged to.
    pub(crate) ledger: Arc<Ledger>,
    /// There may be more processes than one.
    pub(crate) is_several: bool,
    /// Since there is a trace.
    writing: Mutex<Option<Writing>>,
    /// The same options with the trace's name, since that is known.
    named: OnceLock<Options>,
}

impl<'a> Common<'a> {
    /// Before anything is attached to.
    pub(crate) fn new(options: &'a Options, stop: Arc<Stop>, is_several: bool) -> Self {
        let (instances, tags, ledger, writing, named) = Default::default();
        let triggers = Arc::new(Shared::new(&options.triggers));
        Self { options, stop, instances, tags, triggers, ledger, is_several, writing, named }
    }

    /// The way into the trace for a process that has been attached to; the first one creates it.
    pub(crate) fn join(
        &self,
        number: Number,
        (opened, attached): (&Opened, &Attached<'_>),
        names: impl FnOnce(Answers) -> io::Result<FrameNames>,
    ) -> Result<Writer, RecordError> {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let writing = match &mut *writing {
            Some(writing) => writing,
            none => {
                // The first process gives it its name, if that has a place for one.
                let options = output::named(self.options, opened.pid)?.into_owned();
                let options = self.named.get_or_init(|| options);
                let writer = opening::create(options, opened, attached)?;
                fault::at(Point::RecordWriting);
                none.insert(Writing::start(writer).map_err(other)?)
            }
        };
        let writer = writing.join(number, opened.pid, names).map_err(other)?;
        Ok(writer.counted_in(self.ledger.handed(number)))
    }

    /// The failure of an attempt that this error ends.
    pub(crate) fn failed(&self, error: RecordError) -> Failed {
        Failed { error, has_begun: self.named.get().is_some() }
    }

    /// What was asked for, with the name of the trace.
    pub(crate) fn named(&self) -> &Options {
        self.named.get().unwrap_or(self.options)
    }

    /// Writes all that is queued; `None` if there never was a trace. All processes have left.
    pub(crate) fn finish(&self) -> Option<Finished> {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner).take();
        writing.map(Writing::finish)
    }
}

fn other(error: io::Error) -> RecordError {
    RecordError::Other(error.into())
}
