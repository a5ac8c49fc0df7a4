//! The index file: cells of 21 bytes that locate the contents of the data file.
//!
//! During a recording the index is a journal: the header, an IDENTITY, and for each frame of the
//! data file one GROUP cell and the cells that it counts. When the recording ends well, the writer
//! replaces the journal by a sorted index: the same rows in order, as tables in checksummed pages.
//!
//! # Invariants
//! - A group is written after its frame, so no cell refers to missing data.
//! - A sorted index replaces the old index only when it is completely on the disk.
//! - No index is trusted: a reader compares it with the data, and makes a new index from the data
//!   if they contradict each other.

mod broken;
mod cell;
mod consolidate;
mod dump;
#[cfg(test)]
pub(in crate::trace) mod forge;
mod journal;
mod open;
mod paged;
mod pages;
mod reindex;
mod replace;
mod sorted;
pub(in crate::trace) mod tables;
#[cfg(test)]
mod tests;

pub(in crate::trace) use broken::Broken;
#[cfg(any(test, fuzzing))]
pub(in crate::trace) use cell::CELL_BYTES;
pub(in crate::trace) use cell::{Cell, UNUSED, block, footer, frame, group, identity};
pub use consolidate::Unsorted;
pub(in crate::trace) use consolidate::consolidate;
pub use dump::{IndexCell, dump_index};
pub use open::index_path;
pub(in crate::trace) use open::{OpenedIndex, open};
pub(in crate::trace) use paged::SortedIndex;
pub use reindex::{Reindexed, reindex};

use super::check_header;
use super::frame::FrameHeader;
use super::kind::Kind;
use super::{HEADER_BYTES, MAX_DEPTH, NO_THREAD};
use tables::{BlockRow, CallRow, FrameRow, IndexTables, StreamTables, neutral_kind_index};

/// An index of either form. Rows are read on request, and may turn out to be broken then.
#[derive(Debug)]
pub(in crate::trace) enum Index {
    /// In memory: a journal, or the result of a scan of the data.
    Tables(IndexTables),
    /// In a file.
    Sorted(SortedIndex),
}

/// Returns the first of `count` numbers for which `is_before` is false; `is_before` must be true
/// for all smaller numbers.
fn partition(
    count: u64,
    mut is_before: impl FnMut(u64) -> Result<bool, Broken>,
) -> Result<u64, Broken> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle)? {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// Returns a row of a table in memory.
fn row<T: Copy>(rows: &[T], n: u64) -> Result<T, Broken> {
    let missing = Broken { offset: 0, what: "a table does not have the requested row" };
    rows.get(n as usize).copied().ok_or(missing)
}

impl Index {
    /// Returns the number of frames in the index.
    pub(in crate::trace) fn frame_count(&self) -> u64 {
        match self {
            Self::Tables(tables) => tables.frames.len() as u64,
            Self::Sorted(index) => index.frame_count(),
        }
    }

    /// Returns frame number `n`, by offset.
    pub(in crate::trace) fn frame(&self, n: u64) -> Result<FrameRow, Broken> {
        match self {
            Self::Tables(tables) => row(&tables.frames, n),
            Self::Sorted(index) => index.frame(n),
        }
    }

    /// Returns the last frame.
    pub(in crate::trace) fn last_frame(&self) -> Result<Option<FrameRow>, Broken> {
        self.frame_count().checked_sub(1).map(|last| self.frame(last)).transpose()
    }

    /// Returns whether no frame is missing before the last one, whose header this is. An index says
    /// nothing else about losses.
    pub(in crate::trace) fn has_all_frames(&self, last: &FrameHeader) -> bool {
        u64::from(last.sequence) + 1 == self.frame_count()
    }

    /// Returns the frame that contains the byte at `offset` of the data file.
    pub(in crate::trace) fn frame_at(&self, offset: u64) -> Result<Option<FrameRow>, Broken> {
        let end = partition(self.frame_count(), |n| Ok(self.frame(n)?.offset <= offset))?;
        let Some(n) = end.checked_sub(1) else { return Ok(None) };
        Ok(Some(self.frame(n)?).filter(|frame| offset < frame.end))
    }

    /// Returns the offset in the data file where the index ends.
    pub(in crate::trace) fn reach(&self) -> Result<u64, Broken> {
        Ok(self.last_frame()?.map_or(HEADER_BYTES as u64, |frame| frame.end))
    }

    /// Returns the number of objects of a kind: the highest id plus 1. If a part of the data is
    /// lost, lower ids may be missing; so size memory by the number of rows instead.
    pub(in crate::trace) fn neutral_count(&self, kind: Kind) -> Result<u32, Broken> {
        let Some(last) = self.neutral_rows(kind).checked_sub(1) else { return Ok(0) };
        let (_, id, position) = self.neutral_row(kind, last)?;
        if let Some(before) = last.checked_sub(1) {
            let (_, id_before, position_before) = self.neutral_row(kind, before)?;
            if (id_before, position_before) >= (id, position) {
                // Otherwise objects with higher ids would be missed silently.
                return Broken::at(0, "the cells of objects are not in order");
            }
        }
        Ok(id.saturating_add(1))
    }

    /// Returns the number of cells of the objects of a kind; an object that was written repeatedly
    /// has several.
    pub(in crate::trace) fn neutral_rows(&self, kind: Kind) -> u64 {
        match (self, neutral_kind_index(kind)) {
            (_, None) => 0,
            (Self::Tables(tables), Some(place)) => tables.neutral[place].len() as u64,
            (Self::Sorted(index), Some(place)) => index.neutral_rows(place),
        }
    }

    /// Returns the kind, id and position of cell number `n` of a kind, by id and position.
    pub(in crate::trace) fn neutral_row(
        &self,
        kind: Kind,
        n: u64,
    ) -> Result<(Kind, u32, u64), Broken> {
        match (self, neutral_kind_index(kind)) {
            (_, None) => row(&[], n),
            (Self::Tables(tables), Some(place)) => row(&tables.neutral[place], n),
            (Self::Sorted(index), Some(place)) => index.neutral_row(place, n),
        }
    }

    /// Returns the kind and the last position of the object with an id.
    pub(in crate::trace) fn neutral(
        &self,
        kind: Kind,
        id: u32,
    ) -> Result<Option<(Kind, u64)>, Broken> {
        let rows = self.neutral_rows(kind);
        // Nearly always each id has one cell, whose number is the id.
        let n = u64::from(id);
        if n < rows {
            let (kind, found, position) = self.neutral_row(kind, n)?;
            if found == id && (n + 1 == rows || self.neutral_row(kind, n + 1)?.1 != id) {
                return Ok(Some((kind, position)));
            }
        }
        let end = partition(rows, |n| Ok(self.neutral_row(kind, n)?.1 <= id))?;
        let Some(n) = end.checked_sub(1) else { return Ok(None) };
        let (kind, found, position) = self.neutral_row(kind, n)?;
        Ok((found == id).then_some((kind, position)))
    }

    /// Returns the streams that have blocks.
    pub(in crate::trace) fn streams(&self) -> Result<Vec<u32>, Broken> {
        match self {
            Self::Tables(tables) => Ok(tables.streams.keys().copied().collect()),
            Self::Sorted(index) => index.streams(),
        }
    }

    /// Returns the number of blocks, or parts of blocks, of a stream.
    pub(in crate::trace) fn block_count(&self, stream: u32) -> Result<u64, Broken> {
        match self {
            Self::Tables(tables) => {
                Ok(of_stream(tables, stream).map_or(0, |it| it.blocks.len()) as u64)
            }
            Self::Sorted(index) => index.block_count(stream),
        }
    }

    /// Returns block number `n` of a stream.
    pub(in crate::trace) fn block(&self, stream: u32, n: u64) -> Result<BlockRow, Broken> {
        match self {
            Self::Tables(tables) => row(of_stream(tables, stream).map_or(&[], |it| &it.blocks), n),
            Self::Sorted(index) => index.block(stream, n),
        }
    }

    /// Returns the number of the last block of a stream that starts at or before a logical offset.
    pub(in crate::trace) fn block_at(
        &self,
        stream: u32,
        logical: u64,
    ) -> Result<Option<u64>, Broken> {
        let count = self.block_count(stream)?;
        let end = partition(count, |n| Ok(self.block(stream, n)?.logical <= logical))?;
        Ok(end.checked_sub(1))
    }

    /// Returns the number of the last block of a stream whose first sample was taken at or before a
    /// time.
    pub(in crate::trace) fn block_at_time(
        &self,
        stream: u32,
        time_ns: u64,
    ) -> Result<Option<u64>, Broken> {
        let count = self.block_count(stream)?;
        let end = partition(count, |n| Ok(self.block(stream, n)?.first_ns <= time_ns))?;
        Ok(end.checked_sub(1))
    }

    /// Returns the number of calls of a stream in the index, including the stream itself.
    pub(in crate::trace) fn call_count(&self, stream: u32) -> Result<u64, Broken> {
        match self {
            Self::Tables(tables) => {
                Ok(of_stream(tables, stream).map_or(0, |it| it.calls.len()) as u64)
            }
            Self::Sorted(index) => index.call_count(stream),
        }
    }

    /// Returns call number `n` of a stream, by start.
    pub(in crate::trace) fn call_row(&self, stream: u32, n: u64) -> Result<CallRow, Broken> {
        match self {
            Self::Tables(tables) => row(of_stream(tables, stream).map_or(&[], |it| &it.calls), n),
            Self::Sorted(index) => index.call_row(stream, n),
        }
    }

    /// Returns the row of the call whose content starts at a logical offset, if it has one. Offset
    /// 0 stands for the complete stream.
    pub(in crate::trace) fn call(
        &self,
        stream: u32,
        start: u64,
    ) -> Result<Option<CallRow>, Broken> {
        let count = self.call_count(stream)?;
        let n = partition(count, |n| Ok(self.call_row(stream, n)?.start < start))?;
        if n == count {
            return Ok(None);
        }
        Ok(Some(self.call_row(stream, n)?).filter(|call| call.start == start))
    }

    /// Reads all rows and checks that they can describe one data file: rows in order, positions
    /// inside frames, calls nested or disjoint.
    pub(in crate::trace) fn check(&self) -> Result<(), Broken> {
        if let Self::Sorted(index) = self {
            index.check_tables()?;
        }
        let mut end = HEADER_BYTES as u64;
        for n in 0..self.frame_count() {
            let frame = self.frame(n)?;
            if frame.offset < end || frame.end <= frame.offset {
                return Broken::at(frame.offset, "the frames of the index are not in order");
            }
            end = frame.end;
        }
        for kind in tables::NEUTRAL_KINDS {
            let mut before = None;
            let mut found = None;
            for n in 0..self.neutral_rows(kind) {
                let (_, id, position) = self.neutral_row(kind, n)?;
                if before.is_some_and(|before| before >= (id, position)) {
                    return Broken::at(position, "the objects of the index are not in order");
                }
                self.check_position(position, &mut found)?;
                before = Some((id, position));
            }
        }
        self.streams()?.into_iter().try_for_each(|stream| self.check_stream(stream))
    }

    /// Returns whether a block starts at a logical offset. Where frames are lost, a call ends there
    /// in the index. It really ended earlier, possibly before the start of a call that continues.
    fn is_block_begin(&self, stream: u32, logical: u64) -> Result<bool, Broken> {
        let Some(n) = self.block_at(stream, logical)? else { return Ok(false) };
        Ok(self.block(stream, n)?.logical == logical)
    }

    /// Checks that a position is in a frame; `frame` is the frame of the previous position. A
    /// journal's positions were checked when it was read.
    fn check_position(&self, position: u64, frame: &mut Option<FrameRow>) -> Result<(), Broken> {
        let Self::Sorted(index) = self else { return Ok(()) };
        if frame.is_none_or(|frame| !index.holds(&frame, position)) {
            *frame = self.frame_at(index.offset_of(position))?;
        }
        match frame.is_some_and(|frame| index.holds(&frame, position)) {
            true => Ok(()),
            false => Broken::at(position, "the index has a position outside of all frames"),
        }
    }

    fn check_stream(&self, stream: u32) -> Result<(), Broken> {
        if stream == NO_THREAD {
            return Broken::at(0, "the index has an invalid stream id");
        }
        let mut before: Option<BlockRow> = None;
        let mut found = None;
        for n in 0..self.block_count(stream)? {
            let block = self.block(stream, n)?;
            if before.is_some_and(|before| !block.follows(&before)) {
                return Broken::at(block.start, "the blocks of a stream are not in order");
            }
            self.check_position(block.start, &mut found)?;
            before = Some(block);
        }
        // The ends of the calls that may contain the next one.
        let mut open: Vec<u64> = Vec::new();
        let mut start = None;
        for n in 0..self.call_count(stream)? {
            let call = self.call_row(stream, n)?;
            while open.pop_if(|end| *end < call.start).is_some() {}
            let mut crosses = false;
            while let Some(end) = open.pop_if(|end| *end < call.end) {
                crosses |= !self.is_block_begin(stream, end)?;
            }
            if start >= Some(call.start) || crosses || open.len() > MAX_DEPTH {
                return Broken::at(call.start, "the calls of a stream are not nested");
            }
            open.push(call.end);
            start = Some(call.start);
        }
        Ok(())
    }
}

fn of_stream(tables: &IndexTables, stream: u32) -> Option<&StreamTables> {
    tables.streams.get(&stream)
}
