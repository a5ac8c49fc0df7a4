//! What the writer thread does: batches of all processes in, one trace out.
//!
//! # Invariants
//! - Nothing here waits but for the next message.
//! - Of a process that has left nothing is kept, when all of it is written, but its totals and the
//!   stacks that were to be kept to the end.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError};
use std::time::Instant;

use crate::record::batch::process::Number;
use crate::record::write::writer::process::{Process, Stack};
use crate::record::write::writer::{Finished, Message, Shared, Totals};
use crate::trace::{TraceError, TraceSeries};

/// What the thread has and does.
pub(super) struct Work {
    writer: TraceSeries,
    /// Memory that batches of all processes may have that wait for names.
    room: usize,
    pub(super) processes: BTreeMap<Number, Process>,
    /// Those of processes that have left.
    totals: BTreeMap<Number, Totals>,
    /// Processes whose totals are wanted in a sum only, and are not in it yet,
    summed: BTreeSet<Number>,
    /// and the sum.
    rest: Totals,
    kept: HashMap<u64, Stack>,
    /// Saves of a ring that wait for batches of these processes, up to these marks, which belong to
    /// them.
    saves: VecDeque<Vec<(Number, u64)>>,
    /// No batch comes any more.
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
            rest: Totals::default(),
            kept: HashMap::new(),
            saves: VecDeque::new(),
            is_ending: false,
        }
    }

    pub(super) fn run(mut self, messages: &Receiver<Message>, shared: &Shared) -> Finished {
        let mut error = None;
        // A batch that waits at the end waits for an answer.
        while error.is_none()
            && (!self.is_ending || self.has_backlog())
            && let Ok(message) = self.receive(messages)
        {
            let is_batch = matches!(message, Some(Message::Batch(..)));
            let taken = message.map_or(Ok(()), |message| self.take(message));
            let now = Instant::now();
            self.processes.values_mut().for_each(|process| process.names.expire(now));
            error = taken.and_then(|()| self.write_all()).err();
            self.sum_up(shared.summed());
            let (data, index) = self.writer.bytes_written();
            // Relaxed, both: for the eye, and ordered by the store below.
            shared.bytes.store(data + index, Ordering::Relaxed);
            // Relaxed: asks for an end, which comes a little later in any case.
            shared.full.store(self.writer.is_full(), Ordering::Relaxed);
            shared.has_backlog.store(self.has_backlog(), Ordering::Relaxed);
            if is_batch {
                // Release: pairs with the Acquire in `Writer::is_idle`.
                shared.queued.fetch_sub(1, Ordering::Release);
            }
        }
        self.let_go(|_| true);
        self.sum_up(shared.summed());
        let Self { writer, totals, rest, kept, .. } = self;
        Finished { writer, totals, rest, stacks: kept, error }
    }

    pub(super) fn has_backlog(&self) -> bool {
        self.processes.values().any(|process| !process.backlog.is_empty())
    }

    /// The next message; `None` if a runtime is waited for no more.
    fn receive(&self, messages: &Receiver<Message>) -> Result<Option<Message>, RecvError> {
        let deadlines = self.processes.values().filter_map(|process| process.names.deadline());
        let Some(deadline) = deadlines.min() else { return messages.recv().map(Some) };
        match messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(RecvError),
        }
    }

    /// Takes a message in. What comes of a process that is not there any more is an answer that
    /// nobody waits for.
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
                let mark =
                    |(number, process): (&Number, &Process)| (*number, process.backlog.mark());
                self.saves.push_back(self.processes.iter().map(mark).collect());
            }
            Message::End => self.is_ending = true,
        }
        Ok(())
    }

    /// Writes the batches that need not wait, and those that there is no room for: of the process
    /// that has most of them.
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
        self.let_go(|process| process.has_left && process.backlog.is_empty());
        self.save_ready()
    }

    /// Saves the ring for whom all is written that there was when it was asked for.
    fn save_ready(&mut self) -> Result<(), TraceError> {
        let is_done = |(number, mark): &(Number, u64)| {
            self.processes.get(number).is_none_or(|process| process.backlog.has_passed(*mark))
        };
        while self.saves.front().is_some_and(|marks| marks.iter().all(is_done)) {
            self.saves.pop_front();
            self.writer.save()?;
        }
        Ok(())
    }

    /// Adds up the totals of these and of those before that had not left.
    fn sum_up(&mut self, more: Vec<Number>) {
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

    /// Forgets processes, but for what the end wants to know of them.
    fn let_go(&mut self, may_go: impl Fn(&Process) -> bool) {
        let gone: Vec<Number> =
            self.processes.iter().filter(|it| may_go(it.1)).map(|it| *it.0).collect();
        for number in gone {
            if let Some(process) = self.processes.remove(&number) {
                self.totals.insert(number, process.totals());
                self.kept.extend(process.kept);
            }
        }
    }
}
