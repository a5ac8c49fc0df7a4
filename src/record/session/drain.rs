//! One turn of the storage: rotate, put times and threads right, hand over to the writer.

use std::collections::HashSet;
use std::sync::Arc;

use traceprof_abi::sync::Ordering;
use traceprof_abi::unwind::EndReason;

use super::super::batch::Batch;
use super::super::clock::monotonic_now_ns;
use super::{Event, Held, Session};

impl Session<'_> {
    pub(super) fn rotate(&mut self) {
        let flush = self.flush.is_due();
        let before = self.registry.count_ever();
        self.registry.scan(flush);
        if self.registry.count_ever() != before {
            // New threads have new stacks.
            self.refresh.hasten();
        }
        let mut batch = Batch { flush, threads: self.registry.news(), ..Batch::default() };
        let registry = &self.registry;
        let is_gone = |owner| registry.is_owner_gone(owner);
        let until_ns = monotonic_now_ns();
        if self.collector.rotate(&mut batch, &|_| false, &is_gone) {
            self.attached.modules.recycle();
        }
        self.grow();
        self.close_younger_events();
        self.finish_batch(&mut batch, until_ns);
        self.registry.retire(&mut batch.threads);
        if batch.flush || !batch.samples.is_empty() || !batch.threads.is_empty() {
            self.scribe.send(batch);
        }
    }

    /// Times, threads that only their samples tell of, and the kernel's hits up to `until_ns`.
    pub(super) fn finish_batch(&mut self, batch: &mut Batch, until_ns: u64) {
        self.clock.advance();
        let no_module = EndReason::NoModule as u16;
        for sample in &mut batch.samples {
            sample.time = self.clock.monotonic_ns(sample.time);
            self.flushed_unknown += u64::from(sample.reason == no_module);
        }
        if std::mem::take(&mut self.flushed_unknown) > 0 {
            // Code that no table covers yet: a library was loaded.
            self.refresh.hasten();
        }
        self.registry.meet_samples(&batch.samples, &mut batch.threads);
        self.take_kernel(batch, until_ns);
        batch.samples.sort_by_key(|sample| (sample.slot, sample.generation, sample.time));
        batch.addresses = Some(Arc::clone(&self.addresses));
    }

    /// Hits of threads that the last scan missed are all in the buffers by now. Those after
    /// `until_ns` are held back: the handlers' samples of that time come with the next batch, and
    /// a thread's times must not go back.
    fn take_kernel(&mut self, batch: &mut Batch, until_ns: u64) {
        let Some(kernel) = &mut self.kernel else { return };
        kernel.drain();
        let Some(instance) = self.collector.take_instance() else { return };
        let (registry, news) = (&mut self.registry, &mut batch.threads);
        let (traces, samples) = kernel.take(instance, |tid| registry.key_of(tid as i32, news));
        let held = std::mem::take(&mut self.held);
        batch.traces.extend(held.traces);
        batch.samples.extend(held.samples);
        let (due, later): (Vec<_>, Vec<_>) =
            samples.into_iter().partition(|sample| sample.time <= until_ns);
        let needed: HashSet<u64> = later.iter().map(|sample| sample.trace_id).collect();
        let kept = traces.iter().filter(|trace| needed.contains(&trace.id)).cloned().collect();
        self.held = Held { traces: kept, samples: later };
        batch.traces.extend(traces);
        batch.samples.extend(due);
    }

    /// Keeps thread slots and tables populated ahead of their use.
    fn grow(&mut self) {
        if let Err(error) = self.attached.grow() {
            let text = format!("no memory for more thread slots: {error}");
            self.observer.event(Event::Notice(text));
        }
        for table in self.collector.roles() {
            if let Err(error) = self.attached.populate_table(table) {
                let text = format!("no memory for another table of call traces: {error}");
                self.observer.event(Event::Notice(text));
            }
        }
    }

    fn close_younger_events(&mut self) {
        let Some(events) = &mut self.events else { return };
        for index in self.registry.younger_events() {
            if events.close(index) {
                let word = &self.attached.data().events_retired()[index as usize / 64];
                // Relaxed: a handler that sees it late counts one more duplicate.
                word.fetch_or(1 << (index % 64), Ordering::Relaxed);
            }
        }
    }
}
