//! Writes the frames of the data file, and their groups in the index file.
//!
//! # Invariants
//! - A frame is one write at the end of the data file. The writer writes its index group once the
//!   frame is durable or, without durability, right after the frame.
//! - After a failed write the data file is cut back to its last complete frame and accepts only its
//!   end. After a failed sync it is cut back to the synced part and accepts nothing.
//! - A failure to write the index does not end a recording: the index can be rebuilt.

use super::bytes::{put_u32, put_u64};
use super::checkpoint::BlockEntry;
use super::failure::WriteFailure;
use super::frame::{FrameHeader, HEADER_BYTES, LAST, StoredSection, trailer};
use super::index::{self, Cell};
use super::intern::NeutralBlock;
use super::kind::Kind;
use super::object::Neutral;
use super::pack::Packer;
use super::schedule::Schedule;
use super::sink::TraceFile;
use super::stream::Block;
use super::{
    DATA_MAGIC, INDEX_MAGIC, MAX_FRAME_BYTES, NO_THREAD, TraceError, Value, WriterOptions,
    file_header,
};

/// The limit for the offset of a frame: positions shift offsets by 24 bits.
const OFFSET_MAX: u64 = 1 << 39;
/// The part of that limit that is reserved for the last frame.
const END_BYTES: u64 = 1 << 28;

/// The blocks of the frame under construction.
#[derive(Debug, Default)]
struct Pending {
    points: Vec<u8>,
    directory_bytes: usize,
    entries: Vec<BlockEntry>,
    cells: Vec<Cell>,
}

/// The contents of the written frames.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Contents {
    /// The number of samples.
    pub(super) samples: u64,
    /// The number of threads that have an object.
    threads: u32,
    /// The next free id of METADATA.
    pub(super) metadata: u32,
    /// The number of thread-neutral objects; an object that is written again counts again.
    objects: u32,
}

impl Contents {
    fn add(&mut self, header: &FrameHeader, neutral: &[(Kind, u32, usize)]) {
        self.samples += u64::from(header.samples);
        self.objects = self.objects.saturating_add(neutral.len() as u32);
        for (kind, id, _) in neutral {
            match kind {
                Kind::Thread => self.threads = self.threads.max(id + 1),
                Kind::Metadata => self.metadata = self.metadata.max(id + 1),
                _ => {}
            }
        }
    }

    /// Returns the end of a file with these contents and `objects` more objects.
    fn end(self, objects: usize) -> Vec<u8> {
        let mut eof = vec![Kind::Eof as u8];
        put_u64(&mut eof, self.samples);
        put_u32(&mut eof, self.threads);
        put_u32(&mut eof, self.objects.saturating_add(objects as u32));
        eof
    }
}

/// Both files and the frame under construction.
#[derive(Debug)]
pub(super) struct Output {
    data: TraceFile,
    index: TraceFile,
    identity: Identity,
    packer: Packer,
    pending: Pending,
    sequence: u32,
    previous: u64,
    contents: Contents,
    /// The contents that would remain if the next sync failed.
    durable: Contents,
    schedule: Schedule,
    /// The index groups of frames that are not durable yet.
    held: Vec<u8>,
    failed: Option<WriteFailure>,
    index_failed: Option<WriteFailure>,
    closed: bool,
}

impl Output {
    /// Writes both headers.
    pub(super) fn new(
        mut data: TraceFile,
        mut index: TraceFile,
        identity: Identity,
        options: &WriterOptions,
    ) -> Result<Self, TraceError> {
        let packer = Packer::new(options.compress);
        let packer = packer.map_err(|source| TraceError::write(&data.path, source))?;
        data.write(&file_header(DATA_MAGIC))?;
        index.write(&file_header(INDEX_MAGIC))?;
        data.assume_synced();
        index.assume_synced();
        Ok(Self {
            schedule: Schedule::new(options.durability, data.uptime()),
            data,
            index,
            identity,
            packer,
            pending: Pending::default(),
            sequence: 0,
            previous: 0,
            contents: Contents::default(),
            durable: Contents::default(),
            held: Vec::new(),
            failed: None,
            index_failed: None,
            closed: false,
        })
    }

    /// Returns the identity of the trace.
    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the sizes of both files in bytes.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.data.bytes(), self.index.bytes())
    }

    /// Returns the contents of the data file.
    pub(super) fn contents(&self) -> Contents {
        self.contents
    }

    /// Returns whether the data file has its end.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns an error if an earlier write of the data file failed.
    pub(super) fn check(&self) -> Result<(), TraceError> {
        self.failed.as_ref().map_or(Ok(()), |failure| Err(failure.error()))
    }

    /// Returns why the data file, or else the index, is incomplete.
    pub(super) fn failure(&self) -> Option<&WriteFailure> {
        self.failed.as_ref().or(self.index_failed.as_ref())
    }

    /// Returns the size in bytes of the frame under construction.
    pub(super) fn pending(&self) -> usize {
        self.pending.points.len() + self.pending.directory_bytes
    }

    /// Returns the number of bytes of the index that wait for the next sync.
    pub(super) fn held(&self) -> u64 {
        self.held.len() as u64
    }

    /// Adds a block to the frame under construction.
    pub(super) fn add(&mut self, block: Block) {
        let Block { mut entry, content, cells } = block;
        let points = &mut self.pending.points;
        let before = points.len();
        if entry.ends.first {
            points.push(Kind::BlockStart as u8);
            put_u32(points, entry.stream);
        }
        points.extend_from_slice(&content);
        if entry.ends.last {
            points.push(Kind::BlockEnd as u8);
        }
        entry.bytes = (points.len() - before) as u32;
        self.pending.directory_bytes += entry.size_hint();
        self.pending.entries.push(entry);
        self.pending.cells.extend(cells);
    }

    /// Adds cells to the index group of that frame.
    pub(super) fn add_cells(&mut self, cells: Vec<Cell>) {
        self.pending.cells.extend(cells);
    }

    /// Writes the frame with `neutral` as its first block, unless it is empty, and syncs if a sync
    /// is due.
    pub(super) fn write_frame(&mut self, neutral: NeutralBlock) -> Result<(), TraceError> {
        self.check()?;
        if !neutral.is_empty() || !self.pending.entries.is_empty() {
            self.write_pending(neutral, None)?;
        }
        match self.schedule.is_due(self.data.uptime()) {
            true => self.sync(),
            false => Ok(()),
        }
    }

    /// Writes the last frame and the ends of both files. All other frames must be written.
    pub(super) fn finish(&mut self) -> Result<(), TraceError> {
        self.check()?;
        self.write_pending(NeutralBlock::default(), Some(self.contents.end(0)))?;
        self.end()
    }

    /// Writes the end of a data file after a failed write into the reserved space: `metadata`, the
    /// reason, and the number of samples that were not written.
    pub(super) fn finish_failed(&mut self, mut metadata: Vec<(String, Value)>, lost: u64) {
        let Some(failure) = self.failed.take_if(|failure| failure.may_close) else { return };
        // Data that could not be written is lost, and so is all later data.
        self.pending = Pending::default();
        if !self.data.is_torn() {
            self.data.release();
            metadata.push((super::WRITE_ERROR.into(), Value::Text(failure.to_string())));
            metadata.push((super::NOT_WRITTEN.into(), Value::Unsigned(lost)));
            let written = self.write_end(&metadata).or_else(|_| {
                // Retries with the least that a reader needs.
                let needed = [super::WRITE_ERROR, super::NOT_WRITTEN, super::TRACE_UUID];
                metadata.retain(|(key, _)| needed.contains(&key.as_str()));
                self.write_end(&metadata)
            });
            // The first failure is reported; `closed` shows whether this attempt succeeded.
            let _ = written.and_then(|()| self.end());
        }
        self.failed = Some(failure);
    }

    fn write_end(&mut self, metadata: &[(String, Value)]) -> Result<(), TraceError> {
        self.failed = None;
        let mut neutral = NeutralBlock::default();
        for (id, (key, value)) in (self.contents.metadata..).zip(metadata) {
            let (key, value) = (key.clone(), value.clone());
            neutral.push(&Neutral::Metadata { id, key, value });
        }
        let end = self.contents.end(neutral.cells(0).len());
        self.write_pending(neutral, Some(end))
    }

    /// Completes both files after the last frame.
    fn end(&mut self) -> Result<(), TraceError> {
        // The index may use the reserved space.
        self.data.release();
        if self.schedule.is_used() {
            self.sync()?;
        }
        self.closed = true;
        self.finish_index();
        Ok(())
    }

    /// Completes the index. The data file is complete and, if requested, durable.
    fn finish_index(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.write_index(&held);
        self.write_index(&index::footer());
        if self.schedule.is_used()
            && self.index_failed.is_none()
            && let Err(error) = self.index.sync()
        {
            self.index_failed = Some(WriteFailure::new(error, &self.index.path, false));
        }
    }

    /// Makes the data file durable, and then writes the index groups that waited for that.
    fn sync(&mut self) -> Result<(), TraceError> {
        if let Err(error) = self.data.sync() {
            let failure = WriteFailure::new(error, &self.data.path, false);
            let error = failure.error();
            self.failed = Some(failure);
            self.contents = self.durable;
            self.held = Vec::new();
            self.pending = Pending::default();
            return Err(error);
        }
        self.schedule.synced(self.data.uptime());
        self.durable = self.contents;
        let held = std::mem::take(&mut self.held);
        self.write_index(&held);
        Ok(())
    }

    fn write_index(&mut self, bytes: &[u8]) {
        if self.index_failed.is_none()
            && let Err(error) = self.index.write(bytes)
        {
            self.index_failed = Some(WriteFailure::new(error, &self.index.path, false));
        }
    }

    fn write_pending(
        &mut self,
        neutral: NeutralBlock,
        eof: Option<Vec<u8>>,
    ) -> Result<(), TraceError> {
        let written = self.try_write(neutral, eof);
        written.map_err(|error| {
            let failure = WriteFailure::new(error, &self.data.path, true);
            let error = failure.error();
            self.failed = Some(failure);
            error
        })
    }

    fn try_write(&mut self, neutral: NeutralBlock, eof: Option<Vec<u8>>) -> Result<(), TraceError> {
        let Pending { mut points, mut entries, cells, .. } = std::mem::take(&mut self.pending);
        let mut neutral_bytes = Vec::new();
        let mut neutral_cells = Vec::new();
        if !neutral.is_empty() {
            neutral_bytes.push(Kind::BlockStart as u8);
            put_u32(&mut neutral_bytes, NO_THREAD);
            neutral_cells = neutral.cells(neutral_bytes.len());
            neutral_bytes.extend_from_slice(neutral.bytes());
            neutral_bytes.push(Kind::BlockEnd as u8);
            entries.insert(0, BlockEntry::neutral(neutral_bytes.len() as u32));
        }
        let flags = if eof.is_some() { LAST } else { 0 };
        points.extend_from_slice(eof.as_deref().unwrap_or_default());
        if neutral_bytes.len() + points.len() > MAX_FRAME_BYTES {
            let limit = MAX_FRAME_BYTES as u64;
            return Err(TraceError::LimitExceeded { what: "the size of a frame", limit });
        }
        let header = self.write_data(&entries, [&neutral_bytes, &points], flags)?;
        self.contents.add(&header, &neutral_cells);
        let mut group =
            Vec::with_capacity(1 + neutral_cells.len() + 2 * entries.len() + cells.len());
        group.push(index::frame(&header));
        for (kind, id, at) in neutral_cells {
            group.push(Cell { kind, id, start: header.position(at), end: index::UNUSED });
        }
        let mut at = 0;
        for entry in &entries {
            group.extend(index::block(&header, at, entry));
            at += entry.bytes as usize;
        }
        group.extend(cells);
        if header.sequence == 0 {
            let identity = index::identity(self.identity, header.crc(), None);
            identity.iter().for_each(|cell| cell.encode(&mut self.held));
        }
        self.held.extend_from_slice(&index::group(header.offset, &group));
        if !self.schedule.is_used() {
            let held = std::mem::take(&mut self.held);
            self.write_index(&held);
        }
        Ok(())
    }

    fn write_data(
        &mut self,
        entries: &[BlockEntry],
        payload: [&[u8]; 2],
        flags: u8,
    ) -> Result<FrameHeader, TraceError> {
        let mut directory = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut directory));
        let samples: u64 = entries.iter().map(|entry| entry.samples).sum();
        let mut sections = [StoredSection::default(); 3];
        let mut body = Vec::new();
        let plain = [&directory, payload[0], payload[1]];
        let (codec, stored) = self
            .packer
            .sections(plain)
            .map_err(|source| TraceError::write(&self.data.path, source))?;
        for ((section, bytes), stored) in sections.iter_mut().zip(plain).zip(stored) {
            *section = StoredSection {
                stored: stored.len() as u32,
                bytes: bytes.len() as u32,
                crc: crc32fast::hash(&stored),
            };
            body.extend_from_slice(&stored);
        }
        // An entry without samples has the time of an earlier sample.
        let sampled = || entries.iter().filter(|entry| entry.samples > 0);
        let header = FrameHeader {
            salt: self.identity.salt,
            offset: self.data.bytes(),
            previous: self.previous,
            sequence: self.sequence,
            codec,
            flags,
            sections,
            blocks: entries.len() as u32,
            samples: samples as u32,
            first_ns: sampled().map(|entry| entry.first_ns).min().unwrap_or(0),
            last_ns: sampled().map(|entry| entry.last_ns).max().unwrap_or(0),
        };
        let limit = if flags & LAST != 0 { OFFSET_MAX } else { OFFSET_MAX - END_BYTES };
        if header.offset >= limit {
            return Err(TraceError::LimitExceeded { what: "the data file", limit });
        }
        let mut bytes = header.encode();
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        let trailer = trailer(&header, &bytes);
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&trailer);
        self.data.write(&bytes)?;
        self.schedule.wrote(bytes.len() as u64);
        self.sequence = self.sequence.saturating_add(1);
        self.previous = header.offset;
        Ok(header)
    }
}

/// The identity of a trace, which distinguishes it from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    /// The salt, which is in every frame.
    pub(super) salt: u64,
    /// The UUID, which is in the metadata of the first frame.
    pub(super) uuid: u128,
}
