//! The results of a scan: of one frame, and of a complete data file.

use std::collections::HashMap;

use super::bytes::{Cursor, Malformed, ParseResult};
use super::checkpoint::BlockEntry;
use super::frame::{Frame, FrameHeader, LAST};
use super::frames::StoredFrame;
use super::index::tables::IndexTables;
use super::kind::Kind;
use super::loss::{BadRange, EofCounts, Loss};
use super::object::Record;
use super::output::Identity;
use super::survey::Survey;
use super::walk::{BlockWalk, Walked, begin_block, end_block};
use super::{Metadata, NO_THREAD, SIDE, TraceError};

/// The contents of a data file.
#[derive(Debug)]
pub(super) struct Scan {
    /// The index.
    pub(super) tables: IndexTables,
    /// The salt and the UUID, if the first frame is there and has a UUID.
    pub(super) identity: Option<Identity>,
    pub(super) metadata: Metadata,
    /// The ranges that belong to no complete frame.
    pub(super) bad: Vec<BadRange>,
    pub(super) losses: Vec<Loss>,
    /// For each stream, its losses: the number of samples before the loss according to the
    /// checkpoints, and the number of lost samples.
    pub(super) lost_samples: HashMap<u32, Vec<(u64, u64)>>,
    /// The number of lost frames according to the sequence numbers.
    pub(super) lost_frames: u64,
    pub(super) closed: bool,
    pub(super) samples: u64,
    /// The time of the last sample, 0 without samples.
    pub(super) last_ns: u64,
    /// The union of the flags of all samples.
    pub(super) flags: u32,
    /// Whether blocks of threads contain thread-neutral objects.
    pub(super) mixed: bool,
    /// The number of threads, including those that are only referred to.
    pub(super) threads: u32,
    /// The header of the first complete frame.
    pub(super) first: Option<FrameHeader>,
    /// The decoded bytes of all complete frames: directories and payloads.
    pub(super) decoded_bytes: u64,
    /// The number of bytes of the header and of all complete frames.
    pub(super) checked: u64,
    /// The size of the file in bytes.
    pub(super) bytes: u64,
    /// Notices for the user about the state of the file.
    pub(super) notices: Vec<String>,
}

/// The scan of a block.
#[derive(Debug)]
pub(super) struct BlockScan {
    /// The offset in the payload.
    pub(super) at: usize,
    pub(super) entry: BlockEntry,
    /// `None` for a block of thread-neutral objects.
    pub(super) walked: Option<Walked>,
}

/// The scan of a frame.
#[derive(Debug)]
pub(super) struct FrameScan {
    pub(super) header: FrameHeader,
    /// Whether frames are lost between the previous frame and this one.
    pub(super) after_loss: bool,
    pub(super) blocks: Vec<BlockScan>,
    pub(super) survey: Survey,
    /// The counts of the EOF object, if it is there.
    pub(super) eof: Option<EofCounts>,
    /// Whether blocks of threads contain thread-neutral objects.
    pub(super) mixed: bool,
    /// The union of the flags of its samples.
    pub(super) flags: u32,
    pub(super) decoded_bytes: u64,
}

impl FrameScan {
    /// Decodes a frame and walks over its blocks.
    pub(super) fn new(stored: StoredFrame, walk: &mut BlockWalk) -> Result<Self, TraceError> {
        let StoredFrame { header, body, after_loss } = stored;
        let corrupt = |offset, what| TraceError::Corrupt { offset, what };
        let frame = Frame::decode(header, &body).map_err(|bad| corrupt(header.offset, bad.what))?;
        drop(body);
        let mut scan = Self {
            header,
            after_loss,
            blocks: Vec::new(),
            survey: Survey::default(),
            eof: None,
            mixed: false,
            flags: 0,
            decoded_bytes: (frame.directory.len() + frame.payload.len()) as u64,
        };
        (walk.locations, walk.texts, walk.flags) = (0, 0, 0);
        let mut end = 0;
        let mut samples = 0u64;
        for (at, entry) in frame.blocks().map_err(|bad| corrupt(header.offset, bad.what))? {
            end = at + entry.bytes as usize;
            samples = samples.saturating_add(entry.samples);
            scan.block(at, entry, &frame.payload[at..end], walk)
                .map_err(|bad| corrupt(header.position(at + bad.at), bad.what))?;
        }
        if samples != u64::from(header.samples) {
            let what = "the number of samples in a frame differs from its header";
            return Err(corrupt(header.offset, what));
        }
        scan.flags = walk.flags;
        if let Some(location) = walk.locations.checked_sub(1) {
            scan.survey.refer_always(Kind::Location, location as u32);
        }
        if let Some(text) = walk.texts.checked_sub(1) {
            scan.survey.refer_always(Kind::String, text as u32);
        }
        scan.eof = after_blocks(&header, &frame.payload[end..])
            .map_err(|bad| corrupt(header.position(end + bad.at), bad.what))?;
        Ok(scan)
    }

    fn block(
        &mut self,
        at: usize,
        entry: BlockEntry,
        bytes: &[u8],
        walk: &mut BlockWalk,
    ) -> ParseResult<()> {
        let walked = if entry.stream == NO_THREAD {
            neutral_block(&entry, bytes, at, &mut self.survey)?;
            None
        } else {
            self.survey.refer_always(Kind::Thread, entry.stream & !SIDE);
            let objects = self.survey.objects.len();
            let walked = walk.block(&entry, bytes, at, &mut self.survey)?;
            self.mixed |= self.survey.objects.len() > objects;
            Some(walked)
        };
        self.blocks.push(BlockScan { at, entry, walked });
        Ok(())
    }
}

/// Surveys a block of thread-neutral objects.
pub(super) fn neutral_block(
    entry: &BlockEntry,
    bytes: &[u8],
    at: usize,
    survey: &mut Survey,
) -> ParseResult<()> {
    let mut cursor = Cursor::new(bytes);
    begin_block(&mut cursor, entry)?;
    let Some(data_end) = bytes.len().checked_sub(1) else {
        return cursor.fail("a block is too short for its end");
    };
    while cursor.at() < data_end {
        let start = cursor.at();
        let number = cursor.u8()?;
        match Kind::from_number(number) {
            Some(kind) if (kind as u8) < Kind::Call as u8 => {
                survey.object(kind, &mut cursor, at + start, bytes)?;
            }
            _ => {
                let mut whole = Cursor::new(&bytes[start..]);
                let record = Record::decode(&mut whole)
                    .map_err(|bad| Malformed { at: start + bad.at, ..bad })?;
                if !matches!(record, Record::Unknown { .. }) {
                    let what = "an object is in a block that may not contain it";
                    return Err(Malformed { at: start, what });
                }
                cursor.take(whole.at() - 1)?;
            }
        }
    }
    end_block(&mut cursor, entry)
}

/// Decodes the bytes after the blocks: nothing, or in the last frame the EOF object.
pub(super) fn after_blocks(header: &FrameHeader, rest: &[u8]) -> ParseResult<Option<EofCounts>> {
    let mut cursor = Cursor::new(rest);
    let mut eof = None;
    if header.flags & LAST != 0 {
        let Record::Eof { samples, threads, objects } = Record::decode(&mut cursor)? else {
            return cursor.fail("the last frame does not end with EOF");
        };
        eof = Some(EofCounts { samples, threads, objects });
    }
    if !cursor.is_at_end() {
        return cursor.fail("a frame has trailing bytes");
    }
    Ok(eof)
}
