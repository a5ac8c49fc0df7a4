//! The data file of a lazily read trace: frames by their offsets, decoded when they are needed.
//!
//! # Invariants
//! - Decoded frames take no more than [`CACHED_BYTES`], whatever the file.
//! - The file is read by position, never mapped: a file that is cut under a map is SIGBUS, not an
//!   error.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cache::Cache;
use super::fault::{Fault, Found};
use crate::trace::TraceError;
use crate::trace::bytes::Malformed;
use crate::trace::checkpoint::BlockEntry;
use crate::trace::codec::{Codec, Part};
use crate::trace::frame::{FrameHeader, HEADER_BYTES};
use crate::trace::meter::note_read;

/// Bytes of decoded payloads that are kept.
const CACHED_BYTES: usize = 16 << 20;
/// Bytes of decoded directories that are kept, by their size on disk times what they unpack to.
const CACHED_DIRECTORY_BYTES: usize = 8 << 20;

/// A frame's header and its blocks with their offsets in the payload.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) header: FrameHeader,
    pub(super) blocks: Vec<(usize, BlockEntry)>,
}

impl Directory {
    /// The block that begins at `at` of the payload.
    pub(super) fn block_at(&self, at: usize) -> Option<&BlockEntry> {
        let place = self.blocks.binary_search_by_key(&at, |(at, _)| *at).ok()?;
        self.blocks.get(place).map(|(_, entry)| entry)
    }
}

/// The data file.
#[derive(Debug)]
pub(super) struct Source {
    file: File,
    path: PathBuf,
    /// Header of the first frame, which all others go with in salt and codec.
    first: Option<FrameHeader>,
    directories: Mutex<Cache<Arc<Directory>>>,
    /// Neutral blocks, and blocks of threads.
    payloads: [Mutex<Cache<Arc<Vec<u8>>>>; 2],
}

impl Source {
    pub(super) fn new(file: File, path: &Path, first: Option<FrameHeader>) -> Self {
        Self {
            file,
            path: path.to_owned(),
            first,
            directories: Mutex::new(Cache::new(CACHED_DIRECTORY_BYTES)),
            payloads: [(); 2].map(|()| Mutex::new(Cache::new(CACHED_BYTES / 2))),
        }
    }

    /// Bytes of the file now.
    pub(super) fn len(&self) -> Result<u64, TraceError> {
        self.file.metadata().map(|meta| meta.len()).map_err(|error| self.error(error))
    }

    /// The frame of a position and the offset in its payload; `frame_before` gives the offset of
    /// the last frame at or before an offset.
    pub(super) fn locate(
        &self,
        position: u64,
        frame_before: impl FnOnce(u64) -> Found<u64>,
    ) -> Found<(u64, usize)> {
        match self.first.map(|first| first.codec) {
            Some(Codec::Zstd | Codec::Columns) => {
                Ok((position >> 24, (position & 0xff_ffff) as usize))
            }
            Some(Codec::Plain) | None => {
                let frame = frame_before(position)?;
                let payload = self.directory(frame)?.header.section_offset(Part::Neutral);
                match position.checked_sub(payload) {
                    Some(at) => Ok((frame, at as usize)),
                    None => Err(Fault::Index("a position lies in no payload")),
                }
            }
        }
    }

    /// The directory of the frame at `offset`.
    pub(super) fn directory(&self, offset: u64) -> Found<Arc<Directory>> {
        if let Some(known) = locked(&self.directories).get(offset) {
            return Ok(known);
        }
        let header = self.header(offset)?;
        let bytes = self.section(&header, Part::Directory)?;
        let blocks = header.blocks(&bytes).map_err(|bad| corrupt(offset, bad))?;
        let directory = Arc::new(Directory { header, blocks });
        // An entry takes more in memory than on disk.
        let size = bytes.len() * 8 + size_of::<Directory>();
        locked(&self.directories).insert(offset, directory.clone(), size);
        Ok(directory)
    }

    /// The decoded bytes of a section, and the offset in the payload that they begin at.
    pub(super) fn payload(&self, frame: &Directory, at: usize) -> Found<(Arc<Vec<u8>>, usize)> {
        let neutral = frame.header.section(Part::Neutral).bytes as usize;
        let (part, base) = if at < neutral { (Part::Neutral, 0) } else { (Part::Points, neutral) };
        let offset = frame.header.offset;
        let cache = &self.payloads[usize::from(part == Part::Points)];
        if let Some(known) = locked(cache).get(offset) {
            return Ok((known, base));
        }
        let bytes = Arc::new(self.section(&frame.header, part)?);
        locked(cache).insert(offset, bytes.clone(), bytes.len());
        Ok((bytes, base))
    }

    /// The header of the frame at `offset`.
    pub(super) fn header(&self, offset: u64) -> Found<FrameHeader> {
        let mut bytes = [0; HEADER_BYTES];
        self.read(&mut bytes, offset)?;
        let Ok(header) = FrameHeader::decode(&bytes) else {
            return Err(Fault::Index("there is no frame where one should be"));
        };
        let follows = self
            .first
            .is_none_or(|first| first.salt == header.salt && first.codec.goes_with(header.codec));
        if header.offset != offset || !follows {
            return Err(Fault::Index("there is a frame of another file or another place"));
        }
        Ok(header)
    }

    /// The same file with nothing kept; `None` if no frame was there when it was opened.
    pub(super) fn reopened(&self) -> Result<Option<Self>, TraceError> {
        if self.first.is_none() {
            return Ok(None);
        }
        let file = self.file.try_clone().map_err(|error| self.error(error))?;
        Ok(Some(Self::new(file, &self.path, self.first)))
    }

    /// Stored bytes.
    pub(super) fn bytes(&self, offset: u64, length: usize) -> Found<Vec<u8>> {
        // Before so much is allocated.
        if offset.saturating_add(length as u64) > self.len()? {
            return Err(Fault::Index("a frame reaches beyond the file"));
        }
        let mut bytes = vec![0; length];
        self.read(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn section(&self, header: &FrameHeader, part: Part) -> Found<Vec<u8>> {
        let stored = header.section(part).stored as usize;
        let bytes = self.bytes(header.section_offset(part), stored)?;
        // A damaged frame: a scan finds it out and leaves it out.
        note_read(stored as u64);
        header.expand(part, &bytes).map_err(|bad| Fault::Index(bad.what))
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Found<()> {
        self.file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Index("the data file is shorter than expected"),
            _ => Fault::Trace(self.error(error)),
        })
    }

    fn error(&self, error: io::Error) -> TraceError {
        TraceError::read(&self.path, error)
    }
}

/// A cache is whole after every call, whatever panicked meanwhile.
fn locked<T>(cache: &Mutex<T>) -> MutexGuard<'_, T> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

fn corrupt(offset: u64, bad: Malformed) -> Fault {
    Fault::Trace(TraceError::Corrupt { offset, what: bad.what })
}
