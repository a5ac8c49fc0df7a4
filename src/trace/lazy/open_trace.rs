//! The data file and the index of a lazily read trace.

use std::sync::Arc;

use super::fault::{LazyError, LazyResult};
use super::losses::Losses;
use super::source::{DataFile, Directory};
use crate::trace::checkpoint::BlockEntry;
use crate::trace::index::Index;
use crate::trace::{FileState, SIDE, ThreadId};

/// The files and the state that lookups use.
#[derive(Debug)]
pub(super) struct OpenTrace {
    pub(super) source: DataFile,
    pub(super) index: Index,
    /// Whether the index comes from a scan of the data and so is complete.
    pub(super) scanned: bool,
    /// Whether the trace has its end.
    pub(super) closed: bool,
    pub(super) losses: Losses,
}

/// A block that was found: its frame, and its offset in the payload.
#[derive(Debug)]
pub(super) struct FoundBlock {
    pub(super) directory: Arc<Directory>,
    pub(super) at: usize,
}

impl FoundBlock {
    /// Returns the block's entry in the directory.
    pub(super) fn entry(&self) -> LazyResult<&BlockEntry> {
        self.directory
            .block_at(self.at)
            .ok_or(LazyError::Index("a block is not where the index says"))
    }
}

impl OpenTrace {
    /// Creates a trace without known losses.
    pub(super) fn sound(source: DataFile, index: Index, closed: bool) -> Self {
        Self { source, index, scanned: false, closed, losses: Losses::default() }
    }

    /// Returns the state of the data, as far as it was read.
    pub(super) fn state(&self) -> FileState {
        FileState::of(&self.losses.bad, &self.losses.found, self.closed)
    }

    /// Returns the frame of a position and the offset in its payload.
    pub(super) fn locate(&self, position: u64) -> LazyResult<(u64, usize)> {
        self.source.locate(position, |position| match self.index.frame_at(position)? {
            Some(frame) => Ok(frame.offset),
            None => Err(LazyError::Index("a position is outside of all frames")),
        })
    }

    /// Returns a block by its number in its stream.
    pub(super) fn block(&self, stream: u32, number: u64) -> LazyResult<FoundBlock> {
        let row = self.index.block(stream, number)?;
        let (frame, at) = self.locate(row.start)?;
        let found = FoundBlock { directory: self.source.directory(frame)?, at };
        let entry = found.entry()?;
        let same = (entry.stream, entry.ends.first, entry.begin.logical, entry.first_ns)
            == (stream, row.first, row.logical, row.first_ns)
            && u64::from(row.samples) == entry.samples.min(u32::MAX.into());
        if same { Ok(found) } else { Err(LazyError::Index("a block differs from the index")) }
    }

    /// Returns the last block of a stream that starts at or before a logical offset, or the first
    /// block.
    pub(super) fn block_at(&self, stream: u32, logical: u64) -> LazyResult<u64> {
        let number = self.index.block_at(stream, logical)?.unwrap_or(0);
        self.check_block_position(stream, number, |begin| begin.begin.logical <= logical)?;
        Ok(number)
    }

    /// Returns the last block of a stream whose first sample was taken at or before a time, or the
    /// first block.
    pub(super) fn block_at_time(&self, stream: u32, time_ns: u64) -> LazyResult<u64> {
        let number = self.index.block_at_time(stream, time_ns)?.unwrap_or(0);
        self.check_block_position(stream, number, |begin| begin.first_ns <= time_ns)?;
        Ok(number)
    }

    /// Compares the result of a search in the index with the data: the found block must not be
    /// after the searched position, and the next block must be.
    fn check_block_position(
        &self,
        stream: u32,
        number: u64,
        is_before: impl Fn(&BlockEntry) -> bool,
    ) -> LazyResult<()> {
        let count = self.index.block_count(stream)?;
        let found = number >= count
            || ((number == 0 || is_before(self.block(stream, number)?.entry()?))
                && (number + 1 >= count || !is_before(self.block(stream, number + 1)?.entry()?)));
        if found {
            Ok(())
        } else {
            Err(LazyError::Index("the blocks of a thread are not in order"))
        }
    }

    /// Compares the index row of a complete stream with the stream's last block.
    pub(super) fn check_stream(&self, stream: u32) -> LazyResult<()> {
        let Some(row) = self.index.call(stream, 0)? else { return Ok(()) };
        let Some(last) = self.index.block_count(stream)?.checked_sub(1) else { return Ok(()) };
        let last = self.block(stream, last)?;
        let entry = last.entry()?;
        let (samples, end) =
            (entry.begin.samples + entry.samples, entry.begin.logical + entry.data_bytes());
        if self.losses.any() || (samples, end, entry.last_ns) == (row.samples, row.end, row.last_ns)
        {
            return Ok(());
        }
        Err(LazyError::Index("a thread does not end where the index says"))
    }

    /// Returns the number of roots of a thread, if it is known, and whether the thread's end is
    /// missing.
    pub(super) fn roots(&self, thread: ThreadId) -> LazyResult<(Option<u32>, bool)> {
        let (mut count, mut unfinished) = (Some(0u32), false);
        for stream in [thread.0, thread.0 | SIDE] {
            self.check_stream(stream)?;
            if self.index.block_count(stream)? > 0 {
                let row = self.index.call(stream, 0)?;
                unfinished |= row.is_none();
                count = count.zip(row).map(|(count, row)| count.saturating_add(row.children));
            }
        }
        Ok((count.filter(|_| !self.losses.any()), unfinished))
    }

    /// Returns whether frames are lost after the last block of a stream.
    pub(super) fn is_tail_lost(&self, stream: u32) -> LazyResult<bool> {
        let (Some(lost), Some(last)) =
            (self.losses.bad.last(), self.index.block_count(stream)?.checked_sub(1))
        else {
            return Ok(false);
        };
        Ok(self.locate(self.index.block(stream, last)?.start)?.0 < lost.offset)
    }
}
