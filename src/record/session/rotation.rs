//! One turn of the storage: how what the handlers wrote becomes what the writer writes.
//!
//! [`Session::rotate`] is the list of the stages. Each takes the type that the stage before it
//! returns, so the types hold the order: a sample is weighed when its thread is known, and named
//! when nothing is added any more.

use std::sync::Arc;

use traceprof_abi::storage::log::Sample;

use crate::fault::{self, Point};
use crate::record::batch::rotation::Batch;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::session::Session;
use crate::record::source::program::TargetThreads;
use crate::record::store::liveness::{Heavy, heaviest};
use crate::record::weigh::Taken;

/// A batch, and how its samples were taken.
struct Rotation {
    shared: Arc<Batch>,
    taken: Taken,
}

/// The handlers' samples, as they wrote them.
struct Drained(Rotation);

/// Samples with times, threads and as much of their stacks as can be found; the kernel's samples
/// are among them.
struct Attributed(Rotation);

/// Samples whose frames are those of the code that was mapped at their time, with contexts; and
/// those of threads that did not run.
struct Located(Rotation, Vec<Sample>);

/// All samples, with weights.
struct Weighed(Rotation);

/// Everything of the rotation, as the writer needs it.
struct Named(Rotation);

impl Rotation {
    fn batch(&mut self) -> &mut Batch {
        Arc::make_mut(&mut self.shared)
    }
}

impl Session<'_> {
    /// Moves what was sampled from the storage to the writer.
    pub(super) fn rotate(&mut self) {
        let Some(drained) = self.drain() else { return };
        let named = self.process(drained);
        self.write(named);
    }

    /// Does the same at the end, when no handler runs any more: `has_events` says whether events
    /// sampled until now. Returns the heaviest traces, at most `preserve`, whose stacks are kept.
    pub(super) fn rotate_last(&mut self, has_events: bool, preserve: usize) -> Vec<Heavy> {
        let drained = self.drain_rest(has_events);
        let mut named = self.process(drained);
        let before = self.before.map_or(&[][..], |before| &before.heaviest);
        let heaviest = heaviest(before, self.store.collector.heaviest(), preserve);
        named.0.batch().keep = Some(heaviest.iter().map(|it| it.id).collect());
        self.write(named);
        heaviest
    }

    fn process(&mut self, drained: Drained) -> Named {
        let attributed = self.attribute(drained);
        let located = self.locate(attributed);
        let weighed = self.weigh(located);
        self.name(weighed)
    }

    fn drain(&mut self) -> Option<Drained> {
        let is_flush = self.flush.is_due();
        let before = self.store.threads.count_ever();
        self.store.scan_threads(is_flush);
        if self.store.threads.is_program_gone() {
            // The scan may have found another program's threads; the storage keeps the samples.
            return None;
        }
        self.source.cover(&self.store.threads);
        if self.store.threads.count_ever() != before {
            // New threads have new stacks.
            self.namer.hasten();
        }
        let mut rotation = self.rotation(Some(monotonic_now_ns()), self.source.events().is_some());
        rotation.batch().flush = is_flush;
        rotation.taken.is_complete = self.store.drain(rotation.batch());
        fault::at(Point::RecordDrained);
        if rotation.taken.is_complete {
            self.namer.recycle(&mut self.attached);
        }
        self.source.close_events(&self.attached, self.store.threads.younger_events());
        Some(Drained(rotation))
    }

    fn drain_rest(&mut self, has_events: bool) -> Drained {
        let mut rotation = self.rotation(None, has_events);
        rotation.batch().flush = true;
        self.store.drain_rest(rotation.batch());
        Drained(rotation)
    }

    fn rotation(&self, until_ns: Option<u64>, has_events: bool) -> Rotation {
        let taken = Taken {
            has_events,
            is_complete: true,
            until_ns,
            signal: self.attached.signal(),
            has_kernel: self.attached.setup.kernel,
        };
        Rotation { shared: self.writer.blank(), taken }
    }

    fn attribute(&mut self, Drained(mut rotation): Drained) -> Attributed {
        let until_ns = rotation.taken.until_ns.unwrap_or(u64::MAX);
        let batch = rotation.batch();
        if self.store.set_times(batch) > 0 {
            // Code that no table covers yet: a library was loaded.
            self.namer.hasten();
        }
        if !batch.slices.has_unknown_code(&batch.samples) || self.has_current_mappings() {
            self.store.unwind_outside(batch, &self.attached);
        }
        self.store.attribute(batch);
        // Samples of threads that the last scan missed are all in the buffers by now.
        self.drain_kernel();
        if let Some(kernel) = &mut self.source.kernel {
            self.store.add_kernel(batch, kernel, until_ns);
        }
        Attributed(rotation)
    }

    fn locate(&mut self, Attributed(mut rotation): Attributed) -> Located {
        let batch = rotation.batch();
        self.namer.contexts.number(batch);
        self.namer.add_reports(self.store.threads.mapped());
        if !self.namer.is_reading_wanted() || self.has_current_mappings() {
            self.namer.correct(batch, &self.store);
        }
        // Before the ends of threads are reported.
        self.source.update_wall(self.attached.pid(), &self.store.threads);
        let off_cpu = match &mut self.source.wall {
            Some(wall) => self.store.off_cpu(batch, wall),
            None => Vec::new(),
        };
        batch.sort();
        self.namer.contexts.carry(&mut batch.samples);
        self.store.collector.preserve(batch);
        batch.addresses = Some(Arc::clone(self.namer.addresses()));
        Located(rotation, off_cpu)
    }

    /// Weighs the samples of CPU time, and adds those of threads that did not run and of the time
    /// that they ran.
    fn weigh(&mut self, Located(mut rotation, mut off_cpu): Located) -> Weighed {
        let taken = rotation.taken;
        let (batch, threads) = (rotation.batch(), &mut self.store.threads);
        self.weigher.weigh(batch, taken, threads, &self.source.blocked);
        if let Some(wall) = &mut self.source.wall {
            let period = (self.attached.setup.period_ns, taken.until_ns.is_none());
            let mut running = self.store.running(batch, wall, period);
            if !off_cpu.is_empty() || !running.is_empty() {
                batch.samples.append(&mut off_cpu);
                batch.samples.append(&mut running);
                batch.sort();
            }
        }
        Weighed(rotation)
    }

    fn name(&mut self, Weighed(mut rotation): Weighed) -> Named {
        let is_complete = rotation.taken.is_complete;
        let batch = rotation.batch();
        self.store.threads.retire(is_complete, &mut batch.threads);
        self.namer.contexts.name(batch);
        Named(rotation)
    }

    fn write(&self, Named(rotation): Named) {
        if rotation.shared.has_news() {
            self.writer.send(rotation.shared);
        }
    }

    /// Reads the kernel's samples out of their buffers, and the contexts of their threads.
    pub(super) fn drain_kernel(&mut self) {
        if let Some(kernel) = &mut self.source.kernel {
            kernel.drain();
            self.namer.contexts.observe(kernel.news());
        }
    }

    /// Reads the mappings if that may be done now; false if they are another program's.
    fn has_current_mappings(&mut self) -> bool {
        !self.namer.may_read() || self.read_mappings()
    }
}
