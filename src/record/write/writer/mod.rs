//! The thread that writes, so that no collector waits for a disk or for a debug file.
//!
//! It is one for all processes of a recording; each has a [`Writer`], its way to the thread. Names
//! are found by other threads. A batch with addresses that have none yet waits for them, and with
//! it those of the same process that come after it: calls are inferred from the samples of a thread
//! in their order. Collecting goes on meanwhile, and so do the other processes.
//!
//! # Invariants
//! - The queue is bounded: when writing falls behind, collecting waits, tables and buffers fill,
//!   and what does not fit is counted by the handlers and by the kernel. Only collecting waits:
//!   the recorder goes on watching the target.
//! - Batches that wait for names have so much memory at most ([`backlog::Backlog`]); the oldest are
//!   written without them then. An address that has no name yet is written as its module and its
//!   function's start there, is counted, and has its name in traces that are new when that is
//!   known.
//! - A trace is resolved once, with the mappings of the time when it was new, and its stack is kept
//!   as long as collections have it: samples may refer to it at any time until then. The heaviest
//!   ones are kept to the end, which their program may be long gone by.

use crate::record::batch::process::Number;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::{io, panic};

use traceprof_abi::storage::log::{Sample, flags};
use traceprof_abi::unwind::EndReason;

use crate::record::batch::rotation::Batch;
use crate::record::name::frames::FrameNames;
use crate::record::name::jvm::MapRequests;
use crate::record::name::symbolizers::{SymbolAnswer, SymbolizerPool};
use crate::record::store::liveness::Heavy;
use crate::record::target::modules::AddressMap;
use crate::trace::{CallTrace, Metadata, Saved, Saves, TraceError, TraceSeries, Value, Written};

mod backlog;
mod process;
mod work;

use self::process::{Process, Stack};
use self::work::Work;

/// Batches in the queue; at the usual rotation a few seconds' worth.
const QUEUE: usize = 64;
/// Written batches whose memory is kept for the next ones.
const BLANKS: usize = 4;

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Samples.
    pub(crate) samples: u64,
    /// Sum of their weights.
    pub(crate) weight: u64,
    /// Samples by end reason, in the order of [`EndReason::ALL`].
    pub(crate) reasons: [u64; EndReason::ALL.len()],
    /// Samples of time that threads did not run, which are in none of these, and those of them
    /// whose stack reached the root.
    pub(crate) wall: (u64, u64),
    /// Threads that have samples.
    pub(crate) threads: u64,
    /// Samples of a thread that was never told of: not written.
    pub(crate) unattributed: u64,
    /// Addresses that were written before their names were known.
    pub(crate) unnamed: u64,
    /// Samples that were left out because the files had reached their limit.
    pub(crate) left_out: u64,
}

impl Totals {
    /// Adds those of another process.
    fn add(&mut self, other: &Self) {
        // All by name: one that is new cannot be forgotten here.
        let Self { samples, weight, reasons, wall, threads, unattributed, unnamed, left_out } =
            other;
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

/// What comes to the thread.
enum Message {
    /// A process joins.
    Join(Number, Box<Process>),
    /// Samples of a process, and what they refer to.
    Batch(Number, Arc<Batch>),
    /// Names in a process.
    SymbolAnswer(Number, SymbolAnswer),
    /// Nothing more comes of a process.
    Leave(Number),
    /// What is in the ring is to be saved.
    Save,
    /// Nothing more comes.
    End,
}

/// The way to the thread, which ends when it is gone and all is written.
struct Queue(SyncSender<Message>);

impl Drop for Queue {
    fn drop(&mut self) {
        // A closed queue is a failed writer; `finish` tells why.
        let _ = self.0.send(Message::End);
    }
}

/// The thread, as long as processes may join and leave.
pub(crate) struct Writing {
    queue: Queue,
    thread: JoinHandle<Finished>,
    shared: Arc<Shared>,
    saves: Saves,
    /// What finds names, for all processes; since there is one.
    pool: Arc<Mutex<Option<Arc<SymbolizerPool>>>>,
}

/// A process's way to the thread. Nothing more comes of the process when it is dropped.
pub(crate) struct Writer {
    number: Number,
    queue: SyncSender<Message>,
    blanks: Receiver<Arc<Batch>>,
    shared: Arc<Shared>,
    saves: Saves,
    /// Samples that were handed over, for who wants to know.
    handed: Arc<AtomicU64>,
}

/// What the processes know of the thread.
#[derive(Default)]
struct Shared {
    /// Batches sent that the thread is not done with: written, or put to those that wait for names.
    queued: AtomicUsize,
    /// Batches wait for names.
    has_backlog: AtomicBool,
    bytes: AtomicU64,
    failed: AtomicBool,
    /// The files are about to reach their limit.
    full: AtomicBool,
    /// Processes of which nobody will want the totals by themselves.
    summed: Mutex<Vec<Number>>,
}

impl Shared {
    fn summed(&self) -> Vec<Number> {
        // Numbers, each of which is right by itself.
        std::mem::take(&mut self.summed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The totals of a process, wherever they are.
#[derive(Default)]
pub(crate) struct Tally {
    number: Number,
    shared: Arc<Shared>,
}

impl Tally {
    /// Has them kept in the sum of such processes only.
    pub(crate) fn sum_up(&self) {
        // As in `Shared::summed`.
        self.shared.summed.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

impl Writing {
    /// Starts the thread over an open trace.
    pub(crate) fn start(writer: TraceSeries) -> io::Result<Self> {
        Self::with_room(backlog::ROOM, writer)
    }

    fn with_room(room: usize, writer: TraceSeries) -> io::Result<Self> {
        let (queue, messages) = sync_channel(QUEUE);
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let saves = writer.saves();
        let work = move || {
            let finished = Work::new(writer, room).run(&messages, &theirs);
            if finished.error.is_some() {
                // Relaxed: the error itself comes with the join.
                theirs.failed.store(true, Ordering::Relaxed);
            }
            finished
        };
        let thread = std::thread::Builder::new().name("writer".to_string()).spawn(work)?;
        Ok(Self { queue: Queue(queue), thread, shared, saves, pool: Arc::default() })
    }

    /// The way for a process, which no other one of the recording has the `number` of. Its
    /// addresses are resolved by what `names` makes of the way for its answers.
    pub(crate) fn join(
        &self,
        number: Number,
        pid: i32,
        names: impl FnOnce(Answers) -> io::Result<FrameNames>,
    ) -> io::Result<Writer> {
        let queue = self.queue.0.clone();
        let (back, blanks) = sync_channel(BLANKS);
        let pool = Arc::clone(&self.pool);
        let names = names(Answers { number, queue: queue.clone(), pool })?;
        let process = Box::new(Process::new(pid as u32, names, back));
        // A closed queue is a failed writer; `finish` tells why.
        let _ = queue.send(Message::Join(number, process));
        let (shared, saves) = (Arc::clone(&self.shared), self.saves.clone());
        let handed = Arc::default();
        Ok(Writer { number, queue, blanks, shared, saves, handed })
    }

    /// Ends the thread and waits for what is queued. All processes have left.
    pub(crate) fn finish(self) -> Finished {
        // What is still asked ends with the processes that asked.
        drop((self.queue, self.pool));
        self.thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A closed queue is a failed writer, which has forgotten the process.
        let _ = self.queue.send(Message::Leave(self.number));
    }
}

impl Writer {
    /// The same, which counts there what is handed over.
    pub(crate) fn counted_in(mut self, handed: Arc<AtomicU64>) -> Self {
        self.handed = handed;
        self
    }

    /// An empty batch that nobody else has; in memory that a written one had, if there is any.
    pub(crate) fn blank(&self) -> Arc<Batch> {
        self.blanks.try_recv().unwrap_or_default()
    }

    /// Hands over a batch; waits while the queue is full.
    pub(crate) fn send(&self, batch: Arc<Batch>) {
        // Relaxed: what another process adds at the same time makes this one wait for its turn at
        // worst.
        self.shared.queued.fetch_add(1, Ordering::Relaxed);
        // Relaxed: a count, see `Ledger`.
        self.handed.fetch_add(batch.samples.len() as u64, Ordering::Relaxed);
        // A closed queue is a failed writer; `finish` tells why.
        let _ = self.queue.send(Message::Batch(self.number, batch));
    }

    /// Hands over what is mapped.
    pub(crate) fn send_addresses(&self, addresses: Arc<AddressMap>) {
        let mut shared = self.blank();
        Arc::make_mut(&mut shared).addresses = Some(addresses);
        self.send(shared);
    }

    /// Says something of the recording, readable by others at once.
    pub(crate) fn note(&self, key: String, value: Value) {
        let mut shared = self.blank();
        let batch = Arc::make_mut(&mut shared);
        batch.metadata.insert(key, value);
        batch.flush = true;
        self.send(shared);
    }

    /// Its totals.
    pub(crate) fn tally(&self) -> Tally {
        Tally { number: self.number, shared: Arc::clone(&self.shared) }
    }

    /// Has what is in the ring saved.
    pub(crate) fn save(&self) {
        // A closed queue is a failed writer; `finish` tells why.
        let _ = self.queue.send(Message::Save);
    }

    /// What was saved that no process has told of.
    pub(crate) fn saved(&self) -> Vec<Saved> {
        self.saves.news()
    }

    /// The next batch would have to wait. Who has other duties leaves the samples where they are.
    pub(crate) fn is_busy(&self) -> bool {
        // Relaxed: see `send`; a batch that is taken out meanwhile makes room.
        self.shared.queued.load(Ordering::Relaxed) >= QUEUE
    }

    /// All that was sent is written.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release in `Work::run`; whether batches wait is visible.
        self.shared.queued.load(Ordering::Acquire) == 0
            // Relaxed: ordered by the load above, or by what is sent later.
            && !self.shared.has_backlog.load(Ordering::Relaxed)
    }

    /// Bytes written so far, both files, of all processes.
    pub(crate) fn bytes(&self) -> u64 {
        // Relaxed: for the eye.
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Writing has failed: the recording should end.
    pub(crate) fn has_failed(&self) -> bool {
        // Relaxed: see `start`.
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// The files are about to reach their limit: the recording should end.
    pub(crate) fn is_full(&self) -> bool {
        // Relaxed: see `Work::run`.
        self.shared.full.load(Ordering::Relaxed)
    }
}

/// The way for answers of symbolizers.
#[derive(Clone)]
pub(crate) struct Answers {
    number: Number,
    queue: SyncSender<Message>,
    pool: Arc<Mutex<Option<Arc<SymbolizerPool>>>>,
}

impl Answers {
    /// Names of the process `pid` whose answers come this way.
    pub(crate) fn names(self, pid: i32, written: Arc<MapRequests>) -> io::Result<FrameNames> {
        let pool = self.pool()?;
        FrameNames::start(pid, written, pool, move |answer| self.send(answer))
    }

    /// The threads that find names: the first who asks starts them.
    fn pool(&self) -> io::Result<Arc<SymbolizerPool>> {
        // Nothing is done under the lock that could leave it half changed.
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        Ok(Arc::clone(pool.insert(SymbolizerPool::start()?)))
    }

    /// Hands over an answer; false if nobody waits for it any more.
    fn send(&self, answer: SymbolAnswer) -> bool {
        self.queue.send(Message::SymbolAnswer(self.number, answer)).is_ok()
    }
}

/// Everything is written but the end, or as much as could be.
pub(crate) struct Finished {
    writer: TraceSeries,
    /// By the numbers of the processes,
    totals: BTreeMap<Number, Totals>,
    /// and of those that are in a sum.
    rest: Totals,
    /// Of the traces that were to be kept to the end.
    stacks: HashMap<u64, Stack>,
    error: Option<TraceError>,
}

/// The files as they are in the end.
pub(crate) struct Closed {
    /// What they hold.
    pub(crate) written: Written,
    /// The data files that are kept of a recording in parts, and how many there were.
    pub(crate) parts: (Vec<PathBuf>, u32),
    /// What was saved of a ring.
    pub(crate) saves: Vec<Saved>,
    /// What was in the ring at the end was not.
    pub(crate) is_dropped: bool,
    /// What could not be written to them.
    pub(crate) error: Option<TraceError>,
}

impl Finished {
    /// What was handed to the writer.
    pub(crate) fn totals(&self) -> Totals {
        let mut sum = self.rest.clone();
        self.totals.values().for_each(|totals| sum.add(totals));
        sum
    }

    /// Of it, what is of one process; `None` if that never joined, or is in a sum.
    pub(crate) fn totals_of(&self, number: Number) -> Option<&Totals> {
        self.totals.get(&number)
    }

    /// What is left in a ring will not be saved.
    pub(crate) fn drop_rest(&mut self) {
        // What could not be written is kept for who makes room.
        if self.error.is_none() {
            self.writer.drop_rest();
        }
    }

    /// Writes the closing metadata, the heaviest call traces as objects, and the end of both files;
    /// after a failure too, as far as the reserve goes.
    pub(crate) fn close(mut self, metadata: Metadata, heaviest: &[Heavy]) -> Closed {
        // Fails for a value that the format cannot hold, or for the output.
        let told = self.writer.set_closing(metadata);
        let told = told.and_then(|()| {
            let known = |it: &Heavy| Some((it.id, self.stacks.get(&it.id)?));
            heaviest.iter().filter_map(known).try_for_each(|(trace_id, stack)| {
                let (end_reason, stack) = (stack.end_reason, stack.locations.to_vec());
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
                // It says more than the error that it came with.
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
