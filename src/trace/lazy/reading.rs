//! Data file and index of a lazily read trace, together.

use std::sync::Arc;

use super::ThreadSummary;
use super::fault::{Fault, Found};
use super::source::{Directory, Source};
use crate::trace::checkpoint::BlockEntry;
use crate::trace::index::Index;
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
        if entry.stream != stream || entry.begin.logical != row.logical {
            return Err(Fault::Index("a block is not what it should be"));
        }
        Ok(found)
    }

    /// All threads and how much there is of them.
    pub(super) fn summaries(&self) -> Found<Vec<ThreadSummary>> {
        let threads = self.threads()?.into_iter().enumerate();
        threads.map(|(id, thread)| self.summary(ThreadId(id as u32), thread)).collect()
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
        let count = self.index.block_count(stream)?;
        let mut first = None;
        for number in 0..count {
            let row = self.index.block(stream, number)?;
            if row.samples > 0 {
                first = Some(row.first_ns);
                break;
            }
        }
        let Some(first_ns) = first else { return Ok(None) };
        if let Some(row) = self.index.call(stream, 0)? {
            return Ok(Some(Extent { samples: row.samples, first_ns, last_ns: row.last_ns }));
        }
        let last = self.block(stream, count - 1)?;
        let entry = last.entry()?;
        let lost = self.losses.iter().filter(|loss| loss.thread == Some(ThreadId(stream & !SIDE)));
        let lost: u64 = lost.filter_map(|loss| loss.samples).sum();
        let samples = (entry.begin.samples + entry.samples).saturating_sub(lost);
        Ok(Some(Extent { samples, first_ns, last_ns: entry.last_ns }))
    }

    /// How many roots a thread has, if that is known, and whether it was not seen to end.
    pub(super) fn roots(&self, thread: ThreadId) -> Found<(Option<u32>, bool)> {
        let mut count = Some(0u32);
        for stream in [thread.0, thread.0 | SIDE] {
            if self.index.block_count(stream)? > 0 {
                let row = self.index.call(stream, 0)?;
                count = count.zip(row).map(|(count, row)| count.saturating_add(row.children));
            }
        }
        Ok((count, count.is_none()))
    }
}

/// How much there is of a stream.
struct Extent {
    samples: u64,
    first_ns: u64,
    last_ns: u64,
}
