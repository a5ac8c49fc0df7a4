//! The thread that symbolizes and writes, so that the collector never waits for a debug file.
//!
//! # Invariants
//! - The queue is bounded: when writing falls behind, collecting waits, tables and buffers fill,
//!   and what does not fit is counted by the handlers and by the kernel. Only collecting waits:
//!   the recorder goes on watching the target.
//! - A trace is resolved once, with the mappings of the time when it was new, and its stack is kept
//!   as long as collections have it: samples may refer to it at any time until then. The heaviest
//!   ones are kept to the end, which their program may be long gone by.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use traceprof_abi::storage::log::Sample as Logged;
use traceprof_abi::unwind::EndReason;

use super::batch::{Batch, ThreadLife, ThreadNews};
use super::collections::Collection;
use super::liveness::{Heavy, LivenessChecker, PreserveSet};
use super::modules::AddressMap;
use super::names::Names;
use super::threads::Key;
use crate::trace::{
    CallTrace, LocationId, MappedModule, Metadata, Sample, Thread, ThreadId, TraceError,
    TraceWriter, Value, Written,
};

/// Batches in the queue; at the usual rotation a few seconds' worth.
const QUEUE: usize = 64;
/// Written batches whose memory is kept for the next ones.
const BLANKS: usize = 4;

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Samples.
    pub(super) samples: u64,
    /// Sum of their weights.
    pub(super) weight: u64,
    /// Samples by end reason, in the order of [`EndReason::ALL`].
    pub(super) reasons: [u64; EndReason::ALL.len()],
    /// Threads that have samples.
    pub(super) threads: u64,
    /// Samples of a thread that was never told of: not written.
    pub(super) unattributed: u64,
}

/// The collector's end of the thread.
pub(super) struct Scribe {
    queue: Option<SyncSender<Arc<Batch>>>,
    blanks: Receiver<Arc<Batch>>,
    thread: JoinHandle<Finished>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Batches sent and not yet written.
    waiting: AtomicUsize,
    /// The same, to be looked at by others.
    open: Mutex<VecDeque<Arc<Batch>>>,
    bytes: AtomicU64,
    failed: AtomicBool,
}

impl Shared {
    fn open(&self) -> impl std::ops::DerefMut<Target = VecDeque<Arc<Batch>>> {
        // Nothing is done under the lock that could leave the queue half changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the traces of all samples that are not written yet: those of the batch that is about to be
/// sent, and of batches that were.
pub(super) struct OpenSamples(Arc<Shared>);

impl LivenessChecker for OpenSamples {
    fn mark(&mut self, collected: &Batch, live: &mut PreserveSet) {
        let mut mark = |batch: &Batch| {
            batch.samples.iter().for_each(|sample| live.insert(sample.trace_id));
        };
        mark(collected);
        self.0.open().iter().for_each(|batch| mark(batch));
    }
}

impl Scribe {
    /// Starts the thread over an open trace of process `pid`, whose addresses `names` resolves.
    pub(super) fn start(writer: TraceWriter, pid: i32, names: Names) -> std::io::Result<Self> {
        let (queue, batches) = sync_channel(QUEUE);
        let (back, blanks) = sync_channel(BLANKS);
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let work = move || {
            let finished = Work::new(writer, pid as u32, names).run(&batches, &back, &theirs);
            if finished.error.is_some() {
                // Relaxed: the error itself comes with the join.
                theirs.failed.store(true, Ordering::Relaxed);
            }
            finished
        };
        let thread = std::thread::Builder::new().name("scribe".to_string()).spawn(work)?;
        Ok(Self { queue: Some(queue), blanks, thread, shared })
    }

    /// An empty batch that nobody else has; in memory that a written one had, if there is any.
    pub(super) fn blank(&self) -> Arc<Batch> {
        self.blanks.try_recv().unwrap_or_default()
    }

    /// The checker that keeps what is not written yet.
    pub(super) fn open_samples(&self) -> OpenSamples {
        OpenSamples(Arc::clone(&self.shared))
    }

    /// Hands over a batch; waits while the queue is full.
    pub(super) fn send(&self, batch: Arc<Batch>) {
        if let Some(queue) = &self.queue {
            // Relaxed: only this thread adds, so what it reads is never too low.
            self.shared.waiting.fetch_add(1, Ordering::Relaxed);
            self.shared.open().push_back(Arc::clone(&batch));
            // A closed queue is a failed writer; `finish` tells why.
            let _ = queue.send(batch);
        }
    }

    /// Says something of the recording, readable by others at once.
    pub(super) fn note(&self, key: String, value: Value) {
        let mut shared = self.blank();
        let batch = Arc::make_mut(&mut shared);
        batch.metadata.insert(key, value);
        batch.flush = true;
        self.send(shared);
    }

    /// The next batch would have to wait. Who has other duties leaves the samples where they are.
    pub(super) fn is_busy(&self) -> bool {
        // Relaxed: see `send`; a batch that is taken out meanwhile makes room.
        self.shared.waiting.load(Ordering::Relaxed) >= QUEUE
    }

    /// All that was sent is written.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        // Relaxed: as above.
        self.shared.waiting.load(Ordering::Relaxed) == 0
    }

    /// Bytes written so far, both files.
    pub(super) fn bytes(&self) -> u64 {
        // Relaxed: for the eye.
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Writing has failed: the recording should end.
    pub(super) fn has_failed(&self) -> bool {
        // Relaxed: see `start`.
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Ends the thread and waits for what is queued.
    pub(super) fn finish(mut self) -> Finished {
        self.queue = None;
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Everything is written but the end, or as much as could be.
pub(super) struct Finished {
    writer: TraceWriter,
    totals: Totals,
    /// Of the traces that were to be kept to the end.
    stacks: HashMap<u64, Stack>,
    error: Option<TraceError>,
}

/// The files as they are in the end.
pub(super) struct Closed {
    /// What they hold.
    pub(super) written: Written,
    /// What could not be written to them.
    pub(super) error: Option<TraceError>,
}

impl Finished {
    /// What was handed to the writer.
    pub(super) fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Writes the closing metadata, the heaviest call traces as objects, and the end of both files;
    /// after a failure too, as far as the reserve goes.
    pub(super) fn close(mut self, metadata: Metadata, heaviest: &[Heavy]) -> Closed {
        let told = metadata.into_iter().try_for_each(|(key, value)| {
            // Fails for a value that the format cannot hold, or for the output.
            self.writer.set_metadata(&key, value)
        });
        let told = told.and_then(|()| {
            let known = |it: &Heavy| Some((it.id, self.stacks.get(&it.id)?));
            heaviest.iter().filter_map(known).try_for_each(|(trace_id, stack)| {
                let (end_reason, stack) = (stack.end_reason, stack.locations.to_vec());
                self.writer.call_trace(&CallTrace { trace_id, stack, end_reason })
            })
        });
        let error = self.error.or(told.err());
        match self.writer.finish() {
            Ok(written) => Closed { written, error },
            Err(TraceError::CutShort { path, source, kept, lost_samples, closed }) => {
                // It says more than the error that it came with.
                let error = TraceError::CutShort { path, source, kept, lost_samples, closed };
                Closed { written: kept, error: Some(error) }
            }
            Err(end) => Closed { written: Written::default(), error: error.or(Some(end)) },
        }
    }
}

/// A trace that is resolved.
#[derive(Debug, Clone)]
struct Stack {
    /// Root first.
    locations: Vec<LocationId>,
    end_reason: u16,
}

struct Work {
    writer: TraceWriter,
    pid: u32,
    names: Names,
    addresses: Arc<AddressMap>,
    /// The traces of the last batch.
    stacks: HashMap<u64, Stack>,
    /// Those that are kept to the end.
    kept: HashMap<u64, Stack>,
    /// The trace's ids, by key.
    threads: HashMap<Key, ThreadId>,
    /// Of them, those that have samples.
    sampled: HashSet<ThreadId>,
    totals: Totals,
    /// Time of the latest sample.
    last_ns: u64,
}

impl Work {
    fn new(writer: TraceWriter, pid: u32, names: Names) -> Self {
        Self {
            writer,
            pid,
            names,
            addresses: Arc::default(),
            stacks: HashMap::new(),
            kept: HashMap::new(),
            threads: HashMap::new(),
            sampled: HashSet::new(),
            totals: Totals::default(),
            last_ns: 0,
        }
    }

    fn run(
        mut self,
        batches: &Receiver<Arc<Batch>>,
        blanks: &SyncSender<Arc<Batch>>,
        shared: &Shared,
    ) -> Finished {
        let mut error = None;
        while error.is_none()
            && let Ok(mut batch) = batches.recv()
        {
            error = self.write(&batch).err();
            drop(shared.open().pop_front());
            // Relaxed: a count.
            shared.waiting.fetch_sub(1, Ordering::Relaxed);
            let (data, index) = self.writer.bytes_written();
            // Relaxed: for the eye.
            shared.bytes.store(data + index, Ordering::Relaxed);
            if let Some(blank) = Arc::get_mut(&mut batch) {
                blank.clear();
                // Enough of them wait already, or nobody wants one any more.
                let _ = blanks.try_send(batch);
            }
        }
        Finished { writer: self.writer, totals: self.totals, stacks: self.kept, error }
    }

    fn write(&mut self, batch: &Batch) -> Result<(), TraceError> {
        if let Some(addresses) = &batch.addresses {
            self.write_mappings(addresses)?;
            self.addresses = Arc::clone(addresses);
        }
        self.resolve(&batch.traces)?;
        let is_end = |news: &&ThreadNews| matches!(news, ThreadNews::Gone { .. });
        for news in batch.threads.iter().filter(|news| !is_end(news)) {
            self.write_thread(news)?;
        }
        for sample in &batch.samples {
            self.write_sample(sample)?;
        }
        for news in batch.threads.iter().filter(is_end) {
            self.write_thread(news)?;
        }
        if let Some(keep) = &batch.keep {
            self.keep(keep);
        }
        for (key, value) in &batch.metadata {
            self.writer.set_metadata(key, value.clone())?;
        }
        if batch.flush {
            self.writer.flush()?;
        }
        Ok(())
    }

    /// Stacks of the new traces; those that the collection has no more are forgotten.
    fn resolve(&mut self, traces: &Collection) -> Result<(), TraceError> {
        self.names.learn(&mut self.writer, &self.addresses, traces)?;
        self.stacks.retain(|id, _| traces.get(*id).is_some());
        for entry in traces.entries() {
            let frames = traces.frames_of(entry);
            self.stacks.entry(entry.id).or_insert_with(|| Stack {
                locations: self.names.stack(&self.addresses, frames),
                end_reason: entry.flags as u16,
            });
        }
        Ok(())
    }

    fn keep(&mut self, wanted: &[u64]) {
        let mut former = std::mem::take(&mut self.kept);
        let mut stack = |id: &u64| {
            let stack = former.remove(id).or_else(|| self.stacks.get(id).cloned());
            Some((*id, stack?))
        };
        self.kept = wanted.iter().filter_map(&mut stack).collect();
    }

    fn write_mappings(&mut self, addresses: &AddressMap) -> Result<(), TraceError> {
        for range in addresses.ranges.iter().filter(|range| !self.addresses.holds(range)) {
            let module = self.names.module(&mut self.writer, range.module.as_deref())?;
            self.writer.mapped_module(&MappedModule {
                pid: self.pid,
                start: range.start,
                end: range.end,
                file_offset: range.file_offset,
                module,
                first_seen_ns: addresses.seen_ns,
            })?;
        }
        Ok(())
    }

    fn write_thread(&mut self, news: &ThreadNews) -> Result<(), TraceError> {
        match news {
            ThreadNews::Seen { key, life } => self.write_new_thread(*key, life)?,
            ThreadNews::Renamed { key, name } => {
                if let Some(id) = self.threads.get(key) {
                    self.writer.rename_thread(*id, name)?;
                }
            }
            ThreadNews::Gone { key, time_ns } => {
                if let Some(id) = self.threads.remove(key) {
                    self.sampled.remove(&id);
                    self.writer.thread_exit(id, *time_ns)?;
                }
            }
        }
        Ok(())
    }

    fn write_new_thread(&mut self, key: Key, life: &ThreadLife) -> Result<(), TraceError> {
        let (inner_pid, inner_tid) = life.inner;
        let (pid, tid, name) = (self.pid, life.tid as u32, life.name.clone());
        let thread = Thread { pid, tid, name, first_seen_ns: life.start_ns, ended_ns: None };
        let id = self.writer.thread(&thread)?;
        self.threads.insert(key, id);
        if (inner_pid, inner_tid) != (pid, tid) {
            // In a pid namespace: what the target itself calls the thread.
            let ids = [inner_pid, inner_tid].map(|id| Value::Unsigned(u64::from(id)));
            self.writer.set_metadata(&format!("inner_ids.{}", id.0), Value::List(ids.into()))?;
        }
        Ok(())
    }

    fn write_sample(&mut self, logged: &Logged) -> Result<(), TraceError> {
        let Some(thread) = self.threads.get(&(logged.slot, logged.generation)).copied() else {
            self.totals.unattributed += 1;
            return Ok(());
        };
        self.last_ns = self.last_ns.max(logged.time);
        self.totals.samples += 1;
        self.totals.weight += u64::from(logged.weight);
        if let Some(count) = self.totals.reasons.get_mut(usize::from(logged.reason)) {
            *count += 1;
        }
        self.totals.threads += u64::from(self.sampled.insert(thread));
        let sample = Sample {
            time_ns: logged.time,
            trace_id: logged.trace_id,
            weight: logged.weight,
            end_reason: logged.reason,
            flags: logged.flags,
            state: logged.state as u8,
            syscall: logged.syscall.checked_sub(1).and_then(|number| u32::try_from(number).ok()),
            span: logged.span,
            root_span: logged.root_span,
            tags: [0; 10],
        };
        let stack = self.stacks.get(&logged.trace_id);
        let stack = stack.map_or(&[][..], |stack| &stack.locations);
        self.writer.sample(thread, &sample, stack)
    }
}

#[cfg(test)]
mod tests;
