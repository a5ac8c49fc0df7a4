//! A recording in one file, or in consecutive parts, each of which is a trace.
//!
//! # Invariants
//! - A part has all objects that it refers to, and is closed before the samples of the next one are
//!   written; no sample is in two parts.
//! - Calls that are open at the end of a part are unfinished there, and start again in the next
//!   one.
//! - Ids are valid for the complete series.

mod limit;
mod objects;
mod part;
mod ring;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::limit::Limit;
use self::objects::SeriesObjects;
use self::part::SeriesPart;
use self::ring::Ring;
pub use self::ring::{RingPlan, SavedTrace, Saves};
use super::index::index_path;
use super::tags::TextTags;
use super::{
    CallTrace, FrameKind, Location, LocationId, MappedModule, Metadata, Method, MethodId, Module,
    ModuleId, SYMBOLS, Sample, TextId, Thread, ThreadId, TraceError, TraceWriter, Value,
    WriterOptions, Written,
};

/// The prefix of the metadata keys for the ids of threads in their own pid namespace; the thread id
/// follows.
pub(super) const INNER_IDS: &str = "inner_ids.";
/// The prefix of the closing figures in a part: they are about the complete recording.
pub(super) const OF_ALL: &str = "recording.";
/// The closing metadata that applies to a part as well as to the recording.
const OF_EACH: [&str; 5] =
    ["engine", "engine_why", "kernel_included", "kernel_stacks", "end_monotonic_ns"];

/// The size or age at which a part ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotateAfter {
    /// The size of its two files in bytes.
    Bytes(u64),
    /// The age of the part.
    Age(Duration),
}

/// The plan of a series.
pub struct SeriesPlan {
    /// Returns the path of a part's data file, given the part's number from 1 on.
    pub name: Box<dyn Fn(u32) -> PathBuf + Send>,
    /// The condition for the next part.
    pub rotate_after: RotateAfter,
    /// The number of parts that are kept, including the current one; older parts are removed. In a
    /// ring, which keeps the parts of its time span, this is the maximum.
    pub keep: Option<u32>,
    /// The plan of the ring, if the parts are a ring from which traces are saved.
    pub ring: Option<RingPlan>,
}

/// Writes a recording like [`TraceWriter`], into one file or several.
pub struct TraceSeries {
    writer: TraceWriter,
    parts: Option<Box<PartedSeries>>,
    limit: Option<Limit>,
}

/// The state of a series with parts, apart from the writer of the current part.
struct PartedSeries {
    plan: SeriesPlan,
    ring: Option<Ring>,
    options: WriterOptions,
    objects: SeriesObjects,
    part: SeriesPart,
    /// The tags whose values are texts.
    tags: TextTags,
    /// The number of the current part.
    number: u32,
    begun: Instant,
    /// The kept files, oldest first; the last is being written.
    kept: VecDeque<KeptPart>,
    /// The totals of the earlier parts.
    before: Written,
    /// The time of the last sample.
    last_ns: u64,
    stack: Vec<LocationId>,
}

/// The files of a kept part.
struct KeptPart {
    path: PathBuf,
    /// The time of its last sample; 0 while it is being written.
    last_ns: u64,
}

impl TraceSeries {
    /// Creates a series with a single file.
    pub fn of_one(writer: TraceWriter) -> Self {
        Self { writer, parts: None, limit: None }
    }

    /// Creates a series with its first part.
    ///
    /// # Errors
    /// Those of [`TraceWriter::create`], also for the methods below.
    pub fn create(mut plan: SeriesPlan, options: WriterOptions) -> Result<Self, TraceError> {
        let path = (plan.name)(1);
        let mut writer = TraceWriter::create(&path, options.clone())?;
        let mut objects = SeriesObjects::default();
        objects.metadata.insert("recording_id".to_owned(), Value::Text(writer.uuid()));
        objects.metadata.insert("part".to_owned(), Value::Unsigned(1));
        let mut part = SeriesPart::default();
        part.begin(&mut writer, &objects)?;
        let ring = plan.ring.take().map(Ring::new).transpose();
        let ring = ring.map_err(|source| TraceError::write(&path, source))?;
        let parts = PartedSeries {
            plan,
            ring,
            options,
            objects,
            part,
            tags: TextTags::default(),
            number: 1,
            begun: Instant::now(),
            kept: [KeptPart { path, last_ns: 0 }].into(),
            before: Written::default(),
            last_ns: 0,
            stack: Vec::new(),
        };
        Ok(Self { writer, parts: Some(Box::new(parts)), limit: None })
    }

    /// Limits the total size of the files of a single-file trace to `bytes`. Later samples are left
    /// out.
    pub fn limit(&mut self, bytes: u64) {
        self.limit = Some(Limit::new(bytes));
    }

    /// Returns whether the size limit is near, so that the recording should end.
    pub fn is_full(&self) -> bool {
        self.limit.as_ref().is_some_and(Limit::is_near)
    }

    /// Returns whether another sample may be written.
    pub fn has_room(&mut self) -> Result<bool, TraceError> {
        match &mut self.limit {
            Some(limit) => limit.has_room(&mut self.writer),
            None => Ok(true),
        }
    }

    /// See [`TraceWriter::set_metadata`]. Keys that end with the id of a module or of a thread use
    /// the ids of the series.
    pub fn set_metadata(&mut self, key: &str, value: Value) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.set_metadata(key, value) };
        let number = |prefix: &str| key.strip_prefix(prefix)?.parse::<u32>().ok();
        if let Some(id) = number(SYMBOLS) {
            parts.objects.symbols.insert(id, value.clone());
            let own = parts.part.known_module(id).map(part::symbols_key);
            return own.map_or(Ok(()), |key| self.writer.set_metadata(&key, value));
        }
        if let Some(id) = number(INNER_IDS) {
            parts.objects.inner_ids.insert(id, value.clone());
            let own = parts.part.known_thread(id).map(part::inner_ids_key);
            return own.map_or(Ok(()), |key| self.writer.set_metadata(&key, value));
        }
        parts.objects.metadata.insert(key.to_owned(), value.clone());
        parts.tags = TextTags::of(&parts.objects.metadata);
        self.writer.set_metadata(key, value)
    }

    /// Sets the closing figures of the recording. In a part that is not the complete recording,
    /// their keys get a prefix.
    pub fn set_closing(&mut self, metadata: Metadata) -> Result<(), TraceError> {
        let is_all = self.parts.as_ref().is_none_or(|parts| parts.number == 1);
        metadata.into_iter().try_for_each(|(key, value)| {
            let key = match is_all || OF_EACH.contains(&key.as_str()) {
                true => key,
                false => format!("{OF_ALL}{key}"),
            };
            self.writer.set_metadata(&key, value)
        })
    }

    /// See [`TraceWriter::module`].
    pub fn module(&mut self, module: &Module) -> Result<ModuleId, TraceError> {
        match &mut self.parts {
            Some(parts) => parts.objects.module(module),
            None => self.writer.module(module),
        }
    }

    /// See [`TraceWriter::method`].
    pub fn method(&mut self, method: &Method) -> Result<MethodId, TraceError> {
        match &mut self.parts {
            Some(parts) => parts.objects.method(method),
            None => self.writer.method(method),
        }
    }

    /// See [`TraceWriter::location`].
    pub fn location(&mut self, location: &Location) -> Result<LocationId, TraceError> {
        match &mut self.parts {
            Some(parts) => parts.objects.location(location),
            None => self.writer.location(location),
        }
    }

    /// See [`TraceWriter::location_as`].
    pub fn location_as(
        &mut self,
        id: LocationId,
        kind: FrameKind,
        inline_parent: Option<LocationId>,
    ) -> Result<LocationId, TraceError> {
        match &mut self.parts {
            Some(parts) => parts.objects.location_as(id, kind, inline_parent),
            None => self.writer.location_as(id, kind, inline_parent),
        }
    }

    /// See [`TraceWriter::text`].
    pub fn text(&mut self, text: &str) -> Result<TextId, TraceError> {
        match &mut self.parts {
            Some(parts) => parts.objects.text(text),
            None => self.writer.text(text),
        }
    }

    /// See [`TraceWriter::thread`].
    pub fn thread(&mut self, thread: &Thread) -> Result<ThreadId, TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.thread(thread) };
        let id = parts.objects.thread(thread)?;
        parts.part.thread((&mut self.writer, &parts.objects), id)?;
        Ok(id)
    }

    /// See [`TraceWriter::rename_thread`].
    pub fn rename_thread(&mut self, id: ThreadId, name: &str) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.rename_thread(id, name) };
        parts.objects.rename(id, name)?;
        let own = parts.part.known_thread(id.0);
        own.map_or(Ok(()), |own| self.writer.rename_thread(own, name))
    }

    /// See [`TraceWriter::set_runtime_name`].
    pub fn set_runtime_name(&mut self, id: ThreadId, name: &str) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.set_runtime_name(id, name) };
        parts.objects.set_runtime_name(id, name)?;
        let own = parts.part.known_thread(id.0);
        own.map_or(Ok(()), |own| self.writer.set_runtime_name(own, name))
    }

    /// See [`TraceWriter::thread_exit`].
    pub fn thread_exit(&mut self, id: ThreadId, time_ns: u64) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.thread_exit(id, time_ns) };
        // The thread is added even if this part has nothing else of it: the next part could not
        // know its exit.
        let own = parts.part.thread((&mut self.writer, &parts.objects), id)?;
        parts.objects.end_thread(id);
        parts.part.end_thread(id);
        self.writer.thread_exit(own, time_ns)
    }

    /// See [`TraceWriter::mapped_module`].
    pub fn mapped_module(&mut self, mapped: &MappedModule) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.mapped_module(mapped) };
        parts.objects.map(mapped);
        parts.part.map((&mut self.writer, &parts.objects), mapped)
    }

    /// See [`TraceWriter::sample`].
    pub fn sample(
        &mut self,
        thread: ThreadId,
        sample: &Sample,
        stack: &[LocationId],
    ) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else {
            return self.writer.sample(thread, sample, stack);
        };
        parts.sample(&mut self.writer, thread, sample, stack)?;
        self.rotate_if_due()
    }

    /// See [`TraceWriter::call_trace`].
    pub fn call_trace(&mut self, trace: &CallTrace) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.call_trace(trace) };
        parts.translate(&mut self.writer, &trace.stack)?;
        let stack = std::mem::take(&mut parts.stack);
        let own = CallTrace { stack, ..*trace };
        let written = self.writer.call_trace(&own);
        parts.stack = own.stack;
        written
    }

    /// See [`TraceWriter::flush`].
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.writer.flush()?;
        self.rotate_if_due()
    }

    /// Returns the number of samples that were added to all parts.
    pub fn samples(&self) -> u64 {
        self.parts.as_ref().map_or(0, |parts| parts.before.samples) + self.writer.samples()
    }

    /// See [`TraceWriter::count_unwritten`].
    pub fn count_unwritten(&mut self, samples: u64) {
        self.writer.count_unwritten(samples);
    }

    /// Returns the number of bytes written so far to all parts: data files, index files.
    pub fn bytes_written(&self) -> (u64, u64) {
        let (data, index) = self.writer.bytes_written();
        let before = self.parts.as_ref().map_or_else(Written::default, |parts| parts.before);
        (before.data_bytes + data, before.index_bytes + index)
    }

    /// Returns the data files of the kept parts, oldest first, and the total number of parts; empty
    /// for a recording in one file.
    pub fn parts(&self) -> (Vec<PathBuf>, u32) {
        let parts = self.parts.as_ref().filter(|parts| parts.ring.is_none());
        let kept =
            parts.map(|it| (it.kept.iter().map(|part| part.path.clone()).collect(), it.number));
        kept.unwrap_or_default()
    }

    /// See [`TraceWriter::finish`]. The result covers all parts; for a ring, it covers what was
    /// saved at the end.
    pub fn finish(self) -> Result<Written, TraceError> {
        let last = self.writer.finish();
        let Some(mut parts) = self.parts else { return last };
        let last = match last {
            Err(TraceError::CutShort { path, source, kept, lost_samples, closed })
                if parts.ring.is_none() =>
            {
                let kept = sum(&parts.before, &kept);
                return Err(TraceError::CutShort { path, source, kept, lost_samples, closed });
            }
            last => last?,
        };
        match parts.ring.take() {
            Some(ring) => {
                let are_all = parts.kept.len() == parts.number as usize;
                let kept: Vec<PathBuf> = parts.kept.into_iter().map(|part| part.path).collect();
                ring.finish((&kept, are_all), parts.options)
            }
            None => Ok(sum(&parts.before, &last)),
        }
    }

    fn rotate_if_due(&mut self) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return Ok(()) };
        let is_due = match parts.plan.rotate_after {
            RotateAfter::Bytes(bytes) => {
                let (data, index) = self.writer.bytes_written();
                data + index >= bytes
            }
            RotateAfter::Age(age) => parts.begun.elapsed() >= age,
        };
        // Parts without samples are not created.
        if is_due && parts.part.has_samples { parts.rotate(&mut self.writer) } else { Ok(()) }
    }
}

impl PartedSeries {
    fn sample(
        &mut self,
        writer: &mut TraceWriter,
        thread: ThreadId,
        sample: &Sample,
        stack: &[LocationId],
    ) -> Result<(), TraceError> {
        self.translate(writer, stack)?;
        let mut sample = sample.clone();
        let Self { objects, part, .. } = self;
        if let Some(text) = sample.waits_on {
            sample.waits_on = Some(part.text((&mut *writer, objects), text)?);
        }
        for value in self.tags.values(&mut sample) {
            // Not 0, since 0 is not a text.
            let own = part.text((&mut *writer, objects), TextId(*value - 1))?;
            *value = own.0.saturating_add(1);
        }
        let own = part.thread((&mut *writer, objects), thread)?;
        part.has_samples = true;
        self.last_ns = self.last_ns.max(sample.time_ns);
        writer.sample(own, &sample, &self.stack)
    }

    /// Translates a stack into `self.stack`, with the ids of the current part.
    fn translate(
        &mut self,
        writer: &mut TraceWriter,
        stack: &[LocationId],
    ) -> Result<(), TraceError> {
        let Self { objects, part, stack: own, .. } = self;
        own.clear();
        for location in stack {
            own.push(part.location((&mut *writer, objects), *location)?);
        }
        Ok(())
    }

    /// Closes the current part and starts the next one.
    fn rotate(&mut self, writer: &mut TraceWriter) -> Result<(), TraceError> {
        let path = (self.plan.name)(self.number + 1);
        // Created first: if that fails, the current part continues as the last one.
        let next = TraceWriter::create(&path, self.options.clone())?;
        let mut last = std::mem::replace(writer, next);
        last.set_metadata("end_monotonic_ns", Value::Unsigned(self.last_ns))?;
        self.before = sum(&self.before, &last.finish()?);
        self.number += 1;
        self.begun = Instant::now();
        if let Some(part) = self.kept.back_mut() {
            part.last_ns = self.last_ns;
        }
        self.kept.push_back(KeptPart { path, last_ns: 0 });
        self.note_begin();
        self.part = SeriesPart::default();
        self.part.begin(writer, &self.objects)?;
        self.remove_old();
        Ok(())
    }

    /// Removes the parts that are no longer kept.
    fn remove_old(&mut self) {
        // Parts that are being read now are removed at a later rotation.
        if !self.ring.as_ref().is_none_or(Ring::is_idle) {
            return;
        }
        while self.kept.len() > 1 && self.kept.front().is_some_and(|part| self.is_old(part)) {
            if let Some(oldest) = self.kept.pop_front() {
                remove(&oldest.path);
            }
        }
    }

    fn is_old(&self, oldest: &KeptPart) -> bool {
        let are_many = self.plan.keep.is_some_and(|keep| self.kept.len() > keep.max(1) as usize);
        let ring = self.ring.as_ref();
        are_many || ring.is_some_and(|ring| ring.is_past(oldest.last_ns, self.last_ns))
    }

    /// Updates the metadata about the part's number, its start times and those of the recording.
    fn note_begin(&mut self) {
        let metadata = &mut self.objects.metadata;
        metadata.insert("part".to_owned(), Value::Unsigned(self.number.into()));
        let mut begin = |key: &str, since_ns: u64| {
            let Some(Value::Unsigned(begun_ns)) = metadata.get(key).cloned() else { return 0 };
            let of_all = format!("recording_{key}");
            metadata.entry(of_all).or_insert(Value::Unsigned(begun_ns));
            let now_ns = begun_ns.saturating_add(since_ns);
            metadata.insert(key.to_owned(), Value::Unsigned(now_ns));
            begun_ns
        };
        let begun_ns = begin("start_monotonic_ns", 0);
        let since_ns = self.last_ns.saturating_sub(begun_ns);
        begin("start_monotonic_ns", since_ns);
        begin("start_realtime_ns", since_ns);
    }
}

/// Removes a part. Files that others removed already are fine.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(index_path(path));
    let _ = std::fs::remove_file(path);
}

fn sum(before: &Written, last: &Written) -> Written {
    Written {
        data_bytes: before.data_bytes + last.data_bytes,
        index_bytes: before.index_bytes + last.index_bytes,
        samples: before.samples + last.samples,
        collected_bytes: before.collected_bytes + last.collected_bytes,
        unsorted: last.unsorted,
    }
}
