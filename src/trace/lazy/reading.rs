//! Data file and index of a lazily read trace, together.

use std::collections::HashMap;
use std::sync::Arc;

use super::ThreadSummary;
use super::fault::{Fault, Found};
use super::source::{Directory, Source};
use crate::trace::bytes::Cursor;
use crate::trace::checkpoint::{BlockEntry, Checkpoint};
use crate::trace::index::Index;
use crate::trace::index::tables::NEUTRAL_KINDS;
use crate::trace::object::Record;
use crate::trace::{Loss, SIDE, Thread, ThreadId};

/// What lookups go to.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) source: Source,
    pub(super) index: Index,
    /// The index comes from a scan of the data: what it does not have is not there.
    pub(super) scanned: bool,
    /// The trace has its end.
    pub(super) closed: bool,
    /// What a scan found to be lost.
    pub(super) losses: Vec<Loss>,
    /// How many samples of each stream that are, as far as blocks after them tell.
    pub(super) lost_samples: HashMap<u32, u64>,
    /// Offset of the last place where frames are lost.
    pub(super) lost_at: Option<u64>,
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
        let (losses, lost_samples) = (Vec::new(), HashMap::new());
        Self { source, index, scanned: false, closed, losses, lost_samples, lost_at: None }
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
        if self.is_lossy() || (samples, end, entry.last_ns) == (row.samples, row.end, row.last_ns) {
            return Ok(());
        }
        Err(Fault::Index("a thread does not reach as far as it should"))
    }

    /// All threads and how much there is of them.
    pub(super) fn summaries(&self) -> Found<Vec<ThreadSummary>> {
        let threads = self.threads()?.into_iter().enumerate();
        let summaries: Found<Vec<_>> =
            threads.map(|(id, thread)| self.summary(ThreadId(id as u32), thread)).collect();
        let summaries = summaries?;
        if self.closed && !self.is_lossy() {
            self.check_end(&summaries)?;
        }
        Ok(summaries)
    }

    /// Compares what the index knows with what the end of the data says there is.
    fn check_end(&self, summaries: &[ThreadSummary]) -> Found<()> {
        let last = self.index.last_frame()?.ok_or(Fault::Index("the index has no frames"))?;
        let directory = self.source.directory(last.offset)?;
        let blocks = directory.blocks.last();
        let end = blocks.map_or(0, |(at, entry)| at + entry.bytes as usize);
        if end >= directory.header.payload_bytes() {
            return Err(Fault::Index("the last frame has no end"));
        }
        let (bytes, base) = self.source.payload(&directory, end)?;
        let mut cursor = Cursor::new(&bytes);
        cursor.skip_to(end - base);
        let Ok(Record::Eof { samples, threads, objects }) = Record::decode(&mut cursor) else {
            return Err(Fault::Index("the last frame has no end"));
        };
        let found: u64 = summaries.iter().map(|summary| summary.samples).sum();
        let cells: u64 = NEUTRAL_KINDS.iter().map(|kind| self.index.neutral_rows(*kind)).sum();
        if (found, summaries.len(), cells) == (samples, threads as usize, objects.into()) {
            return Ok(());
        }
        Err(Fault::Index("the index does not have all that the data has"))
    }

    fn summary(&self, id: ThreadId, thread: Thread) -> Found<ThreadSummary> {
        let mut summary = ThreadSummary { id, thread, samples: 0, first_ns: None, last_ns: None };
        for stream in [id.0, id.0 | SIDE] {
            let Some(Extent { samples, first_ns, last_ns }) = self.extent(stream)? else {
                continue;
            };
            summary.samples += samples;
            summary.first_ns = Some(summary.first_ns.map_or(first_ns, |it| it.min(first_ns)));
            summary.last_ns = summary.last_ns.max(Some(last_ns));
        }
        Ok(summary)
    }

    /// Samples and times of a stream; `None` if it has no samples.
    fn extent(&self, stream: u32) -> Found<Option<Extent>> {
        self.check_stream(stream)?;
        let count = self.index.block_count(stream)?;
        let mut first = None;
        for number in 0..count {
            let block = self.block(stream, number)?;
            let entry = block.entry()?;
            if number == 0 && entry.begin != Checkpoint::default() && !self.is_lossy() {
                return Err(Fault::Index("a thread does not begin where it should"));
            }
            if entry.samples > 0 {
                first = Some(entry.first_ns);
                break;
            }
        }
        let Some(first_ns) = first else { return Ok(None) };
        // Both count the samples that are lost, too.
        let (samples, last_ns) = match self.index.call(stream, 0)? {
            Some(row) => (row.samples, row.last_ns),
            None => {
                let last = self.block(stream, count - 1)?;
                let entry = last.entry()?;
                (entry.begin.samples + entry.samples, entry.last_ns)
            }
        };
        let lost = self.lost_samples.get(&stream).copied().unwrap_or(0);
        Ok(Some(Extent { samples: samples.saturating_sub(lost), first_ns, last_ns }))
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
        Ok((count.filter(|_| !self.is_lossy()), unfinished))
    }

    /// Frames are lost behind the last block of a stream.
    pub(super) fn is_tail_lost(&self, stream: u32) -> Found<bool> {
        let (Some(lost_at), Some(last)) =
            (self.lost_at, self.index.block_count(stream)?.checked_sub(1))
        else {
            return Ok(false);
        };
        Ok(self.locate(self.index.block(stream, last)?.start)?.0 < lost_at)
    }

    /// What is lost of a stream's thread behind its last block.
    pub(super) fn lost_tail(&self, stream: u32) -> Option<Loss> {
        let thread = Some(ThreadId(stream & !SIDE));
        let tail = |loss: &&Loss| loss.thread == thread && loss.to_ns == u64::MAX;
        self.losses.iter().find(tail).copied()
    }

    /// A scan found something to be lost. What stands for it counts as a child, other than in the
    /// index.
    pub(super) fn is_lossy(&self) -> bool {
        !self.losses.is_empty()
    }
}

/// How much there is of a stream.
struct Extent {
    samples: u64,
    first_ns: u64,
    last_ns: u64,
}
