//! The writer: turns samples into the two files.
//!
//! # Invariants
//! - At most [`WriterOptions::buffer_bytes`] of all threads together wait to be written, regardless
//!   of the number of threads; beyond that, the writer ends every block.
//! - Times of a thread never decrease: an earlier time is raised to the last one.

mod collected;
mod copy;
mod metadata;
mod objects;
mod threads;

use std::io::Read;
use std::path::{Path, PathBuf};

use collected::CollectedBlocks;
use metadata::MetadataLog;
use objects::WrittenObjects;
use threads::LiveThreads;

use super::file::{self, Role};
use super::index::{self, Unsorted, index_path};
use super::output::{Identity, Output};
use super::sink::TraceFile;
use super::state::ThreadState;
use super::stream::Block;
use super::{
    CallTrace, FrameKind, Location, LocationId, MAX_DEPTH, MappedModule, Method, MethodId, Module,
    ModuleId, Sample, TextId, Thread, ThreadId, TraceError, Value, WriteMode, WriterOptions,
};

/// The result of writing a trace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// The size of the data file in bytes.
    pub data_bytes: u64,
    /// The size of the index file in bytes.
    pub index_bytes: u64,
    /// The reason why the index file is not sorted, if it is not.
    pub unsorted: Option<Unsorted>,
    /// The number of samples in the data file.
    pub samples: u64,
    /// The number of bytes of memory that held the samples until the end, with
    /// [`WriteMode::Collect`].
    pub collected_bytes: u64,
}

/// Writes a trace.
#[derive(Debug)]
pub struct TraceWriter {
    /// The data file, if it is a real file.
    path: Option<PathBuf>,
    options: WriterOptions,
    output: Output,
    objects: WrittenObjects,
    threads: LiveThreads,
    samples: u64,
    /// The blocks that are written at the end, with [`WriteMode::Collect`].
    collected: CollectedBlocks,
    metadata: MetadataLog,
    /// Whether the metadata announces frames of interpreters.
    has_interpreters: bool,
}

impl TraceWriter {
    /// Creates the data file and the index file `<path>.idx`.
    ///
    /// # Errors
    /// [`TraceError::Exists`] if one of them exists and `force` is not set (both stay untouched
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
        // Before the data file is replaced: a link or a directory would refuse the index then.
        if std::fs::symlink_metadata(&index_path).is_ok_and(|meta| !meta.is_file()) {
            return Err(TraceError::NotRegular { path: index_path });
        }
        let are_new = [path, &index_path].map(|path| std::fs::symlink_metadata(path).is_err());
        let remove_new = || {
            // What was created here is empty: even the headers of the files did not fit.
            for (path, _) in [path, &index_path].iter().zip(are_new).filter(|(_, is_new)| *is_new) {
                let _ = std::fs::remove_file(path);
            }
        };
        let data = file::create(path, options.force, Role::Data)?;
        let index = file::create(&index_path, options.force, Role::Index);
        let index = index.inspect_err(|_| remove_new())?;
        let writer = Self::with_files(data, index, options).inspect_err(|_| remove_new())?;
        Ok(Self { path: Some(path.to_owned()), ..writer })
    }

    pub(super) fn with_files(
        data: TraceFile,
        index: TraceFile,
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
            objects: WrittenObjects::default(),
            threads: LiveThreads::default(),
            samples: 0,
            collected: CollectedBlocks::default(),
            metadata: MetadataLog::default(),
            has_interpreters: false,
        };
        let uuid = format!("{:032x}", identity.uuid);
        writer.set_metadata(super::TRACE_UUID, Value::Text(uuid))?;
        Ok(writer)
    }

    /// Sets a metadata value; the last value of a key counts. `period_ns` is the sampling period,
    /// which the gap rule uses: without it there are no gaps. With `wall_interval_ns` the gap rule
    /// uses the longer of the two. After a failed write the value goes to the end of the file.
    pub fn set_metadata(&mut self, key: &str, value: Value) -> Result<(), TraceError> {
        super::metadata::check(key, &value)?;
        match (key, &value) {
            ("period_ns", Value::Unsigned(period_ns)) => self.threads.period_ns = *period_ns,
            ("wall_interval_ns", Value::Unsigned(ns)) => self.threads.wall_interval_ns = *ns,
            _ => {}
        }
        let object = self.metadata.set(key, value, self.output.contents().metadata)?;
        if self.output.check().is_err() {
            // The value is written with the end of the file.
            return Ok(());
        }
        self.objects.push(&object);
        self.write_full_frame()
    }

    /// Returns the id of a module; equal content gives an equal id.
    pub fn module(&mut self, m: &Module) -> Result<ModuleId, TraceError> {
        let id = self.objects.tables.module(m)?;
        self.write_full_frame()?;
        Ok(id)
    }

    /// Returns the id of a method; equal content gives an equal id.
    pub fn method(&mut self, m: &Method) -> Result<MethodId, TraceError> {
        let id = self.objects.tables.method(m)?;
        self.write_full_frame()?;
        Ok(id)
    }

    /// Returns the id of a location; equal content gives an equal id.
    pub fn location(&mut self, l: &Location) -> Result<LocationId, TraceError> {
        self.announce(l.kind)?;
        let id = self.objects.tables.location(l)?;
        self.write_full_frame()?;
        Ok(id)
    }

    /// Returns the id of the location with the same content but for its kind and its inline parent.
    pub fn location_as(
        &mut self,
        id: LocationId,
        kind: FrameKind,
        inline_parent: Option<LocationId>,
    ) -> Result<LocationId, TraceError> {
        self.announce(kind)?;
        let id = self.objects.tables.location_as(id, kind, inline_parent)?;
        self.write_full_frame()?;
        Ok(id)
    }

    /// Notes in the metadata that the trace has frames of interpreters. Readers of other traces
    /// need not look for them.
    fn announce(&mut self, kind: FrameKind) -> Result<(), TraceError> {
        if kind == FrameKind::Interpreter && !self.has_interpreters {
            self.has_interpreters = true;
            self.set_metadata(super::INTERPRETERS, Value::Unsigned(1))?;
        }
        Ok(())
    }

    /// Returns the id of a text, for [`Sample::waits_on`]; equal content gives an equal id. A text
    /// that is too long for the format is cut.
    pub fn text(&mut self, text: &str) -> Result<TextId, TraceError> {
        let id = self.objects.tables.string(text)?;
        self.write_full_frame()?;
        Ok(TextId(id))
    }

    /// Records the mapping of a module.
    pub fn mapped_module(&mut self, m: &MappedModule) -> Result<(), TraceError> {
        self.objects.mapped_module(m)?;
        self.write_full_frame()
    }

    /// Writes a call trace as an object of its own.
    pub fn call_trace(&mut self, trace: &CallTrace) -> Result<(), TraceError> {
        let tables = &mut self.objects.tables;
        tables.call_trace((trace.trace_id, trace.end_reason), &trace.stack)?;
        self.write_full_frame()
    }

    /// Returns the id of a new thread. Threads are never equal, since the kernel reuses thread ids.
    /// [`Self::thread_exit`] records the exit.
    pub fn thread(&mut self, t: &Thread) -> Result<ThreadId, TraceError> {
        let id = self.threads.next_id()?;
        let tables = &mut self.objects.tables;
        let name = tables.string(&t.name)?;
        let in_runtime = t.runtime_name.as_deref().map(|name| tables.string(name)).transpose()?;
        let object = self.threads.add(id, t, (name, in_runtime));
        self.objects.push(&object);
        self.write_full_frame()?;
        Ok(id)
    }

    /// Renames a thread.
    pub fn rename_thread(&mut self, id: ThreadId, name: &str) -> Result<(), TraceError> {
        self.threads.get(id)?;
        let name = self.objects.tables.string(name)?;
        let object = self.threads.rename(id, name)?;
        self.objects.push(&object);
        self.write_full_frame()
    }

    /// Sets the name that a thread has in its language's runtime.
    pub fn set_runtime_name(&mut self, id: ThreadId, name: &str) -> Result<(), TraceError> {
        self.threads.get(id)?;
        let name = self.objects.tables.string(name)?;
        let object = self.threads.set_runtime_name(id, name)?;
        self.objects.push(&object);
        self.write_full_frame()
    }

    /// Writes a sample. `stack` is root first with inlined calls expanded. The writer infers which
    /// calls started and ended since the thread's last sample. An empty stack is unknown and ends
    /// no call. A stack whose end reason is not "root" is placed where its outermost frame fits,
    /// else under a call of `[truncated]`.
    pub fn sample(
        &mut self,
        thread: ThreadId,
        sample: &Sample,
        stack: &[LocationId],
    ) -> Result<(), TraceError> {
        self.output.check()?;
        let tables = &self.objects.tables;
        tables.known_stack(stack)?;
        sample.waits_on.map_or(Ok(()), |text| tables.known_text(text))?;
        // One level is left for the call of `[truncated]`.
        if stack.len() >= MAX_DEPTH {
            let limit = MAX_DEPTH as u64 - 1;
            return Err(TraceError::LimitExceeded { what: "the depth of a stack", limit });
        }
        let before_ns = self.threads.get(thread)?.last_ns;
        let mut sample = sample.clone();
        sample.time_ns = sample.time_ns.max(before_ns);
        if !self.options.trace_ids {
            sample.trace_id = 0;
        }
        let truncated = sample.end_reason != 0 || stack.is_empty();
        let unrooted = if truncated { Some(self.objects.truncated_location()?) } else { None };
        let common = self.threads.common(self.objects.tables.sites());
        self.threads.change(thread, |state| state.sample(&sample, stack, unrooted, common))?;
        self.samples += 1;
        self.end_full_blocks(thread)
    }

    /// Returns the number of samples that were added.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Counts samples that cannot be added any more, after a failure. They are lost like those that
    /// were added and are not in the file.
    pub fn count_unwritten(&mut self, samples: u64) {
        self.samples += samples;
    }

    /// Records that a thread exited, and ends its open calls. Its id is invalid from now on.
    pub fn thread_exit(&mut self, thread: ThreadId, time_ns: u64) -> Result<(), TraceError> {
        self.output.check()?;
        let ended = self.threads.exit(thread, time_ns)?;
        self.objects.push(&ended.object);
        self.output.add_cells(ended.cells);
        self.add(ended.blocks)
    }

    /// Writes all waiting data, so that others can read everything so far. With
    /// [`WriteMode::Collect`] it does nothing.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        if self.options.mode == WriteMode::Collect {
            return Ok(());
        }
        self.write_all()
    }

    fn write_all(&mut self) -> Result<(), TraceError> {
        self.end_blocks()?;
        self.output.write_frame(std::mem::take(&mut self.objects.tables.block))
    }

    /// Returns the number of bytes written so far: data file, index file.
    pub fn bytes_written(&self) -> (u64, u64) {
        self.output.bytes()
    }

    /// Returns the number of bytes that wait in the blocks of all threads.
    pub fn waiting(&self) -> usize {
        self.threads.waiting()
    }

    /// Returns the number of bytes that both files have after the next sync.
    pub(super) fn bytes_settled(&self) -> u64 {
        let (data, index) = self.output.bytes();
        data + index + self.output.held()
    }

    /// Returns the number of accepted bytes that are not written yet, uncompressed.
    pub(super) fn unwritten_bytes(&self) -> usize {
        self.waiting() + self.output.pending() + self.objects.tables.block.bytes().len()
    }

    /// Returns the trace's UUID as in its metadata.
    pub(super) fn uuid(&self) -> String {
        format!("{:032x}", self.output.identity().uuid)
    }

    /// Ends the open calls, marked as unfinished, and both files. Then it sorts the index.
    ///
    /// # Errors
    /// [`TraceError::CutShort`] if anything could not be written, now or before. The data file then
    /// holds what was written before the failure and, if there was space, its end.
    pub fn finish(mut self) -> Result<Written, TraceError> {
        let finished = self.write_rest();
        if finished.is_err() {
            let contents = self.output.contents();
            let (written, lost) = (contents.metadata, self.samples - contents.samples);
            self.output.finish_failed(self.metadata.take_unwritten(written), lost);
        }
        let sorted = self.path.as_deref().filter(|_| self.output.failure().is_none());
        let sorted = sorted.map(|path| index::consolidate(path, self.output.identity()));
        let (data_bytes, journal_bytes) = self.output.bytes();
        let (index_bytes, unsorted) = match sorted {
            None => (journal_bytes, None),
            Some(Ok(index_bytes)) => (index_bytes, None),
            Some(Err(unsorted)) => (journal_bytes, Some(unsorted)),
        };
        let (samples, collected_bytes) = (self.output.contents().samples, self.collected.bytes());
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
        self.threads.finish();
        self.end_blocks()?;
        let cells = self.threads.take_cells();
        self.write_collected()?;
        self.output.add_cells(cells);
        self.write_all()?;
        self.output.finish()
    }

    /// Writes the collected data: the objects first, then one thread after the other.
    fn write_collected(&mut self) -> Result<(), TraceError> {
        if self.options.mode != WriteMode::Collect {
            return Ok(());
        }
        while !self.objects.tables.block.is_empty() {
            let some = self.objects.tables.block.split_to(self.options.frame_bytes);
            self.output.write_frame(some)?;
        }
        for part in self.collected.take() {
            self.output.add(part);
            if self.output.pending() >= self.options.frame_bytes {
                self.output.write_frame(Default::default())?;
            }
        }
        Ok(())
    }

    fn change(
        &mut self,
        thread: ThreadId,
        change: impl FnOnce(&mut ThreadState),
    ) -> Result<(), TraceError> {
        self.output.check()?;
        self.threads.change(thread, change)?;
        self.end_full_blocks(thread)
    }

    /// Ends the thread's blocks that are large enough, or all blocks if too much data waits.
    fn end_full_blocks(&mut self, thread: ThreadId) -> Result<(), TraceError> {
        if self.waiting() >= self.options.buffer_bytes {
            return self.end_blocks();
        }
        let ended = self.threads.end_full(thread, self.options.block_bytes)?;
        self.add(ended)
    }

    fn end_blocks(&mut self) -> Result<(), TraceError> {
        let ended = self.threads.end_all();
        self.add(ended)
    }

    fn add(&mut self, blocks: Vec<Block>) -> Result<(), TraceError> {
        for block in blocks {
            match self.options.mode {
                WriteMode::Collect => self.collected.add(block),
                WriteMode::Streaming => {
                    self.output.add(block);
                    self.write_full_frame()?;
                }
            }
        }
        Ok(())
    }

    /// Writes the frame under construction if it is large enough.
    fn write_full_frame(&mut self) -> Result<(), TraceError> {
        self.output.check()?;
        let full = self.output.pending() + self.objects.tables.block.bytes().len()
            >= self.options.frame_bytes;
        if !full || self.options.mode == WriteMode::Collect {
            return Ok(());
        }
        self.output.write_frame(std::mem::take(&mut self.objects.tables.block))
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
