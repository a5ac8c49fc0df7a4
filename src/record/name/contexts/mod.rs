//! Finds and interprets the contexts of the target's threads: the spans that they work on, and
//! tags.
//!
//! A handler reads the context of its own thread from the tables that this module finds
//! ([`table`]), or else from the thread's OpenTelemetry record ([`otel`]). Samples that no handler
//! takes get their contexts in other ways. The recorder reads the context of a sleeping thread from
//! outside ([`ContextReader`]), and gives a kernel sample the context of the samples around it
//! ([`kernel_samples`]). Tags keep the application's own numbers until the end of a batch, when
//! they become the trace's tags ([`tags`]).
//!
//! # Invariants
//! - Nothing in the target is written or called.
//! - Everything that is read from the target is checked first: the target guarantees nothing.

mod attributes;
mod display;
mod kernel_samples;
mod otel;
mod otel_record;
mod process_context;
pub(crate) mod report;
mod stale_entries;
mod table;
mod table_slots;
mod tags;
mod tasks;

use crate::record::batch::contexts::{ReadContext, ThreadContext};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use traceprof_abi::context::{ContextSources, TAGS, TlsLocation, origin};
use traceprof_abi::runtime::RuntimeBlock;
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::log::{Sample, flags};
use traceprof_abi::sync::Ordering;

use self::attributes::AttributeSets;
pub use self::display::ThreadWork;
use self::kernel_samples::KernelContexts;
use self::otel::Otel;
use self::stale_entries::StaleEntries;
use self::table::TargetTable;
pub(crate) use self::table::is_named_table;
use self::table_slots::{TABLES_MAX, TableSlots};
pub(crate) use self::tags::TagNames;
use self::tags::{AdmittedTexts, ProcessTags};
use crate::inject;
use crate::proc::{self, Mapping};
use crate::record::batch::Batch;
use crate::record::batch::threads::ThreadChange;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::target::modules::AddressMap;
use crate::trace::TagKind;

/// The counts of a program's contexts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ContextStats {
    /// The number of tables that were found.
    pub(crate) tables: u64,
    /// The largest number of tables at a time without a slot.
    pub(crate) left_out: u64,
    /// The number of samples with a context.
    pub(crate) samples: u64,
    /// The number of samples whose context was inferred, since it lasted before and after them.
    pub(crate) carried: u64,
    /// The number of kernel samples with an unknown context, since it was not the same for long
    /// before and after them.
    pub(crate) unknown: u64,
    /// The number of tag values without room for their name or text in the trace, or whose text
    /// could not be read.
    pub(crate) tags_lost: u64,
    /// The number of threads that found no entry in their tables, and of texts that found no room.
    pub(crate) refused: (u64, u64),
    /// The largest number of OpenTelemetry variables at a time.
    pub(crate) records: u64,
    /// The number of attributes of OpenTelemetry records without a name.
    pub(crate) unnamed: u64,
}

/// Finds and interprets contexts for all programs of a recording.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    outside: ContextReader,
    /// All tables so far, at the numbers that samples carry.
    tables: Vec<TargetTable>,
    slots: TableSlots,
    otel: Otel,
    /// The names of the trace's tags.
    tags: ProcessTags,
    texts: AdmittedTexts,
    carried: KernelContexts,
    stale: StaleEntries,
    stats: ContextStats,
}

impl Contexts {
    /// Makes the contexts of a process in a trace with these names of tags.
    pub(crate) fn named(names: Arc<TagNames>) -> Self {
        Self { tags: ProcessTags::of(names), ..Self::default() }
    }

    /// Starts another program of this process, after an agent was injected into it.
    pub(crate) fn begin(&mut self, pid: i32, data: DataSegment) {
        // Relaxed: written by the recorder.
        let inner_pid = data.control().pid.load(Ordering::Relaxed);
        self.tables.clear();
        self.slots = TableSlots::default();
        (self.carried, self.stale) = Default::default();
        self.outside =
            ContextReader { pid, inner_pid, data: Some(data), ..ContextReader::default() };
        self.otel = Otel::of(pid);
    }

    /// Searches the mappings for tables and OpenTelemetry variables, and publishes them to the
    /// handlers.
    pub(crate) fn refresh(
        &mut self,
        mappings: &[Mapping],
        addresses: &AddressMap,
        sources: &ContextSources,
    ) {
        self.otel.refresh(mappings, addresses, sources);
        self.outside.locations = self.otel.locations().to_vec();
        self.outside.runtimes = tasks::blocks(addresses);
        self.stats.records = self.stats.records.max(self.outside.locations.len() as u64);
        self.find_tables(mappings, addresses, sources);
    }

    fn find_tables(
        &mut self,
        mappings: &[Mapping],
        addresses: &AddressMap,
        sources: &ContextSources,
    ) {
        let ContextReader { pid, inner_pid, .. } = self.outside;
        let is_table =
            |avma| table::is_mapped(mappings, avma) && table::is_of(pid, inner_pid, avma);
        for (number, table) in (0..).zip(&mut self.tables) {
            if table.is_there && !is_table(table.avma) {
                table.is_there = false;
                self.slots.withdraw(number, sources);
            }
        }
        let is_known = |avma| self.tables.iter().any(|it| it.is_there && it.avma == avma);
        let (found, skipped) = table::candidates(pid, mappings, addresses, is_known);
        let mut left_out = 0;
        for avma in found.into_iter().filter(|avma| table::is_of(pid, inner_pid, *avma)) {
            let number = self.tables.len();
            if number < TABLES_MAX && self.slots.give(number as u32, avma, sources) {
                self.tables.push(TargetTable::new(avma));
                self.stats.tables += 1;
            } else {
                left_out += 1;
            }
        }
        self.slots.leave_out(left_out);
        self.slots.skip(skipped);
        self.outside.tables.clear();
        let addresses = self.tables.iter().map(|table| if table.is_there { table.avma } else { 0 });
        self.outside.tables.extend(addresses);
    }

    /// Returns the reader of contexts of threads that do not run.
    pub(crate) fn outside(&self) -> &ContextReader {
        &self.outside
    }

    /// Reads the current contexts of threads that were sampled in the kernel.
    pub(crate) fn observe(&mut self, tids: BTreeSet<u32>) {
        if !self.has_sources() {
            return;
        }
        for tid in tids {
            // The time before the reading, since the thread may set its context meanwhile.
            let time_ns = monotonic_now_ns();
            self.carried.observe(tid, time_ns, self.outside.read(tid as i32));
        }
    }

    /// Gives kernel samples the contexts of the samples and readings around them.
    pub(crate) fn carry(&mut self, samples: &mut [Sample]) {
        if self.has_sources() {
            self.stats.unknown += self.carried.carry(samples);
        }
    }

    /// Translates the application's tags into the trace's tags, once for each batch.
    pub(crate) fn name(&mut self, batch: &mut Batch) {
        self.otel.write_new_attributes(&mut batch.metadata);
        // Threads that started before the first context may leave a stale entry as well.
        self.stale.note_threads(&batch.threads, &self.outside);
        if self.has_sources() {
            self.name_work(batch);
        }
        tasks::name(self, batch);
        batch.metadata.extend(self.tags.take_new_metadata());
        batch.text_tags = self.tags.texts();
    }

    /// Translates the tags of tables and records.
    fn name_work(&mut self, batch: &mut Batch) {
        for change in &batch.threads {
            if let ThreadChange::Exited { key, .. } = change {
                self.carried.forget(*key);
            }
        }
        for table in self.tables.iter_mut().filter(|table| table.is_there) {
            table.read_new(self.outside.pid);
        }
        let mut known = HashMap::new();
        let mut samples = std::mem::take(&mut batch.samples);
        for sample in samples.iter_mut().filter(|sample| sample.source != origin::NONE) {
            self.stale.take_from(sample);
            if sample.source == origin::NONE {
                continue;
            }
            self.stats.samples += 1;
            self.stats.carried += u64::from(sample.flags & flags::CARRIED != 0);
            if sample.source == origin::RECORD {
                let number = std::mem::take(&mut sample.tags)[0];
                let set = || self.name_set(number, batch);
                let (tags, unnamed) = *known.entry(number).or_insert_with(set);
                (sample.tags, self.stats.unnamed) = (tags, self.stats.unnamed + unnamed);
            } else {
                self.name_one(sample, batch);
            }
        }
        batch.samples = samples;
    }

    fn name_one(&mut self, sample: &mut Sample, batch: &mut Batch) {
        let values = std::mem::take(&mut sample.tags);
        let table = sample.source.checked_sub(origin::TABLE);
        let Some(table) = table.and_then(|index| self.tables.get_mut(index as usize)) else {
            return;
        };
        for (index, value) in values.into_iter().enumerate().filter(|(_, value)| *value != 0) {
            let key = table.key(self.outside.pid, index);
            let named =
                key.and_then(|key| Some((self.tags.index_of(&key.name, key.kind)?, key.kind)));
            let value = match named {
                Some((_, TagKind::Number)) => Some(value),
                Some((_, TagKind::Text)) => {
                    let text = table.text(self.outside.pid, value);
                    let text = text.filter(|text| self.texts.admit(text));
                    text.and_then(|text| u32::try_from(batch.text(&text)).ok())
                }
                None => None,
            };
            match named.zip(value) {
                Some(((own, _), value)) => sample.tags[own] = value,
                None => self.stats.tags_lost += 1,
            }
        }
    }

    /// Returns the tags of a set of attributes, and the number of attributes without a name.
    fn name_set(&mut self, number: u32, batch: &mut Batch) -> ([u32; TAGS], u64) {
        let mut tags = [0; TAGS];
        let Some(bytes) = self.outside.sets.get(number) else {
            self.stats.tags_lost += u64::from(number != 0);
            return (tags, 0);
        };
        let (named, unnamed) = self.otel.attributes(&bytes);
        for (name, value) in named {
            let index = self.tags.index_of(&name, TagKind::Text);
            // A text without a tag is not added to the trace.
            let text = index.filter(|_| self.texts.admit(&value)).map(|_| batch.text(&value));
            match index.zip(text.and_then(|text| u32::try_from(text).ok())) {
                Some((index, text)) => tags[index] = text,
                None => self.stats.tags_lost += 1,
            }
        }
        (tags, unnamed)
    }

    /// Gives the samples lasting numbers of tables and attributes, before any context is remembered
    /// beyond the batch.
    pub(crate) fn number(&mut self, batch: &mut Batch) {
        tasks::number(self, batch);
        for sample in &mut batch.samples {
            sample.source = self.slots.numbered(sample.source);
        }
        for sample in batch.samples.iter_mut().filter(|sample| sample.source == origin::RECORD) {
            let [low, high, ..] = std::mem::take(&mut sample.tags);
            let id = u64::from(high) << 32 | u64::from(low);
            match batch.attributes.get(&id) {
                Some(bytes) => sample.tags[0] = self.outside.sets.number(bytes),
                None => self.stats.tags_lost += u64::from(id != 0),
            }
        }
        batch.attributes.clear();
    }

    /// Returns whether any thread may have a context.
    fn has_sources(&self) -> bool {
        !self.tables.is_empty() || self.stats.records > 0 || !self.outside.runtimes.is_empty()
    }

    /// Returns new messages for the user.
    pub(crate) fn notices(&mut self) -> Vec<String> {
        let mut notices = self.otel.notices();
        notices.extend(self.slots.notices());
        notices
    }

    /// Makes withdrawn slots free again after a rotation, when no handler is in the old storage.
    pub(crate) fn recycle(&mut self) {
        self.slots.recycle();
    }

    fn refused(&mut self) {
        for table in &self.tables {
            self.stats.refused.0 += u64::from(table.refused);
            self.stats.refused.1 += u64::from(table.texts_refused);
        }
    }

    /// Ends this program, and returns its counts.
    pub(crate) fn end(&mut self) -> ContextStats {
        self.refused();
        self.stats.left_out = self.slots.most_left_out();
        self.tables.clear();
        std::mem::take(&mut self.stats)
    }
}

/// Reads contexts of the target's threads from the recorder.
#[derive(Debug, Default)]
pub(crate) struct ContextReader {
    pid: i32,
    inner_pid: u32,
    /// The data segment, in which handlers note the threads' pointers.
    data: Option<DataSegment>,
    /// The addresses of the tables, 0 for a table that no longer exists.
    tables: Vec<u64>,
    /// The locations of OpenTelemetry variables.
    locations: Vec<TlsLocation>,
    /// The attributes of OpenTelemetry records, and the names of tasks.
    sets: AttributeSets,
    /// The runtimes whose tasks are known.
    runtimes: Vec<RuntimeBlock>,
}

impl ReadContext for ContextReader {
    fn read(&self, tid: i32) -> ThreadContext {
        let inner_tid = if self.is_empty() { None } else { self.inner_tid(tid) };
        let read = |inner_tid| {
            let work = self.read_entry(inner_tid).or_else(|| self.read_record(tid, inner_tid));
            let task = self.task_of(tid, inner_tid);
            ThreadContext { task, ..work.unwrap_or_default() }
        };
        inner_tid.map(read).unwrap_or_default()
    }

    fn read_task(&self, thread: (u64, u32)) -> u32 {
        self.task_at(thread)
    }

    fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.locations.is_empty() && self.runtimes.is_empty()
    }
}

impl ContextReader {
    /// Reads the entry of a thread by its inner id, whether or not the thread exists.
    fn read_entry(&self, inner_tid: u32) -> Option<ThreadContext> {
        for (source, avma) in (origin::TABLE..).zip(&self.tables) {
            let read = || table::read_context(self.pid, *avma, inner_tid);
            if let Some(values) = Some(*avma).filter(|avma| *avma != 0).and_then(|_| read()) {
                let (span, root_span, tags) = (values.span, values.root_span, values.tags);
                return Some(ThreadContext {
                    source,
                    span,
                    root_span,
                    root_high: 0,
                    tags,
                    task: 0,
                });
            }
        }
        None
    }

    fn read_record(&self, tid: i32, inner_tid: u32) -> Option<ThreadContext> {
        let read = |avma, into: &mut [u8]| inject::read_part(self.pid, avma, into);
        if self.locations.is_empty() {
            return None;
        }
        let thread = proc::thread_pointer(tid, read);
        let thread = thread.or_else(|| self.noted_thread_pointer(inner_tid))?;
        if !otel_record::is_own(thread, inner_tid, read) {
            return None;
        }
        let (record, attributes) = otel_record::read_from_outside(thread, &self.locations, read)?;
        let mut tags = [0; TAGS];
        tags[0] = self.sets.number(&attributes);
        let (root_high, root_span) = record.trace;
        Some(ThreadContext {
            source: origin::RECORD,
            span: record.span,
            root_span,
            root_high,
            tags,
            task: 0,
        })
    }

    /// Returns the thread pointer that a handler noted; `None` for a thread without a sample.
    fn noted_thread_pointer(&self, inner_tid: u32) -> Option<u64> {
        let threads = self.data?.threads();
        let slot = threads.slots.get(threads.find(inner_tid)?)?;
        // Relaxed: a single word, which the handler wrote before the thread went to sleep.
        Some(slot.context[0].load(Ordering::Relaxed)).filter(|thread| *thread != 0)
    }

    /// Checks whether the target has a thread with this outer id.
    fn is_alive(&self, tid: i32) -> bool {
        proc::task_stat(self.pid, tid).is_ok()
    }

    /// Returns a thread's id in its own namespace.
    fn inner_tid(&self, tid: i32) -> Option<u32> {
        if self.inner_pid == self.pid as u32 {
            return Some(tid as u32);
        }
        u32::try_from(proc::task_status(self.pid, tid).ok()?.inner_pid).ok()
    }
}

#[cfg(test)]
mod tests;
