//! The frames of a data file in file order; incomplete frames are skipped.
//!
//! # Invariants
//! - Every byte is checked a bounded number of times, whatever the file says. A header with a valid
//!   checksum, salt and offset accounts for as many bytes as it says, even if these are damaged, so
//!   no byte is checked as part of two bodies.
//!
//! # Does not
//! decode blocks.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::frame::{CUT, Frame, FrameHeader, HEADER_BYTES, LAST, TRAILER_BYTES};
use super::loss::BadRange;
use super::meter::note_read;
use super::window::InputWindow;
use super::{DATA_MAGIC, FRAME_MAGIC, TraceError, memory};

const FOREIGN: &str = "a frame belongs to another file or offset";

/// Reads one frame after the other; needs no seeking.
#[derive(Debug)]
pub(super) struct Frames<R> {
    window: InputWindow<R>,
    path: PathBuf,
    /// The salt of the file, once it is known.
    salt: Option<u64>,
    last: Option<FrameHeader>,
    bad: Vec<BadRange>,
    /// Whether frames are lost between the last two returned frames.
    after_loss: bool,
    end: Option<FramesEnd>,
}

/// The end of the readable part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FramesEnd {
    /// The offset of the first byte after the last frame.
    pub(super) offset: u64,
    /// The number of bytes from there to the end of the file.
    pub(super) left_over: u64,
    /// Whether the last frame is marked as the last of a complete file.
    pub(super) closed: bool,
    /// The reason why the left-over bytes are not a frame.
    pub(super) reason: &'static str,
}

impl FramesEnd {
    /// Returns a notice for the user, if there is anything to report.
    pub(super) fn notice(&self) -> Option<String> {
        let Self { offset, left_over, closed, reason } = self;
        match (closed, left_over) {
            (true, 0) => None,
            (true, _) => Some(format!("{left_over} bytes after the end of the trace are ignored")),
            (false, 0) => Some(
                "the trace was not finished: the recording is still running or was killed; \
                 everything that was flushed is included"
                    .into(),
            ),
            (false, _) => Some(format!(
                "the trace was not finished: the last {left_over} bytes, from offset {offset}, are \
                 ignored ({reason})"
            )),
        }
    }
}

/// A complete frame as it is stored; its checksums are right.
#[derive(Debug)]
pub(super) struct StoredFrame {
    pub(super) header: FrameHeader,
    /// The stored sections.
    pub(super) body: Vec<u8>,
    /// Whether frames are lost between the previous frame and this one.
    pub(super) after_loss: bool,
}

/// The result of a check for a frame at an offset.
enum FoundFrame {
    /// A complete frame.
    Complete(FrameHeader, Vec<u8>),
    /// A frame of this file and offset with this many bytes that is damaged or incomplete.
    Broken(u64, &'static str),
    Nothing(&'static str),
}

impl Frames<BufReader<File>> {
    /// Opens a data file and checks its header.
    pub(super) fn open(path: &Path) -> Result<Self, TraceError> {
        Self::new(open_regular(path)?, path)
    }
}

/// Opens a regular file for reading; opening a pipe would block.
pub(super) fn open_regular(path: &Path) -> Result<BufReader<File>, TraceError> {
    let read = |source| TraceError::read(path, source);
    if !std::fs::metadata(path).map_err(read)?.is_file() {
        return Err(TraceError::NotATrace { path: path.to_owned() });
    }
    Ok(BufReader::with_capacity(1 << 16, File::open(path).map_err(read)?))
}

impl<R: Read> Frames<R> {
    /// Checks the header of the data file that `input` is at the start of; `path` is for messages.
    pub(super) fn new(mut input: R, path: &Path) -> Result<Self, TraceError> {
        let read = |source| TraceError::read(path, source);
        let header = read_up_to(&mut input, super::HEADER_BYTES as u64).map_err(read)?;
        super::check_header(&header, DATA_MAGIC, path)?;
        Ok(Self {
            window: InputWindow::new(input, header.len() as u64),
            path: path.to_owned(),
            salt: None,
            last: None,
            bad: Vec::new(),
            after_loss: false,
            end: None,
        })
    }

    /// Returns the next frame, or `None` at the end.
    ///
    /// # Errors
    /// Besides read errors, [`TraceError::Corrupt`] for a section that has the right checksum but
    /// cannot be decoded.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, TraceError> {
        let Some(StoredFrame { header, body, .. }) = self.next_stored()? else { return Ok(None) };
        memory::note(header.decoded_bytes())?;
        let frame = Frame::decode(header, &body);
        let corrupt = |what: &'static str| TraceError::Corrupt { offset: header.offset, what };
        frame.map(Some).map_err(|malformed| corrupt(malformed.what))
    }

    /// Returns the next frame as it is stored, or `None` at the end.
    pub(super) fn next_stored(&mut self) -> Result<Option<StoredFrame>, TraceError> {
        if self.end.is_some() {
            return Ok(None);
        }
        self.find().map_err(|source| TraceError::read(&self.path, source))
    }

    /// Returns whether frames are lost between the last two returned frames.
    pub(super) fn after_loss(&self) -> bool {
        self.after_loss
    }

    /// Returns the skipped ranges that are followed by complete frames.
    pub(super) fn bad(&self) -> &[BadRange] {
        &self.bad
    }

    /// Returns the end of the readable part, once [`Self::next_frame`] has returned `None`.
    pub(super) fn end(&self) -> Option<&FramesEnd> {
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
        let reason = reason.unwrap_or("they follow the end of the trace");
        self.end = Some(FramesEnd { offset: start, left_over, closed, reason });
        Ok(None)
    }

    /// Skips to the next complete frame. Sets `reason` to what is wrong with the first skipped
    /// bytes, if any are skipped.
    fn search(
        &mut self,
        reason: &mut Option<&'static str>,
    ) -> io::Result<Option<(FrameHeader, Vec<u8>)>> {
        loop {
            match self.check_frame()? {
                FoundFrame::Complete(header, body) => return Ok(Some((header, body))),
                FoundFrame::Broken(bytes, what) => {
                    reason.get_or_insert(what);
                    // If the following frame is not complete either, the loop searches for the next
                    // one.
                    self.window.pass(bytes)?;
                    continue;
                }
                FoundFrame::Nothing(what) => {
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

    /// Records a complete frame, and the range between it and the previous one.
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

    /// Checks for a frame at the current offset.
    fn check_frame(&mut self) -> io::Result<FoundFrame> {
        let at = self.window.at();
        let Ok(bytes) = <[u8; HEADER_BYTES]>::try_from(self.window.peek(HEADER_BYTES)?) else {
            return Ok(FoundFrame::Nothing(CUT));
        };
        let header = match FrameHeader::decode(&bytes) {
            Ok(header) => header,
            Err(malformed) => return Ok(FoundFrame::Nothing(malformed.what)),
        };
        if header.offset != at || self.salt.is_some_and(|salt| salt != header.salt) {
            return Ok(FoundFrame::Nothing(FOREIGN));
        }
        if at == super::HEADER_BYTES as u64 {
            self.salt = Some(header.salt);
        }
        let total = header.total_bytes();
        let seen = self.window.peek(total as usize)?;
        if (seen.len() as u64) < total {
            return Ok(FoundFrame::Broken(total, CUT));
        }
        let mut what = header.damage(&bytes, &seen[HEADER_BYTES..]);
        let body = seen[HEADER_BYTES..seen.len() - TRAILER_BYTES].to_vec();
        if !self.follows(&header) {
            what.get_or_insert(FOREIGN);
        }
        Ok(what.map_or(FoundFrame::Complete(header, body), |what| FoundFrame::Broken(total, what)))
    }

    /// Returns whether a frame with this header may follow the last complete one.
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
        header.codec.shares_positions_with(last.codec)
            && header.sequence > last.sequence
            && previous
    }
}

/// Reads up to `bytes` bytes; allocates for the bytes that exist, not for those requested.
pub(super) fn read_up_to(input: &mut impl Read, bytes: u64) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    input.by_ref().take(bytes).read_to_end(&mut read)?;
    Ok(read)
}
