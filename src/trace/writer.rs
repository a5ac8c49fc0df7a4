//! The streaming writer: samples in, two files out.
//!
//! # Invariants
//! - Of all threads together no more than [`WriterOptions::buffer_bytes`] wait to be written, however
//!   many there are; beyond that every block is ended.
//! - Times of a thread never go back: an earlier one is raised to the last and counted.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::gap::Intervals;
use super::metadata;
use super::object::{Neutral, Point};
use super::output::{self, Output};
use super::stream::{Placed, Stream};
use super::tables::{Tables, next_id};
use super::{
    Location, LocationId, MAX_DEPTH, MappedModule, Method, MethodId, Module, ModuleId, SIDE,
    Sample, TRUNCATED, Thread, ThreadId, TraceError, Value, infer,
};

/// Largest `frame_bytes`: two blocks and the objects that they need stay below a frame's limit.
const MAX_FRAME_TARGET: usize = 4 << 20;

/// How frames are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not at all: an offset in the index is an offset in the file.
    None,
    /// With zstd at this level.
    Zstd(i32),
}

/// How a trace is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterOptions {
    /// Replace files that exist.
    pub force: bool,
    /// How frames are compressed; zstd at level 3 by default.
    pub compress: Compression,
    /// Bytes of a decoded frame to aim at; 256 KiB by default, at most 4 MiB.
    pub frame_bytes: usize,
    /// Bytes that may wait in the blocks of all threads together; 16 MiB by default.
    pub buffer_bytes: usize,
    /// Write the storage's call-trace id with every sample; without, it is read as 0.
    pub trace_ids: bool,
    /// Distinguishes this trace's frames from others'. Random by default; given, equal input makes
    /// equal bytes.
    pub salt: Option<u64>,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            force: false,
            compress: Compression::Zstd(3),
            frame_bytes: 256 << 10,
            buffer_bytes: 16 << 20,
            trace_ids: true,
            salt: None,
        }
    }
}

/// What was written in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Bytes of the data file.
    pub data_bytes: u64,
    /// Bytes of the index file.
    pub index_bytes: u64,
}

/// A thread that is being written.
#[derive(Debug)]
struct ThreadState {
    pid: u32,
    tid: u32,
    /// Time of the last sample.
    last_ns: u64,
    /// Since when nothing is known of the stack, if there was a sample.
    known_ns: Option<u64>,
    /// The last sample says that the thread was not running, which explains a pause.
    waiting: bool,
    intervals: Box<Intervals>,
    main: Stream,
    side: Option<Box<Stream>>,
}

impl ThreadState {
    fn streams(&mut self) -> impl Iterator<Item = &mut Stream> {
        std::iter::once(&mut self.main).chain(self.side.as_deref_mut())
    }

    fn pending(&self) -> usize {
        self.main.pending() + self.side.as_ref().map_or(0, |side| side.pending())
    }

    /// Closes every open call.
    fn close(&mut self, tick_ns: u64, unfinished: bool) {
        for stream in self.streams().filter(|stream| !stream.open().is_empty()) {
            stream.begin(tick_ns);
            stream.close(0, unfinished);
        }
    }

    fn write_gap(&mut self, tick_ns: u64, from_ns: u64, to_ns: u64) {
        self.close(tick_ns, false);
        self.main.begin(tick_ns);
        self.main.gap(from_ns, to_ns);
        self.known_ns = Some(self.known_ns.unwrap_or(0).max(to_ns));
    }
}

/// Writes a trace.
#[derive(Debug)]
pub struct TraceWriter {
    options: WriterOptions,
    output: Output,
    tables: Tables,
    /// Threads that have not ended, by id: what ended costs no memory.
    threads: BTreeMap<u32, ThreadState>,
    threads_ever: u32,
    metadata: u32,
    mapped: u32,
    truncated: Option<LocationId>,
    period_ns: u64,
    pending: usize,
    samples: u64,
    clamped: u64,
}

impl TraceWriter {
    /// Creates the data file and the index file `<path>.idx`.
    ///
    /// # Errors
    /// [`TraceError::Exists`] if one of them is there and `force` is not set (neither is touched
    /// then), [`TraceError::NotRegular`] for a link or a device, [`TraceError::Io`].
    pub fn create(path: &Path, options: WriterOptions) -> Result<TraceWriter, TraceError> {
        let index_path = index_path(path);
        if !options.force {
            for path in [path, &index_path] {
                if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()) {
                    return Err(TraceError::Exists { path: path.to_owned() });
                }
            }
        }
        let data = output::create(path, options.force)?;
        let index = output::create(&index_path, options.force).inspect_err(|_| {
            if !options.force {
                // It was created above and holds nothing.
                let _ = std::fs::remove_file(path);
            }
        })?;
        Self::with_targets(data, index, options)
    }

    pub(super) fn with_targets(
        data: output::Target,
        index: output::Target,
        mut options: WriterOptions,
    ) -> Result<TraceWriter, TraceError> {
        options.frame_bytes = options.frame_bytes.clamp(1, MAX_FRAME_TARGET);
        let salt = match options.salt {
            Some(salt) => salt,
            None => random_salt()?,
        };
        Ok(TraceWriter {
            output: Output::new(data, index, salt, options.compress)?,
            options,
            tables: Tables::default(),
            threads: BTreeMap::new(),
            threads_ever: 0,
            metadata: 0,
            mapped: 0,
            truncated: None,
            period_ns: 0,
            pending: 0,
            samples: 0,
            clamped: 0,
        })
    }

    /// Sets a value; the last one set for a key counts. `period_ns` is the sampling period that
    /// gaps are found by: without it only [`TraceWriter::gap`] makes them.
    pub fn set_metadata(&mut self, key: &str, value: Value) -> Result<(), TraceError> {
        metadata::check(key, &value)?;
        if let ("period_ns", Value::Unsigned(period_ns)) = (key, &value) {
            self.period_ns = *period_ns;
        }
        let id = next_id(self.metadata as usize)?;
        self.metadata += 1;
        self.tables.block.push(&Neutral::Metadata { id, key: key.into(), value });
        self.write_full_frame()
    }

    /// The id of a module; equal content gives an equal id.
    pub fn module(&mut self, m: &Module) -> Result<ModuleId, TraceError> {
        let id = self.tables.module(m)?;
        self.write_full_frame()?;
        Ok(id)
    }

    /// The id of a method; equal content gives an equal id.
    pub fn method(&mut self, m: &Method) -> Result<MethodId, TraceError> {
        let id = self.tables.method(m)?;
        self.write_full_frame()?;
        Ok(id)
    }

    /// The id of a location; equal content gives an equal id.
    pub fn location(&mut self, l: &Location) -> Result<LocationId, TraceError> {
        let id = self.tables.location(l)?;
        self.write_full_frame()?;
        Ok(id)
    }

    /// The id of a new thread: threads are never equal, since the kernel reuses thread ids.
    pub fn thread(&mut self, t: &Thread) -> Result<ThreadId, TraceError> {
        let id = next_id(self.threads_ever as usize)?;
        let name = self.tables.string(&t.name)?;
        self.tables.block.push(&Neutral::Thread { id, tid: t.tid, pid: t.pid, name });
        let state = ThreadState {
            pid: t.pid,
            tid: t.tid,
            last_ns: 0,
            known_ns: None,
            waiting: false,
            intervals: Box::default(),
            main: Stream::new(id),
            side: None,
        };
        self.threads.insert(id, state);
        self.threads_ever += 1;
        self.write_full_frame()?;
        Ok(ThreadId(id))
    }

    /// Gives a thread another name.
    pub fn rename_thread(&mut self, id: ThreadId, name: &str) -> Result<(), TraceError> {
        let ThreadState { pid, tid, .. } = *self.state(id)?;
        let name = self.tables.string(name)?;
        self.tables.block.push(&Neutral::Thread { id: id.0, tid, pid, name });
        self.write_full_frame()
    }

    /// Notes where a module is mapped.
    pub fn mapped_module(&mut self, m: &MappedModule) -> Result<(), TraceError> {
        self.tables.known_module(m.module)?;
        let id = next_id(self.mapped as usize)?;
        self.mapped += 1;
        let MappedModule { pid, start, end, file_offset, first_seen_ns: seen, .. } = *m;
        let module = m.module.0;
        let mapping = Neutral::Mapping { id, pid, start, end, file_offset, module, seen };
        self.tables.block.push(&mapping);
        self.write_full_frame()
    }

    /// Writes a sample. `stack` is root first with inlined calls expanded; what calls began and
    /// ended since the thread's last sample is inferred. An empty stack is an unknown one: it ends no
    /// call. A stack whose end reason is not "root" goes where its outermost frame fits, else under
    /// a call of `[truncated]`.
    pub fn sample(
        &mut self,
        thread: ThreadId,
        sample: &Sample,
        stack: &[LocationId],
    ) -> Result<(), TraceError> {
        self.tables.known_stack(stack)?;
        // One is left for the call of `[truncated]`.
        if stack.len() >= MAX_DEPTH {
            let limit = MAX_DEPTH as u64 - 1;
            return Err(TraceError::LimitExceeded { what: "the depth of a stack", limit });
        }
        let period_ns = self.period_ns;
        let before_ns = self.state(thread)?.last_ns;
        let mut sample = sample.clone();
        if sample.time_ns < before_ns {
            sample.time_ns = before_ns;
            self.clamped += 1;
        }
        if !self.options.trace_ids {
            sample.trace_id = 0;
        }
        let truncated = sample.end_reason != 0 || stack.is_empty();
        let unrooted = if truncated { Some(self.truncated_location()?) } else { None };
        let sites = self.tables.sites();
        // Looked up above.
        let Some(state) = self.threads.get_mut(&thread.0) else { return Ok(()) };
        let waiting_bytes = state.pending();
        if !stack.is_empty() {
            note_interval(state, &sample, period_ns);
        }
        state.last_ns = sample.time_ns;
        if sample.flags & traceprof_abi::storage::log::flags::FIRST != 0
            && state.main.samples() == 0
        {
            state.main.begin(period_ns);
            state.main.point(Point::ThreadStart { time_ns: sample.time_ns });
        }
        let anchored = match unrooted {
            None => Some(0),
            Some(_) => infer::anchor(state.main.open(), stack, sites),
        };
        match (anchored, unrooted) {
            (None, Some(root)) => write_unrooted(state, &sample, (stack, root), (sites, period_ns)),
            (outer, _) => {
                let outer = outer.unwrap_or(0);
                state.main.begin(period_ns);
                state.main.move_to(Placed { stack, outer, proven: true }, sites);
                state.main.sample(&sample, outer, None);
            }
        }
        self.pending += state.pending() - waiting_bytes;
        self.samples += 1;
        self.end_full_blocks(thread)
    }

    /// Notes that nothing is known of a thread between two times; ends its open calls.
    pub fn gap(&mut self, thread: ThreadId, from_ns: u64, to_ns: u64) -> Result<(), TraceError> {
        let period_ns = self.period_ns;
        self.change(thread, |state| {
            state.write_gap(period_ns, from_ns, to_ns.max(from_ns));
        })
    }

    /// Notes that a thread ended; ends its open calls. Nothing of it may follow: its id is unknown
    /// from now on.
    pub fn thread_exit(&mut self, thread: ThreadId, time_ns: u64) -> Result<(), TraceError> {
        let period_ns = self.period_ns;
        self.change(thread, |state| {
            state.close(period_ns, false);
            state.main.begin(period_ns);
            state.main.point(Point::ThreadExit { time_ns });
        })?;
        let Some(mut state) = self.threads.remove(&thread.0) else { return Ok(()) };
        let ended: Vec<_> = state.streams().filter_map(Stream::end_block).collect();
        ended.into_iter().try_for_each(|block| self.add(block))
    }

    /// Writes all that waits: after this others can read everything so far.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.end_blocks()?;
        self.output.write_frame(std::mem::take(&mut self.tables.block))
    }

    /// Bytes written so far: data file, index file.
    pub fn bytes_written(&self) -> (u64, u64) {
        self.output.bytes()
    }

    /// Bytes that wait in the blocks of all threads.
    pub fn waiting(&self) -> usize {
        self.pending
    }

    /// Samples whose time was raised to that of the sample before.
    pub fn clamped(&self) -> u64 {
        self.clamped
    }

    /// Ends the open calls, marked as unfinished, and both files.
    pub fn finish(mut self) -> Result<Written, TraceError> {
        let period_ns = self.period_ns;
        for state in self.threads.values_mut() {
            let before = state.pending();
            state.close(period_ns, true);
            self.pending += state.pending() - before;
        }
        self.flush()?;
        self.output.finish(self.samples, self.threads_ever)?;
        let (data_bytes, index_bytes) = self.output.bytes();
        Ok(Written { data_bytes, index_bytes })
    }

    fn state(&mut self, thread: ThreadId) -> Result<&mut ThreadState, TraceError> {
        let unknown = TraceError::UnknownId { kind: "thread", id: thread.0 };
        self.threads.get_mut(&thread.0).ok_or(unknown)
    }

    fn change(
        &mut self,
        thread: ThreadId,
        change: impl FnOnce(&mut ThreadState),
    ) -> Result<(), TraceError> {
        let state = self.state(thread)?;
        let before = state.pending();
        change(state);
        let after = state.pending();
        self.pending += after - before;
        self.end_full_blocks(thread)
    }

    /// The location of the calls that stacks hang under whose outer frames are unknown.
    fn truncated_location(&mut self) -> Result<LocationId, TraceError> {
        if let Some(location) = self.truncated {
            return Ok(location);
        }
        let method = Method { module: None, name: TRUNCATED.into(), start_svma: 0 };
        let method = self.tables.method(&method)?;
        let location = Location { method, svma: 0, file: None, line: 0, inline_parent: None };
        let location = self.tables.location(&location)?;
        self.truncated = Some(location);
        Ok(location)
    }

    /// Ends the thread's blocks that are large enough, or all if too much waits.
    fn end_full_blocks(&mut self, thread: ThreadId) -> Result<(), TraceError> {
        if self.pending >= self.options.buffer_bytes {
            return self.end_blocks();
        }
        let frame_bytes = self.options.frame_bytes;
        let mut ended = Vec::new();
        for stream in self.state(thread)?.streams() {
            if stream.pending() >= frame_bytes {
                ended.extend(stream.end_block());
            }
        }
        for block in ended {
            self.add(block)?;
        }
        Ok(())
    }

    fn end_blocks(&mut self) -> Result<(), TraceError> {
        let waiting = self.threads.values_mut().filter(|state| state.pending() > 0);
        let ended: Vec<_> =
            waiting.flat_map(|state| state.streams().filter_map(Stream::end_block)).collect();
        ended.into_iter().try_for_each(|block| self.add(block))
    }

    fn add(&mut self, block: super::stream::Block) -> Result<(), TraceError> {
        self.pending -= block.content.len();
        self.output.add(block);
        self.write_full_frame()
    }

    /// Writes the frame that is being put together if it is large enough.
    fn write_full_frame(&mut self) -> Result<(), TraceError> {
        if self.output.pending() + self.tables.block.bytes().len() < self.options.frame_bytes {
            return Ok(());
        }
        self.output.write_frame(std::mem::take(&mut self.tables.block))
    }
}

/// Applies the gap rule to the time since the last sample whose stack is known.
fn note_interval(state: &mut ThreadState, sample: &Sample, period_ns: u64) {
    if let Some(known_ns) = state.known_ns {
        let interval_ns = sample.time_ns.saturating_sub(known_ns);
        let long = state.intervals.add(interval_ns, period_ns, sample.weight);
        if long && !state.waiting && sample.state == 0 {
            state.write_gap(period_ns, known_ns, sample.time_ns);
        }
    }
    state.known_ns = Some(state.known_ns.unwrap_or(0).max(sample.time_ns));
    state.waiting = sample.state != 0;
}

/// Writes a sample to the side stream, under its call of `[truncated]`.
fn write_unrooted(
    state: &mut ThreadState,
    sample: &Sample,
    (stack, root): (&[LocationId], LocationId),
    (sites, tick_ns): (&[infer::Site], u64),
) {
    let ThreadState { main, side, .. } = state;
    let side = side.get_or_insert_with(|| Box::new(Stream::new(main.word() | SIDE)));
    side.begin(tick_ns);
    if side.open().is_empty() {
        side.open_call(root);
    }
    let anchor = infer::anchor(&side.open()[1..], stack, sites);
    let outer = 1 + anchor.unwrap_or(0);
    side.move_to(Placed { stack, outer, proven: anchor.is_some() }, sites);
    side.sample(sample, outer, Some(main.samples()));
}

/// The index file of a data file: `.idx` is appended, not exchanged.
fn index_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".idx");
    name.into()
}

fn random_salt() -> Result<u64, TraceError> {
    let source = Path::new("/dev/urandom");
    let mut salt = [0; 8];
    std::fs::File::open(source)
        .and_then(|mut file| file.read_exact(&mut salt))
        .map_err(|error| TraceError::read(source, error))?;
    Ok(u64::from_be_bytes(salt))
}
