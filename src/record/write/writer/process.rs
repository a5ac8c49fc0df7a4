//! The writer thread's state of one process: it takes batches and writes objects and samples.
//!
//! # Invariants
//! - The batches of a process are written in their order.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use traceprof_abi::context::TAGS;
use traceprof_abi::storage::log::{Sample as Logged, flags};
use traceprof_abi::unwind::{EndReason, trace_end};

use crate::record::batch::Batch;
use crate::record::batch::threads::{ThreadChange, ThreadKey, ThreadLife};
use crate::record::batch::traces::Collection;
use crate::record::name::frames::FrameNames;
use crate::record::name::managed::count::ManagedCount;
use crate::record::name::managed::mixed::is_cut;
use crate::record::target::modules::AddressMap;
use crate::record::write::writer::WrittenTotals;
use crate::record::write::writer::backlog::{Backlog, WaitingBatch};
use crate::trace::{
    LOCK_HOLDERS, LocationId, MappedModule, Sample, TextId, Thread, ThreadId, TraceError,
    TraceSeries, Value,
};

/// The resolved stack of a call trace.
#[derive(Debug, Clone)]
pub(super) struct Stack {
    /// Root first.
    pub(super) locations: Vec<LocationId>,
    /// Why the unwinding ended.
    stored_reason: u16,
    /// Whether managed frames are missing because there was no room for them.
    is_cut: bool,
    managed: Option<Box<ManagedCount>>,
    jit: Option<Box<JitStack>>,
}

/// The frames of a stack with code that the target generated (JIT). The target may have generated
/// other code there before, and may report names later.
#[derive(Debug, Clone)]
struct JitStack {
    frames: Box<[u64]>,
    flags: u32,
    /// The times for which the stack is correct.
    times_ns: Range<u64>,
    /// The version of the names that the stack was resolved with.
    version: u64,
    /// Whether the outermost frame is code that a runtime starts its stacks with.
    is_from_runtime_root: bool,
}

impl Stack {
    /// Returns why the stack ends.
    pub(super) fn end_reason(&self) -> u16 {
        self.proven(self.stored_reason)
    }

    /// Returns why the stack ends if its unwinding stored this reason. The name of the outermost
    /// frame may prove a root that the unwinding did not know. Managed frames may be missing
    /// although the native ones are complete.
    fn proven(&self, stored: u16) -> u16 {
        let is_proven = self.jit.as_ref().is_some_and(|jit| jit.is_from_runtime_root);
        let is_root =
            stored == EndReason::Root as u16 || stored == EndReason::Unproven as u16 && is_proven;
        match (is_root, self.is_cut) {
            (true, true) => EndReason::Depth as u16,
            (true, false) => EndReason::Root as u16,
            (false, _) => stored,
        }
    }
}

impl JitStack {
    fn holds(&self, time_ns: u64, version: u64) -> bool {
        self.version == version && self.times_ns.contains(&time_ns)
    }
}

/// The writer thread's state of one process.
pub(super) struct WriterProcess {
    pid: u32,
    pub(super) names: FrameNames,
    pub(super) backlog: Backlog,
    /// Whether the process has left: no further batch comes.
    pub(super) has_left: bool,
    /// Takes written batches back for reuse.
    blanks: SyncSender<Arc<Batch>>,
    /// The mappings of the last batch that arrived.
    latest: Arc<AddressMap>,
    /// The mappings of the last batch that was written.
    addresses: Arc<AddressMap>,
    /// The number of the program whose names are known.
    program: Option<u32>,
    /// The stacks of the last written batch, and of the waiting batches before it.
    pub(super) stacks: HashMap<u64, Stack>,
    /// The stacks that are kept to the end.
    pub(super) kept: HashMap<u64, Stack>,
    /// The ids of threads in the trace, by key.
    threads: HashMap<ThreadKey, ThreadId>,
    /// The threads that have samples.
    sampled: HashSet<ThreadId>,
    /// The keys of languages whose samples tell who holds their lock.
    lock_keys: BTreeSet<String>,
    totals: WrittenTotals,
}

impl WriterProcess {
    /// Creates the state of a process that joins. Written batches return through `blanks`.
    pub(super) fn new(pid: u32, names: FrameNames, blanks: SyncSender<Arc<Batch>>) -> Self {
        Self {
            pid,
            names,
            backlog: Backlog::default(),
            has_left: false,
            blanks,
            latest: Arc::default(),
            addresses: Arc::default(),
            program: None,
            stacks: HashMap::new(),
            kept: HashMap::new(),
            threads: HashMap::new(),
            sampled: HashSet::new(),
            lock_keys: BTreeSet::new(),
            totals: WrittenTotals::default(),
        }
    }

    /// Asks for the names of a batch, and adds it to the backlog.
    pub(super) fn take(&mut self, batch: Arc<Batch>) {
        if let Some(addresses) = &batch.addresses {
            self.latest = Arc::clone(addresses);
        }
        let question = self.names.ask(&self.latest, &batch.traces);
        self.backlog.push(batch, question, |question| self.names.is_answered(question));
    }

    /// Returns the totals so far.
    pub(super) fn totals(&self) -> WrittenTotals {
        WrittenTotals { unnamed: self.names.unnamed, ..self.totals.clone() }
    }

    /// Writes the batches that need not wait.
    pub(super) fn write_ready(&mut self, writer: &mut TraceSeries) -> Result<(), TraceError> {
        while let Some(waiting) = self.backlog.pop(|question| self.names.is_answered(question)) {
            self.write_waiting(writer, waiting)?;
        }
        Ok(())
    }

    /// Writes the oldest batch with the names that are known, to make room in the backlog.
    pub(super) fn write_oldest(&mut self, writer: &mut TraceSeries) -> Result<(), TraceError> {
        self.backlog.pop(|_| true).map_or(Ok(()), |waiting| self.write_waiting(writer, waiting))
    }

    fn write_waiting(
        &mut self,
        writer: &mut TraceSeries,
        waiting: WaitingBatch,
    ) -> Result<(), TraceError> {
        self.write(writer, &waiting)?;
        let mut batch = waiting.batch;
        if let Some(blank) = Arc::get_mut(&mut batch) {
            blank.clear();
            // An error means that enough blank batches wait already, or that the process has left.
            let _ = self.blanks.try_send(batch);
        }
        Ok(())
    }

    fn write(
        &mut self,
        writer: &mut TraceSeries,
        waiting: &WaitingBatch,
    ) -> Result<(), TraceError> {
        let batch = &*waiting.batch;
        if let Some(addresses) = &batch.addresses {
            let former = self.program.replace(addresses.program());
            if former.is_some_and(|former| former != addresses.program()) {
                self.names.start_program();
            }
            self.write_mappings(writer, addresses)?;
            for runtime in addresses.runtimes.iter().filter(|runtime| runtime.tells_lock()) {
                let key = format!("{LOCK_HOLDERS}{}", runtime.language.name().to_lowercase());
                if self.lock_keys.insert(key.clone()) {
                    writer.set_metadata(&key, Value::Unsigned(1))?;
                }
            }
            self.addresses = Arc::clone(addresses);
        }
        if !waiting.is_condensed {
            // No later sample refers to a trace that the collection no longer has.
            self.stacks.retain(|id, _| batch.traces.get(*id).is_some());
        }
        self.names.refresh(&self.addresses.dumps);
        self.names.learn_functions(&batch.functions);
        self.names.learn_java(&batch.java);
        self.names.learn_javascript(&batch.javascript);
        self.names.learn_kernel(writer, &batch.kernel_functions)?;
        self.resolve(writer, &batch.traces)?;
        let is_end = |news: &&ThreadChange| matches!(news, ThreadChange::Exited { .. });
        for news in batch.threads.iter().filter(|news| !is_end(news)) {
            self.write_thread(writer, news)?;
        }
        // Before the samples: the metadata says which of their tags are texts.
        for (key, value) in &batch.metadata {
            writer.set_metadata(key, value.clone())?;
        }
        let texts = batch.texts.iter().map(|text| writer.text(text));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        for sample in &batch.samples {
            self.write_sample(writer, sample, (&texts, batch.text_tags))?;
        }
        for news in batch.threads.iter().filter(is_end) {
            self.write_thread(writer, news)?;
        }
        if let Some(keep) = &batch.keep {
            self.keep(keep);
        }
        if batch.flush {
            writer.flush()?;
        }
        Ok(())
    }

    /// Resolves the stacks of the new traces.
    fn resolve(&mut self, writer: &mut TraceSeries, traces: &Collection) -> Result<(), TraceError> {
        for entry in traces.entries() {
            if let Entry::Vacant(place) = self.stacks.entry(entry.id) {
                let (frames, flags) = (traces.frames_of(entry), entry.flags);
                let addresses = &self.addresses;
                // Read before the names: the stack may miss names that arrive meanwhile.
                let version = self.names.version();
                let named = self.names.stack(writer, addresses, (frames, flags), u64::MAX - 1)?;
                let jit = named.has_own_code.then(|| {
                    let (frames, times_ns) = (frames.into(), named.times_ns);
                    let is_from_runtime_root = named.is_from_runtime_root;
                    Box::new(JitStack { frames, flags, times_ns, version, is_from_runtime_root })
                });
                let stored_reason = trace_end(entry.flags);
                let (locations, managed) = (named.locations, named.managed);
                let is_cut = is_cut(frames);
                place.insert(Stack { locations, stored_reason, is_cut, managed, jit });
            }
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

    fn write_mappings(
        &mut self,
        writer: &mut TraceSeries,
        addresses: &AddressMap,
    ) -> Result<(), TraceError> {
        for range in addresses.ranges.iter().filter(|range| !self.addresses.holds(range)) {
            let module = self.names.module(writer, range.module.as_deref())?;
            writer.mapped_module(&MappedModule {
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

    fn write_thread(
        &mut self,
        writer: &mut TraceSeries,
        news: &ThreadChange,
    ) -> Result<(), TraceError> {
        match news {
            ThreadChange::Seen { key, life } => self.write_new_thread(writer, *key, life)?,
            ThreadChange::Renamed { key, name } => {
                if let Some(id) = self.threads.get(key) {
                    writer.rename_thread(*id, name)?;
                }
            }
            ThreadChange::NamedInRuntime { key, name } => {
                if let Some(id) = self.threads.get(key) {
                    writer.set_runtime_name(*id, name)?;
                }
            }
            ThreadChange::Exited { key, time_ns } => {
                if let Some(id) = self.threads.remove(key) {
                    self.sampled.remove(&id);
                    writer.thread_exit(id, *time_ns)?;
                }
            }
        }
        Ok(())
    }

    fn write_new_thread(
        &mut self,
        writer: &mut TraceSeries,
        key: ThreadKey,
        life: &ThreadLife,
    ) -> Result<(), TraceError> {
        let (inner_pid, inner_tid) = life.inner;
        let (pid, tid, name) = (self.pid, life.tid as u32, life.name.clone());
        let thread = Thread { pid, tid, name, first_seen_ns: life.start_ns, ..Thread::default() };
        let id = writer.thread(&thread)?;
        self.threads.insert(key, id);
        if (inner_pid, inner_tid) != (pid, tid) {
            // In a pid namespace, these are the ids that the target itself sees.
            let ids = [inner_pid, inner_tid].map(|id| Value::Unsigned(u64::from(id)));
            writer.set_metadata(&format!("inner_ids.{}", id.0), Value::List(ids.into()))?;
        }
        Ok(())
    }

    fn write_sample(
        &mut self,
        writer: &mut TraceSeries,
        logged: &Logged,
        (texts, text_tags): (&[TextId], u16),
    ) -> Result<(), TraceError> {
        let Some(thread) = self.threads.get(&(logged.slot, logged.generation)).copied() else {
            self.totals.unattributed += 1;
            return Ok(());
        };
        if !writer.has_room()? {
            self.totals.left_out += 1;
            return Ok(());
        }
        let mut stack = self.stacks.get_mut(&logged.trace_id);
        if let Some(Stack { locations, managed, jit: Some(own), .. }) = stack.as_deref_mut()
            && !own.holds(logged.time, self.names.version())
        {
            let frames = (&*own.frames, own.flags);
            own.version = self.names.version();
            let named = self.names.stack(writer, &self.addresses, frames, logged.time)?;
            (*locations, own.times_ns) = (named.locations, named.times_ns);
            *managed = named.managed;
            own.is_from_runtime_root = named.is_from_runtime_root;
        }
        if let Some(managed) = stack.as_ref().and_then(|stack| stack.managed.as_deref()) {
            self.totals.managed.add(managed);
        }
        let reason = stack.as_ref().map_or(logged.reason, |stack| stack.proven(logged.reason));
        self.totals.count(&Logged { reason, ..*logged });
        self.totals.threads += u64::from(self.sampled.insert(thread));
        let sample = Sample {
            time_ns: logged.time,
            trace_id: logged.trace_id,
            weight: logged.weight,
            end_reason: reason,
            flags: logged.flags,
            state: logged.state as u8,
            syscall: logged.syscall.checked_sub(1).and_then(|number| u32::try_from(number).ok()),
            waits_on: waited_on(logged, texts),
            span: logged.span,
            root_span: logged.root_span,
            root_high: logged.root_high,
            tags: tags_of(logged, texts, text_tags),
        };
        let stack = stack.map_or(&[][..], |stack| &stack.locations);
        writer.sample(thread, &sample, stack)
    }
}

/// Returns the object that the thread waits on, which is one of the batch's texts.
fn waited_on(logged: &Logged, texts: &[TextId]) -> Option<TextId> {
    let place = logged.event.checked_sub(1).filter(|_| logged.flags & flags::WALL != 0)?;
    texts.get(usize::try_from(place).ok()?).copied()
}

/// Returns the tags for the trace: an index into the batch's texts becomes the text's id plus 1.
fn tags_of(logged: &Logged, texts: &[TextId], text_tags: u16) -> [u32; TAGS] {
    let mut tags = logged.tags;
    for tag in tags.iter_mut().enumerate().filter(|(place, _)| text_tags >> place & 1 == 1) {
        let text = tag.1.checked_sub(1).and_then(|place| texts.get(place as usize));
        *tag.1 = text.map_or(0, |text| text.0.saturating_add(1));
    }
    tags
}
