//! Opens a trace: selects the index, and reads what the index does not cover.
//!
//! # Invariants
//! - After a crash the reader uses the valid part of the journal, and reads only the data after it.
//! - The reader scans the data if no index matches or something is damaged.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::fault::{LazyError, LazyResult};
use super::losses::Losses;
use super::open_trace::OpenTrace;
use super::source::{DataFile, Directory};
use crate::trace::bytes::Cursor;
use crate::trace::checkpoint::BLOCK_START_BYTES;
use crate::trace::frame::{self, FrameHeader, LAST};
use crate::trace::index::Index;
use crate::trace::index::tables::IndexTables;
use crate::trace::object::Record;
use crate::trace::scan::scan;
use crate::trace::{DATA_MAGIC, FRAME_MAGIC, HEADER_BYTES, NO_THREAD, TraceError, check_header};

/// The notice for a trace that has no end.
const UNFINISHED: &str = "the trace was not finished: the recording is still running or was \
    killed; everything that was flushed is included";

/// The start of all notices for a trace that has no end.
const NO_END: &str = "the trace was not finished";

/// Opens the data file and the index.
pub(super) fn open(path: &Path, notices: &mut Vec<String>) -> Result<OpenTrace, TraceError> {
    let file = open_data(path)?;
    let bytes = file.metadata().map_err(|error| TraceError::read(path, error))?.len();
    let Some(first) = header_at(&file, HEADER_BYTES as u64) else {
        return scanned(path, file, notices);
    };
    let source = DataFile::new(file, path, Some(first));
    match Index::open(path, &first, bytes) {
        Ok(Some(Index::Tables(tables))) => {
            let mut tail = Tail { source, tables, last: None };
            match tail.read(bytes) {
                Ok(closed) => {
                    let left_over = bytes - tail.end();
                    notices.extend((!closed).then(|| unfinished(left_over)));
                    Ok(tail.into_trace(closed))
                }
                Err(LazyError::Trace(error)) => Err(error),
                Err(LazyError::Index(what)) => rebuilt(path, what, notices),
            }
        }
        Ok(Some(index)) => {
            // The index covers a complete trace, or all the data that there is.
            let last = (|| {
                let last =
                    index.last_frame()?.ok_or(LazyError::Index("the index has no frames"))?;
                Ok((source.directory(last.offset)?.header, bytes - last.end))
            })();
            match last {
                // Only a scan shows what is lost.
                Ok((last, _)) if !index.has_all_frames(&last) => {
                    scanned(path, open_data(path)?, notices)
                }
                Ok((last, left_over)) => {
                    let closed = last.flags & LAST != 0;
                    notices.extend((!closed).then(|| unfinished(left_over)));
                    Ok(OpenTrace::sound(source, index, closed))
                }
                Err(LazyError::Trace(error)) => Err(error),
                Err(LazyError::Index(what)) => rebuilt(path, what, notices),
            }
        }
        Ok(None) => {
            notices.push(
                "there is no index: it was rebuilt in memory; `traceprof reindex` writes it".into(),
            );
            scanned(path, open_data(path)?, notices)
        }
        Err(broken) => rebuilt(path, broken.what, notices),
    }
}

fn unfinished(left_over: u64) -> String {
    match left_over {
        0 => UNFINISHED.into(),
        _ => format!("{UNFINISHED} ({left_over} bytes at its end are not a complete frame)"),
    }
}

/// Opens the trace with an index that is made from the data, because the existing index does not
/// match.
pub(super) fn rebuilt(
    path: &Path,
    what: &str,
    notices: &mut Vec<String>,
) -> Result<OpenTrace, TraceError> {
    notices.push(format!(
        "the index does not match the data ({what}): it was rebuilt in memory; `traceprof \
         reindex` writes it"
    ));
    scanned(path, open_data(path)?, notices)
}

fn scanned(path: &Path, file: File, notices: &mut Vec<String>) -> Result<OpenTrace, TraceError> {
    let scan = scan(path, false)?;
    notices.extend(scan.notices);
    let source = DataFile::new(file, path, scan.first).scanned();
    let index = Index::Tables(scan.tables);
    let sum = |lost: &[(u64, u64)]| lost.iter().map(|(_, samples)| samples).sum();
    Ok(OpenTrace {
        scanned: true,
        losses: Losses {
            found: scan.losses,
            samples: scan.lost_samples.iter().map(|(stream, lost)| (*stream, sum(lost))).collect(),
            bad: scan.bad,
            flags: scan.flags,
            file_bytes: scan.bytes,
        },
        ..OpenTrace::sound(source, index, scan.closed)
    })
}

/// Returns the trace with the frames that were written since; `None` if there are none.
pub(super) fn refreshed(
    path: &Path,
    before: &OpenTrace,
    notices: &mut Vec<String>,
) -> Result<Option<OpenTrace>, TraceError> {
    let Index::Tables(tables) = &before.index else { return Ok(None) };
    if before.closed {
        return Ok(None);
    }
    if before.losses.any() {
        return rescanned(path, before, notices);
    }
    let source = before.source.reopened()?;
    let Some(source) = source else {
        // The file had no frames yet.
        let trace = open(path, notices)?;
        return Ok((trace.index.frame_count() > 0).then_some(trace));
    };
    let bytes = source.len()?;
    let mut tail = Tail { source, tables: tables.clone(), last: None };
    let known = tail.end();
    match tail.read(bytes) {
        Ok(closed) if tail.end() > known => {
            if closed {
                notices.retain(|notice| !notice.starts_with(NO_END));
            }
            Ok(Some(tail.into_trace(closed)))
        }
        Ok(_) => Ok(None),
        Err(LazyError::Trace(error)) => Err(error),
        Err(LazyError::Index(what)) => rebuilt(path, what, notices).map(Some),
    }
}

/// Like [`refreshed`], for a damaged trace: what is lost is known after a scan only.
fn rescanned(
    path: &Path,
    before: &OpenTrace,
    notices: &mut Vec<String>,
) -> Result<Option<OpenTrace>, TraceError> {
    if before.source.len()? == before.losses.file_bytes {
        return Ok(None);
    }
    let mut found = Vec::new();
    let trace = scanned(path, open_data(path)?, &mut found)?;
    if trace.closed {
        notices.retain(|notice| !notice.starts_with(NO_END));
    }
    found.retain(|notice| !notice.starts_with(NO_END) && !notices.contains(notice));
    notices.append(&mut found);
    Ok(Some(trace))
}

/// Opens a data file and checks its header.
fn open_data(path: &Path) -> Result<File, TraceError> {
    let read = |source| TraceError::read(path, source);
    // Opening a pipe would block.
    if !std::fs::metadata(path).map_err(read)?.is_file() {
        return Err(TraceError::NotATrace { path: path.to_owned() });
    }
    let file = File::open(path).map_err(read)?;
    let mut header = [0; HEADER_BYTES];
    let length = file.read_at(&mut header, 0).map_err(read)?;
    check_header(&header[..length], DATA_MAGIC, path)?;
    Ok(file)
}

/// Returns the header of the frame at `offset`, if there is one.
fn header_at(file: &File, offset: u64) -> Option<FrameHeader> {
    let mut bytes = [0; frame::HEADER_BYTES];
    file.read_exact_at(&mut bytes, offset).ok()?;
    FrameHeader::decode(&bytes).ok().filter(|header| header.offset == offset)
}

/// Index tables that are extended by the frames after the known ones.
struct Tail {
    source: DataFile,
    tables: IndexTables,
    last: Option<FrameHeader>,
}

impl Tail {
    /// Returns the offset of the first byte after the last frame.
    fn end(&self) -> u64 {
        self.tables.frames.last().map_or(HEADER_BYTES as u64, |frame| frame.end)
    }

    fn into_trace(self, closed: bool) -> OpenTrace {
        let Self { source, mut tables, .. } = self;
        // An object may be written again, for example a thread with another name.
        tables.sort();
        OpenTrace::sound(source, Index::Tables(tables), closed)
    }

    /// Reads the frames up to `bytes`; returns whether the last one ends the trace.
    fn read(&mut self, bytes: u64) -> LazyResult<bool> {
        if let Some(row) = self.tables.frames.last() {
            self.last = Some(self.source.directory(row.offset)?.header);
        }
        while !self.closed() && self.frame(bytes)? {}
        if !self.closed() && self.is_damaged(bytes)? {
            return Err(LazyError::Index("a frame is damaged"));
        }
        Ok(self.closed())
    }

    fn closed(&self) -> bool {
        self.last.is_some_and(|last| last.flags & LAST != 0)
    }

    /// Reads the next frame; returns false if it is incomplete.
    fn frame(&mut self, bytes: u64) -> LazyResult<bool> {
        let offset = self.end();
        if offset + (frame::HEADER_BYTES as u64) > bytes {
            return Ok(false);
        }
        let directory = match self.source.directory(offset) {
            Ok(directory) => directory,
            Err(LazyError::Index(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        let header = directory.header;
        let follows = match self.last {
            None => header.sequence == 0 && header.previous == 0,
            Some(last) => {
                Some(header.sequence) == last.sequence.checked_add(1)
                    && header.previous == last.offset
            }
        };
        if !follows || offset + header.total_bytes() > bytes {
            return Ok(false);
        }
        self.add(&directory)?;
        self.last = Some(header);
        Ok(true)
    }

    fn add(&mut self, directory: &Directory) -> LazyResult<()> {
        self.tables.add_frame(&directory.header);
        for (at, entry) in &directory.blocks {
            if entry.stream == NO_THREAD {
                self.add_objects(directory, *at)?;
            } else {
                self.tables.add_block(&directory.header, *at, entry);
            }
        }
        Ok(())
    }

    fn add_objects(&mut self, directory: &Directory, at: usize) -> LazyResult<()> {
        let (bytes, base) = self.source.payload(directory, at)?;
        let mut cursor = Cursor::new(&bytes);
        cursor.skip_to(at - base + BLOCK_START_BYTES);
        while !cursor.is_at_end() {
            let position = directory.header.position(base + cursor.at());
            match Record::decode(&mut cursor) {
                Ok(Record::Neutral(object)) => {
                    self.tables.add_neutral(object.kind(), object.id(), position);
                }
                Ok(_) => {}
                Err(bad) => {
                    let offset = directory.header.position(base + bad.at);
                    return Err(LazyError::Trace(TraceError::Corrupt { offset, what: bad.what }));
                }
            }
        }
        Ok(())
    }

    /// Returns whether there is a complete frame between the end and `bytes`.
    fn is_damaged(&self, bytes: u64) -> LazyResult<bool> {
        const STEP: usize = 1 << 20;
        let Some(first) = self.last else { return Ok(bytes > self.end()) };
        let sought = (u128::from(FRAME_MAGIC) << 64 | u128::from(first.salt)).to_be_bytes();
        let mut offset = self.end();
        while offset + (frame::HEADER_BYTES as u64) <= bytes {
            let length = (bytes - offset).min((STEP + sought.len()) as u64) as usize;
            let part = self.source.bytes(offset, length)?;
            for (place, _) in part.windows(sought.len()).enumerate().filter(|(_, it)| *it == sought)
            {
                let place = offset + place as u64;
                if place > self.end() && self.source.header(place).is_ok() {
                    return Ok(true);
                }
            }
            offset += STEP as u64;
        }
        Ok(false)
    }
}
