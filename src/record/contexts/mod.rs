//! Which spans the target's threads work on: where their contexts are found, and what they mean.
//!
//! The handlers read the context of the thread that they run on, from tables that are found here
//! ([`table`]), or else from its record of OpenTelemetry ([`otel`]). Samples that no handler takes get
//! theirs in other ways: of a thread that sleeps it is read from outside ([`Outside`]), and a hit in the
//! kernel has that of the hits around it ([`carry`]).
//! Tags are kept by the application's own numbers up to the end of a batch, where they become the
//! trace's ([`tags`]).
//!
//! # Invariants
//! - Nothing in the target is written or called.
//! - What is read there is checked before it is believed: the target owes us nothing.

mod attributes;
mod carry;
mod left;
mod otel;
mod places;
mod process_context;
mod record;
pub(super) mod report;
mod table;
mod tags;
mod variable;
mod words;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use traceprof_abi::context::{ContextSources, TAGS, Way, origin};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::log::{Sample, flags};
use traceprof_abi::sync::Ordering;

use self::attributes::Sets;
pub(super) use self::attributes::unpack;
use self::carry::Carried;
use self::left::LeftBehind;
use self::otel::Otel;
use self::places::{Places, TABLES_MAX};
use self::table::Table;
pub(super) use self::table::is_named_table;
pub(super) use self::tags::TagNames;
use self::tags::{Tags, Texts};
pub use self::words::Work;
use super::batch::{Batch, ThreadNews};
use super::clock::monotonic_now_ns;
use super::modules::AddressMap;
use crate::inject;
use crate::proc::{self, Mapping};
use crate::trace::TagKind;

/// What is known of a thread at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ThreadContext {
    source: u32,
    span: u64,
    root_span: u64,
    root_high: u64,
    tags: [u32; 10],
}

impl ThreadContext {
    /// The context of a sample.
    pub(super) fn of(sample: &Sample) -> Self {
        let Sample { source, span, root_span, root_high, tags, .. } = *sample;
        Self { source, span, root_span, root_high, tags }
    }

    /// Gives it to a sample.
    pub(super) fn give(self, sample: &mut Sample) {
        let Self { source, span, root_span, root_high, tags } = self;
        (sample.source, sample.span, sample.tags) = (source, span, tags);
        (sample.root_span, sample.root_high) = (root_span, root_high);
    }
}

/// What was counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ContextStats {
    /// Tables that were found.
    pub(super) tables: u64,
    /// Tables that there was no place for at a time, at most.
    pub(super) left_out: u64,
    /// Samples that have a context,
    pub(super) samples: u64,
    /// and of them those that have the one that lasted before and after.
    pub(super) carried: u64,
    /// Hits in the kernel whose context could not be told: the thread had another one before than after.
    pub(super) untold: u64,
    /// Values of tags whose names there was no room for in the trace, or whose texts could not be read.
    pub(super) tags_lost: u64,
    /// Threads that found no entry in their tables, and texts.
    pub(super) refused: (u64, u64),
    /// Variables of OpenTelemetry that were read at a time, at most.
    pub(super) records: u64,
    /// Attributes of its records that have no name.
    pub(super) unnamed: u64,
}

/// Finds contexts and says what they mean, for all programs of a recording.
#[derive(Debug, Default)]
pub(super) struct Contexts {
    outside: Outside,
    /// All there have been, by the numbers that samples know them by.
    tables: Vec<Table>,
    places: Places,
    otel: Otel,
    /// That of the trace.
    tags: Tags,
    texts: Texts,
    carried: Carried,
    left: LeftBehind,
    stats: ContextStats,
}

impl Contexts {
    /// Those of a process, whose tags have these names in the trace.
    pub(super) fn named(names: Arc<TagNames>) -> Self {
        Self { tags: Tags::of(names), ..Self::default() }
    }

    /// Another program, of this process, that an agent has been put into.
    pub(super) fn begin(&mut self, pid: i32, data: DataSegment) {
        // Relaxed: written by this side.
        let inner_pid = data.control().pid.load(Ordering::Relaxed);
        self.tables.clear();
        self.places = Places::default();
        (self.carried, self.left) = Default::default();
        self.outside = Outside { pid, inner_pid, data: Some(data), ..Outside::default() };
        self.otel = Otel::of(pid);
    }

    /// Looks for tables and for variables of OpenTelemetry among what is mapped, and tells the handlers.
    pub(super) fn refresh(
        &mut self,
        mappings: &[Mapping],
        addresses: &AddressMap,
        sources: &ContextSources,
    ) {
        self.otel.refresh(mappings, addresses, sources);
        self.outside.ways = self.otel.ways().to_vec();
        self.stats.records = self.stats.records.max(self.outside.ways.len() as u64);
        self.find_tables(mappings, addresses, sources);
    }

    fn find_tables(
        &mut self,
        mappings: &[Mapping],
        addresses: &AddressMap,
        sources: &ContextSources,
    ) {
        let Outside { pid, inner_pid, .. } = self.outside;
        let is_table =
            |avma| table::is_mapped(mappings, avma) && table::is_of(pid, inner_pid, avma);
        for (number, table) in (0..).zip(&mut self.tables) {
            if table.is_there && !is_table(table.avma) {
                table.is_there = false;
                self.places.withdraw(number, sources);
            }
        }
        let is_known = |avma| self.tables.iter().any(|it| it.is_there && it.avma == avma);
        let (found, skipped) = table::candidates(pid, mappings, addresses, is_known);
        let mut left_out = 0;
        for avma in found.into_iter().filter(|avma| table::is_of(pid, inner_pid, *avma)) {
            let number = self.tables.len();
            if number < TABLES_MAX && self.places.give(number as u32, avma, sources) {
                self.tables.push(Table::new(avma));
                self.stats.tables += 1;
            } else {
                left_out += 1;
            }
        }
        self.places.leave_out(left_out);
        self.places.skip(skipped);
        self.outside.tables.clear();
        let addresses = self.tables.iter().map(|table| if table.is_there { table.avma } else { 0 });
        self.outside.tables.extend(addresses);
    }

    /// Reads contexts of threads that do not run.
    pub(super) fn outside(&self) -> &Outside {
        &self.outside
    }

    /// Threads were hit in the kernel: sees what they work on now.
    pub(super) fn observe(&mut self, tids: BTreeSet<u32>) {
        if !self.is_told() {
            return;
        }
        for tid in tids {
            // Before: what is read may have been set since.
            let time_ns = monotonic_now_ns();
            self.carried.observe(tid, time_ns, self.outside.read(tid as i32));
        }
    }

    /// Gives hits in the kernel the contexts of those around them.
    pub(super) fn carry(&mut self, samples: &mut [Sample]) {
        if self.is_told() {
            self.stats.untold += self.carried.carry(samples);
        }
    }

    /// Makes the application's tags those of the trace: to be called once for each batch.
    pub(super) fn name(&mut self, batch: &mut Batch) {
        self.otel.tell(&mut batch.metadata);
        // Who is there before anything is told may leave something behind as well.
        self.left.hear(&batch.threads, &self.outside);
        if !self.is_told() {
            return;
        }
        for news in &batch.threads {
            if let ThreadNews::Gone { key, .. } = news {
                self.carried.forget(*key);
            }
        }
        for table in self.tables.iter_mut().filter(|table| table.is_there) {
            table.read_on(self.outside.pid);
        }
        let mut known = HashMap::new();
        let mut samples = std::mem::take(&mut batch.samples);
        for sample in samples.iter_mut().filter(|sample| sample.source != origin::NONE) {
            self.left.take_from(sample);
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
        batch.metadata.extend(self.tags.news());
        batch.text_tags = self.tags.texts();
    }

    fn name_one(&mut self, sample: &mut Sample, batch: &mut Batch) {
        let values = std::mem::take(&mut sample.tags);
        let table = sample.source.checked_sub(origin::TABLE);
        let Some(table) = table.and_then(|place| self.tables.get_mut(place as usize)) else {
            return;
        };
        for (place, value) in values.into_iter().enumerate().filter(|(_, value)| *value != 0) {
            let key = table.key(self.outside.pid, place);
            let named = key.and_then(|key| Some((self.tags.place(&key.name, key.kind)?, key.kind)));
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

    /// The tags that a set of attributes makes, and how many of it have no name.
    fn name_set(&mut self, number: u32, batch: &mut Batch) -> ([u32; TAGS], u64) {
        let mut tags = [0; TAGS];
        let Some(bytes) = self.outside.sets.get(number) else {
            self.stats.tags_lost += u64::from(number != 0);
            return (tags, 0);
        };
        let (named, unnamed) = self.otel.attributes(&bytes);
        for (name, value) in named {
            let place = self.tags.place(&name, TagKind::Text);
            // A text that no tag has would take room for nothing.
            let text = place.filter(|_| self.texts.admit(&value)).map(|_| batch.text(&value));
            match place.zip(text.and_then(|text| u32::try_from(text).ok())) {
                Some((place, text)) => tags[place] = text,
                None => self.stats.tags_lost += 1,
            }
        }
        (tags, unnamed)
    }

    /// Gives tables, and the attributes of records, numbers that last beyond the batch: to be called before
    /// anything is remembered of its samples.
    pub(super) fn number(&mut self, batch: &mut Batch) {
        for sample in &mut batch.samples {
            sample.source = self.places.numbered(sample.source);
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

    /// Some thread may have a context.
    fn is_told(&self) -> bool {
        !self.tables.is_empty() || self.stats.records > 0
    }

    /// What is to be said.
    pub(super) fn notices(&mut self) -> Vec<String> {
        let mut notices = self.otel.notices();
        notices.extend(self.places.notices());
        notices
    }

    /// The storage has been rotated, and no handler is in what it was before.
    pub(super) fn recycle(&mut self) {
        self.places.recycle();
    }

    fn refused(&mut self) {
        for table in &self.tables {
            self.stats.refused.0 += u64::from(table.refused);
            self.stats.refused.1 += u64::from(table.texts_refused);
        }
    }

    /// What was counted of this program.
    pub(super) fn end(&mut self) -> ContextStats {
        self.refused();
        self.stats.left_out = self.places.most_left_out();
        self.tables.clear();
        std::mem::take(&mut self.stats)
    }
}

/// Reads contexts from outside.
#[derive(Debug, Default)]
pub(super) struct Outside {
    pid: i32,
    inner_pid: u32,
    /// What the handlers note of threads.
    data: Option<DataSegment>,
    /// Addresses, 0 for tables that are gone.
    tables: Vec<u64>,
    /// To variables of OpenTelemetry,
    ways: Vec<Way>,
    /// and the attributes of their records.
    sets: Sets,
}

impl Outside {
    /// The context of a thread, which the caller knows not to run meanwhile; or who takes what comes of it
    /// for a guess.
    pub(super) fn read(&self, tid: i32) -> ThreadContext {
        let inner_tid = if self.is_empty() { None } else { self.inner_tid(tid) };
        let read =
            |inner_tid| self.read_entry(inner_tid).or_else(|| self.read_record(tid, inner_tid));
        inner_tid.and_then(read).unwrap_or_default()
    }

    /// Nobody tells anything.
    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.ways.is_empty()
    }

    /// What is in the entry of a thread that calls itself so, whether it is there or not.
    fn read_entry(&self, inner_tid: u32) -> Option<ThreadContext> {
        for (source, avma) in (origin::TABLE..).zip(&self.tables) {
            let read = || table::read_context(self.pid, *avma, inner_tid);
            if let Some(values) = Some(*avma).filter(|avma| *avma != 0).and_then(|_| read()) {
                let (span, root_span, tags) = (values.span, values.root_span, values.tags);
                return Some(ThreadContext { source, span, root_span, root_high: 0, tags });
            }
        }
        None
    }

    fn read_record(&self, tid: i32, inner_tid: u32) -> Option<ThreadContext> {
        let read = |avma, into: &mut [u8]| inject::read_part(self.pid, avma, into);
        if self.ways.is_empty() {
            return None;
        }
        let thread = proc::thread_pointer(tid, read);
        let thread = thread.or_else(|| self.noted_thread_pointer(inner_tid))?;
        if !record::is_own(thread, inner_tid, read) {
            return None;
        }
        let (record, attributes) = record::read_from_outside(thread, &self.ways, read)?;
        let mut tags = [0; TAGS];
        tags[0] = self.sets.number(&attributes);
        let (root_high, root_span) = record.trace;
        Some(ThreadContext {
            source: origin::RECORD,
            span: record.span,
            root_span,
            root_high,
            tags,
        })
    }

    /// The thread pointer that a handler noted. Of a thread that has had no sample there is none.
    fn noted_thread_pointer(&self, inner_tid: u32) -> Option<u64> {
        let threads = self.data?.threads();
        let slot = threads.slots.get(threads.find(inner_tid)?)?;
        // Relaxed: one word, of a thread that has slept since it was written.
        Some(slot.context[0].load(Ordering::Relaxed)).filter(|thread| *thread != 0)
    }

    /// What a thread calls itself.
    fn inner_tid(&self, tid: i32) -> Option<u32> {
        if self.inner_pid == self.pid as u32 {
            return Some(tid as u32);
        }
        u32::try_from(proc::task_status(self.pid, tid).ok()?.inner_pid).ok()
    }
}

#[cfg(test)]
mod tests;
