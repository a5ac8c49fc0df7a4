//! One turn of the storage: rotate, put times and threads right, hand over to the writer.

use std::sync::Arc;
use std::time::Instant;

use traceprof_abi::sync::Ordering;
use traceprof_abi::unwind::EndReason;

use super::super::batch::Batch;
use super::super::clock::{Clock, monotonic_now_ns};
use super::{Event, Session};

impl Session<'_> {
    pub(super) fn rotate(&mut self) {
        let flush = self.flush.is_due();
        let before = self.registry.count_ever();
        if flush {
            self.registry.scan(true);
        } else {
            self.registry.turn(Instant::now());
        }
        self.cover();
        if self.registry.count_ever() != before {
            // New threads have new stacks.
            self.refresh.hasten();
        }
        let mut shared = self.scribe.blank();
        let batch = Arc::make_mut(&mut shared);
        batch.flush = flush;
        batch.threads.extend(self.registry.news());
        let registry = &self.registry;
        let is_gone = |owner| registry.is_owner_gone(owner);
        let until_ns = monotonic_now_ns();
        let drained = self.collector.rotate(batch, &is_gone);
        if drained.all {
            self.attached.modules.recycle();
        }
        self.close_younger_events();
        self.finish_batch(batch, until_ns);
        self.registry.retire(drained.all, &mut batch.threads);
        if batch.has_news() {
            self.scribe.send(shared);
        }
    }

    /// Times, threads that only their samples tell of, and the kernel's hits up to `until_ns`.
    pub(super) fn finish_batch(&mut self, batch: &mut Batch, until_ns: u64) {
        self.clock.advance();
        self.flushed_unknown += put_times(&self.clock, batch);
        if std::mem::take(&mut self.flushed_unknown) > 0 {
            // Code that no table covers yet: a library was loaded.
            self.refresh.hasten();
        }
        self.registry.attribute(&mut batch.samples, &mut batch.threads);
        self.take_kernel(batch, until_ns);
        batch.sort();
        self.collector.preserve(batch);
        batch.addresses = Some(Arc::clone(&self.addresses));
    }

    /// Hits of threads that the last scan missed are all in the buffers by now.
    fn take_kernel(&mut self, batch: &mut Batch, until_ns: u64) {
        let Some(kernel) = &mut self.kernel else { return };
        kernel.drain();
        let (collector, registry) = (&mut self.collector, &mut self.registry);
        kernel.take(
            until_ns,
            batch,
            || collector.take_instance(),
            |tid, time_ns, news| registry.key_of(tid as i32, time_ns, news),
        );
    }

    /// Keeps thread slots and tables populated ahead of their use.
    pub(super) fn grow(&mut self) {
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

/// Gives the samples their times; how many of them found no module.
fn put_times(clock: &Clock, batch: &mut Batch) -> u64 {
    let mut unknown = 0;
    for sample in &mut batch.samples {
        sample.time = clock.monotonic_ns(sample.time);
        unknown += u64::from(sample.reason == EndReason::NoModule as u16);
    }
    unknown
}
