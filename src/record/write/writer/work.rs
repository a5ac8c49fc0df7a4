//! The work of the writer thread: it takes batches of all processes and writes one trace.
//!
//! # Invariants
//! - The thread waits for nothing but the next message.
//! - Once everything of a process that has left is written, only its totals are kept, and the
//!   stacks to keep to the end.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use crate::record::batch::process::ProcessNumber;
use crate::record::write::writer::process::{Stack, WriterProcess};
use crate::record::write::writer::{Finished, Message, WriterStatus, WrittenTotals};
use crate::trace::{TraceError, TraceSeries};

/// The state and the work of the writer thread.
pub(super) struct Work {
    writer: TraceSeries,
    /// The most memory of batches that wait for names, of all processes, in bytes.
    room: usize,
    pub(super) processes: BTreeMap<ProcessNumber, WriterProcess>,
    /// The totals of processes that have left.
    totals: BTreeMap<ProcessNumber, WrittenTotals>,
    /// Processes whose totals are needed only as part of the sum, and are not in it yet.
    summed: BTreeSet<ProcessNumber>,
    /// The sum.
    rest: WrittenTotals,
    kept: HashMap<u64, Stack>,
    /// Pending saves of a ring. Each waits for the batches of these processes up to these marks.
    saves: VecDeque<Vec<(ProcessNumber, u64)>>,
    /// Whether no further batch comes.
    is_ending: bool,
}

impl Work {
    pub(super) fn new(writer: TraceSeries, room: usize) -> Self {
        Self {
            writer,
            room,
            processes: BTreeMap::new(),
            totals: BTreeMap::new(),
            summed: BTreeSet::new(),
            rest: WrittenTotals::default(),
            kept: HashMap::new(),
            saves: VecDeque::new(),
            is_ending: false,
        }
    }

    pub(super) fn run(mut self, messages: &Receiver<Message>, shared: &WriterStatus) -> Finished {
        let mut error = None;
        // At the end, batches may still wait for an answer with names.
        while error.is_none()
            && (!self.is_ending || self.has_backlog())
            && let Ok(message) = messages.recv()
        {
            let is_batch = matches!(message, Message::Batch(..));
            let taken = self.take(message);
            error = taken.and_then(|()| self.write_all()).err();
            self.sum_up(shared.summed());
            let (data, index) = self.writer.bytes_written();
            // Relaxed: only displayed.
            shared.bytes.store(data + index, Ordering::Relaxed);
            // Relaxed: requests the end, which may come a little later. `has_backlog` is ordered by
            // the Release below.
            shared.full.store(self.writer.is_full(), Ordering::Relaxed);
            shared.has_backlog.store(self.has_backlog(), Ordering::Relaxed);
            if is_batch {
                // Release: pairs with the Acquire in `Writer::is_idle`.
                shared.queued.fetch_sub(1, Ordering::Release);
            }
        }
        self.forget(|_| true);
        self.sum_up(shared.summed());
        let Self { writer, totals, rest, kept, .. } = self;
        Finished { writer, totals, rest, stacks: kept, error }
    }

    pub(super) fn has_backlog(&self) -> bool {
        self.processes.values().any(|process| !process.backlog.is_empty())
    }

    /// Handles a message. For a process that is forgotten, it can only be an answer that came too
    /// late.
    pub(super) fn take(&mut self, message: Message) -> Result<(), TraceError> {
        match message {
            Message::Join(number, process) => _ = self.processes.insert(number, *process),
            Message::Batch(number, batch) => {
                if let Some(process) = self.processes.get_mut(&number) {
                    process.take(batch);
                }
            }
            Message::SymbolAnswer(number, Ok(answer)) => {
                if let Some(process) = self.processes.get_mut(&number) {
                    process.names.learn(&mut self.writer, &answer)?;
                }
            }
            Message::SymbolAnswer(_, Err(panic)) => panic::resume_unwind(panic),
            Message::Leave(number) => {
                if let Some(process) = self.processes.get_mut(&number) {
                    process.has_left = true;
                }
            }
            Message::Save => {
                let mark = |(number, process): (&ProcessNumber, &WriterProcess)| {
                    (*number, process.backlog.mark())
                };
                self.saves.push_back(self.processes.iter().map(mark).collect());
            }
            Message::End => self.is_ending = true,
        }
        Ok(())
    }

    /// Writes the batches that need not wait. Beyond the memory limit, also writes the oldest
    /// batches of the process with the largest backlog.
    pub(super) fn write_all(&mut self) -> Result<(), TraceError> {
        for process in self.processes.values_mut() {
            process.write_ready(&mut self.writer)?;
        }
        loop {
            let waiting: usize = self.processes.values().map(|it| it.backlog.bytes()).sum();
            if waiting <= self.room {
                break;
            }
            let most = self.processes.values_mut().max_by_key(|it| it.backlog.bytes());
            let Some(process) = most else { break };
            process.write_oldest(&mut self.writer)?;
            process.write_ready(&mut self.writer)?;
        }
        self.forget(|process| process.has_left && process.backlog.is_empty());
        self.save_ready()
    }

    /// Makes the saves whose batches are all written.
    fn save_ready(&mut self) -> Result<(), TraceError> {
        let is_done = |(number, mark): &(ProcessNumber, u64)| {
            self.processes.get(number).is_none_or(|process| process.backlog.has_passed(*mark))
        };
        while self.saves.front().is_some_and(|marks| marks.iter().all(is_done)) {
            self.saves.pop_front();
            self.writer.save()?;
        }
        Ok(())
    }

    /// Moves the totals of these processes, and of earlier ones that have left by now, to the sum.
    fn sum_up(&mut self, more: Vec<ProcessNumber>) {
        self.summed.extend(more);
        let (totals, rest) = (&mut self.totals, &mut self.rest);
        self.summed.retain(|number| match totals.remove(number) {
            Some(its) => {
                rest.add(&its);
                false
            }
            None => true,
        });
    }

    /// Drops the state of processes, except what the end of the trace needs.
    fn forget(&mut self, may_go: impl Fn(&WriterProcess) -> bool) {
        let gone: Vec<ProcessNumber> =
            self.processes.iter().filter(|it| may_go(it.1)).map(|it| *it.0).collect();
        for number in gone {
            if let Some(process) = self.processes.remove(&number) {
                self.totals.insert(number, process.totals());
                self.kept.extend(process.kept);
            }
        }
    }
}
