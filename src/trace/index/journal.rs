//! The journal: the form of an index during the recording.
//!
//! A reader uses a journal up to its last valid group, and reads the later frames from the data
//! file. So a torn group, which a killed recorder may leave, costs little and is no error.
//!
//! # Invariants
//! - A group is used completely or not at all.
//! - The frames of the used groups are contiguous in the data file.

use std::io::{self, Read};

use super::cell::{CELL_BYTES, RawCell};
use super::tables::{BlockRow, CallRow, FrameRow, IndexTables, neutral_kind_index};
use crate::trace::codec::Codec;
use crate::trace::frame::FrameHeader;
use crate::trace::frames::read_up_to;
use crate::trace::kind::{FIRST_SIZED, Kind};
use crate::trace::{HEADER_BYTES, INDEX_MAGIC, NO_THREAD};

/// The largest number of cells in a valid group: more than the frames of our writers have.
const MAX_GROUP_CELLS: u64 = 1 << 21;

/// The contents of a journal.
#[derive(Debug, Default)]
pub(in crate::trace) struct Journal {
    /// The tables of the frames whose groups are valid.
    pub(in crate::trace) tables: IndexTables,
    /// Whether the journal has its end and so covers all frames.
    pub(in crate::trace) complete: bool,
}

/// The limits for the frames and positions of a group.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    codec: Codec,
    /// The offset of the next frame.
    reach: u64,
    data_bytes: u64,
}

/// Reads the groups of a journal; `input` is positioned after the identity. `first` is the header
/// of the data file's first frame, `data_bytes` the length of that file.
pub(in crate::trace) fn read(
    input: &mut impl Read,
    first: &FrameHeader,
    data_bytes: u64,
) -> io::Result<Journal> {
    let mut journal = Journal::default();
    let mut bounds = Bounds { codec: first.codec, reach: HEADER_BYTES as u64, data_bytes };
    loop {
        let mut bytes = read_up_to(input, CELL_BYTES as u64)?;
        let head = RawCell::decode(&bytes);
        if head.is(Kind::Eof) {
            let magic = read_up_to(input, 9)?;
            journal.complete = magic == INDEX_MAGIC.to_be_bytes();
            break;
        }
        if !head.is(Kind::Group) || head.start != bounds.reach || head.end > MAX_GROUP_CELLS {
            break;
        }
        bytes.extend_from_slice(&read_up_to(input, head.end * CELL_BYTES as u64)?);
        if bytes.len() as u64 != (head.end + 1) * CELL_BYTES as u64 || !seals(&head, &mut bytes) {
            break;
        }
        let Some(rows) = GroupRows::from_group(&bytes[CELL_BYTES..], bounds) else { break };
        if !rows.fit(&journal.tables) {
            break;
        }
        bounds.reach = rows.frame.end;
        rows.join(&mut journal.tables);
    }
    journal.tables.sort();
    Ok(journal)
}

/// Returns whether the checksum in a group's head matches `bytes`, the complete group.
pub(super) fn seals(head: &RawCell, bytes: &mut [u8]) -> bool {
    bytes[1..5].fill(0);
    crc32fast::hash(bytes) == head.id
}

/// The rows of one group.
#[derive(Debug)]
struct GroupRows {
    frame: FrameRow,
    neutral: Vec<(Kind, u32, u64)>,
    blocks: Vec<(u32, BlockRow)>,
    calls: Vec<(u32, CallRow)>,
}

impl GroupRows {
    /// Decodes the cells of a group. Returns `None` if they are invalid.
    fn from_group(bytes: &[u8], bounds: Bounds) -> Option<Self> {
        let (cells, _) = bytes.as_chunks::<CELL_BYTES>();
        let mut cells = cells.iter().map(|cell| RawCell::decode(cell));
        let frame = cells.next().filter(|cell| cell.is(Kind::Frame))?;
        let frame = FrameRow { offset: frame.start, end: frame.end, crc: frame.id };
        let fits = frame.offset == bounds.reach
            && frame.end > frame.offset
            && frame.end <= bounds.data_bytes;
        if !fits {
            return None;
        }
        let mut rows = Self { frame, neutral: Vec::new(), blocks: Vec::new(), calls: Vec::new() };
        while let Some(cell) = cells.next() {
            rows.take(cell, &mut cells, bounds.codec)?;
        }
        Some(rows)
    }

    /// Adds a cell, together with the next cell if that belongs to it.
    fn take(
        &mut self,
        cell: RawCell,
        rest: &mut impl Iterator<Item = RawCell>,
        codec: Codec,
    ) -> Option<()> {
        let RawCell { id, start, end, .. } = cell;
        if cell.number >= FIRST_SIZED {
            // A kind of a later version.
            return Some(());
        }
        match cell.kind()? {
            Kind::BlockStart | Kind::BlockPart => {
                if start > end || !self.frame.holds(start, codec) || !self.frame.holds(end, codec) {
                    return None;
                }
                if id == NO_THREAD {
                    return Some(());
                }
                let span = rest.next().filter(|span| span.is(Kind::BlockSpan))?;
                self.blocks.push((id, BlockRow::from_cells(cell, span)));
            }
            Kind::Call => {
                let summary = rest.next().filter(|summary| summary.is(Kind::CallSummary))?;
                if start > end || id == NO_THREAD {
                    return None;
                }
                self.calls.push((id, CallRow::from_cells(cell, summary)));
            }
            kind => {
                neutral_kind_index(kind)?;
                if !self.frame.holds(start, codec) {
                    return None;
                }
                self.neutral.push((kind, id, start));
            }
        }
        Some(())
    }

    /// Returns whether the blocks continue those of the earlier groups.
    fn fit(&self, tables: &IndexTables) -> bool {
        let mut last: std::collections::HashMap<u32, BlockRow> = Default::default();
        self.blocks.iter().all(|(stream, block)| {
            let known = tables.streams.get(stream).and_then(|stream| stream.blocks.last());
            let before = last.insert(*stream, *block).or(known.copied());
            before.is_none_or(|before| block.follows(&before))
        })
    }

    fn join(self, tables: &mut IndexTables) {
        tables.frames.push(self.frame);
        for (kind, id, position) in self.neutral {
            tables.add_neutral(kind, id, position);
        }
        for (stream, block) in self.blocks {
            tables.streams.entry(stream).or_default().blocks.push(block);
        }
        for (stream, call) in self.calls {
            tables.add_call(stream, call);
        }
    }
}
