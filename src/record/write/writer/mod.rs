//! The writer thread, so that no collector waits for a disk or for a debug file.
//!
//! All processes of a recording share one thread, and each sends to it through its own [`Writer`].
//! Other threads find the names. A batch with unnamed addresses waits for the names, and so do the
//! later batches of the same process, because calls are inferred from a thread's samples in their
//! order. Collecting and the other processes go on meanwhile.
//!
//! # Invariants
//! - The queue is bounded. When writing falls behind, collecting waits and tables and buffers fill.
//!   The handlers and the kernel count what does not fit. Only collecting waits: the recorder goes
//!   on watching the target.
//! - Batches that wait for names have bounded memory ([`backlog::Backlog`]). Beyond the bound, the
//!   oldest batches are written without names. An address without a name is written as its module
//!   and the start of its function there, and is counted. Traces that are new once the name is
//!   known have the name.
//! - A trace is resolved once, with the mappings at the time when it was new. Its stack is kept as
//!   long as collections have the trace, because samples may refer to it until then. The stacks of
//!   the heaviest traces are kept to the end, even if their program exited long before.

use crate::record::batch::process::ProcessNumber;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::{io, panic};

use traceprof_abi::storage::log::{Sample, flags};
use traceprof_abi::unwind::EndReason;

use crate::record::batch::Batch;
use crate::record::name::frames::FrameNames;
use crate::record::name::jit::JitNames;
use crate::record::name::managed::count::ManagedCount;
use crate::record::name::symbolizers::{SymbolAnswer, SymbolizerPool, Symbolizers};
use crate::record::store::liveness::Heavy;
use crate::record::target::modules::AddressMap;
use crate::trace::{
    CallTrace, Metadata, SavedTrace, Saves, TraceError, TraceSeries, Value, Written,
};

mod backlog;
mod process;
mod work;

use self::process::{Stack, WriterProcess};
use self::work::Work;

/// The number of batches in the queue: a few seconds' worth at the usual rotation.
const QUEUE: usize = 64;
/// The number of written batches whose memory is kept for the next ones.
const BLANKS: usize = 4;

/// The totals of what was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WrittenTotals {
    /// The number of samples of CPU time.
    pub(crate) samples: u64,
    /// The sum of their weights.
    pub(crate) weight: u64,
    /// The numbers of these samples by end reason, in the order of [`EndReason::ALL`].
    pub(crate) reasons: [u64; EndReason::ALL.len()],
    /// The number of wall-clock samples, which the fields above do not count, and the number of
    /// those that were unwound to the root.
    pub(crate) wall: (u64, u64),
    /// The number of threads that have samples.
    pub(crate) threads: u64,
    /// The number of samples of unknown threads, which are not written.
    pub(crate) unattributed: u64,
    /// The number of addresses that were written before their names were known.
    pub(crate) unnamed: u64,
    /// The number of samples that were left out because the files had reached their limit.
    pub(crate) left_out: u64,
    /// Managed frames of samples.
    pub(crate) managed: ManagedCount,
}

impl WrittenTotals {
    /// Adds the totals of another process.
    fn add(&mut self, other: &Self) {
        // The patterns name every field, so that a new field cannot be forgotten.
        let Self {
            samples,
            weight,
            reasons,
            wall,
            threads,
            unattributed,
            unnamed,
            left_out,
            managed,
        } = other;
        self.samples += samples;
        self.weight += weight;
        for (sum, more) in self.reasons.iter_mut().zip(reasons) {
            *sum += more;
        }
        self.wall.0 += wall.0;
        self.wall.1 += wall.1;
        self.threads += threads;
        self.unattributed += unattributed;
        self.unnamed += unnamed;
        self.left_out += left_out;
        self.managed.add(managed);
    }

    fn count(&mut self, sample: &Sample) {
        if sample.flags & flags::WALL != 0 {
            self.wall.0 += 1;
            let is_rooted = sample.trace_id != 0 && sample.reason == EndReason::Root as u16;
            self.wall.1 += u64::from(is_rooted);
            return;
        }
        self.samples += 1;
        self.weight += u64::from(sample.weight);
        if let Some(count) = self.reasons.get_mut(usize::from(sample.reason)) {
            *count += 1;
        }
    }
}

/// A message to the writer thread.
enum Message {
    /// A process joins.
    Join(ProcessNumber, Box<WriterProcess>),
    /// A batch with samples of a process, and the objects that they refer to.
    Batch(ProcessNumber, Arc<Batch>),
    /// The answer to a question for names of a process.
    SymbolAnswer(ProcessNumber, SymbolAnswer),
    /// A process leaves: no further message comes from it.
    Leave(ProcessNumber),
    /// Requests a save of the ring.
    Save,
    /// No further message comes.
    End,
}

/// The queue to the writer thread. After its drop, the thread writes what is left and ends.
struct MessageQueue(SyncSender<Message>);

impl Drop for MessageQueue {
    fn drop(&mut self) {
        // A closed queue means a failed writer; `finish` returns the error.
        let _ = self.0.send(Message::End);
    }
}

/// The writer thread while processes may join and leave.
pub(crate) struct WriterThread {
    queue: MessageQueue,
    thread: JoinHandle<Finished>,
    shared: Arc<WriterStatus>,
    saves: Saves,
    /// The threads that find names for all processes, once the first process has started them.
    pool: Arc<Mutex<Option<Arc<SymbolizerPool>>>>,
}

/// A process's connection to the writer thread. The process leaves when this is dropped.
pub(crate) struct Writer {
    number: ProcessNumber,
    queue: SyncSender<Message>,
    blanks: Receiver<Arc<Batch>>,
    shared: Arc<WriterStatus>,
    saves: Saves,
    /// Counts the samples that were sent.
    samples_sent: Arc<AtomicU64>,
}

/// The state of the writer thread that the processes can read.
#[derive(Default)]
struct WriterStatus {
    /// The number of sent batches that the thread has neither written nor added to the backlog.
    queued: AtomicUsize,
    /// Whether batches wait for names.
    has_backlog: AtomicBool,
    bytes: AtomicU64,
    /// The number of samples that were sent.
    samples: AtomicU64,
    failed: AtomicBool,
    /// Whether the files are about to reach their limit.
    full: AtomicBool,
    /// Processes whose totals are needed only as part of the sum.
    summed: Mutex<Vec<ProcessNumber>>,
}

impl WriterStatus {
    fn summed(&self) -> Vec<ProcessNumber> {
        // After a panic the list is still valid.
        std::mem::take(&mut self.summed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A handle to the totals of a process in the writer thread.
#[derive(Default)]
pub(crate) struct Tally {
    number: ProcessNumber,
    shared: Arc<WriterStatus>,
}

impl Tally {
    /// Keeps these totals only as part of the sum.
    pub(crate) fn sum_up(&self) {
        // As in `WriterStatus::summed`.
        self.shared.summed.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

impl WriterThread {
    /// Starts the thread over an open trace.
    pub(crate) fn start(writer: TraceSeries) -> io::Result<Self> {
        Self::with_room(backlog::ROOM, writer)
    }

    fn with_room(room: usize, writer: TraceSeries) -> io::Result<Self> {
        let (queue, messages) = sync_channel(QUEUE);
        let shared = Arc::new(WriterStatus::default());
        let theirs = Arc::clone(&shared);
        let saves = writer.saves();
        let work = move || {
            let finished = Work::new(writer, room).run(&messages, &theirs);
            if finished.error.is_some() {
                // Relaxed: the join returns the error itself.
                theirs.failed.store(true, Ordering::Relaxed);
            }
            finished
        };
        let thread = std::thread::Builder::new().name("writer".to_string()).spawn(work)?;
        Ok(Self { queue: MessageQueue(queue), thread, shared, saves, pool: Arc::default() })
    }

    /// Adds a process, whose `number` is unique in the recording. `names` creates the symbolizer
    /// for its addresses, which sends its answers through the given [`AnswerSender`].
    pub(crate) fn join(
        &self,
        number: ProcessNumber,
        pid: i32,
        names: impl FnOnce(AnswerSender) -> io::Result<FrameNames>,
    ) -> io::Result<Writer> {
        let queue = self.queue.0.clone();
        let (back, blanks) = sync_channel(BLANKS);
        let pool = Arc::clone(&self.pool);
        let names = names(AnswerSender { number, queue: queue.clone(), pool })?;
        let process = Box::new(WriterProcess::new(pid as u32, names, back));
        // A closed queue means a failed writer; `finish` returns the error.
        let _ = queue.send(Message::Join(number, process));
        let (shared, saves) = (Arc::clone(&self.shared), self.saves.clone());
        let samples_sent = Arc::default();
        Ok(Writer { number, queue, blanks, shared, saves, samples_sent })
    }

    /// Ends the thread after it has written everything that is queued. All processes have left.
    pub(crate) fn finish(self) -> Finished {
        // Open questions for names ended with the processes that asked them.
        drop((self.queue, self.pool));
        let mut finished = self.thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
        // Relaxed: no process sends any more, see above.
        let sent = self.shared.samples.load(Ordering::Relaxed);
        let WrittenTotals { unattributed, left_out, .. } = finished.totals();
        let known = finished.writer.samples() + unattributed + left_out;
        // After a failure, nobody takes what is sent.
        finished.writer.count_unwritten(sent.saturating_sub(known));
        finished
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A closed queue means a failed writer, which no longer has the process.
        let _ = self.queue.send(Message::Leave(self.number));
    }
}

impl Writer {
    /// Makes the writer add the samples that it is sent to a counter.
    pub(crate) fn counted_in(mut self, samples_sent: Arc<AtomicU64>) -> Self {
        self.samples_sent = samples_sent;
        self
    }

    /// Returns an empty batch that nobody shares. It reuses the memory of a written batch if one is
    /// available.
    pub(crate) fn blank(&self) -> Arc<Batch> {
        self.blanks.try_recv().unwrap_or_default()
    }

    /// Sends a batch. Waits while the queue is full.
    pub(crate) fn send(&self, batch: Arc<Batch>) {
        // Relaxed: a concurrent add by another process makes this one wait for its turn at worst.
        self.shared.queued.fetch_add(1, Ordering::Relaxed);
        // Relaxed: a count, see `Ledger`.
        self.samples_sent.fetch_add(batch.samples.len() as u64, Ordering::Relaxed);
        // Relaxed: read after the process has left.
        self.shared.samples.fetch_add(batch.samples.len() as u64, Ordering::Relaxed);
        // A closed queue means a failed writer; `finish` returns the error.
        let _ = self.queue.send(Message::Batch(self.number, batch));
    }

    /// Sends the current mappings.
    pub(crate) fn send_addresses(&self, addresses: Arc<AddressMap>) {
        let mut shared = self.blank();
        Arc::make_mut(&mut shared).addresses = Some(addresses);
        self.send(shared);
    }

    /// Adds an entry to the metadata, and flushes it so that others can read it at once.
    pub(crate) fn note(&self, key: String, value: Value) {
        let mut shared = self.blank();
        let batch = Arc::make_mut(&mut shared);
        batch.metadata.insert(key, value);
        batch.flush = true;
        self.send(shared);
    }

    /// Returns a handle to the totals of this process.
    pub(crate) fn tally(&self) -> Tally {
        Tally { number: self.number, shared: Arc::clone(&self.shared) }
    }

    /// Requests a save of the ring.
    pub(crate) fn save(&self) {
        // A closed queue means a failed writer; `finish` returns the error.
        let _ = self.queue.send(Message::Save);
    }

    /// Takes the finished saves that no process has reported yet.
    pub(crate) fn saved(&self) -> Vec<SavedTrace> {
        self.saves.take_new()
    }

    /// Whether the next batch would have to wait. A caller with other work leaves the samples in
    /// the storage then.
    pub(crate) fn is_busy(&self) -> bool {
        // Relaxed: see `send`; a batch that the thread takes meanwhile makes room.
        self.shared.queued.load(Ordering::Relaxed) >= QUEUE
    }

    /// Whether everything that was sent is written.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release in `Work::run`; makes `has_backlog` visible.
        self.shared.queued.load(Ordering::Acquire) == 0
            // Relaxed: ordered by the load above, or by a later message.
            && !self.shared.has_backlog.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes written so far, of both files and all processes.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: only displayed.
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Whether writing has failed, so that the recording should end.
    pub(crate) fn has_failed(&self) -> bool {
        // Relaxed: see `start`.
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Whether the files are about to reach their limit, so that the recording should end.
    pub(crate) fn is_full(&self) -> bool {
        // Relaxed: see `Work::run`.
        self.shared.full.load(Ordering::Relaxed)
    }
}

/// Sends the answers of symbolizers to the writer thread.
pub(crate) struct AnswerSender {
    number: ProcessNumber,
    queue: SyncSender<Message>,
    pool: Arc<Mutex<Option<Arc<SymbolizerPool>>>>,
}

impl AnswerSender {
    /// Starts finding names for the process `pid`, with answers through this sender.
    pub(crate) fn names(self, pid: i32) -> io::Result<FrameNames> {
        let pool = self.pool()?;
        FrameNames::start(pid, pool, move |answer| self.send(answer))
    }

    /// Finds the names of files alone, with answers through this sender.
    pub(crate) fn names_of_files(self) -> io::Result<FrameNames> {
        let symbolizers = Symbolizers::over(self.pool()?, move |answer| self.send(answer));
        Ok(FrameNames::of(symbolizers, JitNames::unread()))
    }

    /// Returns the threads that find names; the first call starts them.
    fn pool(&self) -> io::Result<Arc<SymbolizerPool>> {
        // A panic under the lock cannot leave the value half changed.
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        Ok(Arc::clone(pool.insert(SymbolizerPool::start()?)))
    }

    /// Sends an answer. Returns false if the writer thread has ended.
    fn send(&self, answer: SymbolAnswer) -> bool {
        self.queue.send(Message::SymbolAnswer(self.number, answer)).is_ok()
    }
}

/// A trace with everything written except its end, or as much as could be written.
pub(crate) struct Finished {
    writer: TraceSeries,
    /// The totals by process number.
    totals: BTreeMap<ProcessNumber, WrittenTotals>,
    /// The sum of the totals that are not kept by process.
    rest: WrittenTotals,
    /// The stacks of the traces that are kept to the end.
    stacks: HashMap<u64, Stack>,
    error: Option<TraceError>,
}

/// The closed files of a recording.
pub(crate) struct Closed {
    /// The figures of their content.
    pub(crate) written: Written,
    /// The data files that are kept of a recording in parts, and the number of all parts written.
    pub(crate) parts: (Vec<PathBuf>, u32),
    /// The saves of a ring.
    pub(crate) saves: Vec<SavedTrace>,
    /// Whether the content of the ring at the end was dropped.
    pub(crate) is_dropped: bool,
    /// The error that cut the files short.
    pub(crate) error: Option<TraceError>,
}

impl Finished {
    /// Returns the totals of all processes.
    pub(crate) fn totals(&self) -> WrittenTotals {
        let mut sum = self.rest.clone();
        self.totals.values().for_each(|totals| sum.add(totals));
        sum
    }

    /// Returns the totals of one process; `None` if it never joined, or is part of the sum.
    pub(crate) fn totals_of(&self, number: ProcessNumber) -> Option<&WrittenTotals> {
        self.totals.get(&number)
    }

    /// Drops what is left in a ring instead of saving it.
    pub(crate) fn drop_rest(&mut self) {
        // After a failed write the parts are kept, so that the user can make room and read them.
        if self.error.is_none() {
            self.writer.drop_rest();
        }
    }

    /// Writes the closing metadata, the heaviest call traces as objects, and the end of both files.
    /// After a failure it writes as much as the reserved space permits.
    pub(crate) fn close(mut self, metadata: Metadata, heaviest: &[Heavy]) -> Closed {
        // Fails for a value that the format cannot hold, or for the output.
        let told = self.writer.set_closing(metadata);
        let told = told.and_then(|()| {
            let known = |it: &Heavy| Some((it.id, self.stacks.get(&it.id)?));
            heaviest.iter().filter_map(known).try_for_each(|(trace_id, stack)| {
                let (end_reason, stack) = (stack.end_reason(), stack.locations.to_vec());
                self.writer.call_trace(&CallTrace { trace_id, stack, end_reason })
            })
        });
        let error = self.error.or(told.err());
        let parts = self.writer.parts();
        let saves = self.writer.saves();
        let finished = self.writer.finish();
        let (saves, is_dropped) = (saves.all(), saves.is_dropped());
        match finished {
            Ok(written) => Closed { written, parts, saves, is_dropped, error },
            Err(TraceError::CutShort { path, source, kept, lost_samples, closed }) => {
                // This error says more than an earlier one.
                let error = TraceError::CutShort { path, source, kept, lost_samples, closed };
                Closed { written: kept, parts, saves, is_dropped, error: Some(error) }
            }
            Err(end) => {
                let (written, error) = (Written::default(), error.or(Some(end)));
                Closed { written, parts, saves, is_dropped, error }
            }
        }
    }
}

#[cfg(test)]
mod tests;
