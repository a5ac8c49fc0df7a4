//! Finds the module and function of an address, and the context of a thread.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use self::contexts::{ContextStats, Contexts};
use self::java::reader::JavaCodeReader;
use self::javascript::reader::{JsReader, JsStack};
use self::managed::reader::FunctionReader;
use self::managed::thread_names::ThreadNameReader;
use self::mapping_changes::MappingChanges;
use self::reading_schedule::ReadingSchedule;
use crate::proc::{self, Mapping};
use crate::record::batch::Batch;
use crate::record::batch::mapped::Mapped;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::event::Event;
use crate::record::contract::observer::Observer;
use crate::record::store::Store;
use crate::record::store::threads::Registry;
use crate::record::target::attach::Attached;
use crate::record::target::modules::AddressMap;
use crate::runtime::java::CodeBlob;

pub(crate) mod addresses;
pub(crate) mod contexts;
pub(crate) mod frames;
pub(crate) mod java;
pub(crate) mod javascript;
pub(crate) mod jit;
pub(crate) mod kernel_functions;
pub(crate) mod managed;
pub(crate) mod mapping_changes;
pub(crate) mod outermost;
pub(crate) mod progress;
mod reading_schedule;
pub(crate) mod symbolizers;
mod timeline;

/// How often the functions of JavaScript are read for one batch, while threads end.
const READS_MAX: usize = 3;

/// Finds the code and the contexts of the samples of one program.
///
/// The names of functions come later: [`frames`] asks for them when a batch is written.
pub(crate) struct Namer<'a> {
    /// The contexts of threads: spans and tags.
    pub(crate) contexts: &'a mut Contexts,
    /// Reads the functions of runtimes.
    functions: FunctionReader,
    /// Reads the names of threads in runtimes.
    thread_names: ThreadNameReader,
    /// Reads the code of a Java machine.
    java: JavaCodeReader,
    /// Reads functions and code of JavaScript.
    javascript: JsReader,
    addresses: Arc<AddressMap>,
    changes: MappingChanges,
    schedule: ReadingSchedule,
    /// Whether the target has left the program, so that its mappings say nothing about samples.
    has_left: bool,
    /// Whether it has only left the recording, and its memory is still that of the program.
    is_program_there: bool,
}

/// Totals of the names of one program, or of several.
#[derive(Debug, Clone, Default)]
pub(crate) struct NameTotals {
    /// The number of stacks that were unwound with the tables of replaced code.
    pub(crate) corrected: u64,
    /// Counts of contexts.
    pub(crate) contexts: ContextStats,
}

impl NameTotals {
    /// Adds the totals of another program or process.
    pub(crate) fn add(&mut self, other: &Self) {
        self.corrected += other.corrected;
        self.contexts.add(&other.contexts);
    }
}

/// The result of a reading of the mappings.
pub(crate) enum MappingsRead {
    /// The mappings of the program with the agent.
    Current(Vec<Mapping>),
    /// No mappings: the process is exiting, or could not be read for another reason.
    Nothing,
    /// The agent is not mapped: the process has executed another program.
    OtherProgram,
}

impl<'a> Namer<'a> {
    /// Starts with one more reading of the mappings, before anything is sampled.
    ///
    /// The kernel reports new mappings from now on. Mappings may have been replaced without a
    /// report while the unwind tables were made.
    pub(crate) fn start(
        contexts: &'a mut Contexts,
        attached: &mut Attached<'_>,
        observer: &mut dyn Observer,
    ) -> Self {
        let began_ns = monotonic_now_ns();
        let mappings = proc::mappings(attached.pid()).unwrap_or_default();
        // The first regular reading detects another program, or a process that is exiting.
        if attached.is_mapped_in(&mappings) {
            if let Err(error) = attached.refresh(&mappings) {
                observer.event(Event::Notice(format!("unwind tables: {error}")));
            }
            let (addresses, data) = (attached.modules().current(), attached.data());
            contexts.refresh(&mappings, &addresses, data.context_sources());
        }
        let addresses = attached.modules().current();
        let mut java = JavaCodeReader::default();
        java.start(&addresses, attached.pid());
        Self {
            contexts,
            functions: FunctionReader::default(),
            thread_names: ThreadNameReader::default(),
            java,
            javascript: JsReader::default(),
            addresses,
            changes: MappingChanges::since(began_ns),
            schedule: ReadingSchedule::start(),
            has_left: false,
            is_program_there: true,
        }
    }

    /// Returns the map of the current addresses.
    pub(crate) fn addresses(&self) -> &Arc<AddressMap> {
        &self.addresses
    }

    /// Adds the kernel's reports of mappings.
    pub(crate) fn add_reports(&mut self, reports: &mut Vec<Mapped>) {
        self.changes.add_reports(reports, &self.addresses);
    }

    /// Returns whether the mappings must be read now.
    pub(crate) fn is_reading_due(&mut self) -> bool {
        self.schedule.is_due(self.changes.is_pending())
    }

    /// Makes the next reading of the mappings due soon, since they may have changed.
    pub(crate) fn hasten(&mut self) {
        self.schedule.hasten();
    }

    /// Reads the mappings, and makes unwind tables of new ones.
    pub(crate) fn read_mappings(
        &mut self,
        attached: &mut Attached<'_>,
        is_program_gone: impl Fn() -> bool,
        observer: &mut dyn Observer,
    ) -> MappingsRead {
        let (began, began_ns) = (Instant::now(), monotonic_now_ns());
        let mappings = match proc::mappings(attached.pid()) {
            Ok(mappings) => mappings,
            // The process may run another program, which this user must not read.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_program_gone() => {
                return MappingsRead::OtherProgram;
            }
            Err(_) => return MappingsRead::Nothing,
        };
        if mappings.is_empty() {
            // The process is exiting, and its memory no longer exists. The last mappings still
            // name the samples that wait.
            return MappingsRead::Nothing;
        }
        if !attached.is_mapped_in(&mappings) {
            return MappingsRead::OtherProgram;
        }
        let (before, ended_ns) = (self.addresses.epoch(), monotonic_now_ns());
        let mut has_new = false;
        match attached.refresh(&mappings) {
            Ok(Some(addresses)) => {
                self.addresses = addresses;
                has_new = true;
            }
            Ok(None) => {}
            Err(error) => observer.event(Event::Notice(format!("unwind tables: {error}"))),
        }
        self.changes.note_reading((began_ns, ended_ns), (before, self.addresses.epoch()));
        let sources = attached.data().context_sources();
        self.contexts.refresh(&mappings, &self.addresses, sources);
        self.schedule.spend(began.elapsed(), has_new);
        self.report(attached, observer);
        MappingsRead::Current(mappings)
    }

    /// Returns whether the mappings may be read before samples are located: not if the readings
    /// took too much time so far, and not if they belong to another program.
    pub(crate) fn may_read(&self) -> bool {
        !self.has_left && self.schedule.may_be_early()
    }

    /// Returns whether reports wait for a reading of the mappings.
    pub(crate) fn is_reading_wanted(&self) -> bool {
        self.changes.is_pending()
    }

    /// Notes that the target leaves the program: from now on its mappings say nothing about
    /// samples. `is_executed` says whether it runs another one now.
    pub(crate) fn leave(&mut self, is_executed: bool) {
        (self.has_left, self.is_program_there) = (true, !is_executed);
    }

    /// Reports new messages about modules and contexts.
    pub(crate) fn report(&mut self, attached: &mut Attached<'_>, observer: &mut dyn Observer) {
        let notices = std::mem::take(&mut attached.modules().notices);
        for text in notices.into_iter().chain(self.contexts.notices()) {
            observer.event(Event::Notice(text));
        }
    }

    /// Reuses what only samples in the last storage referred to.
    pub(crate) fn recycle(&mut self, attached: &mut Attached<'_>) {
        attached.modules().recycle();
        self.contexts.recycle();
    }

    /// Reads the functions that the new traces of a batch are the first to use.
    pub(crate) fn read_functions(&mut self, batch: &mut Batch, pid: i32) {
        if !self.has_left {
            self.functions.read(batch, &self.addresses.runtimes, pid);
        }
    }

    /// Reads the functions and the code of JavaScript that the traces of a batch are the first to
    /// use. The first call for a batch says so.
    pub(crate) fn read_javascript(
        &mut self,
        batch: &mut Batch,
        (pid, threads): (i32, &Registry),
        is_first: bool,
    ) {
        let is_gone = self.has_left && !self.is_program_there;
        if is_gone || self.addresses.v8.is_none() {
            return;
        }
        if is_first {
            self.javascript.begin();
        }
        let tids: HashSet<u32> = batch.samples.iter().map(|sample| sample.tid).collect();
        let ended = || -> HashSet<u32> {
            tids.iter().copied().filter(|tid| !threads.is_alive(*tid)).collect()
        };
        let mut before = ended();
        if !before.is_empty() && proc::mappings(pid).unwrap_or_default().is_empty() {
            // All has ended. What is known stays true.
            return;
        }
        for _ in 0..READS_MAX {
            if !before.is_empty() && is_first {
                self.javascript.forget(&mut batch.javascript);
            }
            self.read_javascript_beside(batch, pid, &before);
            // A thread may have ended as it was read.
            let now = ended();
            if now == before {
                return;
            }
            before = now;
        }
        self.javascript.forget(&mut batch.javascript);
    }

    /// Reads what the traces use that no thread among those that have ended has.
    fn read_javascript_beside(&mut self, batch: &mut Batch, pid: i32, ended: &HashSet<u32>) {
        let Batch { traces, samples, javascript, .. } = batch;
        let of_ended = samples.iter().filter(|sample| ended.contains(&sample.tid));
        let dead: HashSet<u64> = of_ended.map(|sample| sample.trace_id).collect();
        let stacks = traces.entries().iter().map(|entry| JsStack {
            words: traces.frames_of(entry),
            flags: entry.flags,
            is_dead: dead.contains(&entry.id),
        });
        self.javascript.read(stacks, &self.addresses, pid, javascript);
    }

    /// Notes whether the target has freed generated code.
    pub(crate) fn watch_code(&mut self, pid: i32) {
        if !self.has_left {
            self.java.glance(pid);
        }
    }

    /// Reads and checks the generated code that the samples of a batch are in. `since_of` returns
    /// since when a blob of code is known to be where it is.
    pub(crate) fn read_code(
        &mut self,
        batch: &mut Batch,
        pid: i32,
        since_of: &dyn Fn(&CodeBlob) -> Option<u64>,
    ) {
        if !self.has_left || self.is_program_there {
            self.java.read(batch, &self.addresses, pid, since_of);
        }
    }

    /// Reads the names of threads that are new, or whose names may have changed.
    pub(crate) fn read_thread_names(&mut self, batch: &mut Batch, pid: i32, store: &Store) {
        if !self.has_left {
            let runtimes = self.addresses.with_thread_names();
            self.thread_names.read(batch, &runtimes, (pid, &store.threads));
        }
    }

    /// Returns whether functions were gone before they were read, since the last call.
    pub(crate) fn takes_lost_functions(&mut self) -> bool {
        // Both, so that neither says so again.
        self.functions.takes_lost() | self.javascript.takes_lost()
    }

    /// Returns whether the target has replaced code that was known, since the last call.
    pub(crate) fn takes_replaced_code(&mut self) -> bool {
        self.java.takes_replaced()
    }

    /// Corrects samples that were taken between a mapping and its discovery.
    pub(crate) fn correct(&mut self, batch: &mut Batch, store: &Store) {
        self.changes.correct(batch, &self.addresses, || store.collector.take_instance());
    }

    /// Ends the program, and returns the totals.
    pub(crate) fn end(&mut self) -> NameTotals {
        NameTotals { corrected: self.changes.corrected, contexts: self.contexts.end() }
    }
}
