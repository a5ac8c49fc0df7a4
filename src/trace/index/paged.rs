//! Reader of sorted index files: rows by number.
//!
//! # Invariants
//! - Reading a row checks that row alone; [`SortedIndex::check_tables`] also checks that rows are
//!   in order and contiguous.
//! - Memory is bounded by that of [`Pages`], whatever the size of the index.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use super::broken::Broken;
use super::cell::{CELL_BYTES, RawCell};
use super::pages::Pages;
use super::sorted::{FIXED_TABLES, TABLES_AT};
use super::tables::{BlockRow, CallRow, FrameRow, NEUTRAL_KINDS, neutral_kind_index};
use crate::trace::codec::Codec;
use crate::trace::frame::{self, FrameHeader};
use crate::trace::kind::Kind;
use crate::trace::{HEADER_BYTES, NO_THREAD};

const CELL: u64 = CELL_BYTES as u64;
/// The number of cells of a block, and of a call.
const PAIR: u64 = 2;

/// The location of the cells of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct TableExtent {
    start: u64,
    cells: u64,
}

impl TableExtent {
    fn end(self) -> u64 {
        self.start + self.cells * CELL
    }
}

/// The tables of a stream.
#[derive(Debug, Clone, Copy, Default)]
struct StreamExtents {
    blocks: TableExtent,
    calls: TableExtent,
}

/// A sorted index file.
#[derive(Debug)]
pub(in crate::trace) struct SortedIndex {
    pages: Pages,
    codec: Codec,
    covered: u64,
    frames: TableExtent,
    neutral: [TableExtent; NEUTRAL_KINDS.len()],
    streams: u64,
    /// The most recently requested stream.
    latest: Mutex<Option<(u32, StreamExtents)>>,
}

impl SortedIndex {
    /// Opens an index file of `bytes` bytes; `first` is the header of the data file's first frame.
    pub(super) fn open(file: File, bytes: u64, first: &FrameHeader) -> Result<Self, Broken> {
        let pages = Pages::open(file, bytes)?;
        let identity = RawCell::decode(&pages.read::<CELL_BYTES>(HEADER_BYTES as u64)?);
        let mut index = Self {
            pages,
            codec: first.codec,
            covered: identity.end,
            frames: TableExtent::default(),
            neutral: [TableExtent::default(); NEUTRAL_KINDS.len()],
            streams: 0,
            latest: Mutex::new(None),
        };
        index.frames = index.table(0, Kind::Frame as u32)?;
        let rows_at = index.frames.start;
        let tables = rows_at.checked_sub(TABLES_AT).filter(|bytes| bytes.is_multiple_of(CELL));
        let of_streams = tables.and_then(|bytes| (bytes / CELL).checked_sub(FIXED_TABLES as u64));
        match of_streams.filter(|tables| tables.is_multiple_of(2)) {
            Some(tables) => index.streams = tables / 2,
            None => return Broken::at(TABLES_AT, "the tables of the index have the wrong size"),
        }
        let mut end = index.frames.end();
        for (place, kind) in NEUTRAL_KINDS.iter().enumerate() {
            let extent = index.table(1 + place as u64, *kind as u32)?;
            if extent.start != end {
                return Broken::at(extent.start, "a table is in the wrong position");
            }
            end = extent.end();
            index.neutral[place] = extent;
        }
        Ok(index)
    }

    /// Returns the number of bytes of the data file that the index covers.
    pub(super) fn covered(&self) -> u64 {
        self.covered
    }

    /// Returns the number of bytes of cached pages.
    #[cfg(test)]
    pub(super) fn cached_bytes(&self) -> usize {
        self.pages.cached_bytes()
    }

    pub(super) fn frame_count(&self) -> u64 {
        self.frames.cells
    }

    pub(super) fn frame(&self, n: u64) -> Result<FrameRow, Broken> {
        let (at, [cell]) = self.cells(self.frames, n)?;
        let row = FrameRow { offset: cell.start, end: cell.end, crc: cell.id };
        let least = (frame::HEADER_BYTES + frame::TRAILER_BYTES) as u64;
        let sound = cell.is(Kind::Frame)
            && row.offset >= HEADER_BYTES as u64
            && row.end.checked_sub(row.offset).is_some_and(|bytes| bytes >= least)
            && row.end <= self.covered;
        if sound { Ok(row) } else { Broken::at(at, "the cell of a frame is invalid") }
    }

    /// Returns the number of rows of a kind of thread-neutral objects, by its position in
    /// [`NEUTRAL_KINDS`].
    pub(super) fn neutral_rows(&self, place: usize) -> u64 {
        self.neutral[place].cells
    }

    pub(super) fn neutral_row(&self, place: usize, n: u64) -> Result<(Kind, u32, u64), Broken> {
        let (at, [cell]) = self.cells(self.neutral[place], n)?;
        match cell.kind() {
            Some(kind)
                if neutral_kind_index(kind) == Some(place) && self.is_position(cell.start) =>
            {
                Ok((kind, cell.id, cell.start))
            }
            _ => Broken::at(at, "the cell of an object is invalid"),
        }
    }

    pub(super) fn streams(&self) -> Result<Vec<u32>, Broken> {
        (0..self.streams).map(|n| Ok(self.stream_tables(n)?.id)).collect()
    }

    pub(super) fn block_count(&self, stream: u32) -> Result<u64, Broken> {
        Ok(self.stream(stream)?.blocks.cells / PAIR)
    }

    pub(super) fn block(&self, stream: u32, n: u64) -> Result<BlockRow, Broken> {
        let (at, [block, span]) = self.cells(self.stream(stream)?.blocks, n)?;
        let sound = (block.is(Kind::BlockStart) || block.is(Kind::BlockPart))
            && span.is(Kind::BlockSpan)
            && block.id == stream
            && block.start <= block.end
            && self.is_position(block.start)
            && self.is_position(block.end);
        match sound {
            true => Ok(BlockRow::from_cells(block, span)),
            false => Broken::at(at, "the cell of a block is invalid"),
        }
    }

    pub(super) fn call_count(&self, stream: u32) -> Result<u64, Broken> {
        Ok(self.stream(stream)?.calls.cells / PAIR)
    }

    pub(super) fn call_row(&self, stream: u32, n: u64) -> Result<CallRow, Broken> {
        let (at, [call, summary]) = self.cells(self.stream(stream)?.calls, n)?;
        let sound = call.is(Kind::Call)
            && summary.is(Kind::CallSummary)
            && call.id == stream
            && call.start <= call.end;
        match sound {
            true => Ok(CallRow::from_cells(call, summary)),
            false => Broken::at(at, "the cell of a call is invalid"),
        }
    }

    /// Checks that the streams' tables are in order and that all tables are contiguous.
    pub(super) fn check_tables(&self) -> Result<(), Broken> {
        let mut end = self.neutral.last().map_or(0, |extent| extent.end());
        let mut before = None;
        for n in 0..self.streams {
            let table = self.stream_tables(n)?;
            if before.is_some_and(|before| before >= table.id) || table.id == NO_THREAD {
                return Broken::at(TABLES_AT, "the tables of streams are not in order");
            }
            before = Some(table.id);
            for extent in [table.extents.blocks, table.extents.calls] {
                if extent.start != end {
                    return Broken::at(extent.start, "a table is in the wrong position");
                }
                end = extent.end();
            }
        }
        if end != self.pages.end() {
            return Broken::at(end, "the tables do not fill the index");
        }
        Ok(())
    }

    /// Returns the offset in the data file for a position; if the file is compressed, that of the
    /// frame.
    pub(super) fn offset_of(&self, position: u64) -> u64 {
        self.codec.offset_of(position)
    }

    pub(super) fn holds(&self, frame: &FrameRow, position: u64) -> bool {
        frame.holds(position, self.codec)
    }

    /// Returns whether a position can be in the data file.
    fn is_position(&self, position: u64) -> bool {
        (HEADER_BYTES as u64..self.covered).contains(&self.offset_of(position))
    }

    /// Returns the cells of row `n` of a table whose rows have `N` cells, and their offset.
    fn cells<const N: usize>(
        &self,
        extent: TableExtent,
        n: u64,
    ) -> Result<(u64, [RawCell; N]), Broken> {
        if n >= extent.cells / N as u64 {
            return Broken::at(extent.start, "a table does not have the requested row");
        }
        let at = extent.start + n * N as u64 * CELL;
        let mut cells = [RawCell { number: 0, id: 0, start: 0, end: 0 }; N];
        match N {
            1 => cells[0] = RawCell::decode(&self.pages.read::<CELL_BYTES>(at)?),
            _ => {
                let bytes = self.pages.read::<{ 2 * CELL_BYTES }>(at)?;
                for (cell, bytes) in cells.iter_mut().zip(bytes.chunks(CELL_BYTES)) {
                    *cell = RawCell::decode(bytes);
                }
            }
        }
        Ok((at, cells))
    }

    /// Returns the location that TABLE cell number `n` states; the cell must have the id `id`.
    fn table(&self, n: u64, id: u32) -> Result<TableExtent, Broken> {
        let at = TABLES_AT + n * CELL;
        let cell = RawCell::decode(&self.pages.read::<CELL_BYTES>(at)?);
        if !cell.is(Kind::Table) || cell.id != id {
            return Broken::at(at, "a table of the index is missing");
        }
        self.extent(at, cell)
    }

    fn extent(&self, at: u64, cell: RawCell) -> Result<TableExtent, Broken> {
        let bytes = cell.end.checked_mul(CELL);
        let end = bytes.and_then(|bytes| cell.start.checked_add(bytes));
        match end {
            Some(end) if cell.start >= TABLES_AT && end <= self.pages.end() => {
                Ok(TableExtent { start: cell.start, cells: cell.end })
            }
            _ => Broken::at(at, "a table extends beyond the index"),
        }
    }

    /// Returns the tables of stream number `n`.
    fn stream_tables(&self, n: u64) -> Result<StreamTable, Broken> {
        let at = TABLES_AT + (FIXED_TABLES as u64 + PAIR * n) * CELL;
        let bytes = self.pages.read::<{ 2 * CELL_BYTES }>(at)?;
        let [blocks, calls] = [0, CELL_BYTES].map(|from| RawCell::decode(&bytes[from..]));
        let paired = |cell: RawCell| cell.is(Kind::Table) && cell.end.is_multiple_of(PAIR);
        if !paired(blocks) || !paired(calls) || blocks.id != calls.id {
            return Broken::at(at, "the tables of a stream are missing");
        }
        let extents = StreamExtents {
            blocks: self.extent(at, blocks)?,
            calls: self.extent(at + CELL, calls)?,
        };
        Ok(StreamTable { id: blocks.id, extents })
    }

    /// Returns the tables of a stream; empty ones if there is no such stream.
    fn stream(&self, stream: u32) -> Result<StreamExtents, Broken> {
        // A thread that panicked left either the old or the new value.
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((id, extents)) = *latest
            && id == stream
        {
            return Ok(extents);
        }
        let (mut low, mut high) = (0, self.streams);
        let mut found = StreamExtents::default();
        while low < high {
            let middle = low + (high - low) / 2;
            let table = self.stream_tables(middle)?;
            match table.id.cmp(&stream) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => {
                    found = table.extents;
                    break;
                }
            }
        }
        *latest = Some((stream, found));
        Ok(found)
    }
}

/// The TABLE cells of a stream.
#[derive(Debug, Clone, Copy)]
struct StreamTable {
    id: u32,
    extents: StreamExtents,
}
