//! The state that all processes of a recording share: the trace, the ids in it, and the request to
//! end.
//!
//! # Invariants
//! - The files are created after the first attach, so that a refused one leaves nothing behind.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::fault::{self, FaultPoint};
use crate::record::batch::process::ProcessNumber;
use crate::record::contract::error::{RecordError, failed};
use crate::record::contract::options::Options;
use crate::record::contract::sampling::{Choice, Setup};
use crate::record::contract::stop::StopCondition;
use crate::record::name::contexts::TagNames;
use crate::record::name::frames::FrameNames;
use crate::record::run::failed::Failed;
use crate::record::run::opened::OpenedProcess;
use crate::record::run::opening;
use crate::record::run::unattached::Unattached;
use crate::record::source::machine_tasks::MachineTasks;
use crate::record::store::trace_ids::Instances;
use crate::record::target::attach::Attached;
use crate::record::target::modules::ModuleFiles;
use crate::record::target::stop_turns::StopTurns;
use crate::record::weigh::overhead::Ledger;
use crate::record::write::output;
use crate::record::write::trigger::SharedTriggers;
use crate::record::write::writer::{AnswerSender, Finished, Writer, WriterThread};
use crate::trace::{FIRST_PROCESS_START, Value};

/// The state that all processes of a recording share.
pub(crate) struct CommonState<'a> {
    /// The options of the recording.
    pub(crate) options: &'a Options,
    /// The request to end the recording.
    pub(crate) stop: Arc<StopCondition>,
    /// The ids of call traces.
    pub(crate) instances: Arc<Instances>,
    /// The names of tags.
    pub(crate) tags: Arc<TagNames>,
    /// The turns in which processes are stopped.
    pub(crate) turns: Arc<StopTurns>,
    /// What threads of the machine do.
    pub(crate) tasks: Arc<MachineTasks>,
    /// The files that the processes have mapped.
    pub(crate) files: Arc<ModuleFiles>,
    /// The state that the triggers of all processes share.
    pub(crate) triggers: Arc<SharedTriggers>,
    /// Charges the recorder's CPU time to the processes.
    pub(crate) ledger: Arc<Ledger>,
    /// Whether the recording may have several processes.
    pub(crate) is_several: bool,
    /// The descendants that have no agent.
    pub(crate) unattached: Unattached,
    /// The number of the last process.
    last_number: AtomicU32,
    /// How the first process is sampled, once the trace exists.
    first: OnceLock<(Setup, Choice)>,
    /// The writer thread, once the trace exists, and when the first process started, in ticks
    /// since boot.
    writing: Mutex<Option<(WriterThread, u64)>>,
    /// The options with the trace's final name, once that is known.
    named: OnceLock<Options>,
}

impl<'a> CommonState<'a> {
    /// Creates the state, before the first attach.
    pub(crate) fn new(options: &'a Options, stop: Arc<StopCondition>, is_several: bool) -> Self {
        let (instances, tags, ledger, writing, named) = Default::default();
        let triggers = Arc::new(SharedTriggers::new(&options.triggers));
        Self {
            options,
            stop,
            instances,
            tags,
            turns: Arc::default(),
            tasks: Arc::default(),
            files: Arc::new(ModuleFiles::new(is_several)),
            triggers,
            ledger,
            is_several,
            unattached: Unattached::default(),
            last_number: AtomicU32::new(0),
            first: OnceLock::new(),
            writing,
            named,
        }
    }

    /// Returns the number of another process.
    pub(crate) fn next_number(&self) -> ProcessNumber {
        // Relaxed: the number only has to be unique.
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns how the first process is sampled, once the trace exists.
    pub(crate) fn first(&self) -> Option<&(Setup, Choice)> {
        self.first.get()
    }

    /// Returns a writer for a process without an agent, with its number; `None` without a trace.
    pub(crate) fn join_unattached(&self, pid: i32) -> Option<(ProcessNumber, Writer)> {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (writing, _) = writing.as_ref()?;
        let number = self.next_number();
        Some((number, writing.join(number, pid, AnswerSender::names_of_files).ok()?))
    }

    /// Returns a writer for a process that has been attached to. The first call creates the trace.
    pub(crate) fn join(
        &self,
        number: ProcessNumber,
        (opened, attached): (&OpenedProcess, &Attached<'_>),
        names: impl FnOnce(AnswerSender) -> io::Result<FrameNames>,
    ) -> Result<Writer, RecordError> {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let start = opened.start_time;
        let (writing, first_start) = match &mut *writing {
            Some(writing) => writing,
            none => {
                // The first process decides the trace's name, if the pattern depends on it.
                let options = output::named(self.options, opened.pid)?.into_owned();
                let options = self.named.get_or_init(|| options);
                let writer = opening::create(options, opened, attached)?;
                fault::at(FaultPoint::RecordWriting);
                let _ = self.first.set((attached.setup, attached.choice.clone()));
                none.insert((WriterThread::start(writer).map_err(no_thread)?, start))
            }
        };
        let writer = writing.join(number, opened.pid, names).map_err(no_thread)?;
        if start < *first_start {
            *first_start = start;
            let start_ns = opening::start_realtime_ns(start);
            writer.note(FIRST_PROCESS_START.to_owned(), Value::Unsigned(start_ns));
        }
        Ok(writer.counted_in(self.ledger.handed_over(number)))
    }

    /// Wraps an error that ends this attempt to record.
    pub(crate) fn failed(&self, error: RecordError) -> Failed {
        Failed { error, has_begun: self.named.get().is_some() }
    }

    /// Returns the options, with the trace's name if that is known.
    pub(crate) fn named(&self) -> &Options {
        self.named.get().unwrap_or(self.options)
    }

    /// Writes everything that is queued, after all processes have left. Returns `None` if no trace
    /// was created.
    pub(crate) fn finish(&self) -> Option<Finished> {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner).take();
        writing.map(|(writer, _)| writer.finish())
    }
}

fn no_thread(error: io::Error) -> RecordError {
    failed("starting a thread of the recorder", error)
}
