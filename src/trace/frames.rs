//! The frames of a data file, read from its begin up to the first that is not whole.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::frame::{Frame, FrameHeader, HEADER_BYTES, LAST, TRAILER_BYTES};
use super::{DATA_MAGIC, TraceError};

/// Reads frame after frame; needs no seeking.
#[derive(Debug)]
pub(super) struct Frames<R> {
    input: R,
    path: PathBuf,
    at: u64,
    last: Option<FrameHeader>,
    end: Option<End>,
}

/// Where and why reading ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    /// Offset of the first byte that belongs to no frame that was read.
    pub(super) offset: u64,
    /// Bytes from there to the end of the file.
    pub(super) left_over: u64,
    /// The last frame said that it is the last.
    pub(super) closed: bool,
    /// What is wrong with the bytes that are left over.
    pub(super) reason: &'static str,
}

impl End {
    /// What a user should be told, if anything.
    pub(super) fn notice(&self) -> Option<String> {
        let Self { offset, left_over, closed, reason } = self;
        match (closed, left_over) {
            (true, 0) => None,
            (true, _) => Some(format!("{left_over} bytes after the end of the trace are ignored")),
            (false, 0) => Some(
                "the trace was not finished: the recording is still running or was killed; all that was flushed is here".into(),
            ),
            (false, _) => Some(format!(
                "the trace was not finished: the last {left_over} bytes, from offset {offset}, are ignored ({reason})"
            )),
        }
    }
}

impl Frames<BufReader<File>> {
    /// Opens a data file and checks its header.
    pub(super) fn open(path: &Path) -> Result<Self, TraceError> {
        Self::new(open_regular(path)?, path)
    }
}

/// Opens a regular file for reading; a pipe would block.
pub(super) fn open_regular(path: &Path) -> Result<BufReader<File>, TraceError> {
    let read = |source| TraceError::read(path, source);
    if !std::fs::metadata(path).map_err(read)?.is_file() {
        return Err(TraceError::NotATrace { path: path.to_owned() });
    }
    Ok(BufReader::with_capacity(1 << 16, File::open(path).map_err(read)?))
}

impl<R: Read> Frames<R> {
    /// Checks the header of the data file that `input` is at the begin of; `path` is for messages.
    pub(super) fn new(mut input: R, path: &Path) -> Result<Self, TraceError> {
        let read = |source| TraceError::read(path, source);
        let header = read_up_to(&mut input, super::HEADER_BYTES as u64).map_err(read)?;
        super::check_header(&header, DATA_MAGIC, path)?;
        let at = header.len() as u64;
        Ok(Self { input, path: path.to_owned(), at, last: None, end: None })
    }

    /// The next frame, `None` at the end.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, TraceError> {
        if self.end.is_some() {
            return Ok(None);
        }
        let start = self.at;
        let closed = self.last.is_some_and(|last| last.flags & LAST != 0);
        let reason = if closed {
            "they follow the end"
        } else {
            match self.read_frame()? {
                Ok(frame) => {
                    self.last = Some(frame.header);
                    return Ok(Some(frame));
                }
                Err(reason) => reason,
            }
        };
        let path = &self.path;
        let rest = io::copy(&mut self.input, &mut io::sink())
            .map_err(|source| TraceError::read(path, source))?;
        let left_over = self.at + rest - start;
        self.end = Some(End { offset: start, left_over, closed, reason });
        Ok(None)
    }

    /// Where reading ended, once [`Self::next_frame`] gave `None`.
    pub(super) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    fn read_frame(&mut self) -> Result<Result<Frame, &'static str>, TraceError> {
        const CUT: &str = "the last frame is cut off";
        let start = self.at;
        let bytes = self.read(HEADER_BYTES as u64)?;
        let Ok(bytes) = <[u8; HEADER_BYTES]>::try_from(bytes) else { return Ok(Err(CUT)) };
        let header = match FrameHeader::decode(&bytes) {
            Ok(header) => header,
            Err(malformed) => return Ok(Err(malformed.what)),
        };
        let fits = match self.last {
            None => header.sequence == 0 && header.previous == 0,
            Some(last) => {
                header.salt == last.salt
                    && header.codec.goes_with(last.codec)
                    && Some(header.sequence) == last.sequence.checked_add(1)
                    && header.previous == last.offset
            }
        };
        if !fits || header.offset != start {
            return Ok(Err("there is a frame of another file or another place"));
        }
        let body = self.read(header.body_bytes())?;
        if body.len() as u64 != header.body_bytes() {
            return Ok(Err(CUT));
        }
        let trailer = self.read(TRAILER_BYTES as u64)?;
        if trailer.len() != TRAILER_BYTES {
            return Ok(Err(CUT));
        }
        if trailer != super::output::trailer(&header, &bytes) {
            return Ok(Err("the trailer of a frame is wrong"));
        }
        Ok(Frame::decode(header, &body).map_err(|malformed| malformed.what))
    }

    fn read(&mut self, bytes: u64) -> Result<Vec<u8>, TraceError> {
        let path = &self.path;
        let read =
            read_up_to(&mut self.input, bytes).map_err(|source| TraceError::read(path, source))?;
        self.at += read.len() as u64;
        Ok(read)
    }
}

/// Up to `bytes` bytes; allocates for what is there, not for what is asked.
pub(super) fn read_up_to(input: &mut impl Read, bytes: u64) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    input.by_ref().take(bytes).read_to_end(&mut read)?;
    Ok(read)
}
