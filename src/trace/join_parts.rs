//! Joins the parts of a recording into one file.
//!
//! # Invariants
//! - Calls are inferred from all samples as if there were no parts: a call that continues into the
//!   next part stays one call.
//! - One part is in memory at a time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::load::{LoadedTrace, load};
use super::series::{INNER_IDS, OF_ALL};
use super::tags::TextTags;
use super::{
    LocationId, MethodId, ModuleId, SYMBOLS, Sample, TRACE_UUID, TextId, Thread, ThreadId,
    TraceError, TraceWriter, Value, WriterOptions, Written,
};

/// The metadata keys of a part's start times: the joint trace has those of the first part.
const OF_FIRST: [&str; 2] = ["start_monotonic_ns", "start_realtime_ns"];
/// The metadata keys that identify a part.
const OF_PART: [&str; 2] = [TRACE_UUID, "part"];

/// Writes the parts of one recording, in their order, into one trace.
///
/// # Errors
/// Those of [`load`] for the parts, and those of [`TraceWriter`].
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
    let mut joint =
        Joint { writer: TraceWriter::create(output, options)?, threads: HashMap::new(), are_all };
    for (place, path) in parts.iter().enumerate() {
        joint.add(&load(path)?, place == 0)?;
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
}

/// The ids of the joint trace, by the part's ids.
struct JoinedIds {
    modules: Vec<ModuleId>,
    locations: Vec<LocationId>,
    texts: HashMap<u32, TextId>,
}

impl Joint {
    fn add(&mut self, part: &LoadedTrace, is_first: bool) -> Result<(), TraceError> {
        for (key, value) in &part.metadata {
            let is_due = is_first || !OF_FIRST.contains(&key.as_str());
            let has_id = key.starts_with(SYMBOLS) || key.starts_with(INNER_IDS);
            if is_due && !has_id && !OF_PART.contains(&key.as_str()) {
                let own = key.strip_prefix(OF_ALL).filter(|_| self.are_all);
                self.writer.set_metadata(own.unwrap_or(key), value.clone())?;
            }
        }
        let ids = self.objects(part)?;
        for (key, value) in &part.metadata {
            let module = key.strip_prefix(SYMBOLS).and_then(|id| id.parse::<usize>().ok());
            if let Some(id) = module.and_then(|id| ids.modules.get(id)) {
                self.writer.set_metadata(&format!("{SYMBOLS}{}", id.0), value.clone())?;
            }
        }
        for mapped in &part.mapped {
            let mut mapped = mapped.clone();
            mapped.module = ids.modules[mapped.module.0 as usize];
            self.writer.mapped_module(&mapped)?;
        }
        for mut trace in part.call_traces.iter() {
            let stack = trace.stack.iter().map(|place| ids.locations[place.0 as usize]);
            trace.stack = stack.collect();
            self.writer.call_trace(&trace)?;
        }
        self.streams(part, &ids)
    }

    fn objects(&mut self, part: &LoadedTrace) -> Result<JoinedIds, TraceError> {
        let writer = &mut self.writer;
        let modules = part.modules.iter().map(|module| writer.module(module));
        let modules = modules.collect::<Result<Vec<ModuleId>, _>>()?;
        let mut methods: Vec<MethodId> = Vec::with_capacity(part.methods.len());
        for method in &part.methods {
            let mut method = method.clone();
            method.module = method.module.and_then(|id| modules.get(id.0 as usize).copied());
            methods.push(writer.method(&method)?);
        }
        let mut locations: Vec<LocationId> = Vec::with_capacity(part.locations.len());
        for location in &part.locations {
            let mut location = location.clone();
            location.method = methods[location.method.0 as usize];
            // The parent has a smaller id.
            let parent = location.inline_parent.and_then(|id| locations.get(id.0 as usize));
            location.inline_parent = parent.copied();
            locations.push(writer.location(&location)?);
        }
        let texts = part.texts.iter().map(|(id, text)| Ok((id.0, writer.text(text)?)));
        let texts = texts.collect::<Result<HashMap<u32, TextId>, TraceError>>()?;
        Ok(JoinedIds { modules, locations, texts })
    }

    fn streams(&mut self, part: &LoadedTrace, ids: &JoinedIds) -> Result<(), TraceError> {
        let tags = TextTags::of(&part.metadata);
        for thread in &part.threads {
            let id = self.thread(part, thread.id, &thread.thread)?;
            let mut stack = Vec::new();
            let mut outcome = Ok(());
            thread.for_each_sample(&mut |sample, own| {
                if outcome.is_err() {
                    return;
                }
                stack.clear();
                stack.extend(own.iter().map(|place| ids.locations[place.0 as usize]));
                let sample = renamed(sample, ids, tags);
                outcome = self.writer.sample(id, &sample, &stack);
            });
            outcome?;
            if let Some(ended_ns) = thread.thread.ended_ns {
                self.writer.thread_exit(id, ended_ns)?;
                self.threads.remove(&key(&thread.thread));
            }
        }
        Ok(())
    }

    /// Returns the thread, which may be in the previous part already; it gets the name that it has
    /// in this part.
    fn thread(
        &mut self,
        part: &LoadedTrace,
        own: ThreadId,
        thread: &Thread,
    ) -> Result<ThreadId, TraceError> {
        let id = match self.threads.get(&key(thread)) {
            Some(id) => {
                self.writer.rename_thread(*id, &thread.name)?;
                return Ok(*id);
            }
            None => self.writer.thread(&Thread { ended_ns: None, ..thread.clone() })?,
        };
        self.threads.insert(key(thread), id);
        if let Some(inner) = part.metadata.get(&format!("{INNER_IDS}{}", own.0)) {
            self.writer.set_metadata(&format!("{INNER_IDS}{}", id.0), Value::clone(inner))?;
        }
        Ok(id)
    }
}

fn key(thread: &Thread) -> PartThreadKey {
    (thread.pid, thread.tid, thread.first_seen_ns)
}

/// Returns the sample with the text ids of the joint trace.
fn renamed(sample: &Sample, ids: &JoinedIds, tags: TextTags) -> Sample {
    let mut sample = sample.clone();
    sample.waits_on = sample.waits_on.and_then(|text| ids.texts.get(&text.0).copied());
    for value in tags.values(&mut sample) {
        let text = ids.texts.get(&(*value - 1));
        *value = text.map_or(0, |text| text.0.saturating_add(1));
    }
    sample
}
