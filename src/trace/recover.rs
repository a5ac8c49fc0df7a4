//! Recovery: writes everything readable of a trace into a complete trace.
//!
//! # Invariants
//! - Streams are copied unchanged, calls included: nothing is inferred again, so a complete trace
//!   stays the same.
//! - Where something is lost, the copy has a gap.
//! - Memory use is that of the scan's tables, the thread-neutral objects and the writer.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::budget::Budget;
use super::bytes::{Cursor, Malformed};
use super::checkpoint::{BlockEntry, Checkpoint};
use super::frame::Frame;
use super::frames::Frames;
use super::index::index_path;
use super::loss::{self, Loss};
use super::meter;
use super::object::{Record, SampleFields, TracePoint};
use super::resolve::{Neutrals, Referred};
use super::sample::Context;
use super::scan::scan;
use super::scanned::Scan;
use super::state::StreamRef;
use super::stream::Stream;
use super::tags::TextTags;
use super::verify::FileState;
use super::{
    LOST, LocationId, MethodId, ModuleId, NO_THREAD, SIDE, Sample, TRACE_UUID, TextId, Thread,
    ThreadId, TraceError, TraceWriter, Value, WriterOptions, Written,
};

/// The result of [`recover`].
#[derive(Debug)]
pub struct Recovered {
    /// The number of samples in the new file.
    pub samples: u64,
    /// The losses of the old file.
    pub losses: Vec<Loss>,
    /// The new file.
    pub written: Written,
    /// The state of the old file.
    pub was: FileState,
}

/// Writes to `output` a complete trace with everything that can be read of the trace at `input`.
/// Where samples are lost it has a gap. If the old file was not clean, the new one has the metadata
/// `recovered_from` (the old file's name), `recovered_unfinished` (1, if the old file was not
/// closed), `recovered_lost_frames` and `recovered_lost_samples` (as far as known).
///
/// # Errors
/// Those of [`load`](fn@super::load) for the input; [`TraceError::SameFile`] if the output would
/// replace it; those of [`TraceWriter`].
///
/// ```
/// use traceprof::trace::{self, FileState, TraceWriter, WriterOptions};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let (input, output) = (dir.path().join("a.trace"), dir.path().join("b.trace"));
/// TraceWriter::create(&input, WriterOptions::default())?.finish()?;
/// let recovered = trace::recover(&input, &output, WriterOptions::default())?;
/// assert_eq!(recovered.was, FileState::Clean);
/// assert!(trace::load(&output)?.closed);
/// # Ok(())
/// # }
/// ```
pub fn recover(
    input: &Path,
    output: &Path,
    options: WriterOptions,
) -> Result<Recovered, TraceError> {
    // Opened first, so that a missing input is the first error.
    let frames = Frames::open(input)?;
    refuse_same(input, output)?;
    let scan = scan(input, false)?;
    let was = FileState::of(&scan.bad, &scan.losses, scan.closed);
    // In a file without losses all references are valid: the scan has checked them.
    let everywhere = scan.mixed || was == FileState::Lossy;
    meter::again();
    let neutrals = read_objects(frames, everywhere)?;
    let trace_ids = options.trace_ids;
    let writer = TraceWriter::create(output, options)?;
    let written = write(writer, input, (&scan, &neutrals), trace_ids).inspect_err(|error| {
        // Nobody wants a part of a trace; after a failed write it is all that there was room for.
        if !error.is_output_error() {
            let _ = std::fs::remove_file(output);
            let _ = std::fs::remove_file(index_path(output));
        }
    })?;
    Ok(Recovered { samples: scan.samples, losses: scan.losses, written, was })
}

/// Writes the objects and the streams.
fn write(
    mut writer: TraceWriter,
    input: &Path,
    (scan, neutrals): (&Scan, &Neutrals),
    trace_ids: bool,
) -> Result<Written, TraceError> {
    if FileState::of(&scan.bad, &scan.losses, scan.closed) != FileState::Clean {
        note_origin(&mut writer, input, scan)?;
    }
    // Texts come first, so that those of a complete trace keep their ids.
    let texts: Vec<TextId> =
        neutrals.texts().map(|text| writer.text(text)).collect::<Result<_, _>>()?;
    let locations = write_objects(&mut writer, neutrals)?;
    let threads = neutrals.threads(&mut budget()).map_err(|what| corrupt(0, what))?;
    for thread in &threads {
        writer.thread(thread)?;
    }
    let tags = TextTags::of(neutrals.metadata());
    let copy = Copy { writer, texts, tags, locations, threads: &threads, scan, trace_ids };
    meter::again();
    copy.all(Frames::open(input)?)?.finish()
}

/// Refuses to overwrite the input or its index.
fn refuse_same(input: &Path, output: &Path) -> Result<(), TraceError> {
    let inode = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let read = [inode(input), inode(&index_path(input))];
    for path in [output, &index_path(output)] {
        let found = inode(path);
        if found.is_some() && read.contains(&found) {
            return Err(TraceError::SameFile { path: path.to_owned() });
        }
    }
    Ok(())
}

fn budget() -> Budget {
    Budget::for_objects()
}

fn corrupt(offset: u64, what: &'static str) -> TraceError {
    budget().error(offset, what)
}

/// Records in the metadata what the new file was made from.
fn note_origin(writer: &mut TraceWriter, input: &Path, scan: &Scan) -> Result<(), TraceError> {
    let name = input.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let samples = scan.losses.iter().filter_map(|loss| loss.samples);
    let samples = samples.fold(0u64, u64::saturating_add);
    writer.set_metadata("recovered_from", Value::Text(name))?;
    if !scan.closed {
        writer.set_metadata("recovered_unfinished", Value::Unsigned(1))?;
    }
    writer.set_metadata("recovered_lost_frames", Value::Unsigned(scan.lost_frames))?;
    writer.set_metadata("recovered_lost_samples", Value::Unsigned(samples))
}

/// Reads the thread-neutral objects of a file. Decodes blocks of threads only if they may contain
/// such objects or refer to lost ones.
fn read_objects(
    mut frames: Frames<BufReader<File>>,
    everywhere: bool,
) -> Result<Neutrals, TraceError> {
    let mut neutrals = Neutrals::default();
    let mut budget = budget();
    let (mut last_end, mut last_offset) = (super::HEADER_BYTES as u64, 0);
    let mut referred = Referred::default();
    while let Some(frame) = frames.next_frame()? {
        let header = &frame.header;
        if frames.after_loss() {
            neutrals.note_loss(loss::ids_in(header.offset - last_end));
        }
        (last_offset, last_end) = (header.offset, header.offset + header.total_bytes());
        for (at, entry) in frame.blocks().map_err(|bad| corrupt(header.offset, bad.what))? {
            if entry.stream != NO_THREAD {
                referred.threads = referred.threads.max(u64::from(entry.stream & !SIDE) + 1);
                let location = entry.begin.locations.iter().max();
                let locations = location.map_or(0, |id| u64::from(id.0) + 1);
                referred.locations = referred.locations.max(locations);
            }
            if entry.stream != NO_THREAD && !everywhere {
                continue;
            }
            let mut cursor = Cursor::new(&frame.payload[at..at + entry.bytes as usize]);
            while !cursor.is_at_end() {
                let start = cursor.at();
                let offset = header.position(at + start);
                match Record::decode(&mut cursor).map_err(|bad| corrupt(offset, bad.what))? {
                    Record::Neutral(object) => neutrals
                        .add(object, &mut budget)
                        .map_err(|what| budget.error(offset, what))?,
                    Record::Point(
                        TracePoint::Call { location }
                        | TracePoint::Site { location }
                        | TracePoint::OuterSite { location, .. },
                    ) => referred.locations = referred.locations.max(u64::from(location) + 1),
                    Record::Point(TracePoint::Sample(SampleFields {
                        waits_on: Some(text),
                        ..
                    })) => {
                        referred.texts = referred.texts.max(u64::from(text));
                    }
                    _ => {}
                }
            }
        }
    }
    neutrals.settle(referred, &mut budget).map_err(|what| budget.error(last_offset, what))?;
    Ok(neutrals)
}

/// Writes metadata and objects. Returns the new ids of the locations; in a complete trace these
/// equal the old ids.
fn write_objects(
    writer: &mut TraceWriter,
    neutrals: &Neutrals,
) -> Result<Vec<LocationId>, TraceError> {
    let mut budget = budget();
    let wrong = |what| corrupt(0, what);
    for (key, value) in neutrals.metadata() {
        if key != TRACE_UUID {
            writer.set_metadata(key, value.clone())?;
        }
    }
    let modules = neutrals.modules(&mut budget).map_err(wrong)?;
    let modules: Vec<ModuleId> =
        modules.iter().map(|module| writer.module(module)).collect::<Result<_, _>>()?;
    let mut methods: Vec<MethodId> = Vec::new();
    for mut method in neutrals.methods(&mut budget).map_err(wrong)? {
        method.module = method.module.map(|id| modules[id.0 as usize]);
        methods.push(writer.method(&method)?);
    }
    let mut locations: Vec<LocationId> = Vec::new();
    for mut location in neutrals.locations(&mut budget).map_err(wrong)? {
        location.method = methods[location.method.0 as usize];
        // The parent has a smaller id.
        location.inline_parent =
            location.inline_parent.and_then(|id| locations.get(id.0 as usize).copied());
        locations.push(writer.location(&location)?);
    }
    let traces = neutrals.call_traces().map_err(wrong)?;
    for trace_id in neutrals.trace_ids() {
        let Some(mut trace) = traces.get(trace_id) else { continue };
        trace.stack.iter_mut().for_each(|id| *id = locations[id.0 as usize]);
        writer.call_trace(&trace)?;
    }
    for mut mapped in neutrals.mapped().map_err(wrong)? {
        mapped.module = modules[mapped.module.0 as usize];
        writer.mapped_module(&mapped)?;
    }
    Ok(locations)
}

/// Copies the streams of a trace.
struct Copy<'a> {
    writer: TraceWriter,
    /// The new text ids by old ones.
    texts: Vec<TextId>,
    /// The tags whose values are texts.
    tags: TextTags,
    /// The new location ids by old ones.
    locations: Vec<LocationId>,
    threads: &'a [Thread],
    scan: &'a Scan,
    trace_ids: bool,
}

impl Copy<'_> {
    fn all(mut self, mut frames: Frames<BufReader<File>>) -> Result<TraceWriter, TraceError> {
        let mut reached: HashMap<u32, Checkpoint> = HashMap::new();
        while let Some(frame) = frames.next_frame()? {
            self.frame(&frame, &mut reached)?;
        }
        for loss in &self.scan.losses {
            if let (Some(thread), u64::MAX) = (loss.thread, loss.to_ns) {
                self.end_in_loss(thread, loss.from_ns)?;
            }
        }
        for (id, thread) in self.threads.iter().enumerate() {
            if let Some(ended_ns) = thread.ended_ns {
                self.writer.copy_end(ThreadId(id as u32), ended_ns)?;
            }
        }
        Ok(self.writer)
    }

    fn frame(
        &mut self,
        frame: &Frame,
        reached: &mut HashMap<u32, Checkpoint>,
    ) -> Result<(), TraceError> {
        let header = &frame.header;
        for (at, entry) in frame.blocks().map_err(|bad| corrupt(header.offset, bad.what))? {
            if entry.stream == NO_THREAD {
                continue;
            }
            let reached = reached.entry(entry.stream).or_default();
            self.resume(&entry, reached)?;
            let bytes = &frame.payload[at..at + entry.bytes as usize];
            let mut block = CopiedBlock {
                state: entry.begin.clone(),
                context: Context::default(),
                tick_ns: entry.tick_ns,
            };
            let mut cursor = Cursor::new(bytes);
            while !cursor.is_at_end() {
                let start = cursor.at();
                let wrong = |bad: Malformed| corrupt(header.position(at + bad.at), bad.what);
                let record = Record::decode(&mut cursor).map_err(wrong)?;
                let is_frame = matches!(record, Record::BlockStart { .. } | Record::BlockEnd);
                if !is_frame {
                    block.state.logical += (cursor.at() - start) as u64;
                }
                if let Record::Point(point) = record {
                    let offset = header.position(at + start);
                    self.point(&entry, &mut block, point, offset)?;
                }
            }
            *reached = block.state;
        }
        Ok(())
    }

    fn point(
        &mut self,
        entry: &BlockEntry,
        block: &mut CopiedBlock,
        point: TracePoint,
        offset: u64,
    ) -> Result<(), TraceError> {
        let stream = copied(entry.stream);
        let place = |location: u32| LocationId(location);
        // The scan has checked everything that could be wrong here.
        let impossible = || corrupt(offset, "the file changed while it was read");
        let state = &mut block.state;
        let last_ns = state.last_ns;
        match point {
            TracePoint::Call { location } => {
                let new = self.new_location(place(location)).ok_or_else(impossible)?;
                state.push(place(location), state.logical);
                self.writer.copy(stream, 0, |stream| stream.open_call(new))
            }
            TracePoint::Footer { run, unfinished } => {
                let depth = state.depth().checked_sub(run as usize).ok_or_else(impossible)?;
                state.truncate(depth);
                self.writer.copy(stream, 0, |stream| stream.close(depth, unfinished))
            }
            TracePoint::Site { location } => self.site(stream, state, 0, place(location)),
            TracePoint::OuterSite { up, location } => {
                self.site(stream, state, up as usize, place(location))
            }
            TracePoint::Sample(fields) => {
                self.sample(entry.stream, block, &fields).ok_or_else(impossible)?
            }
            TracePoint::Gap { before, length } => {
                let times = super::forest::gap(before, length, last_ns);
                let (from_ns, to_ns) = times.map_err(|what| corrupt(offset, what))?;
                block.context.gap(to_ns);
                self.writer.copy(stream, 0, |stream| stream.gap(from_ns, to_ns))
            }
            TracePoint::ThreadStart { .. } | TracePoint::ThreadExit { .. } => {
                self.writer.copy(stream, 0, |stream| stream.leaf(point))
            }
        }
    }

    fn new_location(&self, old: LocationId) -> Option<LocationId> {
        self.locations.get(old.0 as usize).copied()
    }

    fn site(
        &mut self,
        stream: StreamRef,
        state: &mut Checkpoint,
        up: usize,
        location: LocationId,
    ) -> Result<(), TraceError> {
        let place = state.depth().checked_sub(up + 1);
        let (Some(place), Some(new)) = (place, self.new_location(location)) else {
            return Err(corrupt(0, "the file changed while it was read"));
        };
        state.locations[place] = location;
        self.writer.copy(stream, 0, |stream| stream.move_call(place, new))
    }

    /// Copies a sample; returns `None` if it is invalid.
    fn sample(
        &mut self,
        stream: u32,
        block: &mut CopiedBlock,
        fields: &SampleFields,
    ) -> Option<Result<(), TraceError>> {
        let CopiedBlock { state, context, tick_ns } = block;
        let mut sample = context.decode(fields, state, *tick_ns)?;
        let outer = fields.outer.unwrap_or(0) as usize;
        state.depth().checked_sub(outer)?;
        state.last_ns = sample.time_ns;
        state.samples = state.samples.checked_add(1)?;
        state.main_before = state.main_before.checked_add(fields.main_before.unwrap_or(0))?;
        if !self.trace_ids {
            sample.trace_id = 0;
        }
        if let Some(text) = sample.waits_on {
            sample.waits_on = Some(*self.texts.get(text.0 as usize)?);
        }
        if let Err(error) = self.rename_tags(&mut sample) {
            return Some(Err(error));
        }
        let is_side = stream & SIDE != 0;
        let main_before = is_side.then(|| self.main_before(stream & !SIDE, state.main_before));
        let copied = copied(stream);
        Some(self.writer.copy(copied, 1, |stream| stream.sample(&sample, outer, main_before)))
    }

    /// Replaces the text ids among the tags by their new ids.
    fn rename_tags(&mut self, sample: &mut Sample) -> Result<(), TraceError> {
        for value in self.tags.values(sample) {
            let text = match self.texts.get(*value as usize - 1) {
                Some(text) => *text,
                // Readers do not check that the texts of tags exist.
                None => self.writer.text(LOST)?,
            };
            *value = text.0.saturating_add(1);
        }
        Ok(())
    }

    /// Returns the number of copied samples of a main stream before the sample with the old number
    /// `before`.
    fn main_before(&self, stream: u32, before: u64) -> u64 {
        let lost = self.scan.lost_samples.get(&stream).map_or(&[][..], |lost| lost);
        let lost = lost.iter().map(|(at, count)| before.saturating_sub(*at).min(*count));
        before - lost.sum::<u64>()
    }

    /// Brings a stream into the state at the start of a block.
    fn resume(&mut self, entry: &BlockEntry, reached: &Checkpoint) -> Result<(), TraceError> {
        let resumption = loss::resume(reached, entry, true).map_err(|what| corrupt(0, what))?;
        let Some(resumption) = resumption else { return Ok(()) };
        let new: Option<Vec<_>> =
            entry.begin.locations.iter().map(|old| self.new_location(*old)).collect();
        let new = new.ok_or_else(|| corrupt(0, "the file changed while it was read"))?;
        let (survivors, to_ns) = (resumption.survivors, resumption.to_ns);
        let from_ns = self.known_since(entry.stream, resumption.from_ns, to_ns);
        self.writer.copy(copied(entry.stream), 0, |stream: &mut Stream| {
            // The ends of these calls were not seen.
            stream.close(survivors, true);
            stream.gap(from_ns, to_ns);
            for (place, new) in new.iter().enumerate() {
                if place >= survivors {
                    stream.open_call(*new);
                } else if stream.open()[place] != *new {
                    stream.move_call(place, *new);
                }
            }
        })
    }

    /// Returns the start of a gap that ends at `to_ns`: the last sample or, without samples, the
    /// first time of the thread.
    fn known_since(&self, stream: u32, from_ns: u64, to_ns: u64) -> u64 {
        let thread = self.threads.get((stream & !SIDE) as usize);
        let first_seen = thread.map_or(0, |thread| thread.first_seen_ns);
        match (from_ns, first_seen) {
            (0, 0) => to_ns,
            (0, first_seen) => first_seen.min(to_ns),
            (from_ns, _) => from_ns,
        }
    }

    /// Ends a thread whose remaining data is lost.
    fn end_in_loss(&mut self, thread: ThreadId, from_ns: u64) -> Result<(), TraceError> {
        let to_ns = self.scan.last_ns.max(from_ns);
        let from_ns = self.known_since(thread.0, from_ns, to_ns);
        self.writer.copy(copied(thread.0), 0, |stream| {
            stream.close(0, true);
            stream.gap(from_ns, to_ns);
        })
    }
}

/// The state of a block that is being copied.
struct CopiedBlock {
    state: Checkpoint,
    context: Context,
    tick_ns: u64,
}

fn copied(stream: u32) -> StreamRef {
    StreamRef { thread: ThreadId(stream & !SIDE), side: stream & SIDE != 0 }
}
