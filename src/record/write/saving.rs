//! Saving a ring while the recording goes on: what requests it, and what is reported.

use std::sync::Arc;
use std::time::Instant;

use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::contract::options::{Files, Options};
pub(crate) use crate::record::write::trigger::TargetLoad;
use crate::record::write::trigger::{SharedTriggers, Watch};
use crate::trace::SavedTrace;

const NO_RING: &str = "SIGUSR2 saves the ring, and this recording has none: give --ring TIME";

/// The requests to save the ring of a recording.
#[derive(Debug)]
pub(crate) struct Saving {
    has_ring: bool,
    watch: Watch,
    shared: Arc<SharedTriggers>,
}

impl Saving {
    /// Sets up the triggers that the options name.
    pub(crate) fn new(options: &Options, shared: Arc<SharedTriggers>) -> Self {
        let pause = if let Files::Ring { time, .. } = options.files { Some(time) } else { None };
        let watch = Watch::new(&options.triggers, pause.unwrap_or_default(), Arc::clone(&shared));
        Self { has_ring: pause.is_some(), watch, shared }
    }

    /// Checks for a request by a signal (`is_signalled`) or by a trigger, and records it.
    pub(crate) fn check(
        &mut self,
        is_signalled: bool,
        load: impl FnOnce() -> TargetLoad,
        observer: &mut dyn Observer,
    ) {
        let why = self.watch.poll(Instant::now(), load);
        if is_signalled && !self.has_ring {
            observer.event(Event::Notice(NO_RING.to_owned()));
        } else if is_signalled || why.is_some() {
            let why = why.unwrap_or_else(|| "requested by SIGUSR2".to_owned());
            observer.event(Event::Notice(format!("saving the ring: {why}")));
            self.shared.request_save();
        }
    }

    /// Takes the pending request. Returns whether there was one.
    pub(crate) fn take_save(&self) -> bool {
        self.shared.take_save()
    }

    /// Reports what was saved.
    pub(crate) fn report(&self, saved: Vec<SavedTrace>, observer: &mut dyn Observer) {
        for saved in saved {
            let path = saved.path.display();
            let text = match saved.outcome {
                Ok(written) => format!("saved {} samples to {path}", written.samples),
                Err(error) => {
                    self.shared.save_failed();
                    format!("the ring could not be saved: {error}")
                }
            };
            observer.event(Event::Notice(text));
        }
    }
}
