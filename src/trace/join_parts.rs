//! Joins the parts of a recording into one file, or copies a part of its time.
//!
//! # Invariants
//! - Calls are inferred from all samples as if there were no parts: a call that continues into the
//!   next part stays one call.
//! - Memory is bounded whatever the length of the parts: that of the lazy reader (24 MiB of decoded
//!   frames and pages of the index), the objects of one part, and that of the writer.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::series::{INNER_IDS, OF_ALL};
use super::tags::TextTags;
use super::{
    LOST, LazyTrace, Location, LocationId, Method, MethodId, ModuleId, Objects, SYMBOLS, Sample,
    TRACE_UUID, TextId, Thread, ThreadId, TraceError, TraceWriter, Value, Window, WriterOptions,
    Written,
};

/// The metadata key of a part's start on the clock of samples.
const START: &str = "start_monotonic_ns";
/// The metadata keys of a part's start times: the joint trace has those of the first part.
const OF_FIRST: [&str; 2] = [START, "start_realtime_ns"];
/// The metadata keys that identify a part.
const OF_PART: [&str; 2] = [TRACE_UUID, "part"];

/// Writes the parts of one recording, in their order, into one trace.
///
/// # Errors
/// Those of [`LazyTrace`] for the parts, and those of [`TraceWriter`].
pub fn join(
    parts: &[PathBuf],
    output: &Path,
    options: WriterOptions,
) -> Result<Written, TraceError> {
    join_parts((parts, false), output, options)
}

/// Like [`join`]. If `are_all`, the parts are all parts of the recording, so its closing figures
/// are those of the joint trace.
pub(super) fn join_parts(
    (parts, are_all): (&[PathBuf], bool),
    output: &Path,
    options: WriterOptions,
) -> Result<Written, TraceError> {
    let mut joint = Joint::new(output, options, 0..=u64::MAX)?;
    joint.are_all = are_all;
    for (place, path) in parts.iter().enumerate() {
        joint.add(&LazyTrace::open(path)?, place == 0)?;
    }
    joint.writer.finish()
}

/// Writes the samples of some time of a trace, which may still be written, into a trace that begins
/// at that time. Threads that ended before it are left out.
///
/// # Errors
/// Those of [`LazyTrace`] for the trace, and those of [`TraceWriter`].
pub fn excerpt(
    trace: &LazyTrace,
    times_ns: RangeInclusive<u64>,
    output: &Path,
    options: WriterOptions,
) -> Result<Written, TraceError> {
    let start = |key: &str| match trace.metadata().get(key) {
        Some(Value::Unsigned(start_ns)) => Some(*start_ns),
        _ => None,
    };
    let since_ns = start(START).map_or(0, |start_ns| times_ns.start().saturating_sub(start_ns));
    let mut joint = Joint::new(output, options, times_ns)?;
    joint.add(trace, true)?;
    for key in OF_FIRST {
        if let Some(start_ns) = start(key) {
            let begin_ns = Value::Unsigned(start_ns.saturating_add(since_ns));
            joint.writer.set_metadata(key, begin_ns)?;
        }
    }
    joint.writer.finish()
}

/// The process id, thread id and first time of a thread, which distinguish it from all others in
/// each part.
type PartThreadKey = (u32, u32, u64);

/// The joint trace while it is written.
struct Joint {
    writer: TraceWriter,
    /// The threads that have not exited.
    threads: HashMap<PartThreadKey, ThreadId>,
    are_all: bool,
    /// The times of the samples to write.
    times_ns: RangeInclusive<u64>,
}

/// The ids of the joint trace, by the part's ids.
struct JoinedIds {
    modules: Vec<ModuleId>,
    locations: Vec<LocationId>,
    /// The texts that samples had so far.
    texts: HashMap<TextId, TextId>,
    /// `None` for a thread that ended too early.
    threads: Vec<Option<ThreadId>>,
}

impl JoinedIds {
    /// Returns the id of a location; that of `[lost]` if a damaged part does not have it.
    fn location(
        &self,
        own: LocationId,
        writer: &mut TraceWriter,
    ) -> Result<LocationId, TraceError> {
        match self.locations.get(own.0 as usize) {
            Some(id) => Ok(*id),
            None => {
                let method = writer.method(&Method::named(LOST))?;
                writer.location(&Location::at(method, 0))
            }
        }
    }

    /// Translates a stack into `joined`.
    fn stack(
        &self,
        own: &[LocationId],
        joined: &mut Vec<LocationId>,
        writer: &mut TraceWriter,
    ) -> Result<(), TraceError> {
        joined.clear();
        own.iter().try_for_each(|place| {
            joined.push(self.location(*place, writer)?);
            Ok(())
        })
    }
}

impl Joint {
    fn new(
        output: &Path,
        options: WriterOptions,
        times_ns: RangeInclusive<u64>,
    ) -> Result<Self, TraceError> {
        let writer = TraceWriter::create(output, options)?;
        Ok(Self { writer, threads: HashMap::new(), are_all: false, times_ns })
    }

    fn add(&mut self, part: &LazyTrace, is_first: bool) -> Result<(), TraceError> {
        for (key, value) in part.metadata() {
            let is_due = is_first || !OF_FIRST.contains(&key.as_str());
            let has_id = key.starts_with(SYMBOLS) || key.starts_with(INNER_IDS);
            if is_due && !has_id && !OF_PART.contains(&key.as_str()) {
                let own = key.strip_prefix(OF_ALL).filter(|_| self.are_all);
                self.writer.set_metadata(own.unwrap_or(key), value.clone())?;
            }
        }
        let mut ids = self.objects(part.load_objects()?)?;
        for (key, value) in part.metadata() {
            let module = key.strip_prefix(SYMBOLS).and_then(|id| id.parse::<usize>().ok());
            if let Some(id) = module.and_then(|id| ids.modules.get(id)) {
                self.writer.set_metadata(&format!("{SYMBOLS}{}", id.0), value.clone())?;
            }
        }
        for mut mapped in part.mapped()? {
            let Some(module) = ids.modules.get(mapped.module.0 as usize) else { continue };
            mapped.module = *module;
            self.writer.mapped_module(&mapped)?;
        }
        for mut trace in part.call_traces()? {
            let own = std::mem::take(&mut trace.stack);
            ids.stack(&own, &mut trace.stack, &mut self.writer)?;
            self.writer.call_trace(&trace)?;
        }
        for summary in part.threads() {
            let ended_ns = summary.thread.ended_ns;
            let is_there = ended_ns.is_none_or(|ended_ns| ended_ns >= *self.times_ns.start());
            let id =
                is_there.then(|| self.thread(part, summary.id, &summary.thread)).transpose()?;
            ids.threads.push(id);
        }
        self.samples(part, &mut ids)?;
        for (summary, id) in part.threads().iter().zip(&ids.threads) {
            if let (Some(ended_ns), Some(id)) = (summary.thread.ended_ns, id) {
                self.writer.thread_exit(*id, ended_ns)?;
                self.threads.remove(&key(&summary.thread));
            }
        }
        Ok(())
    }

    fn objects(&mut self, part: Objects) -> Result<JoinedIds, TraceError> {
        let writer = &mut self.writer;
        let modules = part.modules.iter().map(|module| writer.module(module));
        let modules = modules.collect::<Result<Vec<ModuleId>, _>>()?;
        let mut methods: Vec<MethodId> = Vec::with_capacity(part.methods.len());
        for mut method in part.methods {
            method.module = method.module.and_then(|id| modules.get(id.0 as usize).copied());
            methods.push(writer.method(&method)?);
        }
        let mut locations: Vec<LocationId> = Vec::with_capacity(part.locations.len());
        for mut location in part.locations {
            location.method = methods[location.method.0 as usize];
            // The parent has a smaller id.
            let parent = location.inline_parent.and_then(|id| locations.get(id.0 as usize));
            location.inline_parent = parent.copied();
            locations.push(writer.location(&location)?);
        }
        Ok(JoinedIds { modules, locations, texts: HashMap::new(), threads: Vec::new() })
    }

    /// Writes the samples of all threads, one slice of time after the other.
    fn samples(&mut self, part: &LazyTrace, ids: &mut JoinedIds) -> Result<(), TraceError> {
        let tags = TextTags::of(part.metadata());
        let mut stack = Vec::new();
        for (from_ns, to_ns) in part.time_slices()? {
            let from_ns = from_ns.max(*self.times_ns.start());
            let to_ns = to_ns.min(*self.times_ns.end());
            if from_ns > to_ns {
                continue;
            }
            let mut outcome = Ok(());
            let window = Window { threads: None, from_ns, to_ns };
            part.for_each_sample(&window, &mut |thread, sample, own| {
                if outcome.is_err() {
                    return;
                }
                outcome = ids.stack(own, &mut stack, &mut self.writer).and_then(|()| {
                    let sample = self.renamed(part, sample, (ids, tags))?;
                    let id = ids.threads.get(thread.0 as usize).copied().flatten();
                    let unknown = TraceError::UnknownId { kind: "thread", id: thread.0 };
                    self.writer.sample(id.ok_or(unknown)?, &sample, &stack)
                });
            })?;
            outcome?;
        }
        Ok(())
    }

    /// Returns the sample with the text ids of the joint trace.
    fn renamed(
        &mut self,
        part: &LazyTrace,
        sample: &Sample,
        (ids, tags): (&mut JoinedIds, TextTags),
    ) -> Result<Sample, TraceError> {
        let mut sample = sample.clone();
        let mut renamed = |id: TextId| {
            if let Some(known) = ids.texts.get(&id) {
                return Ok(*known);
            }
            let text = self.writer.text(&part.tag_text(id)?)?;
            ids.texts.insert(id, text);
            Ok(text)
        };
        sample.waits_on = sample.waits_on.map(&mut renamed).transpose()?;
        for value in tags.values(&mut sample) {
            *value = renamed(TextId(*value - 1))?.0.saturating_add(1);
        }
        Ok(sample)
    }

    /// Returns the thread, which may be in the previous part already; it gets the name that it has
    /// in this part.
    fn thread(
        &mut self,
        part: &LazyTrace,
        own: ThreadId,
        thread: &Thread,
    ) -> Result<ThreadId, TraceError> {
        let id = match self.threads.get(&key(thread)) {
            Some(id) => {
                self.writer.rename_thread(*id, &thread.name)?;
                if let Some(name) = &thread.runtime_name {
                    self.writer.set_runtime_name(*id, name)?;
                }
                return Ok(*id);
            }
            None => self.writer.thread(&Thread { ended_ns: None, ..thread.clone() })?,
        };
        self.threads.insert(key(thread), id);
        if let Some(inner) = part.metadata().get(&format!("{INNER_IDS}{}", own.0)) {
            self.writer.set_metadata(&format!("{INNER_IDS}{}", id.0), Value::clone(inner))?;
        }
        Ok(id)
    }
}

fn key(thread: &Thread) -> PartThreadKey {
    (thread.pid, thread.tid, thread.first_seen_ns)
}
