//! The state of a stream between two objects, and its encoding in a frame's directory.
//!
//! A stream is the sequence of one thread's trace points. A thread has a main stream, and a side
//! stream for samples whose outer frames are unknown. Writer and reader track the same state. Each
//! block carries the state at its start, so a reader can decode it without the earlier blocks.

use super::bytes::{Cursor, ParseResult, put_varint};
use super::{LocationId, MAX_DEPTH, NO_THREAD};

/// The size of a BLOCK_START in bytes.
pub(super) const BLOCK_START_BYTES: usize = 5;
const SPLIT_NEUTRAL_BLOCK: &str = "a block of thread-neutral objects continues in another frame";

/// An open call without its location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenCall {
    /// The logical offset of the first byte of its content.
    pub(super) start: u64,
    /// The number of samples of the stream before the call.
    pub(super) samples_before: u64,
}

/// The state of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Checkpoint {
    /// The logical offset of the next byte.
    pub(super) logical: u64,
    /// The time of the last sample.
    pub(super) last_ns: u64,
    /// The number of samples so far.
    pub(super) samples: u64,
    /// In a side stream: the number of samples of the main stream before the last sample of this
    /// stream.
    pub(super) main_before: u64,
    /// The locations of the open calls, root first.
    pub(super) locations: Vec<LocationId>,
    /// The open calls in the same order.
    pub(super) calls: Vec<OpenCall>,
}

impl Checkpoint {
    pub(super) fn depth(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn push(&mut self, location: LocationId, start: u64) {
        self.locations.push(location);
        self.calls.push(OpenCall { start, samples_before: self.samples });
    }

    pub(super) fn truncate(&mut self, depth: usize) {
        self.locations.truncate(depth);
        self.calls.truncate(depth);
    }
}

/// The ends of a block that a frame holds. A block may continue over consecutive frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    /// Whether the part begins with BLOCK_START.
    pub(super) first: bool,
    /// Whether the part ends with BLOCK_END.
    pub(super) last: bool,
}

impl Ends {
    /// The ends of a block that is complete in one frame.
    pub(super) const BOTH: Self = Self { first: true, last: true };

    fn word(self) -> u64 {
        u64::from(self.first) | u64::from(self.last) << 1
    }
}

/// The directory entry of a block, or of the part of a block in this frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockEntry {
    /// The thread id, with [`super::SIDE`] for a side stream, or [`NO_THREAD`].
    pub(super) stream: u32,
    /// The ends of the block in this frame.
    pub(super) ends: Ends,
    /// The number of bytes, including BLOCK_START and BLOCK_END.
    pub(super) bytes: u32,
    /// The interval that sample times are relative to.
    pub(super) tick_ns: u64,
    /// The time of the first sample in the block; without samples, the time of the last sample
    /// before the block.
    pub(super) first_ns: u64,
    /// The time of the last sample in or before the block.
    pub(super) last_ns: u64,
    /// The number of samples in the block.
    pub(super) samples: u64,
    /// The state of the stream at the start of the block.
    pub(super) begin: Checkpoint,
}

impl BlockEntry {
    /// Creates the entry of a block of thread-neutral objects.
    pub(super) fn neutral(bytes: u32) -> Self {
        let begin = Checkpoint::default();
        let ends = Ends::BOTH;
        let stream = NO_THREAD;
        Self { stream, ends, bytes, tick_ns: 0, first_ns: 0, last_ns: 0, samples: 0, begin }
    }

    /// Returns the size of BLOCK_START, or 0 if this part has none.
    pub(super) fn head_bytes(&self) -> usize {
        if self.ends.first { BLOCK_START_BYTES } else { 0 }
    }

    /// Returns the number of bytes of stream data in the block.
    pub(super) fn data_bytes(&self) -> u64 {
        let ends = self.head_bytes() + usize::from(self.ends.last);
        u64::from(self.bytes).saturating_sub(ends as u64)
    }

    /// Returns an estimate above the encoded size.
    pub(super) fn size_hint(&self) -> usize {
        64 + self.begin.depth() * 12
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.stream.into());
        put_varint(out, self.ends.word());
        put_varint(out, self.bytes.into());
        if self.stream == NO_THREAD {
            return;
        }
        let begin = &self.begin;
        put_varint(out, self.tick_ns);
        put_varint(out, begin.last_ns);
        put_varint(out, self.first_ns - begin.last_ns);
        put_varint(out, self.last_ns - self.first_ns);
        put_varint(out, self.samples);
        put_varint(out, begin.samples);
        put_varint(out, begin.main_before);
        put_varint(out, begin.logical);
        put_varint(out, begin.depth() as u64);
        let mut outer = OpenCall { start: 0, samples_before: 0 };
        for (location, call) in begin.locations.iter().zip(&begin.calls) {
            put_varint(out, location.0.into());
            put_varint(out, call.start - outer.start);
            put_varint(out, call.samples_before - outer.samples_before);
            outer = *call;
        }
    }

    pub(super) fn decode(cursor: &mut Cursor<'_>) -> ParseResult<Self> {
        let stream = cursor.varint32()?;
        let ends = match cursor.varint()? {
            word @ 0..4 => Ends { first: word & 1 != 0, last: word & 2 != 0 },
            _ => return cursor.fail("a block has unknown end flags"),
        };
        let bytes = cursor.varint32()?;
        if stream == NO_THREAD {
            let complete = ends == Ends::BOTH;
            return if complete {
                Ok(Self::neutral(bytes))
            } else {
                cursor.fail(SPLIT_NEUTRAL_BLOCK)
            };
        }
        let tick_ns = cursor.varint()?;
        let mut begin = Checkpoint { last_ns: cursor.varint()?, ..Checkpoint::default() };
        let first_ns = add(cursor, begin.last_ns)?;
        let last_ns = add(cursor, first_ns)?;
        let samples = cursor.varint()?;
        begin.samples = cursor.varint()?;
        begin.main_before = cursor.varint()?;
        begin.logical = cursor.varint()?;
        let depth = cursor.varint()?;
        if depth > MAX_DEPTH as u64 {
            return cursor.fail("a block begins with too many open calls");
        }
        let mut outer = OpenCall { start: 0, samples_before: 0 };
        for _ in 0..depth {
            begin.locations.push(LocationId(cursor.varint32()?));
            let start = add(cursor, outer.start)?;
            let samples_before = add(cursor, outer.samples_before)?;
            outer = OpenCall { start, samples_before };
            begin.calls.push(outer);
        }
        if outer.start > begin.logical || outer.samples_before > begin.samples {
            return cursor.fail("an open call begins after its block");
        }
        Ok(Self { stream, ends, bytes, tick_ns, first_ns, last_ns, samples, begin })
    }
}

/// Returns `base` plus the next varint.
fn add(cursor: &mut Cursor<'_>, base: u64) -> ParseResult<u64> {
    match base.checked_add(cursor.varint()?) {
        Some(sum) => Ok(sum),
        None => cursor.fail("a number in a directory overflows"),
    }
}
