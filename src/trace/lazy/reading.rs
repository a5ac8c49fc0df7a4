//! Data file and index of a lazily read trace, together.

use std::sync::Arc;

use super::fault::{Fault, Found};
use super::losses::Losses;
use super::source::{Directory, Source};
use crate::trace::checkpoint::BlockEntry;
use crate::trace::index::Index;
use crate::trace::{SIDE, ThreadId};

/// What lookups go to.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) source: Source,
    pub(super) index: Index,
    /// The index comes from a scan of the data: what it does not have is not there.
    pub(super) scanned: bool,
    /// The trace has its end.
    pub(super) closed: bool,
    pub(super) losses: Losses,
}

/// A block that was found: its frame, and where in the payload it lies.
#[derive(Debug)]
pub(super) struct FoundBlock {
    pub(super) directory: Arc<Directory>,
    pub(super) at: usize,
}

impl FoundBlock {
    /// Its entry in the directory.
    pub(super) fn entry(&self) -> Found<&BlockEntry> {
        self.directory.block_at(self.at).ok_or(Fault::Index("a block is not where it should be"))
    }
}

impl Reading {
    /// A trace of which nothing is known to be lost.
    pub(super) fn sound(source: Source, index: Index, closed: bool) -> Self {
        Self { source, index, scanned: false, closed, losses: Losses::default() }
    }

    /// The frame of a position and the offset in its payload.
    pub(super) fn locate(&self, position: u64) -> Found<(u64, usize)> {
        self.source.locate(position, |position| match self.index.frame_at(position)? {
            Some(frame) => Ok(frame.offset),
            None => Err(Fault::Index("a position lies in no frame")),
        })
    }

    /// A block by its number in its stream.
    pub(super) fn block(&self, stream: u32, number: u64) -> Found<FoundBlock> {
        let row = self.index.block(stream, number)?;
        let (frame, at) = self.locate(row.start)?;
        let found = FoundBlock { directory: self.source.directory(frame)?, at };
        let entry = found.entry()?;
        let same = (entry.stream, entry.ends.first, entry.begin.logical, entry.first_ns)
            == (stream, row.first, row.logical, row.first_ns)
            && u64::from(row.samples) == entry.samples.min(u32::MAX.into());
        if same { Ok(found) } else { Err(Fault::Index("a block is not what it should be")) }
    }

    /// The last block of a stream that begins at or before a logical offset, or the first.
    pub(super) fn block_at(&self, stream: u32, logical: u64) -> Found<u64> {
        let number = self.index.block_at(stream, logical)?.unwrap_or(0);
        self.check_place(stream, number, |begin| begin.begin.logical <= logical)?;
        Ok(number)
    }

    /// The last block of a stream whose first sample was taken at or before a time, or the first.
    pub(super) fn block_at_time(&self, stream: u32, time_ns: u64) -> Found<u64> {
        let number = self.index.block_at_time(stream, time_ns)?.unwrap_or(0);
        self.check_place(stream, number, |begin| begin.first_ns <= time_ns)?;
        Ok(number)
    }

    /// What a search by rows found is compared with the data: the block is not behind the place
    /// that is sought, and the next one is.
    fn check_place(
        &self,
        stream: u32,
        number: u64,
        is_before: impl Fn(&BlockEntry) -> bool,
    ) -> Found<()> {
        let count = self.index.block_count(stream)?;
        let found = number >= count
            || ((number == 0 || is_before(self.block(stream, number)?.entry()?))
                && (number + 1 >= count || !is_before(self.block(stream, number + 1)?.entry()?)));
        if found { Ok(()) } else { Err(Fault::Index("the blocks of a thread are not in order")) }
    }

    /// Compares what the index says of a whole stream with its last block.
    pub(super) fn check_stream(&self, stream: u32) -> Found<()> {
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
        Err(Fault::Index("a thread does not reach as far as it should"))
    }

    /// How many roots a thread has, if that is known, and whether it was not seen to end.
    pub(super) fn roots(&self, thread: ThreadId) -> Found<(Option<u32>, bool)> {
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

    /// Frames are lost behind the last block of a stream.
    pub(super) fn is_tail_lost(&self, stream: u32) -> Found<bool> {
        let (Some(lost_at), Some(last)) =
            (self.losses.last_at, self.index.block_count(stream)?.checked_sub(1))
        else {
            return Ok(false);
        };
        Ok(self.locate(self.index.block(stream, last)?.start)?.0 < lost_at)
    }
}
