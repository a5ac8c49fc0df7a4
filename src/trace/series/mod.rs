//! A recording in one file, or in parts that follow one another, each a trace of its own.
//!
//! # Invariants
//! - A part has all that it refers to, and is closed before the samples of the next one are
//!   written; no sample is in two.
//! - Calls that are open at the end of a part are unfinished there, and begin anew in the next one.
//! - Ids that are given out hold for the whole series.

mod book;
mod limit;
mod part;
mod ring;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::book::Book;
use self::limit::Limit;
use self::part::Part;
use self::ring::Ring;
pub use self::ring::{RingPlan, Saved, Saves};
use super::index::index_path;
use super::tags::TextTags;
use super::{
    CallTrace, Location, LocationId, MappedModule, Metadata, Method, MethodId, Module, ModuleId,
    SYMBOLS, Sample, TextId, Thread, ThreadId, TraceError, TraceWriter, Value, WriterOptions,
    Written,
};

/// Begins the keys of what threads of a pid namespace are called by themselves; their id follows.
pub(super) const INNER_IDS: &str = "inner_ids.";
/// In front of the closing figures in a part: they are about the whole recording.
pub(super) const OF_ALL: &str = "recording.";
/// Closing metadata that is about a part as much as about the recording.
const OF_EACH: [&str; 4] = ["engine", "engine_why", "kernel_included", "end_monotonic_ns"];

/// When a part is long enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// When its two files have so many bytes.
    Bytes(u64),
    /// When it is so old.
    Age(Duration),
}

/// How a series is made.
pub struct SeriesPlan {
    /// The data file of a part, by its number from 1 on.
    pub name: Box<dyn Fn(u32) -> PathBuf + Send>,
    /// When the next part begins.
    pub turn: Turn,
    /// How many parts are kept, the current one included; the oldest are removed. A ring keeps
    /// those of its time; this is the most then.
    pub keep: Option<u32>,
    /// The parts are a ring, of which others are saved.
    pub ring: Option<RingPlan>,
}

/// Writes a recording: as [`TraceWriter`], into one file or several.
pub struct TraceSeries {
    writer: TraceWriter,
    parts: Option<Box<Parts>>,
    limit: Option<Limit>,
}

/// What there is besides the writer of the current part.
struct Parts {
    plan: SeriesPlan,
    ring: Option<Ring>,
    options: WriterOptions,
    book: Book,
    part: Part,
    /// Which tags are texts.
    tags: TextTags,
    /// The part that is written.
    number: u32,
    begun: Instant,
    /// The files that are kept, oldest first; the last is being written.
    kept: VecDeque<Kept>,
    /// What the parts before came to.
    before: Written,
    /// Time of the last sample.
    last_ns: u64,
    stack: Vec<LocationId>,
}

/// The files of a part.
struct Kept {
    path: PathBuf,
    /// Time of its last sample; 0 while it is written.
    last_ns: u64,
}

impl TraceSeries {
    /// All in one file.
    pub fn of_one(writer: TraceWriter) -> Self {
        Self { writer, parts: None, limit: None }
    }

    /// Creates the first part.
    ///
    /// # Errors
    /// Those of [`TraceWriter::create`], as for the verbs below.
    pub fn create(mut plan: SeriesPlan, options: WriterOptions) -> Result<Self, TraceError> {
        let path = (plan.name)(1);
        let mut writer = TraceWriter::create(&path, options.clone())?;
        let mut book = Book::default();
        book.metadata.insert("recording_id".to_owned(), Value::Text(writer.uuid()));
        book.metadata.insert("part".to_owned(), Value::Unsigned(1));
        let mut part = Part::default();
        part.begin(&mut writer, &book)?;
        let ring = plan.ring.take().map(Ring::new).transpose();
        let ring = ring.map_err(|source| TraceError::write(&path, source))?;
        let parts = Parts {
            plan,
            ring,
            options,
            book,
            part,
            tags: TextTags::default(),
            number: 1,
            begun: Instant::now(),
            kept: [Kept { path, last_ns: 0 }].into(),
            before: Written::default(),
            last_ns: 0,
            stack: Vec::new(),
        };
        Ok(Self { writer, parts: Some(Box::new(parts)), limit: None })
    }

    /// The files of a trace in one file shall not have more than so many bytes together: what comes
    /// later is left out.
    pub fn limit(&mut self, bytes: u64) {
        self.limit = Some(Limit::new(bytes));
    }

    /// The limit is near: the recording should end.
    pub fn is_full(&self) -> bool {
        self.limit.as_ref().is_some_and(Limit::is_near)
    }

    /// Whether another sample may be written.
    pub fn has_room(&mut self) -> Result<bool, TraceError> {
        match &mut self.limit {
            Some(limit) => limit.has_room(&mut self.writer),
            None => Ok(true),
        }
    }

    /// See [`TraceWriter::set_metadata`]. The keys that end with the id of a module or of a thread
    /// have that of the series.
    pub fn set_metadata(&mut self, key: &str, value: Value) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.set_metadata(key, value) };
        let number = |prefix: &str| key.strip_prefix(prefix)?.parse::<u32>().ok();
        if let Some(id) = number(SYMBOLS) {
            parts.book.symbols.insert(id, value.clone());
            let own = parts.part.known_module(id).map(part::symbols_key);
            return own.map_or(Ok(()), |key| self.writer.set_metadata(&key, value));
        }
        if let Some(id) = number(INNER_IDS) {
            parts.book.inner_ids.insert(id, value.clone());
            let own = parts.part.known_thread(id).map(part::inner_ids_key);
            return own.map_or(Ok(()), |key| self.writer.set_metadata(&key, value));
        }
        parts.book.metadata.insert(key.to_owned(), value.clone());
        parts.tags = TextTags::of(&parts.book.metadata);
        self.writer.set_metadata(key, value)
    }

    /// Sets what is said of the recording at its end. In a part that is not all of it the figures
    /// get keys that say so.
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
            Some(parts) => parts.book.module(module),
            None => self.writer.module(module),
        }
    }

    /// See [`TraceWriter::method`].
    pub fn method(&mut self, method: &Method) -> Result<MethodId, TraceError> {
        match &mut self.parts {
            Some(parts) => parts.book.method(method),
            None => self.writer.method(method),
        }
    }

    /// See [`TraceWriter::location`].
    pub fn location(&mut self, location: &Location) -> Result<LocationId, TraceError> {
        match &mut self.parts {
            Some(parts) => parts.book.location(location),
            None => self.writer.location(location),
        }
    }

    /// See [`TraceWriter::text`].
    pub fn text(&mut self, text: &str) -> Result<TextId, TraceError> {
        match &mut self.parts {
            Some(parts) => parts.book.text(text),
            None => self.writer.text(text),
        }
    }

    /// See [`TraceWriter::thread`].
    pub fn thread(&mut self, thread: &Thread) -> Result<ThreadId, TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.thread(thread) };
        let id = parts.book.thread(thread)?;
        parts.part.thread((&mut self.writer, &parts.book), id)?;
        Ok(id)
    }

    /// See [`TraceWriter::rename_thread`].
    pub fn rename_thread(&mut self, id: ThreadId, name: &str) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.rename_thread(id, name) };
        parts.book.rename(id, name)?;
        let own = parts.part.known_thread(id.0);
        own.map_or(Ok(()), |own| self.writer.rename_thread(own, name))
    }

    /// See [`TraceWriter::thread_exit`].
    pub fn thread_exit(&mut self, id: ThreadId, time_ns: u64) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.thread_exit(id, time_ns) };
        // Where nothing of it is, its end is: of the next part it could not be known.
        let own = parts.part.thread((&mut self.writer, &parts.book), id)?;
        parts.book.end_thread(id);
        parts.part.end_thread(id);
        self.writer.thread_exit(own, time_ns)
    }

    /// See [`TraceWriter::mapped_module`].
    pub fn mapped_module(&mut self, mapped: &MappedModule) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return self.writer.mapped_module(mapped) };
        parts.book.map(mapped);
        parts.part.map((&mut self.writer, &parts.book), mapped)
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
        self.turn_if_due()
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
        self.turn_if_due()
    }

    /// Bytes written so far to all parts: data files, index files.
    pub fn bytes_written(&self) -> (u64, u64) {
        let (data, index) = self.writer.bytes_written();
        let before = self.parts.as_ref().map_or_else(Written::default, |parts| parts.before);
        (before.data_bytes + data, before.index_bytes + index)
    }

    /// The data files of the parts that are kept, oldest first, and how many there were; none of a
    /// recording in one file.
    pub fn parts(&self) -> (Vec<PathBuf>, u32) {
        let parts = self.parts.as_ref().filter(|parts| parts.ring.is_none());
        let kept =
            parts.map(|it| (it.kept.iter().map(|part| part.path.clone()).collect(), it.number));
        kept.unwrap_or_default()
    }

    /// See [`TraceWriter::finish`]. What was written is that of all parts; of a ring what was saved
    /// of it at the end.
    pub fn finish(self) -> Result<Written, TraceError> {
        let last = self.writer.finish()?;
        let Some(mut parts) = self.parts else { return Ok(last) };
        match parts.ring.take() {
            Some(ring) => {
                let are_all = parts.kept.len() == parts.number as usize;
                let kept: Vec<PathBuf> = parts.kept.into_iter().map(|part| part.path).collect();
                ring.finish((&kept, are_all), parts.options)
            }
            None => Ok(sum(&parts.before, &last)),
        }
    }

    fn turn_if_due(&mut self) -> Result<(), TraceError> {
        let Some(parts) = &mut self.parts else { return Ok(()) };
        let is_due = match parts.plan.turn {
            Turn::Bytes(bytes) => {
                let (data, index) = self.writer.bytes_written();
                data + index >= bytes
            }
            Turn::Age(age) => parts.begun.elapsed() >= age,
        };
        // An empty part would be no part of anything.
        if is_due && parts.part.has_samples { parts.turn(&mut self.writer) } else { Ok(()) }
    }
}

impl Parts {
    fn sample(
        &mut self,
        writer: &mut TraceWriter,
        thread: ThreadId,
        sample: &Sample,
        stack: &[LocationId],
    ) -> Result<(), TraceError> {
        self.translate(writer, stack)?;
        let mut sample = sample.clone();
        let Self { book, part, .. } = self;
        if let Some(text) = sample.waits_on {
            sample.waits_on = Some(part.text((&mut *writer, book), text)?);
        }
        for value in self.tags.values(&mut sample) {
            // Not 0: those are no texts.
            let own = part.text((&mut *writer, book), TextId(*value - 1))?;
            *value = own.0.saturating_add(1);
        }
        let own = part.thread((&mut *writer, book), thread)?;
        part.has_samples = true;
        self.last_ns = self.last_ns.max(sample.time_ns);
        writer.sample(own, &sample, &self.stack)
    }

    /// Puts a stack into `self.stack` as the current part has it.
    fn translate(
        &mut self,
        writer: &mut TraceWriter,
        stack: &[LocationId],
    ) -> Result<(), TraceError> {
        let Self { book, part, stack: own, .. } = self;
        own.clear();
        for location in stack {
            own.push(part.location((&mut *writer, book), *location)?);
        }
        Ok(())
    }

    /// Closes the part and begins the next one.
    fn turn(&mut self, writer: &mut TraceWriter) -> Result<(), TraceError> {
        let path = (self.plan.name)(self.number + 1);
        // First: if that cannot be, the part that there is goes on to be the last.
        let next = TraceWriter::create(&path, self.options.clone())?;
        let mut last = std::mem::replace(writer, next);
        last.set_metadata("end_monotonic_ns", Value::Unsigned(self.last_ns))?;
        self.before = sum(&self.before, &last.finish()?);
        self.number += 1;
        self.begun = Instant::now();
        if let Some(part) = self.kept.back_mut() {
            part.last_ns = self.last_ns;
        }
        self.kept.push_back(Kept { path, last_ns: 0 });
        self.note_begin();
        self.part = Part::default();
        self.part.begin(writer, &self.book)?;
        self.remove_old();
        Ok(())
    }

    /// Removes the parts that are not kept any more.
    fn remove_old(&mut self) {
        // What is read now goes with the next turn.
        if !self.ring.as_ref().is_none_or(Ring::is_idle) {
            return;
        }
        while self.kept.len() > 1 && self.kept.front().is_some_and(|part| self.is_old(part)) {
            if let Some(oldest) = self.kept.pop_front() {
                remove(&oldest.path);
            }
        }
    }

    fn is_old(&self, oldest: &Kept) -> bool {
        let are_many = self.plan.keep.is_some_and(|keep| self.kept.len() > keep.max(1) as usize);
        let ring = self.ring.as_ref();
        are_many || ring.is_some_and(|ring| ring.is_past(oldest.last_ns, self.last_ns))
    }

    /// Says which part begins when, and when the recording did.
    fn note_begin(&mut self) {
        let metadata = &mut self.book.metadata;
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

/// Removes a part. What somebody else has removed is gone as well.
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
