//! What is mapped in the target: when it is read, and what becomes of samples that came before.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::proc;
use crate::record::batch::rotation::Batch;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::observer::Observer;
use crate::record::name::mapping_changes::MappingChanges;
use crate::record::session::{Event, Parts, Session};

/// Reads the mappings once more, now that the kernel tells of new ones and before anything is
/// sampled: while tables were made, what was read first may have been exchanged, and nobody told of
/// that.
pub(super) fn read_again(parts: &mut Parts<'_>, observer: &mut dyn Observer) -> MappingChanges {
    let began_ns = monotonic_now_ns();
    let mappings = proc::mappings(parts.pid).unwrap_or_default();
    // Those of another program, or of one that exits, are found by the first look.
    if parts.attached.is_mapped_in(&mappings) {
        if let Err(error) = parts.attached.refresh(&mappings) {
            observer.event(Event::Notice(format!("unwind tables: {error}")));
        }
        let (addresses, data) = (parts.attached.modules().current(), parts.attached.data());
        parts.contexts.refresh(&mappings, &addresses, data.context_sources());
    }
    MappingChanges::since(began_ns)
}

impl Session<'_> {
    /// Takes in what the kernel told of mappings.
    pub(super) fn hear_of_code(&mut self) {
        self.mapping_changes.add_reports(self.registry.mapped(), &self.addresses);
    }

    /// Tells the writer what is mapped.
    pub(super) fn send_addresses(&self) {
        let mut batch = self.writer.blank();
        Arc::make_mut(&mut batch).addresses = Some(Arc::clone(&self.addresses));
        self.writer.send(batch);
    }

    /// Reads the mappings; false if the agent's are not among them.
    pub(super) fn look_at_mappings(&mut self) -> bool {
        let (began, began_ns) = (Instant::now(), monotonic_now_ns());
        let mappings = match proc::mappings(self.pid) {
            Ok(mappings) => mappings,
            // Another program that this user may not look into.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return !self.registry.is_program_gone();
            }
            Err(_) => return true,
        };
        if mappings.is_empty() {
            // It is exiting: its memory is gone before it is. What was mapped last still names the
            // samples that wait.
            return true;
        }
        if !self.attached.is_mapped_in(&mappings) {
            return false;
        }
        let (before, ended_ns) = (self.addresses.epoch(), monotonic_now_ns());
        match self.attached.refresh(&mappings) {
            Ok(Some(addresses)) => self.addresses = addresses,
            Ok(None) => {}
            Err(error) => self.observer.event(Event::Notice(format!("unwind tables: {error}"))),
        }
        self.mapping_changes.note_reading((began_ns, ended_ns), (before, self.addresses.epoch()));
        let sources = self.attached.data().context_sources();
        self.contexts.refresh(&mappings, &self.addresses, sources);
        self.note_mappings(mappings);
        self.refresh.spend(began.elapsed());
        self.tell_notices();
        true
    }

    /// Follows stacks that the handlers could not, with what is mapped by now.
    pub(super) fn follow_slices(&mut self, batch: &mut Batch) {
        if batch.slices.has_unknown_code(&batch.samples) && !self.has_looked() {
            return;
        }
        let tables = self.attached.tables();
        let Some(snapshot) = tables.snapshot() else { return };
        // Code of another program says nothing of this one's stacks.
        let pid = (!self.registry.is_program_gone()).then_some(self.pid);
        let collector = &mut self.collector;
        self.slices.follow(batch, pid, &snapshot, || collector.take_instance());
    }

    /// Puts samples right that came between a mapping and its discovery.
    pub(super) fn correct_remapped(&mut self, batch: &mut Batch) {
        self.hear_of_code();
        if self.mapping_changes.is_pending() && !self.has_looked() {
            return;
        }
        let collector = &mut self.collector;
        self.mapping_changes.correct(batch, &self.addresses, || collector.take_instance());
    }

    /// The mappings are as they were at the end of the batch, or too much time went into reading
    /// them; false if they are another program's.
    fn has_looked(&mut self) -> bool {
        self.has_left || !self.refresh.may_be_hastened() || self.look_at_mappings()
    }
}
