//! Opening a trace: which index is used, and what is read when there is none.
//!
//! # Invariants
//! - After a crash the journal is taken as far as it goes, and only the data behind it is read.
//! - The data is scanned where there is no index that fits, and where something is damaged.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::fault::{Fault, Found};
use super::losses::Losses;
use super::reading::Reading;
use super::source::{Directory, Source};
use crate::trace::bytes::Cursor;
use crate::trace::checkpoint::BLOCK_START_BYTES;
use crate::trace::codec::Part;
use crate::trace::frame::{self, FrameHeader, LAST, TRAILER_BYTES};
use crate::trace::index::Index;
use crate::trace::index::tables::Tables;
use crate::trace::object::Record;
use crate::trace::output::trailer;
use crate::trace::scan::scan;
use crate::trace::{DATA_MAGIC, FRAME_MAGIC, HEADER_BYTES, NO_THREAD, TraceError, check_header};

/// What a user is told of a trace that has no end.
const UNFINISHED: &str = "the trace was not finished: the recording is still running or was \
    killed; all that was flushed is here";

/// Opens data file and index.
pub(super) fn open(path: &Path, notices: &mut Vec<String>) -> Result<Reading, TraceError> {
    let file = open_data(path)?;
    let bytes = file.metadata().map_err(|error| TraceError::read(path, error))?.len();
    let Some(first) = header_at(&file, HEADER_BYTES as u64) else {
        return scanned(path, file, notices);
    };
    let source = Source::new(file, path, Some(first));
    match Index::open(path, &first, bytes) {
        Ok(Some(Index::Tables(tables))) => {
            let mut tail = Tail { source, tables, last: None };
            match tail.read(bytes) {
                Ok(closed) => {
                    let left_over = bytes - tail.end();
                    notices.extend((!closed).then(|| unfinished(left_over)));
                    Ok(tail.into_reading(closed))
                }
                Err(Fault::Trace(error)) => Err(error),
                Err(Fault::Index(what)) => rebuilt(path, what, notices),
            }
        }
        Ok(Some(index)) => {
            // It is of a complete trace, or of all that there is.
            let last = (|| {
                let last = index.last_frame()?.ok_or(Fault::Index("the index has no frames"))?;
                Ok((source.directory(last.offset)?.header, bytes - last.end))
            })();
            match last {
                // Only a scan tells what is lost.
                Ok((last, _)) if !index.has_all_frames(&last) => {
                    scanned(path, open_data(path)?, notices)
                }
                Ok((last, left_over)) => {
                    let closed = last.flags & LAST != 0;
                    notices.extend((!closed).then(|| unfinished(left_over)));
                    Ok(Reading::sound(source, index, closed))
                }
                Err(Fault::Trace(error)) => Err(error),
                Err(Fault::Index(what)) => rebuilt(path, what, notices),
            }
        }
        Ok(None) => {
            notices.push(
                "there is no index: it was made anew in memory; `traceprof reindex` writes it"
                    .into(),
            );
            scanned(path, open_data(path)?, notices)
        }
        Err(broken) => rebuilt(path, broken.what, notices),
    }
}

fn unfinished(left_over: u64) -> String {
    match left_over {
        0 => UNFINISHED.into(),
        _ => format!("{UNFINISHED} ({left_over} bytes at its end are no whole frame)"),
    }
}

/// The trace with an index that is made from the data, because the one that there is does not fit.
pub(super) fn rebuilt(
    path: &Path,
    what: &str,
    notices: &mut Vec<String>,
) -> Result<Reading, TraceError> {
    notices.push(format!(
        "the index does not fit the data ({what}): it was made anew in memory; `traceprof reindex` \
         writes it"
    ));
    scanned(path, open_data(path)?, notices)
}

fn scanned(path: &Path, file: File, notices: &mut Vec<String>) -> Result<Reading, TraceError> {
    let scan = scan(path, false)?;
    notices.extend(scan.notices);
    let source = Source::new(file, path, scan.first);
    let index = Index::Tables(scan.tables);
    let sum = |lost: &[(u64, u64)]| lost.iter().map(|(_, samples)| samples).sum();
    Ok(Reading {
        scanned: true,
        losses: Losses {
            found: scan.losses,
            samples: scan.lost_samples.iter().map(|(stream, lost)| (*stream, sum(lost))).collect(),
            last_at: scan.bad.last().map(|bad| bad.offset),
        },
        ..Reading::sound(source, index, scan.closed)
    })
}

/// The trace with what was written since; `None` if that is nothing.
pub(super) fn refreshed(
    path: &Path,
    before: &Reading,
    notices: &mut Vec<String>,
) -> Result<Option<Reading>, TraceError> {
    let Index::Tables(tables) = &before.index else { return Ok(None) };
    if before.closed {
        return Ok(None);
    }
    let source = before.source.reopened()?;
    let Some(source) = source else {
        // Nothing was there yet.
        let reading = open(path, notices)?;
        return Ok((reading.index.frame_count() > 0).then_some(reading));
    };
    let bytes = source.len()?;
    let mut tail = Tail { source, tables: tables.clone(), last: None };
    let known = tail.end();
    match tail.read(bytes) {
        Ok(closed) if tail.end() > known => {
            if closed {
                notices.retain(|notice| !notice.starts_with(UNFINISHED));
            }
            Ok(Some(tail.into_reading(closed)))
        }
        Ok(_) => Ok(None),
        Err(Fault::Trace(error)) => Err(error),
        Err(Fault::Index(what)) => rebuilt(path, what, notices).map(Some),
    }
}

/// Opens a data file and checks its header.
fn open_data(path: &Path) -> Result<File, TraceError> {
    let read = |source| TraceError::read(path, source);
    // A pipe would block.
    if !std::fs::metadata(path).map_err(read)?.is_file() {
        return Err(TraceError::NotATrace { path: path.to_owned() });
    }
    let file = File::open(path).map_err(read)?;
    let mut header = [0; HEADER_BYTES];
    let length = file.read_at(&mut header, 0).map_err(read)?;
    check_header(&header[..length], DATA_MAGIC, path)?;
    Ok(file)
}

/// The header of the frame at `offset`, if there is one.
fn header_at(file: &File, offset: u64) -> Option<FrameHeader> {
    let mut bytes = [0; frame::HEADER_BYTES];
    file.read_exact_at(&mut bytes, offset).ok()?;
    FrameHeader::decode(&bytes).ok().filter(|header| header.offset == offset)
}

/// Tables that grow by the frames behind what they know.
struct Tail {
    source: Source,
    tables: Tables,
    last: Option<FrameHeader>,
}

impl Tail {
    /// Offset of the byte behind the last frame.
    fn end(&self) -> u64 {
        self.tables.frames.last().map_or(HEADER_BYTES as u64, |frame| frame.end)
    }

    fn into_reading(self, closed: bool) -> Reading {
        let Self { source, mut tables, .. } = self;
        // An object may be written again: a thread with another name.
        tables.sort();
        Reading::sound(source, Index::Tables(tables), closed)
    }

    /// Takes in the frames up to `bytes`; says whether the last one ends the trace.
    fn read(&mut self, bytes: u64) -> Found<bool> {
        if let Some(row) = self.tables.frames.last() {
            self.last = Some(self.source.directory(row.offset)?.header);
        }
        while !self.closed() && self.frame(bytes)? {}
        if !self.closed() && self.is_damaged(bytes)? {
            return Err(Fault::Index("a frame is damaged"));
        }
        Ok(self.closed())
    }

    fn closed(&self) -> bool {
        self.last.is_some_and(|last| last.flags & LAST != 0)
    }

    /// Takes in the next frame, if it is whole.
    fn frame(&mut self, bytes: u64) -> Found<bool> {
        let offset = self.end();
        if offset + (frame::HEADER_BYTES as u64) > bytes {
            return Ok(false);
        }
        let (Ok(directory), last) = (self.source.directory(offset), self.last) else {
            return Ok(false);
        };
        let header = directory.header;
        let follows = match last {
            None => header.sequence == 0 && header.previous == 0,
            Some(last) => {
                Some(header.sequence) == last.sequence.checked_add(1)
                    && header.previous == last.offset
            }
        };
        if !follows || offset + header.total_bytes() > bytes || !self.is_whole(&header)? {
            return Ok(false);
        }
        self.add(&directory)?;
        self.last = Some(header);
        Ok(true)
    }

    /// Compares the checksums of the other sections and the trailer.
    fn is_whole(&self, header: &FrameHeader) -> Found<bool> {
        let neutral = header.section(Part::Neutral);
        let points = header.section(Part::Points);
        let length = neutral.stored as usize + points.stored as usize + TRAILER_BYTES;
        let stored = self.source.bytes(header.section_offset(Part::Neutral), length)?;
        let (first, rest) = stored.split_at(neutral.stored as usize);
        let (second, end) = rest.split_at(points.stored as usize);
        Ok(crc32fast::hash(first) == neutral.crc
            && crc32fast::hash(second) == points.crc
            && end == trailer(header, &header.encode()))
    }

    fn add(&mut self, directory: &Directory) -> Found<()> {
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

    fn add_objects(&mut self, directory: &Directory, at: usize) -> Found<()> {
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
                    return Err(Fault::Trace(TraceError::Corrupt { offset, what: bad.what }));
                }
            }
        }
        Ok(())
    }

    /// True if a whole frame lies somewhere behind the end, up to `bytes`.
    fn is_damaged(&self, bytes: u64) -> Found<bool> {
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
