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
use super::frame::{Codec, FrameHeader, HEADER_BYTES, LAST, TRAILER_BYTES};
use super::index::{self, Cell};
use super::kind::Kind;
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

/// Where a frame ends: its length and its body's checksum once more.
pub(super) fn trailer(header: &FrameHeader) -> Vec<u8> {
    let mut out = Vec::with_capacity(TRAILER_BYTES);
    put_u32(&mut out, header.total_bytes() as u32);
    put_u32(&mut out, header.body_crc);
    out
}

/// The blocks of the frame that is being put together.
#[derive(Debug, Default)]
struct Pending {
    payload: Vec<u8>,
    directory_bytes: usize,
    entries: Vec<BlockEntry>,
    cells: Vec<Cell>,
}

/// Both files and the frame that is being put together.
#[derive(Debug)]
pub(super) struct Output {
    data: Target,
    index: Target,
    salt: u64,
    compression: Compression,
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
        salt: u64,
        compression: Compression,
    ) -> Result<Self, TraceError> {
        data.write(&file_header(DATA_MAGIC))?;
        index.write(&file_header(INDEX_MAGIC))?;
        Ok(Self {
            data,
            index,
            salt,
            compression,
            pending: Pending::default(),
            sequence: 0,
            previous: 0,
            failed: None,
        })
    }

    /// Bytes of both files.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.data.bytes, self.index.bytes)
    }

    /// Bytes of the frame that is being put together.
    pub(super) fn pending(&self) -> usize {
        self.pending.payload.len() + self.pending.directory_bytes
    }

    /// Adds a block to the frame that is being put together.
    pub(super) fn add(&mut self, block: Block) {
        let Block { mut entry, content, cells } = block;
        let payload = &mut self.pending.payload;
        let before = payload.len();
        payload.push(Kind::BlockStart as u8);
        put_u32(payload, entry.stream);
        payload.extend_from_slice(&content);
        payload.push(Kind::BlockEnd as u8);
        entry.bytes = (payload.len() - before) as u32;
        self.pending.directory_bytes += entry.size_hint();
        self.pending.entries.push(entry);
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
        let Pending { payload: blocks, mut entries, cells, .. } = std::mem::take(&mut self.pending);
        let mut payload = Vec::new();
        let mut neutral_cells = Vec::new();
        if !neutral.is_empty() {
            payload.push(Kind::BlockStart as u8);
            put_u32(&mut payload, NO_THREAD);
            neutral_cells = neutral.cells(payload.len());
            payload.extend_from_slice(neutral.bytes());
            payload.push(Kind::BlockEnd as u8);
            entries.insert(0, BlockEntry::neutral(payload.len() as u32));
        }
        payload.extend_from_slice(&blocks);
        let flags = if eof.is_some() { LAST } else { 0 };
        payload.extend_from_slice(eof.as_deref().unwrap_or_default());
        if payload.len() > MAX_FRAME_BYTES {
            let limit = MAX_FRAME_BYTES as u64;
            return Err(TraceError::LimitExceeded { what: "the size of a frame", limit });
        }
        let header = self.write_data(&entries, &payload, flags)?;
        let mut group = Vec::with_capacity(neutral_cells.len() + entries.len() + cells.len());
        for (kind, id, at) in neutral_cells {
            group.push(Cell { kind, id, start: header.position(at), end: index::UNUSED });
        }
        let mut at = 0;
        for entry in &entries {
            let (start, end) = (header.position(at), at + entry.bytes as usize - 1);
            let (kind, id) = (Kind::BlockStart, entry.stream);
            group.push(Cell { kind, id, start, end: header.position(end) });
            at = end + 1;
        }
        group.extend(cells);
        let mut bytes = Vec::new();
        if header.sequence == 0 {
            index::identity(self.salt, header.body_crc).encode(&mut bytes);
        }
        bytes.extend_from_slice(&index::group(header.offset, &group));
        self.index.write(&bytes)
    }

    fn write_data(
        &mut self,
        entries: &[BlockEntry],
        payload: &[u8],
        flags: u8,
    ) -> Result<FrameHeader, TraceError> {
        let mut directory = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut directory));
        let samples: u64 = entries.iter().map(|entry| entry.samples).sum();
        let (codec, stored_directory, stored_payload) = match self.compression {
            Compression::None => (Codec::Plain, directory.clone(), payload.to_vec()),
            Compression::Zstd(level) => {
                let pack = |bytes: &[u8]| {
                    zstd::bulk::compress(bytes, level)
                        .map_err(|source| TraceError::write(&self.data.path, source))
                };
                (Codec::Zstd, pack(&directory)?, pack(payload)?)
            }
        };
        let mut crc = crc32fast::Hasher::new();
        crc.update(&stored_directory);
        crc.update(&stored_payload);
        let of_threads = || entries.iter().filter(|entry| entry.stream != NO_THREAD);
        let header = FrameHeader {
            salt: self.salt,
            offset: self.data.bytes,
            previous: self.previous,
            sequence: self.sequence,
            codec,
            flags,
            directory_stored: stored_directory.len() as u32,
            directory_bytes: directory.len() as u32,
            payload_stored: stored_payload.len() as u32,
            payload_bytes: payload.len() as u32,
            blocks: entries.len() as u32,
            samples: samples as u32,
            first_ns: of_threads().map(|entry| entry.first_ns).min().unwrap_or(0),
            last_ns: of_threads().map(|entry| entry.last_ns).max().unwrap_or(0),
            body_crc: crc.finalize(),
        };
        if header.offset >> 39 != 0 {
            return Err(TraceError::LimitExceeded { what: "the data file", limit: 1 << 39 });
        }
        let mut bytes = header.encode();
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        bytes.extend_from_slice(&stored_directory);
        bytes.extend_from_slice(&stored_payload);
        bytes.extend_from_slice(&trailer(&header));
        self.data.write(&bytes)?;
        self.sequence = self.sequence.saturating_add(1);
        self.previous = header.offset;
        Ok(header)
    }
}
