//! One rotation of the storage: the stages from the handlers' samples to the writer's batch.
//!
//! [`Session::rotate`] lists the stages. Each stage takes the type that the previous stage returns,
//! so the types enforce the order: the weigher sees a sample after its thread is known, and the
//! namer sees it after the last sample has been added.

use std::sync::Arc;

use traceprof_abi::storage::log::Sample;

use crate::fault::{self, FaultPoint};
use crate::record::batch::Batch;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::session::Session;
use crate::record::source::program::TargetThreads;
use crate::record::store::liveness::{Heavy, heaviest};
use crate::record::weigh::BatchOrigin;

/// A batch, with facts about how its samples were taken.
struct Rotation {
    shared: Arc<Batch>,
    origin: BatchOrigin,
}

/// The handlers' samples, as they wrote them.
struct DrainedRotation(Rotation);

/// Samples with times, threads, and their stacks as far as these are known. The kernel's samples
/// are among them.
struct AttributedRotation(Rotation);

/// Samples with contexts, whose frames belong to the code that was mapped at the sample's time.
/// The samples of threads that did not run are separate.
struct LocatedRotation(Rotation, Vec<Sample>);

/// All samples, with weights.
struct WeighedRotation(Rotation);

/// The complete batch of the rotation, ready for the writer.
struct NamedRotation(Rotation);

impl Rotation {
    fn batch(&mut self) -> &mut Batch {
        Arc::make_mut(&mut self.shared)
    }
}

impl Session<'_> {
    /// Moves the samples from the storage to the writer.
    pub(super) fn rotate(&mut self) {
        let Some(drained) = self.drain() else { return };
        let named = self.process(drained);
        self.write(named);
        if self.namer.takes_replaced_code() {
            self.attached.modules().distrust_code();
        }
    }

    /// Moves the last samples at the end, when no handler runs any more. Returns the heaviest
    /// traces, at most `preserve`, whose stacks are kept.
    pub(super) fn rotate_last(&mut self, preserve: usize) -> Vec<Heavy> {
        let drained = self.drain_rest();
        let mut named = self.process(drained);
        let before = self.before.map_or(&[][..], |before| &before.heaviest);
        let heaviest = heaviest(before, self.store.collector.heaviest(), preserve);
        named.0.batch().keep = Some(heaviest.iter().map(|it| it.id).collect());
        self.write(named);
        heaviest
    }

    fn process(&mut self, drained: DrainedRotation) -> NamedRotation {
        let attributed = self.attribute(drained);
        let located = self.locate(attributed);
        let weighed = self.weigh(located);
        self.name(weighed)
    }

    fn drain(&mut self) -> Option<DrainedRotation> {
        let is_flush = self.flush.is_due();
        let before = self.store.threads.count_ever();
        self.store.scan_threads(is_flush);
        if self.store.threads.is_program_gone() {
            // The scan may have found threads of another program. The storage keeps the samples.
            return None;
        }
        self.source.cover_lasting(&self.store.threads);
        if self.store.threads.count_ever() != before {
            // New threads have new stacks.
            self.namer.hasten();
        }
        let mut rotation = self.rotation(Some(monotonic_now_ns()));
        rotation.batch().flush = is_flush;
        rotation.origin.is_complete = self.store.drain(rotation.batch());
        fault::at(FaultPoint::RecordDrained);
        // At once: the target may free them.
        self.namer.read_functions(rotation.batch(), self.attached.pid());
        self.namer.read_javascript(
            rotation.batch(),
            (self.attached.pid(), &self.store.threads),
            true,
        );
        if rotation.origin.is_complete {
            self.namer.recycle(&mut self.attached);
        }
        self.source.close_events(&self.attached, self.store.threads.younger_events());
        Some(DrainedRotation(rotation))
    }

    fn drain_rest(&mut self) -> DrainedRotation {
        let mut rotation = self.rotation(None);
        rotation.batch().flush = true;
        self.store.drain_remaining(rotation.batch());
        self.namer.read_functions(rotation.batch(), self.attached.pid());
        self.namer.read_javascript(
            rotation.batch(),
            (self.attached.pid(), &self.store.threads),
            true,
        );
        DrainedRotation(rotation)
    }

    fn rotation(&self, until_ns: Option<u64>) -> Rotation {
        let origin = BatchOrigin {
            has_events: self.attached.choice.engine.has_events(),
            is_complete: true,
            until_ns,
            signal: self.attached.signal(),
            has_kernel: self.attached.setup.kernel,
        };
        Rotation { shared: self.writer.blank(), origin }
    }

    fn attribute(&mut self, DrainedRotation(mut rotation): DrainedRotation) -> AttributedRotation {
        let until_ns = rotation.origin.until_ns.unwrap_or(u64::MAX);
        let batch = rotation.batch();
        if self.store.set_times(batch) > 0 {
            // Some code has no unwind table yet: the target loaded a library.
            self.namer.hasten();
        }
        let has_unknown = batch.slices.has_unknown_code(&batch.samples);
        if has_unknown {
            let words = batch.slices.words_of_unknown_code(&batch.samples);
            self.attached.modules().follow_code(words);
        }
        if !has_unknown || self.has_current_mappings() {
            self.store.unwind_outside(batch, &mut self.attached);
        }
        self.store.attribute(batch);
        // By now the buffers have all samples of threads that the last scan missed.
        self.drain_kernel();
        if let Some(kernel) = &mut self.source.kernel {
            let modules = self.attached.modules();
            let had_code = |avma, time_ns, is_new| modules.had_code(avma, time_ns, is_new);
            self.store.add_kernel(batch, kernel, (until_ns, &had_code));
        }
        AttributedRotation(rotation)
    }

    fn locate(&mut self, AttributedRotation(mut rotation): AttributedRotation) -> LocatedRotation {
        let batch = rotation.batch();
        self.namer.contexts.number(batch);
        self.namer.add_reports(self.store.threads.mapped());
        if !self.namer.is_reading_wanted() || self.has_current_mappings() {
            self.namer.correct(batch, &self.store);
        }
        // Before the batch reports the exits of threads.
        self.source.update_wall(self.attached.pid(), &self.store.threads);
        let off_cpu = match &mut self.source.wall {
            Some(wall) => self.store.off_cpu(batch, wall),
            None => Vec::new(),
        };
        batch.sort();
        self.namer.contexts.carry(&mut batch.samples);
        self.store.collector.preserve(batch);
        batch.addresses = Some(Arc::clone(self.namer.addresses()));
        LocatedRotation(rotation, off_cpu)
    }

    /// Weighs the samples of CPU time. Adds the wall-clock samples of threads that did not run, and
    /// of the time that threads ran.
    fn weigh(
        &mut self,
        LocatedRotation(mut rotation, mut off_cpu): LocatedRotation,
    ) -> WeighedRotation {
        let origin = rotation.origin;
        let (batch, threads) = (rotation.batch(), &mut self.store.threads);
        self.weigher.weigh(batch, origin, threads, &self.source.blocked);
        if let Some(wall) = &mut self.source.wall {
            let period = (self.attached.setup.period_ns, origin.until_ns.is_none());
            let mut running = self.store.running(batch, wall, period);
            if !off_cpu.is_empty() || !running.is_empty() {
                batch.samples.append(&mut off_cpu);
                batch.samples.append(&mut running);
                batch.sort();
            }
        }
        WeighedRotation(rotation)
    }

    fn name(&mut self, WeighedRotation(mut rotation): WeighedRotation) -> NamedRotation {
        let is_complete = rotation.origin.is_complete;
        let batch = rotation.batch();
        // Those of stacks that the stages before have added, such as those of sleeping threads.
        let pid = self.attached.pid();
        self.namer.read_functions(batch, pid);
        self.namer.read_javascript(batch, (pid, &self.store.threads), false);
        let modules = self.attached.modules();
        self.namer.read_code(batch, pid, &|blob| modules.code_since(blob));
        self.namer.read_thread_names(batch, self.attached.pid(), &self.store);
        self.store.threads.retire(is_complete, &mut batch.threads);
        self.namer.contexts.name(batch);
        NamedRotation(rotation)
    }

    fn write(&self, NamedRotation(rotation): NamedRotation) {
        if rotation.shared.has_new_data() {
            self.writer.send(rotation.shared);
        }
    }

    /// Reads the kernel's samples from their buffers, and the contexts of their threads.
    pub(super) fn drain_kernel(&mut self) {
        if let Some(kernel) = &mut self.source.kernel {
            kernel.drain();
            self.namer.contexts.observe(kernel.take_sampled_threads());
        }
    }

    /// Reads the mappings if that is permitted now. Returns false if they are another program's.
    fn has_current_mappings(&mut self) -> bool {
        !self.namer.may_read() || self.read_mappings()
    }
}
