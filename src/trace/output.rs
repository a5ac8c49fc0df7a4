//! The two files that a trace is written to.
//!
//! # Invariants
//! - A frame is one write at the end of the data file; its index group follows.
//! - After a failed write the data file is cut back to its last whole frame and takes no more.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::bytes::{put_u32, put_u64};
use super::checkpoint::BlockEntry;
use super::frame::{FrameHeader, HEADER_BYTES, LAST, Section, TRAILER_BYTES};
use super::index::{self, Cell};
use super::kind::Kind;
use super::pack::Packer;
use super::stream::Block;
use super::tables::NeutralBlock;
use super::{
    Compression, DATA_MAGIC, INDEX_MAGIC, MAX_FRAME_BYTES, NO_THREAD, TraceError, file_header,
};

/// A file, or what stands for one in tests.
pub(super) trait Sink: Write + Send + std::fmt::Debug {
    /// Cuts what was written to `bytes` bytes.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;
}

impl Sink for File {
    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)?;
        self.seek(SeekFrom::Start(bytes)).map(drop)
    }
}

/// One of the two files.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) sink: Box<dyn Sink>,
    pub(super) path: PathBuf,
    bytes: u64,
}

impl Target {
    pub(super) fn new(sink: Box<dyn Sink>, path: PathBuf) -> Self {
        Self { sink, path, bytes: 0 }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        if let Err(source) = self.sink.write_all(bytes) {
            // What the file has beyond its last whole frame is harmless; this only tidies.
            let _ = self.sink.cut(self.bytes);
            return Err(TraceError::write(&self.path, source));
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Opens a new regular file; with `force` one that exists is emptied.
pub(super) fn create(path: &Path, force: bool) -> Result<Target, TraceError> {
    let write = |source| TraceError::write(path, source);
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    let file = match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let meta = std::fs::symlink_metadata(path).map_err(write)?;
            if !meta.is_file() {
                return Err(TraceError::NotRegular { path: path.to_owned() });
            }
            if !force {
                return Err(TraceError::Exists { path: path.to_owned() });
            }
            options.open(path).map_err(write)?
        }
        other => other.map_err(write)?,
    };
    // Looked at again through the descriptor: the name may have changed hands.
    if !file.metadata().map_err(write)?.is_file() {
        return Err(TraceError::NotRegular { path: path.to_owned() });
    }
    file.set_len(0).map_err(write)?;
    Ok(Target::new(Box::new(file), path.to_owned()))
}

/// Where a frame ends: its length and its header's checksum once more.
pub(super) fn trailer(header: &FrameHeader, encoded: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(TRAILER_BYTES);
    put_u32(&mut out, header.total_bytes() as u32);
    out.extend_from_slice(&encoded[HEADER_BYTES - 4..]);
    out
}

/// The blocks of the frame that is being put together.
#[derive(Debug, Default)]
struct Pending {
    points: Vec<u8>,
    directory_bytes: usize,
    entries: Vec<BlockEntry>,
    cells: Vec<Cell>,
}

/// Both files and the frame that is being put together.
#[derive(Debug)]
pub(super) struct Output {
    data: Target,
    index: Target,
    identity: Identity,
    packer: Packer,
    pending: Pending,
    sequence: u32,
    previous: u64,
    failed: Option<i32>,
}

impl Output {
    /// Writes both headers.
    pub(super) fn new(
        mut data: Target,
        mut index: Target,
        identity: Identity,
        compression: Compression,
    ) -> Result<Self, TraceError> {
        let packer = Packer::new(compression);
        let packer = packer.map_err(|source| TraceError::write(&data.path, source))?;
        data.write(&file_header(DATA_MAGIC))?;
        index.write(&file_header(INDEX_MAGIC))?;
        Ok(Self {
            data,
            index,
            identity,
            packer,
            pending: Pending::default(),
            sequence: 0,
            previous: 0,
            failed: None,
        })
    }

    /// What distinguishes the trace from others.
    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Bytes of both files.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.data.bytes, self.index.bytes)
    }

    /// Bytes of the frame that is being put together.
    pub(super) fn pending(&self) -> usize {
        self.pending.points.len() + self.pending.directory_bytes
    }

    /// Adds a block to the frame that is being put together.
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

    /// Writes the frame with `neutral` as its first block, and its index group.
    pub(super) fn write_frame(&mut self, neutral: NeutralBlock) -> Result<(), TraceError> {
        if neutral.is_empty() && self.pending.entries.is_empty() {
            return Ok(());
        }
        self.write_pending(neutral, None)
    }

    /// Writes the last frame and the ends of both files. Everything before must be written.
    pub(super) fn finish(&mut self, samples: u64, threads: u32) -> Result<(), TraceError> {
        let mut eof = vec![Kind::Eof as u8];
        put_u64(&mut eof, samples);
        put_u32(&mut eof, threads);
        self.write_pending(NeutralBlock::default(), Some(eof))?;
        self.index.write(&index::footer())
    }

    fn write_pending(
        &mut self,
        neutral: NeutralBlock,
        eof: Option<Vec<u8>>,
    ) -> Result<(), TraceError> {
        if let Some(error) = self.failed {
            return Err(TraceError::write(&self.data.path, io::Error::from_raw_os_error(error)));
        }
        let written = self.try_write(neutral, eof);
        if let Err(error) = &written {
            let code = match error {
                TraceError::Io { source, .. } => source.raw_os_error(),
                _ => None,
            };
            self.failed = Some(code.unwrap_or(libc::EIO));
        }
        written
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
        let mut bytes = Vec::new();
        if header.sequence == 0 {
            let identity = index::identity(self.identity, header.crc(), None);
            identity.iter().for_each(|cell| cell.encode(&mut bytes));
        }
        bytes.extend_from_slice(&index::group(header.offset, &group));
        self.index.write(&bytes)
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
        let mut sections = [Section::default(); 3];
        let mut body = Vec::new();
        let plain = [&directory, payload[0], payload[1]];
        let (codec, stored) = self
            .packer
            .sections(plain)
            .map_err(|source| TraceError::write(&self.data.path, source))?;
        for ((section, bytes), stored) in sections.iter_mut().zip(plain).zip(stored) {
            *section = Section {
                stored: stored.len() as u32,
                bytes: bytes.len() as u32,
                crc: crc32fast::hash(&stored),
            };
            body.extend_from_slice(&stored);
        }
        let of_threads = || entries.iter().filter(|entry| entry.stream != NO_THREAD);
        let header = FrameHeader {
            salt: self.identity.salt,
            offset: self.data.bytes,
            previous: self.previous,
            sequence: self.sequence,
            codec,
            flags,
            sections,
            blocks: entries.len() as u32,
            samples: samples as u32,
            first_ns: of_threads().map(|entry| entry.first_ns).min().unwrap_or(0),
            last_ns: of_threads().map(|entry| entry.last_ns).max().unwrap_or(0),
        };
        if header.offset >> 39 != 0 {
            return Err(TraceError::LimitExceeded { what: "the data file", limit: 1 << 39 });
        }
        let mut bytes = header.encode();
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        let trailer = trailer(&header, &bytes);
        bytes.extend_from_slice(&body);
        bytes.extend_from_slice(&trailer);
        self.data.write(&bytes)?;
        self.sequence = self.sequence.saturating_add(1);
        self.previous = header.offset;
        Ok(header)
    }
}

/// What distinguishes a trace from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    /// In every frame.
    pub(super) salt: u64,
    /// In the metadata of the first frame.
    pub(super) uuid: u128,
}
