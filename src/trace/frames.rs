//! The frames of a data file, from its begin to its end, past those that are not whole.
//!
//! # Invariants
//! - Every byte is looked at a bounded number of times, whatever it says: a header with the right
//!   checksum, salt and offset stands for as many bytes as it says even if these are damaged, so no
//!   body is checked for two headers.
//!
//! # Does not
//! look into blocks.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::codec::Part;
use super::frame::{Frame, FrameHeader, HEADER_BYTES, LAST, TRAILER_BYTES};
use super::loss::BadRange;
use super::meter::note_read;
use super::window::Window;
use super::{DATA_MAGIC, FRAME_MAGIC, TraceError};

const CUT: &str = "the last frame is cut off";
const FOREIGN: &str = "there is a frame of another file or another place";

/// Reads frame after frame; needs no seeking.
#[derive(Debug)]
pub(super) struct Frames<R> {
    window: Window<R>,
    path: PathBuf,
    /// The salt of the file, once it is known.
    salt: Option<u64>,
    last: Option<FrameHeader>,
    bad: Vec<BadRange>,
    /// Frames are lost between the last two that were given.
    after_loss: bool,
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
                "the trace was not finished: the recording is still running or was killed; all \
                 that was flushed is here"
                    .into(),
            ),
            (false, _) => Some(format!(
                "the trace was not finished: the last {left_over} bytes, from offset {offset}, are \
                 ignored ({reason})"
            )),
        }
    }
}

/// A whole frame as it is stored: the checksums are right.
#[derive(Debug)]
pub(super) struct StoredFrame {
    pub(super) header: FrameHeader,
    /// Its sections.
    pub(super) body: Vec<u8>,
    /// Frames are lost between the one before and this.
    pub(super) after_loss: bool,
}

/// What lies at a place.
enum Found {
    Whole(FrameHeader, Vec<u8>),
    /// A frame of this file and this place, of so many bytes, that is not whole.
    Broken(u64, &'static str),
    Nothing(&'static str),
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
        Ok(Self {
            window: Window::new(input, header.len() as u64),
            path: path.to_owned(),
            salt: None,
            last: None,
            bad: Vec::new(),
            after_loss: false,
            end: None,
        })
    }

    /// The next frame, `None` at the end.
    ///
    /// # Errors
    /// Besides those of reading, [`TraceError::Corrupt`] for a section that has the right checksum
    /// but cannot be decoded.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, TraceError> {
        let Some(StoredFrame { header, body, .. }) = self.next_stored()? else { return Ok(None) };
        let frame = Frame::decode(header, &body);
        let corrupt = |what: &'static str| TraceError::Corrupt { offset: header.offset, what };
        frame.map(Some).map_err(|malformed| corrupt(malformed.what))
    }

    /// The next frame as it is stored, `None` at the end.
    pub(super) fn next_stored(&mut self) -> Result<Option<StoredFrame>, TraceError> {
        if self.end.is_some() {
            return Ok(None);
        }
        self.find().map_err(|source| TraceError::read(&self.path, source))
    }

    /// Frames are lost between the last two that were given.
    pub(super) fn after_loss(&self) -> bool {
        self.after_loss
    }

    /// What was passed so far because it is not whole, though whole frames follow.
    pub(super) fn bad(&self) -> &[BadRange] {
        &self.bad
    }

    /// Where reading ended, once [`Self::next_frame`] gave `None`.
    pub(super) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    fn find(&mut self) -> io::Result<Option<StoredFrame>> {
        let start = self.window.at();
        let closed = self.last.is_some_and(|last| last.flags & LAST != 0);
        let mut reason = None;
        if !closed && let Some((header, body)) = self.search(&mut reason)? {
            self.window.pass(header.total_bytes())?;
            note_read(header.total_bytes());
            self.note(&header, start, reason);
            let after_loss = self.after_loss;
            return Ok(Some(StoredFrame { header, body, after_loss }));
        }
        self.window.pass(u64::MAX)?;
        let left_over = self.window.at() - start;
        let reason = reason.unwrap_or("they follow the end");
        self.end = Some(End { offset: start, left_over, closed, reason });
        Ok(None)
    }

    /// Passes what is before the next whole frame. `reason` is set to what is wrong with the first
    /// of it, if there is any.
    fn search(
        &mut self,
        reason: &mut Option<&'static str>,
    ) -> io::Result<Option<(FrameHeader, Vec<u8>)>> {
        loop {
            match self.look()? {
                Found::Whole(header, body) => return Ok(Some((header, body))),
                Found::Broken(bytes, what) => {
                    reason.get_or_insert(what);
                    // If the frame behind it is not whole either, it is searched for.
                    self.window.pass(bytes)?;
                    continue;
                }
                Found::Nothing(what) => {
                    reason.get_or_insert(what);
                }
            }
            self.window.pass(1)?;
            let magic = FRAME_MAGIC.to_be_bytes();
            let salt = self.salt.map(u64::to_be_bytes);
            let pattern = [&magic[..], salt.as_ref().map_or(&[], |salt| &salt[..])].concat();
            if !self.window.pass_to(&pattern)? {
                return Ok(None);
            }
        }
    }

    /// Notes a whole frame, and what lies between it and the one before.
    fn note(&mut self, header: &FrameHeader, start: u64, reason: Option<&'static str>) {
        let expected = self.last.map_or(0, |last| last.sequence.saturating_add(1));
        self.after_loss = header.offset != start || header.sequence != expected;
        if self.after_loss {
            let what = reason.unwrap_or("frames are missing");
            self.bad.push(BadRange { offset: start, bytes: header.offset - start, what });
        }
        self.salt = Some(header.salt);
        self.last = Some(*header);
    }

    /// What lies at the place that the window is at.
    fn look(&mut self) -> io::Result<Found> {
        let at = self.window.at();
        let Ok(bytes) = <[u8; HEADER_BYTES]>::try_from(self.window.look(HEADER_BYTES)?) else {
            return Ok(Found::Nothing(CUT));
        };
        let header = match FrameHeader::decode(&bytes) {
            Ok(header) => header,
            Err(malformed) => return Ok(Found::Nothing(malformed.what)),
        };
        if header.offset != at || self.salt.is_some_and(|salt| salt != header.salt) {
            return Ok(Found::Nothing(FOREIGN));
        }
        if at == super::HEADER_BYTES as u64 {
            self.salt = Some(header.salt);
        }
        let total = header.total_bytes();
        let seen = self.window.look(total as usize)?;
        if (seen.len() as u64) < total {
            return Ok(Found::Broken(total, CUT));
        }
        let (body, trailer) =
            seen[HEADER_BYTES..].split_at(seen.len() - HEADER_BYTES - TRAILER_BYTES);
        let mut what = None;
        if trailer != super::output::trailer(&header, &bytes) {
            what = Some("the trailer of a frame is wrong");
        }
        let mut rest = body;
        for part in [Part::Directory, Part::Neutral, Part::Points] {
            let section = header.section(part);
            let (stored, behind) = rest.split_at(section.stored as usize);
            rest = behind;
            if crc32fast::hash(stored) != section.crc {
                what.get_or_insert("the checksum of a frame is wrong");
            }
        }
        let body = body.to_vec();
        if !self.follows(&header) {
            what.get_or_insert(FOREIGN);
        }
        Ok(what.map_or(Found::Whole(header, body), |what| Found::Broken(total, what)))
    }

    /// A frame may follow the last whole one.
    fn follows(&self, header: &FrameHeader) -> bool {
        let Some(last) = self.last else {
            return (header.sequence == 0) == (header.previous == 0)
                && header.previous < header.offset;
        };
        let next = last.sequence.checked_add(1) == Some(header.sequence);
        let previous = if next {
            header.previous == last.offset
        } else {
            (last.offset + 1..header.offset).contains(&header.previous)
        };
        header.codec.goes_with(last.codec) && header.sequence > last.sequence && previous
    }
}

/// Up to `bytes` bytes; allocates for what is there, not for what is asked.
pub(super) fn read_up_to(input: &mut impl Read, bytes: u64) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    input.by_ref().take(bytes).read_to_end(&mut read)?;
    Ok(read)
}
