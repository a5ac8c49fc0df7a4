//! What the writer thread knows of one process: its batches in, objects and samples out.
//!
//! # Invariants
//! - The process's batches are written in their order.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use traceprof_abi::context::TAGS;
use traceprof_abi::storage::log::{Sample as Logged, flags};
use traceprof_abi::unwind::{trace_end, trace_epoch};

use crate::record::batch::rotation::Batch;
use crate::record::batch::threads::{Key, ThreadLife, ThreadNews};
use crate::record::batch::traces::Collection;
use crate::record::name::frames::FrameNames;
use crate::record::target::modules::AddressMap;
use crate::record::write::writer::Totals;
use crate::record::write::writer::backlog::{Backlog, Held};
use crate::trace::{
    LocationId, MappedModule, Sample, TextId, Thread, ThreadId, TraceError, TraceSeries, Value,
};

/// A trace that is resolved.
#[derive(Debug, Clone)]
pub(super) struct Stack {
    /// Root first.
    pub(super) locations: Vec<LocationId>,
    pub(super) end_reason: u16,
    own_code: Option<Box<OwnCode>>,
}

/// What a stack is made of that goes through code which the target has made: it may have made other
/// code there before, and may still tell of it.
#[derive(Debug, Clone)]
struct OwnCode {
    frames: Box<[u64]>,
    epoch: u16,
    /// The stack is right for these times,
    times_ns: Range<u64>,
    /// as far as was told by then.
    version: u64,
}

impl OwnCode {
    fn holds(&self, time_ns: u64, version: u64) -> bool {
        self.version == version && self.times_ns.contains(&time_ns)
    }
}

/// A process as the thread sees it.
pub(super) struct Process {
    pid: u32,
    pub(super) names: FrameNames,
    pub(super) backlog: Backlog,
    /// No batch of it comes any more.
    pub(super) has_left: bool,
    /// Where written batches go back to.
    blanks: SyncSender<Arc<Batch>>,
    /// Those of the last batch that came,
    latest: Arc<AddressMap>,
    /// and of the last one that was written.
    addresses: Arc<AddressMap>,
    /// Which program of the process it is that names are known of.
    program: Option<u32>,
    /// The traces of the last batch that was written, and of those before it that waited.
    pub(super) stacks: HashMap<u64, Stack>,
    /// Those that are kept to the end.
    pub(super) kept: HashMap<u64, Stack>,
    /// The trace's ids, by key.
    threads: HashMap<Key, ThreadId>,
    /// Of them, those that have samples.
    sampled: HashSet<ThreadId>,
    totals: Totals,
}

impl Process {
    /// One that joins. Batches come back the way `blanks`; of those that were sent `open` has those
    /// that are not begun with.
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
            totals: Totals::default(),
        }
    }

    /// Takes a batch in.
    pub(super) fn take(&mut self, batch: Arc<Batch>) {
        if let Some(addresses) = &batch.addresses {
            self.latest = Arc::clone(addresses);
        }
        let question = self.names.ask(&self.latest, &batch.traces);
        self.backlog.push(batch, question, |question| self.names.is_answered(question));
    }

    /// What was handed to the writer so far.
    pub(super) fn totals(&self) -> Totals {
        Totals { unnamed: self.names.unnamed, ..self.totals.clone() }
    }

    /// Writes the batches that need not wait.
    pub(super) fn write_ready(&mut self, writer: &mut TraceSeries) -> Result<(), TraceError> {
        while let Some(held) = self.backlog.pop(|question| self.names.is_answered(question)) {
            self.write_held(writer, held)?;
        }
        Ok(())
    }

    /// Writes the oldest batch, which there is no room for, with the names that are known.
    pub(super) fn write_oldest(&mut self, writer: &mut TraceSeries) -> Result<(), TraceError> {
        self.backlog.pop(|_| true).map_or(Ok(()), |held| self.write_held(writer, held))
    }

    fn write_held(&mut self, writer: &mut TraceSeries, held: Held) -> Result<(), TraceError> {
        self.write(writer, &held)?;
        let mut batch = held.batch;
        if let Some(blank) = Arc::get_mut(&mut batch) {
            blank.clear();
            // Enough of them wait already, or nobody wants one any more.
            let _ = self.blanks.try_send(batch);
        }
        Ok(())
    }

    fn write(&mut self, writer: &mut TraceSeries, held: &Held) -> Result<(), TraceError> {
        let batch = &*held.batch;
        if let Some(addresses) = &batch.addresses {
            let former = self.program.replace(addresses.program());
            if former.is_some_and(|former| former != addresses.program()) {
                self.names.start_program();
            }
            self.write_mappings(writer, addresses)?;
            self.addresses = Arc::clone(addresses);
        }
        if !held.is_condensed {
            // Those that the collection has no more are not referred to any more.
            self.stacks.retain(|id, _| batch.traces.get(*id).is_some());
        }
        self.names.refresh(&self.addresses.dumps);
        self.resolve(writer, &batch.traces)?;
        let is_end = |news: &&ThreadNews| matches!(news, ThreadNews::Gone { .. });
        for news in batch.threads.iter().filter(|news| !is_end(news)) {
            self.write_thread(writer, news)?;
        }
        // Before the samples: which of their tags are texts is said there.
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

    /// Stacks of the new traces.
    fn resolve(&mut self, writer: &mut TraceSeries, traces: &Collection) -> Result<(), TraceError> {
        for entry in traces.entries() {
            if let Entry::Vacant(place) = self.stacks.entry(entry.id) {
                let (frames, epoch) = (traces.frames_of(entry), trace_epoch(entry.flags));
                let addresses = &self.addresses;
                // Before: what is told meanwhile is not in it.
                let version = self.names.version();
                let named = self.names.stack(writer, addresses, (frames, epoch), u64::MAX - 1)?;
                let own_code = named.has_own_code.then(|| {
                    let (frames, times_ns) = (frames.into(), named.times_ns);
                    Box::new(OwnCode { frames, epoch, times_ns, version })
                });
                let end_reason = trace_end(entry.flags);
                place.insert(Stack { locations: named.locations, end_reason, own_code });
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
        news: &ThreadNews,
    ) -> Result<(), TraceError> {
        match news {
            ThreadNews::Seen { key, life } => self.write_new_thread(writer, *key, life)?,
            ThreadNews::Renamed { key, name } => {
                if let Some(id) = self.threads.get(key) {
                    writer.rename_thread(*id, name)?;
                }
            }
            ThreadNews::Gone { key, time_ns } => {
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
        key: Key,
        life: &ThreadLife,
    ) -> Result<(), TraceError> {
        let (inner_pid, inner_tid) = life.inner;
        let (pid, tid, name) = (self.pid, life.tid as u32, life.name.clone());
        let thread = Thread { pid, tid, name, first_seen_ns: life.start_ns, ended_ns: None };
        let id = writer.thread(&thread)?;
        self.threads.insert(key, id);
        if (inner_pid, inner_tid) != (pid, tid) {
            // In a pid namespace: what the target itself calls the thread.
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
        self.totals.count(logged);
        self.totals.threads += u64::from(self.sampled.insert(thread));
        let sample = Sample {
            time_ns: logged.time,
            trace_id: logged.trace_id,
            weight: logged.weight,
            end_reason: logged.reason,
            flags: logged.flags,
            state: logged.state as u8,
            syscall: logged.syscall.checked_sub(1).and_then(|number| u32::try_from(number).ok()),
            waits_on: waited_on(logged, texts),
            span: logged.span,
            root_span: logged.root_span,
            root_high: logged.root_high,
            tags: tags_of(logged, texts, text_tags),
        };
        let mut stack = self.stacks.get_mut(&logged.trace_id);
        if let Some(Stack { locations, own_code: Some(own), .. }) = stack.as_deref_mut()
            && !own.holds(logged.time, self.names.version())
        {
            let frames = (&*own.frames, own.epoch);
            own.version = self.names.version();
            let named = self.names.stack(writer, &self.addresses, frames, logged.time)?;
            (*locations, own.times_ns) = (named.locations, named.times_ns);
        }
        let stack = stack.map_or(&[][..], |stack| &stack.locations);
        writer.sample(thread, &sample, stack)
    }
}

/// What the thread waits on, which is one of the batch's texts.
fn waited_on(logged: &Logged, texts: &[TextId]) -> Option<TextId> {
    let place = logged.event.checked_sub(1).filter(|_| logged.flags & flags::WALL != 0)?;
    texts.get(usize::try_from(place).ok()?).copied()
}

/// The tags as the trace has them: those that are places of texts get the texts' ids, plus 1.
fn tags_of(logged: &Logged, texts: &[TextId], text_tags: u16) -> [u32; TAGS] {
    let mut tags = logged.tags;
    for tag in tags.iter_mut().enumerate().filter(|(place, _)| text_tags >> place & 1 == 1) {
        let text = tag.1.checked_sub(1).and_then(|place| texts.get(place as usize));
        *tag.1 = text.map_or(0, |text| text.0.saturating_add(1));
    }
    tags
}
