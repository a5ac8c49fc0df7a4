//! Saving a ring while the recording goes on: who asks for it, and what is told of it.

use std::sync::Arc;
use std::time::Instant;

use crate::record::contract::options::{Files, Options};
use crate::record::contract::stop::Stop;
use crate::record::session::{End, Event, Session};
use crate::record::write::trigger::{Load, Shared, Watch};

const NO_RING: &str = "SIGUSR2 saves what --ring keeps, which is not asked for";

/// What lasts as long as the recording does.
#[derive(Debug)]
pub(crate) struct Saving {
    has_ring: bool,
    watch: Watch,
    shared: Arc<Shared>,
}

impl Saving {
    /// By the options.
    pub(crate) fn new(options: &Options, shared: Arc<Shared>) -> Self {
        let pause = if let Files::Ring { time, .. } = options.files { Some(time) } else { None };
        let watch = Watch::new(&options.triggers, pause.unwrap_or_default(), Arc::clone(&shared));
        Self { has_ring: pause.is_some(), watch, shared }
    }
}

impl Session<'_> {
    /// Why nothing more can be written, if that is so.
    pub(super) fn end_of_output(&self) -> Option<End> {
        match (self.writer.has_failed(), self.writer.is_full()) {
            (true, _) => Some(End::Output),
            (_, true) => Some(End::Full),
            _ => self.collector.is_ending().then_some(End::OutOfIds),
        }
    }

    /// Has the ring saved if somebody asks for it, and tells of what was saved.
    pub(super) fn look_for_saves(&mut self, stop: &Stop) {
        let (cpu_ns, registry) = (self.cpu.used_ns(), &self.registry);
        let load = || Load { cpu_ns, threads: registry.count() as u64 };
        let why = self.saving.watch.look(Instant::now(), load);
        let is_asked = stop.takes_save();
        if is_asked && !self.saving.has_ring {
            self.observer.event(Event::Notice(NO_RING.to_owned()));
        } else if is_asked || why.is_some() {
            let why = why.unwrap_or_else(|| "asked for by a signal".to_owned());
            self.observer.event(Event::Notice(format!("saving the ring: {why}")));
            self.saving.shared.owe_save();
        }
        // Who watches the target does not wait for who writes.
        if !self.writer.is_busy() && self.saving.shared.takes_save() {
            // What is in the storage belongs to it.
            self.rotate();
            self.writer.save();
        }
        for saved in self.writer.saved() {
            let path = saved.path.display();
            let text = match saved.outcome {
                Ok(written) => format!("saved {} samples to {path}", written.samples),
                Err(error) => {
                    self.saving.shared.save_failed();
                    format!("the ring could not be saved: {error}")
                }
            };
            self.observer.event(Event::Notice(text));
        }
    }
}
