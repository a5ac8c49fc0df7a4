//! The threads of a lazily read trace, and the number and times of their samples.

use super::fault::{LazyError, LazyResult};
use super::objects::StoredObjects;
use super::open_trace::OpenTrace;
use crate::trace::bytes::Cursor;
use crate::trace::checkpoint::Checkpoint;
use crate::trace::index::tables::NEUTRAL_KINDS;
use crate::trace::object::Record;
use crate::trace::{SIDE, Thread, ThreadId};

/// A thread, and the number and times of its samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadSummary {
    /// The dense id.
    pub id: ThreadId,
    /// Process, kernel thread id, last name and lifetime.
    pub thread: Thread,
    /// The number of its samples that can be read.
    pub samples: u64,
    /// The time of its first sample.
    pub first_ns: Option<u64>,
    /// The time of its last sample.
    pub last_ns: Option<u64>,
}

impl ThreadSummary {
    /// Returns all threads by id. Compares those of a complete trace with its EOF object.
    pub(super) fn read_all(trace: &OpenTrace) -> LazyResult<Vec<Self>> {
        let threads = StoredObjects::of(trace).threads()?.into_iter().enumerate();
        let summaries: LazyResult<Vec<_>> =
            threads.map(|(id, thread)| Self::read(trace, ThreadId(id as u32), thread)).collect();
        let summaries = summaries?;
        if trace.closed && !trace.losses.any() {
            check_end(trace, &summaries)?;
        }
        Ok(summaries)
    }

    fn read(trace: &OpenTrace, id: ThreadId, thread: Thread) -> LazyResult<Self> {
        let mut summary = Self { id, thread, samples: 0, first_ns: None, last_ns: None };
        for stream in [id.0, id.0 | SIDE] {
            let Some(StreamExtent { samples, first_ns, last_ns }) =
                StreamExtent::read(trace, stream)?
            else {
                continue;
            };
            summary.samples += samples;
            summary.first_ns = Some(summary.first_ns.map_or(first_ns, |it| it.min(first_ns)));
            summary.last_ns = summary.last_ns.max(Some(last_ns));
        }
        Ok(summary)
    }
}

/// The number and times of the samples of a stream.
struct StreamExtent {
    samples: u64,
    first_ns: u64,
    last_ns: u64,
}

impl StreamExtent {
    /// Reads the number and times of a stream's samples; returns `None` if it has none.
    fn read(trace: &OpenTrace, stream: u32) -> LazyResult<Option<Self>> {
        trace.check_stream(stream)?;
        let count = trace.index.block_count(stream)?;
        let mut first = None;
        for number in 0..count {
            let block = trace.block(stream, number)?;
            let entry = block.entry()?;
            if number == 0 && entry.begin != Checkpoint::default() && !trace.losses.any() {
                return Err(LazyError::Index("a thread does not begin where the index says"));
            }
            if entry.samples > 0 {
                first = Some(entry.first_ns);
                break;
            }
        }
        let Some(first_ns) = first else { return Ok(None) };
        // Both count lost samples, too.
        let (samples, last_ns) = match trace.index.call(stream, 0)? {
            Some(row) => (row.samples, row.last_ns),
            None => {
                let last = trace.block(stream, count - 1)?;
                let entry = last.entry()?;
                (entry.begin.samples + entry.samples, entry.last_ns)
            }
        };
        let lost = trace.losses.samples_of(stream);
        Ok(Some(Self { samples: samples.saturating_sub(lost), first_ns, last_ns }))
    }
}

/// Compares the totals of the index with the EOF object of the data.
fn check_end(trace: &OpenTrace, summaries: &[ThreadSummary]) -> LazyResult<()> {
    let last = trace.index.last_frame()?.ok_or(LazyError::Index("the index has no frames"))?;
    let directory = trace.source.directory(last.offset)?;
    let blocks = directory.blocks.last();
    let end = blocks.map_or(0, |(at, entry)| at + entry.bytes as usize);
    if end >= directory.header.payload_bytes() {
        return Err(LazyError::Index("the last frame has no end"));
    }
    let (bytes, base) = trace.source.payload(&directory, end)?;
    let mut cursor = Cursor::new(&bytes);
    cursor.skip_to(end - base);
    let Ok(Record::Eof { samples, threads, objects }) = Record::decode(&mut cursor) else {
        return Err(LazyError::Index("the last frame has no end"));
    };
    let found: u64 = summaries.iter().map(|summary| summary.samples).sum();
    let cells: u64 = NEUTRAL_KINDS.iter().map(|kind| trace.index.neutral_rows(*kind)).sum();
    if (found, summaries.len(), cells) == (samples, threads as usize, objects.into()) {
        return Ok(());
    }
    Err(LazyError::Index("the index is missing objects of the data"))
}
