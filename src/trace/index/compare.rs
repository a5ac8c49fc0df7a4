//! An index against a scan of the data that it belongs to.

use super::broken::Broken;
use super::tables::{BlockRow, FrameRow, NEUTRAL_KINDS, Tables};
use super::{Index, row};
use crate::trace::frame::FrameHeader;

const OTHER: &str = "the index does not fit the data";

impl Index {
    /// Checks all rows, and that they are those that a scan found: of a journal up to where it reaches,
    /// of any other index all. Calls that only an index of all calls has are not looked for in a scan
    /// that does not have them.
    pub(in crate::trace) fn compare(
        &self,
        scanned: &Tables,
        first: &FrameHeader,
    ) -> Result<(), Broken> {
        self.check()?;
        let reach = self.reach()?;
        let is_covered = |position| first.codec.offset_of(position) < reach;
        let frames = self.frame_count();
        for n in 0..frames {
            same(self.frame(n)?, row(&scanned.frames, n)?)?;
        }
        let more = scanned.frames.get(frames as usize);
        if more.is_some_and(|frame: &FrameRow| self.is_sorted() || frame.offset < reach) {
            return Broken::at(reach, OTHER);
        }
        for (kind, rows) in NEUTRAL_KINDS.into_iter().zip(&scanned.neutral) {
            let mut n = 0;
            for found in rows.iter().filter(|(_, _, position)| is_covered(*position)) {
                same(self.neutral_row(kind, n)?, *found)?;
                n += 1;
            }
            same(self.neutral_rows(kind), n)?;
        }
        for (stream, rows) in &scanned.streams {
            let mut n = 0;
            for found in rows.blocks.iter().filter(|block: &&BlockRow| is_covered(block.start)) {
                same(self.block(*stream, n)?, *found)?;
                n += 1;
            }
            same(self.block_count(*stream)?, n)?;
            for call in rows.calls.iter().filter(|_| self.is_sorted()) {
                same(self.call(*stream, call.start)?, Some(*call))?;
            }
        }
        for stream in self.streams()? {
            let Some(rows) = scanned.streams.get(&stream) else {
                return Broken::at(0, OTHER);
            };
            for n in 0..self.call_count(stream)? {
                let call = self.call_row(stream, n)?;
                let found = rows.calls.binary_search_by_key(&call.start, |call| call.start);
                if found.is_ok_and(|n| rows.calls[n] != call) {
                    return Broken::at(call.start, OTHER);
                }
            }
        }
        Ok(())
    }

    fn is_sorted(&self) -> bool {
        matches!(self, Self::Sorted(_))
    }
}

fn same<T: PartialEq>(one: T, other: T) -> Result<(), Broken> {
    if one == other { Ok(()) } else { Broken::at(0, OTHER) }
}
