//! Threads that do not run: looked at between two turns, told of with the samples of the others.

use std::time::{Duration, Instant};

use crate::proc::Mapping;
use crate::record::batch::rotation::Batch;
use crate::record::contract::error::{RecordError, target_error};
use crate::record::session::{Parts, Session};
use crate::record::source::wall::{LiveThread, Wall};

/// Begins to look, if that is asked for.
pub(super) fn start(parts: &mut Parts<'_>) -> Result<Option<Wall>, RecordError> {
    let Some(interval) = parts.wall_interval else { return Ok(None) };
    let wall = Wall::new(parts.pid, interval, parts.attached.tables());
    wall.map(Some).map_err(|error| target_error(parts.pid, error))
}

impl Session<'_> {
    /// How long until threads are to be looked at.
    pub(super) fn until_next_look(&self) -> Option<Duration> {
        // A program that is parked has not begun.
        let wall = self.wall.as_ref().filter(|_| !self.attached.is_parked)?;
        Some(wall.due().saturating_duration_since(Instant::now()))
    }

    /// Their turn of the loop.
    pub(super) fn look_at_sleepers(&mut self) {
        if self.until_next_look().is_some_and(|wait| wait.is_zero()) {
            self.meet_sleepers();
            self.wall.as_mut().into_iter().for_each(|wall| wall.turn(self.contexts.outside()));
        }
    }

    /// Sees who has come and gone.
    pub(super) fn meet_sleepers(&mut self) {
        if let Some(wall) = &mut self.wall {
            let registry = &self.registry;
            let alive = registry.lives();
            let alive = alive.map(|(life, tid, born_ns)| LiveThread { life, tid, born_ns });
            let version = (registry.count_ever(), registry.count());
            wall.update_threads(self.pid, version, alive, |life| registry.end_of(life));
        }
    }

    /// What is mapped was read.
    pub(super) fn note_mappings(&mut self, mappings: Vec<Mapping>) {
        if let Some(wall) = &mut self.wall {
            wall.note_mappings(mappings);
        }
    }

    /// Puts their stacks into the batch.
    pub(super) fn take_sleepers(&mut self, batch: &mut Batch) {
        // Before the ends of threads are told of.
        self.meet_sleepers();
        let Some(wall) = &mut self.wall else { return };
        let (collector, registry) = (&mut self.collector, &mut self.registry);
        let instance = || collector.take_instance();
        self.asleep = wall.samples(batch, instance, |key, news| registry.tell(key, news));
    }

    /// Adds their samples to those of the batch, which have been put right, and those of the time
    /// that threads ran.
    pub(super) fn add_sleepers(&mut self, batch: &mut Batch, is_last: bool) {
        let Some(wall) = &mut self.wall else { return };
        let (collector, registry) = (&mut self.collector, &mut self.registry);
        let instance = || collector.take_instance();
        let period_ns = self.attached.setup.period_ns;
        let tell = |key, news: &mut Vec<_>| registry.tell(key, news);
        let mut running = wall.running(batch, (period_ns, is_last), instance, tell);
        if self.asleep.is_empty() && running.is_empty() {
            return;
        }
        batch.samples.append(&mut self.asleep);
        batch.samples.append(&mut running);
        batch.sort();
    }

    /// No look comes any more.
    pub(super) fn end_sleepers(&mut self) {
        if let Some(wall) = &mut self.wall {
            wall.end();
        }
    }
}
