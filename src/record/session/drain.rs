//! One turn of the storage: rotate, put times and threads right, hand over to the writer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use traceprof_abi::sync::Ordering;
use traceprof_abi::unwind::EndReason;

use crate::fault::{self, Point};
use crate::proc;
use crate::record::batch::rotation::Batch;
use crate::record::contract::clock::{Clock, monotonic_now_ns};
use crate::record::session::{Event, Session};
use crate::record::source::perf::open_anchor;
use crate::record::source::signal_blocked::blocks;
use crate::record::store::threads::Usage;
use crate::record::weigh::balance::Reading;
use crate::record::weigh::parents::PARENTS_MAX;

/// How long names are read before the trace is flushed: a twentieth of the time between two
/// flushes.
const NAMES_TIME: Duration = Duration::from_millis(40);

impl Session<'_> {
    pub(super) fn rotate(&mut self) {
        let flush = self.flush.is_due();
        let before = self.registry.count_ever();
        if flush {
            self.registry.scan(false);
            self.registry.look_at_names(NAMES_TIME);
        } else {
            self.registry.turn(Instant::now());
        }
        if self.registry.is_program_gone() {
            // What the scan found may be another program's; the storage keeps what there is.
            return;
        }
        self.cover();
        if self.registry.count_ever() != before {
            // New threads have new stacks.
            self.refresh.hasten();
        }
        let mut shared = self.writer.blank();
        let batch = Arc::make_mut(&mut shared);
        batch.flush = flush;
        batch.threads.extend(self.registry.news());
        let registry = &self.registry;
        let is_gone = |owner| registry.is_owner_gone(owner);
        let until_ns = monotonic_now_ns();
        let drained = self.collector.rotate(batch, &is_gone);
        fault::at(Point::RecordDrained);
        if drained.all {
            self.attached.modules().recycle();
            self.contexts.recycle();
        }
        self.close_younger_events();
        self.finish_batch(batch, until_ns);
        if self.events.is_some() {
            // Else hits may be missing that are only not read yet.
            if drained.all && self.attached.setup.kernel {
                self.balance(batch, until_ns);
            }
            self.settle(drained.all, batch);
        }
        self.add_sleepers(batch, false);
        self.registry.retire(drained.all, &mut batch.threads);
        self.contexts.name(batch);
        if batch.has_news() {
            self.writer.send(shared);
        }
    }

    /// Times, threads that only their samples tell of, and the kernel's hits up to `until_ns`.
    pub(super) fn finish_batch(&mut self, batch: &mut Batch, until_ns: u64) {
        self.contexts.number(batch);
        self.clock.advance();
        self.flushed_unknown += put_times(&self.clock, batch);
        if std::mem::take(&mut self.flushed_unknown) > 0 {
            // Code that no table covers yet: a library was loaded.
            self.refresh.hasten();
        }
        self.follow_slices(batch);
        self.registry.attribute(&mut batch.samples, &mut batch.threads);
        self.take_kernel(batch, until_ns);
        self.correct_remapped(batch);
        self.take_sleepers(batch);
        batch.sort();
        self.contexts.carry(&mut batch.samples);
        self.collector.preserve(batch);
        batch.addresses = Some(Arc::clone(&self.addresses));
    }

    /// Puts the hits up to `until_ns` right by their threads' clocks. Without those in the kernel,
    /// what hits must stand for is not known.
    fn balance(&mut self, batch: &mut Batch, until_ns: u64) {
        let late_ns = monotonic_now_ns().saturating_sub(until_ns);
        let (remainder, registry, blocked) = (&self.remainder, &self.registry, &self.blocked);
        let clock = |key| {
            let Usage { tid, cpu_ns, .. } = registry.usage_of(key)?;
            Some(Reading { cpu_ns, is_signal_blocked: blocked.holds(tid) })
        };
        self.balance.put_right(batch, late_ns, |key| remainder.weight(key), clock);
    }

    /// What the samples of events leave of the time of threads that have ended. A timer's first hit
    /// comes at any part of a period: of those nothing is missing on average.
    pub(super) fn settle(&mut self, drained: bool, batch: &mut Batch) {
        self.remainder.note(&batch.samples);
        let before = batch.samples.len();
        let exits = self.registry.exits(drained);
        if !exits.is_empty() {
            let sampled = if self.attached.setup.kernel { 1000 } else { self.user_share() };
            // After the ends, so that it holds all that they used.
            self.remainder.settle(&exits, sampled, self.cpu.used_at_most_ns(), batch);
            self.balance.forget(&exits);
        }
        if self.events.is_some() {
            self.look_at_parents(batch);
        }
        if batch.samples.len() > before {
            for sample in &batch.samples[before..] {
                self.registry.tell((sample.slot, sample.generation), &mut batch.threads);
            }
            batch.sort();
        }
    }

    /// Anchors threads that start others where hits do not keep up with them, and gives them what
    /// they lack.
    fn look_at_parents(&mut self, batch: &mut Batch) {
        // What is not sampled is not lacked. How much of that is one thread's is not known: nothing
        // is given then.
        let has_kernel = self.attached.setup.kernel;
        let sampled = if has_kernel { 1000 } else { self.user_share() };
        let process_ns = self.cpu.used_ns();
        self.parents.begin_turn();
        let is_due = |key| self.parents.is_due(key, process_ns);
        for mut parent in self.registry.parents(PARENTS_MAX, is_due) {
            parent.cpu_ns = parent.cpu_ns / 1000 * sampled;
            let weight = self.remainder.weight(parent.key);
            let lacks_ns = self.remainder.lacking_ns(process_ns);
            let signal = self.attached.signal();
            let is_signal_blocked = || blocks(self.pid, parent.tid, signal).is_some();
            let advice =
                self.parents.look(&parent, weight, (process_ns, lacks_ns), is_signal_blocked);
            if advice.anchor {
                self.parents.keep(&parent, open_anchor(parent.tid));
            }
            if advice.weight > 0 && has_kernel {
                self.remainder.give(&parent, advice.weight, monotonic_now_ns(), batch);
            }
        }
    }

    /// Part of the target's CPU time that it has spent in user mode, in thousandths.
    fn user_share(&self) -> u64 {
        let (user, system) = proc::mode_times_ns(self.pid).unwrap_or((1, 0));
        user.saturating_mul(1000) / user.saturating_add(system).max(1)
    }

    /// Takes the kernel's hits out of their buffers, and sees what their threads work on.
    pub(super) fn drain_kernel(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.drain();
            self.contexts.observe(kernel.news());
        }
    }

    /// Hits of threads that the last scan missed are all in the buffers by now.
    fn take_kernel(&mut self, batch: &mut Batch, until_ns: u64) {
        self.drain_kernel();
        let Some(kernel) = &mut self.kernel else { return };
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
        if let Err(error) = self.attached.grow_slots() {
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

#[cfg(test)]
mod tests {
    use traceprof_abi::layout::TRACE_TABLES;
    use traceprof_abi::segment::DataSegment;
    use traceprof_abi::storage::log::Sample;
    use traceprof_abi::sync::AtomicU64;

    use super::*;
    use crate::record::batch::threads::{ThreadLife, ThreadNews};
    use crate::record::source::kernel::tests::{feed_sample, without_kernel};
    use crate::record::store::collector::Collector;
    use crate::record::store::heaviest::Heaviest;
    use crate::record::store::liveness::LastOfThreads;
    use crate::record::target::shm::own_data;
    use crate::record::write::writer::{Writer, Writing};
    use crate::trace::tests::heap::allocations;
    use crate::trace::{Metadata, TraceSeries, TraceWriter, WriterOptions};

    const THREADS: u32 = 4;
    const SAMPLES: u64 = 200;

    fn segment() -> DataSegment {
        let data = own_data();
        for table in (0..TRACE_TABLES).filter_map(|index| data.table(index)) {
            table.header.arena_limit.store(1 << 16, Ordering::Relaxed);
            table.header.log_limit.store(1 << 12, Ordering::Relaxed);
        }
        data.control().slots_limit.store(THREADS, Ordering::Relaxed);
        data
    }

    fn slot_of(data: DataSegment, tid: u32) -> u32 {
        let threads = data.threads();
        threads.find(tid).or_else(|| threads.claim(tid).index()).unwrap() as u32
    }

    /// What the handlers of all threads do between two rotations.
    fn samples(data: DataSegment, clock_ticks: u64) {
        for number in 0..SAMPLES {
            let tid = number as u32 % THREADS + 1;
            let slot = slot_of(data, tid);
            let owner = data.threads().owner(slot as usize);
            let hazard = data.hazards().protect(owner, &data.control().active).unwrap();
            let table = data.table(hazard.table()).unwrap();
            let frames: Vec<_> = (0..20).map(|frame| AtomicU64::new(frame + number % 50)).collect();
            let trace_id = table.put(&frames, 0, 1).id();
            let time = clock_ticks + number;
            let sample = Sample { slot, tid, time, trace_id, weight: 1, ..Sample::default() };
            assert!(table.append_at(&sample).is_some());
            data.threads().slots[slot as usize].last_trace.store(trace_id, Ordering::Relaxed);
            assert!(data.hazards().release(hazard));
        }
    }

    /// As long as the writer has something to do, its batches are not back.
    fn wait_for(writer: &Writer) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !writer.is_idle() {
            assert!(Instant::now() < deadline, "the writer hangs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The claim is about all of a turn but the reading of `/proc`: who is there, and what is
    /// mapped.
    #[test]
    fn a_turn_in_steady_state_takes_no_memory() {
        let data = segment();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let writer =
            TraceSeries::of_one(TraceWriter::create(&path, WriterOptions::default()).unwrap());
        let writing = Writing::start(writer).unwrap();
        let writer = writing.join(0, 1, |answers| answers.names(1, Arc::default())).unwrap();
        let mut collector = Collector::start(data, Arc::default()).unwrap();
        collector.register(Box::new(LastOfThreads::new(data)));
        collector.register(Box::new(Heaviest::new(10)));
        let mut kernel = without_kernel();
        let mut clock = Clock::start(Clock::best_mode());
        let mut turn = |number: u64, news: Vec<ThreadNews>| {
            samples(data, number * 10_000);
            let now_ns = monotonic_now_ns();
            for number in 0..SAMPLES {
                // Every tenth comes too late for this batch.
                let time_ns = if number % 10 == 0 { now_ns + 3_600_000_000_000 } else { now_ns };
                feed_sample(&mut kernel, number as u32 % THREADS, time_ns, 0x1000 + number % 30);
            }
            wait_for(&writer);
            allocations(|| {
                let mut shared = writer.blank();
                let batch = Arc::make_mut(&mut shared);
                batch.threads.extend(news);
                assert!(collector.rotate(batch, &|_| false).all);
                clock.advance();
                put_times(&clock, batch);
                kernel.drain();
                let instance = || collector.take_instance();
                // Those that were too late last time are due by now.
                kernel.take(
                    now_ns + (number % 2) * 3_700_000_000_000,
                    batch,
                    instance,
                    |tid, _, _| (tid, 0),
                );
                batch.sort();
                collector.preserve(batch);
                assert!(batch.has_news());
                writer.send(shared);
            })
        };
        let seen = |slot| {
            let tid = slot as i32 + 1;
            let life = ThreadLife { tid, inner: (1, tid as u32), name: String::new(), start_ns: 1 };
            ThreadNews::Seen { key: (slot, 0), life }
        };
        assert!(turn(0, (0..THREADS).map(seen).collect()) > 0, "the counter does not count");
        // Two in circulation, so that one is there whenever the other is not back yet.
        writer.send(Arc::default());
        let warm: Vec<u64> = (1..30).map(|number| turn(number, Vec::new())).collect();
        let steady: Vec<u64> = (30..60).map(|number| turn(number, Vec::new())).collect();
        assert_eq!(steady, [0; 30], "after {warm:?}");
        assert_eq!(collector.stats.orphans, 0);
        drop(writer);
        let finished = writing.finish();
        let (samples, unknown) = (finished.totals().samples, finished.totals().unattributed);
        assert_eq!((samples, unknown), (60 * 2 * SAMPLES, 0));
        assert!(finished.close(Metadata::new(), &collector.heaviest()).error.is_none());
    }
}
