//! The writer: samples in, two files out.
//!
//! # Invariants
//! - Of all threads together no more than [`WriterOptions::buffer_bytes`] wait to be written,
//!   however many there are; beyond that every block is ended.
//! - Times of a thread never go back: an earlier one is raised to the last.

mod copy;
mod objects;

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::checkpoint::Ends;
use super::file::{self, Role};
use super::index::{self, Unsorted, index_path};
use super::metadata;
use super::object::Neutral;
use super::output::{Identity, Output};
use super::sink::Target;
use super::state::{Common, ThreadState};
use super::stream::{Block, Stream};
use super::tables::{Tables, next_id};
use super::{
    Location, LocationId, MAX_DEPTH, Method, Sample, TRUNCATED, Thread, ThreadId, TraceError,
    Value, WriteMode, WriterOptions,
};

/// What was written in the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes of the data file.
    pub data_bytes: u64,
    /// Bytes of the index file.
    pub index_bytes: u64,
    /// Why the index file is not sorted, if it is not.
    pub unsorted: Option<Unsorted>,
    /// Samples in the data file.
    pub samples: u64,
    /// Bytes of memory that held the samples until the end, with [`WriteMode::Collect`].
    pub collected_bytes: u64,
}

/// Writes a trace.
#[derive(Debug)]
pub struct TraceWriter {
    /// The data file, if it is one.
    path: Option<PathBuf>,
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
    /// How often time that threads do not run is looked at, or 0.
    wall_interval_ns: u64,
    pending: usize,
    samples: u64,
    /// Parts of blocks by stream, if all is written at the end.
    collected: BTreeMap<u32, Vec<Block>>,
    collected_bytes: u64,
    /// Metadata that is in no frame yet, with its id: the end of a file that fails has it too.
    unwritten: VecDeque<(u32, String, Value)>,
}

impl TraceWriter {
    /// Creates the data file and the index file `<path>.idx`.
    ///
    /// # Errors
    /// [`TraceError::Exists`] if one of them is there and `force` is not set (neither is touched
    /// then), [`TraceError::Busy`] if another writer has not finished the data file,
    /// [`TraceError::NotRegular`] for a link or a device, [`TraceError::Io`].
    pub fn create(path: &Path, options: WriterOptions) -> Result<TraceWriter, TraceError> {
        let index_path = index_path(path);
        if !options.force {
            for path in [path, &index_path] {
                if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()) {
                    return Err(TraceError::Exists { path: path.to_owned() });
                }
            }
        }
        let data = file::create(path, options.force, Role::Data)?;
        let index = file::create(&index_path, options.force, Role::Index).inspect_err(|_| {
            if !options.force {
                // It was created above and holds nothing.
                let _ = std::fs::remove_file(path);
            }
        })?;
        let force = options.force;
        let writer = Self::with_targets(data, index, options).inspect_err(|_| {
            if !force {
                // Both were created above, and not even their headers fitted.
                let _ = std::fs::remove_file(path);
                let _ = std::fs::remove_file(&index_path);
            }
        })?;
        Ok(Self { path: Some(path.to_owned()), ..writer })
    }

    pub(super) fn with_targets(
        data: Target,
        index: Target,
        options: WriterOptions,
    ) -> Result<TraceWriter, TraceError> {
        let identity = match options.salt {
            Some(salt) => Identity { salt, uuid: u128::from(salt) },
            None => random_identity()?,
        };
        let mut writer = TraceWriter {
            path: None,
            output: Output::new(data, index, identity, &options)?,
            options: options.within_limits(),
            tables: Tables::default(),
            threads: BTreeMap::new(),
            threads_ever: 0,
            metadata: 0,
            mapped: 0,
            truncated: None,
            period_ns: 0,
            wall_interval_ns: 0,
            pending: 0,
            samples: 0,
            collected: BTreeMap::new(),
            collected_bytes: 0,
            unwritten: VecDeque::new(),
        };
        let uuid = format!("{:032x}", identity.uuid);
        writer.set_metadata(super::TRACE_UUID, Value::Text(uuid))?;
        Ok(writer)
    }

    /// Sets a value; the last one set for a key counts. `period_ns` is the sampling period that
    /// gaps are found by: without it there are none. With `wall_interval_ns` they are found by the
    /// longer of the two. After a failed write it goes to the end of the file.
    pub fn set_metadata(&mut self, key: &str, value: Value) -> Result<(), TraceError> {
        metadata::check(key, &value)?;
        match (key, &value) {
            ("period_ns", Value::Unsigned(period_ns)) => self.period_ns = *period_ns,
            ("wall_interval_ns", Value::Unsigned(ns)) => self.wall_interval_ns = *ns,
            _ => {}
        }
        let id = next_id(self.metadata as usize)?;
        self.metadata += 1;
        let written = self.output.contents().metadata;
        while self.unwritten.front().is_some_and(|(id, ..)| *id < written) {
            self.unwritten.pop_front();
        }
        self.unwritten.push_back((id, key.into(), value.clone()));
        if self.output.check().is_err() {
            // It comes with the end of the file.
            return Ok(());
        }
        self.tables.block.push(&Neutral::Metadata { id, key: key.into(), value });
        self.write_full_frame()
    }

    /// The id of a new thread: threads are never equal, since the kernel reuses thread ids. When it
    /// ended is told by [`Self::thread_exit`].
    pub fn thread(&mut self, t: &Thread) -> Result<ThreadId, TraceError> {
        let id = next_id(self.threads_ever as usize)?;
        let name = self.tables.string(&t.name)?;
        let state = ThreadState::new(id, t, name);
        self.tables.block.push(&state.object(None));
        self.threads.insert(id, state);
        self.threads_ever += 1;
        self.write_full_frame()?;
        Ok(ThreadId(id))
    }

    /// Gives a thread another name.
    pub fn rename_thread(&mut self, id: ThreadId, name: &str) -> Result<(), TraceError> {
        self.state(id)?;
        let name = self.tables.string(name)?;
        let state = self.state(id)?;
        state.rename(name);
        let object = state.object(None);
        self.tables.block.push(&object);
        self.write_full_frame()
    }

    /// Writes a sample. `stack` is root first with inlined calls expanded; what calls began and
    /// ended since the thread's last sample is inferred. An empty stack is an unknown one: it ends
    /// no call. A stack whose end reason is not "root" goes where its outermost frame fits, else
    /// under a call of `[truncated]`.
    pub fn sample(
        &mut self,
        thread: ThreadId,
        sample: &Sample,
        stack: &[LocationId],
    ) -> Result<(), TraceError> {
        self.output.check()?;
        self.tables.known_stack(stack)?;
        sample.waits_on.map_or(Ok(()), |text| self.tables.known_text(text))?;
        // One is left for the call of `[truncated]`.
        if stack.len() >= MAX_DEPTH {
            let limit = MAX_DEPTH as u64 - 1;
            return Err(TraceError::LimitExceeded { what: "the depth of a stack", limit });
        }
        let before_ns = self.state(thread)?.last_ns;
        let mut sample = sample.clone();
        sample.time_ns = sample.time_ns.max(before_ns);
        if !self.options.trace_ids {
            sample.trace_id = 0;
        }
        let truncated = sample.end_reason != 0 || stack.is_empty();
        let unrooted = if truncated { Some(self.truncated_location()?) } else { None };
        let (period_ns, wall_interval_ns) = (self.period_ns, self.wall_interval_ns);
        let common = Common { sites: self.tables.sites(), period_ns, wall_interval_ns };
        // Looked up above.
        let Some(state) = self.threads.get_mut(&thread.0) else { return Ok(()) };
        let before = state.pending();
        state.sample(&sample, stack, unrooted, common);
        self.pending += state.pending() - before;
        self.samples += 1;
        self.end_full_blocks(thread)
    }

    /// Notes that a thread ended; ends its open calls. Nothing of it may follow: its id is unknown
    /// from now on.
    pub fn thread_exit(&mut self, thread: ThreadId, time_ns: u64) -> Result<(), TraceError> {
        self.output.check()?;
        let period_ns = self.period_ns;
        let state = self.state(thread)?;
        let before = state.pending();
        state.exit(period_ns, time_ns);
        let after = state.pending();
        self.pending += after - before;
        let Some(mut state) = self.threads.remove(&thread.0) else { return Ok(()) };
        self.tables.block.push(&state.object(Some(time_ns)));
        let ended: Vec<_> = state.end_blocks().collect();
        // Of a stream of which nothing waits.
        let cells: Vec<_> = state.streams().flat_map(Stream::take_cells).collect();
        self.output.add_cells(cells);
        ended.into_iter().try_for_each(|block| self.add(block))
    }

    /// Writes all that waits: after this others can read everything so far. With
    /// [`WriteMode::Collect`] it does nothing.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        if self.options.mode == WriteMode::Collect {
            return Ok(());
        }
        self.write_all()
    }

    fn write_all(&mut self) -> Result<(), TraceError> {
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

    /// Bytes that both files have, or get with the next sync.
    pub(super) fn bytes_settled(&self) -> u64 {
        let (data, index) = self.output.bytes();
        data + index + self.output.held()
    }

    /// Bytes that were taken and not written yet, before they are compressed.
    pub(super) fn unwritten_bytes(&self) -> usize {
        self.pending + self.output.pending() + self.tables.block.bytes().len()
    }

    /// What the trace is called in its metadata.
    pub(super) fn uuid(&self) -> String {
        format!("{:032x}", self.output.identity().uuid)
    }

    /// Ends the open calls, marked as unfinished, and both files. The index is then sorted.
    ///
    /// # Errors
    /// [`TraceError::CutShort`] if anything could not be written, now or before. The data file then
    /// holds what was written before the failure and, if there was room, its end.
    pub fn finish(mut self) -> Result<Written, TraceError> {
        let finished = self.write_rest();
        if finished.is_err() {
            let written = self.output.contents().metadata;
            let unwritten = std::mem::take(&mut self.unwritten).into_iter();
            let unwritten = unwritten.filter(|(id, ..)| *id >= written);
            self.output.finish_failed(unwritten.map(|(_, key, value)| (key, value)).collect());
        }
        let sorted = self.path.as_deref().filter(|_| self.output.failure().is_none());
        let sorted = sorted.map(|path| index::consolidate(path, self.output.identity()));
        let (data_bytes, journal_bytes) = self.output.bytes();
        let (index_bytes, unsorted) = match sorted {
            None => (journal_bytes, None),
            Some(Ok(index_bytes)) => (index_bytes, None),
            Some(Err(unsorted)) => (journal_bytes, Some(unsorted)),
        };
        let (samples, collected_bytes) = (self.output.contents().samples, self.collected_bytes);
        let kept = Written { data_bytes, index_bytes, unsorted, samples, collected_bytes };
        match self.output.failure() {
            Some(failure) => Err(TraceError::CutShort {
                path: failure.path.clone(),
                source: failure.source(),
                kept,
                lost_samples: self.samples.saturating_sub(samples),
                closed: self.output.is_closed(),
            }),
            None => finished.map(|()| kept),
        }
    }

    fn write_rest(&mut self) -> Result<(), TraceError> {
        self.output.check()?;
        for state in self.threads.values_mut() {
            let before = state.pending();
            state.finish(self.period_ns);
            self.pending += state.pending() - before;
        }
        self.end_blocks()?;
        // What a stream has to say when nothing of it waits.
        let states = self.threads.values_mut();
        let cells = states.flat_map(|state| state.streams().flat_map(Stream::take_cells));
        let cells: Vec<_> = cells.collect();
        self.write_collected()?;
        self.output.add_cells(cells);
        self.write_all()?;
        self.output.finish()
    }

    /// Writes what was collected: the objects first, then one thread after the other.
    fn write_collected(&mut self) -> Result<(), TraceError> {
        if self.options.mode != WriteMode::Collect {
            return Ok(());
        }
        while !self.tables.block.is_empty() {
            let some = self.tables.block.split_to(self.options.frame_bytes);
            self.output.write_frame(some)?;
        }
        // A thread's two streams lie together.
        let mut streams: Vec<_> = std::mem::take(&mut self.collected).into_iter().collect();
        streams.sort_by_key(|(stream, _)| (stream & !super::SIDE, *stream));
        for (_, mut parts) in streams {
            let last = parts.len() - 1;
            for (place, part) in parts.iter_mut().enumerate() {
                part.entry.ends = Ends { first: place == 0, last: place == last };
            }
            for part in parts {
                self.output.add(part);
                if self.output.pending() >= self.options.frame_bytes {
                    self.output.write_frame(Default::default())?;
                }
            }
        }
        Ok(())
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
        self.output.check()?;
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
        let block_bytes = self.options.block_bytes;
        let state = self.state(thread)?;
        if state.pending() < block_bytes {
            return Ok(());
        }
        let full = state.streams().filter(|stream| stream.pending() >= block_bytes);
        let ended: Vec<_> = full.filter_map(Stream::end_block).collect();
        ended.into_iter().try_for_each(|block| self.add(block))
    }

    fn end_blocks(&mut self) -> Result<(), TraceError> {
        let ended: Vec<_> = self.threads.values_mut().flat_map(ThreadState::end_blocks).collect();
        ended.into_iter().try_for_each(|block| self.add(block))
    }

    fn add(&mut self, block: Block) -> Result<(), TraceError> {
        self.pending -= block.content.len();
        match self.options.mode {
            WriteMode::Streaming => self.output.add(block),
            WriteMode::Collect => {
                self.collected_bytes += block.memory() as u64;
                self.collected.entry(block.entry.stream).or_default().push(block);
                return Ok(());
            }
        }
        self.write_full_frame()
    }

    /// Writes the frame that is being put together if it is large enough.
    fn write_full_frame(&mut self) -> Result<(), TraceError> {
        self.output.check()?;
        let full =
            self.output.pending() + self.tables.block.bytes().len() >= self.options.frame_bytes;
        if !full || self.options.mode == WriteMode::Collect {
            return Ok(());
        }
        self.output.write_frame(std::mem::take(&mut self.tables.block))
    }
}

fn random_identity() -> Result<Identity, TraceError> {
    let source = Path::new("/dev/urandom");
    let mut bytes = [0; 24];
    std::fs::File::open(source)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| TraceError::read(source, error))?;
    let word =
        |at: usize| bytes[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ok(Identity { salt: word(0), uuid: u128::from(word(8)) << 64 | u128::from(word(16)) })
}
