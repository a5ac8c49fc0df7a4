//! The threads of a lazily read trace, and how much there is of each.

use super::fault::{Fault, Found};
use super::objects::StoredObjects;
use super::reading::Reading;
use crate::trace::bytes::Cursor;
use crate::trace::checkpoint::Checkpoint;
use crate::trace::index::tables::NEUTRAL_KINDS;
use crate::trace::object::Record;
use crate::trace::{SIDE, Thread, ThreadId};

/// A thread and how much there is of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadSummary {
    /// Its dense id.
    pub id: ThreadId,
    /// Process, kernel thread id, last name and lifetime.
    pub thread: Thread,
    /// Its samples that can be read.
    pub samples: u64,
    /// Time of its first sample.
    pub first_ns: Option<u64>,
    /// Time of its last sample.
    pub last_ns: Option<u64>,
}

impl ThreadSummary {
    /// All threads, by id. Those of a complete trace are compared with its end.
    pub(super) fn read_all(reading: &Reading) -> Found<Vec<Self>> {
        let threads = StoredObjects::of(reading).threads()?.into_iter().enumerate();
        let summaries: Found<Vec<_>> =
            threads.map(|(id, thread)| Self::read(reading, ThreadId(id as u32), thread)).collect();
        let summaries = summaries?;
        if reading.closed && !reading.losses.any() {
            check_end(reading, &summaries)?;
        }
        Ok(summaries)
    }

    fn read(reading: &Reading, id: ThreadId, thread: Thread) -> Found<Self> {
        let mut summary = Self { id, thread, samples: 0, first_ns: None, last_ns: None };
        for stream in [id.0, id.0 | SIDE] {
            let Some(Extent { samples, first_ns, last_ns }) = Extent::read(reading, stream)? else {
                continue;
            };
            summary.samples += samples;
            summary.first_ns = Some(summary.first_ns.map_or(first_ns, |it| it.min(first_ns)));
            summary.last_ns = summary.last_ns.max(Some(last_ns));
        }
        Ok(summary)
    }
}

/// How much there is of a stream.
struct Extent {
    samples: u64,
    first_ns: u64,
    last_ns: u64,
}

impl Extent {
    /// Samples and times of a stream; `None` if it has no samples.
    fn read(reading: &Reading, stream: u32) -> Found<Option<Self>> {
        reading.check_stream(stream)?;
        let count = reading.index.block_count(stream)?;
        let mut first = None;
        for number in 0..count {
            let block = reading.block(stream, number)?;
            let entry = block.entry()?;
            if number == 0 && entry.begin != Checkpoint::default() && !reading.losses.any() {
                return Err(Fault::Index("a thread does not begin where it should"));
            }
            if entry.samples > 0 {
                first = Some(entry.first_ns);
                break;
            }
        }
        let Some(first_ns) = first else { return Ok(None) };
        // Both count the samples that are lost, too.
        let (samples, last_ns) = match reading.index.call(stream, 0)? {
            Some(row) => (row.samples, row.last_ns),
            None => {
                let last = reading.block(stream, count - 1)?;
                let entry = last.entry()?;
                (entry.begin.samples + entry.samples, entry.last_ns)
            }
        };
        let lost = reading.losses.samples_of(stream);
        Ok(Some(Self { samples: samples.saturating_sub(lost), first_ns, last_ns }))
    }
}

/// Compares what the index knows with what the end of the data says there is.
fn check_end(reading: &Reading, summaries: &[ThreadSummary]) -> Found<()> {
    let last = reading.index.last_frame()?.ok_or(Fault::Index("the index has no frames"))?;
    let directory = reading.source.directory(last.offset)?;
    let blocks = directory.blocks.last();
    let end = blocks.map_or(0, |(at, entry)| at + entry.bytes as usize);
    if end >= directory.header.payload_bytes() {
        return Err(Fault::Index("the last frame has no end"));
    }
    let (bytes, base) = reading.source.payload(&directory, end)?;
    let mut cursor = Cursor::new(&bytes);
    cursor.skip_to(end - base);
    let Ok(Record::Eof { samples, threads, objects }) = Record::decode(&mut cursor) else {
        return Err(Fault::Index("the last frame has no end"));
    };
    let found: u64 = summaries.iter().map(|summary| summary.samples).sum();
    let cells: u64 = NEUTRAL_KINDS.iter().map(|kind| reading.index.neutral_rows(*kind)).sum();
    if (found, summaries.len(), cells) == (samples, threads as usize, objects.into()) {
        return Ok(());
    }
    Err(Fault::Index("the index does not have all that the data has"))
}
