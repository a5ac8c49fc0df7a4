//! What a scan finds: of one frame, and of a whole data file.

use std::collections::HashMap;

use super::bytes::{Cursor, Malformed, Parsed};
use super::checkpoint::BlockEntry;
use super::frame::{Frame, FrameHeader, LAST};
use super::frames::StoredFrame;
use super::index::tables::Tables;
use super::kind::Kind;
use super::loss::{BadRange, Counts, Loss};
use super::object::Record;
use super::output::Identity;
use super::survey::Survey;
use super::walk::{Walk, Walked, begin_block, end_block};
use super::{Metadata, NO_THREAD, SIDE, TraceError};

/// What a data file holds.
#[derive(Debug)]
pub(super) struct Scan {
    /// Its index.
    pub(super) tables: Tables,
    /// Salt and UUID, if the first frame is there and says one.
    pub(super) identity: Option<Identity>,
    pub(super) metadata: Metadata,
    /// What belongs to no whole frame.
    pub(super) bad: Vec<BadRange>,
    pub(super) losses: Vec<Loss>,
    /// Per stream: samples before a loss as its checkpoints count them, and how many are lost.
    pub(super) lost_samples: HashMap<u32, Vec<(u64, u64)>>,
    /// Frames that are lost, as the numbers of those around them say.
    pub(super) lost_frames: u64,
    pub(super) closed: bool,
    pub(super) samples: u64,
    /// Time of the last sample, 0 without one.
    pub(super) last_ns: u64,
    /// Thread-neutral objects lie in blocks of threads.
    pub(super) mixed: bool,
    /// Threads, those that are only referred to included.
    pub(super) threads: u32,
    /// The header of the first whole frame.
    pub(super) first: Option<FrameHeader>,
    /// Of all whole frames: directories and payloads.
    pub(super) decoded_bytes: u64,
    /// Bytes of the header and of all whole frames.
    pub(super) checked: u64,
    /// Bytes of the file.
    pub(super) bytes: u64,
    /// What a user should know of the file's state.
    pub(super) notices: Vec<String>,
}

/// A block of a frame.
#[derive(Debug)]
pub(super) struct BlockScan {
    /// Offset in the payload.
    pub(super) at: usize,
    pub(super) entry: BlockEntry,
    /// `None` for a block of thread-neutral objects.
    pub(super) walked: Option<Walked>,
}

/// What is in a frame.
#[derive(Debug)]
pub(super) struct FrameScan {
    pub(super) header: FrameHeader,
    /// Bytes that are lost between the frame before and this, if frames are.
    pub(super) after_loss: bool,
    pub(super) blocks: Vec<BlockScan>,
    pub(super) survey: Survey,
    /// What the EOF object says, if it is there.
    pub(super) eof: Option<Counts>,
    /// Thread-neutral objects lie in blocks of threads.
    pub(super) mixed: bool,
    pub(super) decoded_bytes: u64,
}

impl FrameScan {
    /// Decodes a frame and walks over its blocks.
    pub(super) fn new(stored: StoredFrame, walk: &mut Walk) -> Result<Self, TraceError> {
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
            decoded_bytes: (frame.directory.len() + frame.payload.len()) as u64,
        };
        (walk.locations, walk.texts) = (0, 0);
        let mut end = 0;
        let mut samples = 0u64;
        for (at, entry) in frame.blocks().map_err(|bad| corrupt(header.offset, bad.what))? {
            end = at + entry.bytes as usize;
            samples = samples.saturating_add(entry.samples);
            scan.block(at, entry, &frame.payload[at..end], walk)
                .map_err(|bad| corrupt(header.position(at + bad.at), bad.what))?;
        }
        if samples != u64::from(header.samples) {
            let what = "a frame has other samples than its header says";
            return Err(corrupt(header.offset, what));
        }
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

    fn block(&mut self, at: usize, entry: BlockEntry, bytes: &[u8], walk: &mut Walk) -> Parsed<()> {
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
) -> Parsed<()> {
    let mut cursor = Cursor::new(bytes);
    begin_block(&mut cursor, entry)?;
    let Some(data_end) = bytes.len().checked_sub(1) else {
        return cursor.fail("a block has no room for its end");
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
                    let what = "an object lies where it may not";
                    return Err(Malformed { at: start, what });
                }
                cursor.take(whole.at() - 1)?;
            }
        }
    }
    end_block(&mut cursor, entry)
}

/// What follows the blocks: nothing, or in the last frame the EOF object.
pub(super) fn after_blocks(header: &FrameHeader, rest: &[u8]) -> Parsed<Option<Counts>> {
    let mut cursor = Cursor::new(rest);
    let mut eof = None;
    if header.flags & LAST != 0 {
        let Record::Eof { samples, threads, objects } = Record::decode(&mut cursor)? else {
            return cursor.fail("the last frame does not end with EOF");
        };
        eof = Some(Counts { samples, threads, objects });
    }
    if !cursor.is_at_end() {
        return cursor.fail("a frame has bytes left over");
    }
    Ok(eof)
}
