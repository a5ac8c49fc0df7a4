//! The data file of a lazily read trace: frames by offset, decoded on request.
//!
//! # Invariants
//! - Decoded frames take no more than [`CACHED_BYTES`], whatever the size of the file.
//! - The file is read with `pread`, never mapped: truncating a mapped file causes SIGBUS, not an
//!   error.
//! - A frame is used only if it is complete, as a scan decides it: also if the requested part of it
//!   is sound. Otherwise this reader would show samples that the others call lost.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cache::Cache;
use super::fault::{LazyError, LazyResult};
use crate::trace::bytes::Malformed;
use crate::trace::checkpoint::BlockEntry;
use crate::trace::codec::{Codec, SectionKind};
use crate::trace::frame::{FrameHeader, HEADER_BYTES};
use crate::trace::meter::note_read;
use crate::trace::{TraceError, memory};

/// The most bytes of decoded payloads in the cache.
const CACHED_BYTES: usize = 16 << 20;
/// The most bytes of decoded directories in the cache; the size in memory is estimated from that on
/// disk.
const CACHED_DIRECTORY_BYTES: usize = 8 << 20;

/// A frame's header and its blocks with their offsets in the payload.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) header: FrameHeader,
    pub(super) blocks: Vec<(usize, BlockEntry)>,
}

impl Directory {
    /// Returns the block that starts at offset `at` of the payload.
    pub(super) fn block_at(&self, at: usize) -> Option<&BlockEntry> {
        let place = self.blocks.binary_search_by_key(&at, |(at, _)| *at).ok()?;
        self.blocks.get(place).map(|(_, entry)| entry)
    }
}

/// A complete frame as it is stored. The next frame takes its memory.
#[derive(Debug, Default)]
struct CheckedFrame {
    /// The header; `None` if there is no frame.
    header: Option<FrameHeader>,
    /// The sections and the trailer.
    stored: Vec<u8>,
}

/// The data file.
#[derive(Debug)]
pub(super) struct DataFile {
    file: File,
    path: PathBuf,
    /// The header of the first frame; all others must match its salt and codec.
    first: Option<FrameHeader>,
    /// Whether a scan has checked the frames.
    scanned: bool,
    directories: Mutex<Cache<Arc<Directory>>>,
    /// The frame that was checked last: most often the next request is for its payload.
    checked: Mutex<CheckedFrame>,
    /// The neutral blocks, and the blocks of threads.
    payloads: [Mutex<Cache<Arc<Vec<u8>>>>; 2],
}

impl DataFile {
    /// Creates the file whose frames are checked when they are read.
    pub(super) fn new(file: File, path: &Path, first: Option<FrameHeader>) -> Self {
        Self {
            file,
            path: path.to_owned(),
            first,
            scanned: false,
            directories: Mutex::new(Cache::new(CACHED_DIRECTORY_BYTES)),
            checked: Mutex::default(),
            payloads: [(); 2].map(|()| Mutex::new(Cache::new(CACHED_BYTES / 2))),
        }
    }

    /// Returns the file, of which a scan has checked all frames that will be requested.
    pub(super) fn scanned(self) -> Self {
        Self { scanned: true, ..self }
    }

    /// Returns the current size of the file in bytes.
    pub(super) fn len(&self) -> Result<u64, TraceError> {
        self.file.metadata().map(|meta| meta.len()).map_err(|error| self.error(error))
    }

    /// Returns the frame of a position and the offset in its payload. `frame_before` returns the
    /// offset of the last frame at or before an offset.
    pub(super) fn locate(
        &self,
        position: u64,
        frame_before: impl FnOnce(u64) -> LazyResult<u64>,
    ) -> LazyResult<(u64, usize)> {
        match self.first.map(|first| first.codec) {
            Some(Codec::Zstd | Codec::Columns) => {
                Ok((position >> 24, (position & 0xff_ffff) as usize))
            }
            Some(Codec::Plain) | None => {
                let frame = frame_before(position)?;
                let payload = self.directory(frame)?.header.section_offset(SectionKind::Neutral);
                match position.checked_sub(payload) {
                    Some(at) => Ok((frame, at as usize)),
                    None => Err(LazyError::Index("a position is outside of all payloads")),
                }
            }
        }
    }

    /// Returns the directory of the frame at `offset`.
    pub(super) fn directory(&self, offset: u64) -> LazyResult<Arc<Directory>> {
        if let Some(known) = locked(&self.directories).get(offset) {
            return Ok(known);
        }
        let header = match self.scanned {
            true => self.header(offset)?,
            false => self.complete_frame(offset)?,
        };
        let bytes = self.section(&header, SectionKind::Directory)?;
        let blocks = header.blocks(&bytes).map_err(|bad| corrupt(offset, bad))?;
        let directory = Arc::new(Directory { header, blocks });
        // An entry takes more memory than disk space.
        let size = bytes.len() * 8 + size_of::<Directory>();
        locked(&self.directories).insert(offset, directory.clone(), size);
        Ok(directory)
    }

    /// Returns the decoded bytes of a section, and the offset in the payload at which they start.
    pub(super) fn payload(
        &self,
        frame: &Directory,
        at: usize,
    ) -> LazyResult<(Arc<Vec<u8>>, usize)> {
        let neutral = frame.header.section(SectionKind::Neutral).bytes as usize;
        let (part, base) =
            if at < neutral { (SectionKind::Neutral, 0) } else { (SectionKind::Points, neutral) };
        let offset = frame.header.offset;
        let cache = &self.payloads[usize::from(part == SectionKind::Points)];
        if let Some(known) = locked(cache).get(offset) {
            return Ok((known, base));
        }
        let bytes = Arc::new(self.section(&frame.header, part)?);
        locked(cache).insert(offset, bytes.clone(), bytes.len());
        Ok((bytes, base))
    }

    /// Reads and checks the frame at `offset`, and returns its header.
    fn complete_frame(&self, offset: u64) -> LazyResult<FrameHeader> {
        let head = self.head(offset)?;
        let header = self.decoded(offset, &head)?;
        let (rest, length) = (offset + HEADER_BYTES as u64, header.total_bytes());
        let mut checked = locked(&self.checked);
        checked.header = None;
        self.read_into(&mut checked.stored, rest, length as usize - HEADER_BYTES)?;
        note_read(length);
        if let Some(what) = header.damage(&head, &checked.stored) {
            // A scan finds the same and leaves the frame out.
            return Err(LazyError::Index(what));
        }
        checked.header = Some(header);
        Ok(header)
    }

    /// Returns the header of the frame at `offset`.
    pub(super) fn header(&self, offset: u64) -> LazyResult<FrameHeader> {
        self.decoded(offset, &self.head(offset)?)
    }

    fn head(&self, offset: u64) -> LazyResult<[u8; HEADER_BYTES]> {
        let mut bytes = [0; HEADER_BYTES];
        self.read(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn decoded(&self, offset: u64, head: &[u8; HEADER_BYTES]) -> LazyResult<FrameHeader> {
        let Ok(header) = FrameHeader::decode(head) else {
            return Err(LazyError::Index("there is no frame where the index says"));
        };
        let follows = self.first.is_none_or(|first| {
            first.salt == header.salt && first.codec.shares_positions_with(header.codec)
        });
        if header.offset != offset || !follows {
            return Err(LazyError::Index("a frame belongs to another file or offset"));
        }
        Ok(header)
    }

    /// Reopens the file with empty caches; returns `None` if it had no frames when it was opened.
    pub(super) fn reopened(&self) -> Result<Option<Self>, TraceError> {
        if self.first.is_none() {
            return Ok(None);
        }
        let file = self.file.try_clone().map_err(|error| self.error(error))?;
        Ok(Some(Self::new(file, &self.path, self.first)))
    }

    /// Reads stored bytes.
    pub(super) fn bytes(&self, offset: u64, length: usize) -> LazyResult<Vec<u8>> {
        let mut bytes = Vec::new();
        self.read_into(&mut bytes, offset, length)?;
        Ok(bytes)
    }

    fn read_into(&self, bytes: &mut Vec<u8>, offset: u64, length: usize) -> LazyResult<()> {
        // Checked before the allocation.
        if offset.saturating_add(length as u64) > self.len()? {
            return Err(LazyError::Index("a frame extends beyond the file"));
        }
        bytes.clear();
        bytes.resize(length, 0);
        self.read(bytes, offset)
    }

    fn section(&self, header: &FrameHeader, part: SectionKind) -> LazyResult<Vec<u8>> {
        let stored = header.section(part).stored as usize;
        let checked = locked(&self.checked);
        let expanded = if checked.header == Some(*header) {
            let at = (header.section_offset(part) - header.offset) as usize - HEADER_BYTES;
            header.expand(part, &checked.stored[at..at + stored])
        } else {
            drop(checked);
            let bytes = self.bytes(header.section_offset(part), stored)?;
            note_read(stored as u64);
            header.expand(part, &bytes)
        };
        // An error means a damaged frame: a scan finds it and leaves it out.
        let expanded = expanded.map_err(|bad| LazyError::Index(bad.what))?;
        memory::note(expanded.len() as u64)?;
        Ok(expanded)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> LazyResult<()> {
        self.file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                LazyError::Index("the data file is shorter than expected")
            }
            _ => LazyError::Trace(self.error(error)),
        })
    }

    fn error(&self, error: io::Error) -> TraceError {
        TraceError::read(&self.path, error)
    }
}

/// Locks a cache. It is consistent after every call, even if another thread panicked.
fn locked<T>(cache: &Mutex<T>) -> MutexGuard<'_, T> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

fn corrupt(offset: u64, bad: Malformed) -> LazyError {
    LazyError::Trace(TraceError::Corrupt { offset, what: bad.what })
}
