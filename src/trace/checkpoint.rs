//! The state of a stream between two objects, and its form in a frame's directory.
//!
//! A stream is the sequence of one thread's trace points; a thread has a main stream, and a side
//! stream for samples whose outer frames are unknown. Writer and reader keep the same state; each
//! block carries the one at its begin, so that it can be decoded without those before it.

use super::bytes::{Cursor, Parsed, put_varint};
use super::{LocationId, MAX_DEPTH, NO_THREAD};

/// Bytes of a BLOCK_START.
pub(super) const BLOCK_START_BYTES: usize = 5;
const PARTED: &str = "a block of thread-neutral objects goes on in another frame";

/// An open call, beyond its location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenCall {
    /// Logical offset of its first byte of content.
    pub(super) start: u64,
    /// Samples of the stream before it.
    pub(super) samples_before: u64,
}

/// The state of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Checkpoint {
    /// Logical offset of the next byte.
    pub(super) logical: u64,
    /// Time of the last sample.
    pub(super) last_ns: u64,
    /// Samples so far.
    pub(super) samples: u64,
    /// Side stream: samples of the main stream before the last sample of this one.
    pub(super) main_before: u64,
    /// Where the open calls are, root first.
    pub(super) locations: Vec<LocationId>,
    /// The open calls, as many.
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

/// Which ends of a block a frame holds: a block may go on over consecutive frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    /// The part begins with BLOCK_START.
    pub(super) first: bool,
    /// The part ends with BLOCK_END.
    pub(super) last: bool,
}

impl Ends {
    /// Those of a block that lies in one frame.
    pub(super) const BOTH: Self = Self { first: true, last: true };

    fn word(self) -> u64 {
        u64::from(self.first) | u64::from(self.last) << 1
    }
}

/// A block, or the part of one that lies in this frame, as the frame's directory describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockEntry {
    /// Thread id, with [`super::SIDE`] for a side stream, or [`NO_THREAD`].
    pub(super) stream: u32,
    /// Which ends of the block it has.
    pub(super) ends: Ends,
    /// Bytes, BLOCK_START and BLOCK_END included.
    pub(super) bytes: u32,
    /// The interval that sample times are relative to.
    pub(super) tick_ns: u64,
    /// Time of the first sample in it; without one, of the last before it.
    pub(super) first_ns: u64,
    /// Time of the last sample in it, or before it.
    pub(super) last_ns: u64,
    /// Samples in it.
    pub(super) samples: u64,
    /// The state of the stream at its begin.
    pub(super) begin: Checkpoint,
}

impl BlockEntry {
    /// The entry of a block of thread-neutral objects.
    pub(super) fn neutral(bytes: u32) -> Self {
        let begin = Checkpoint::default();
        let ends = Ends::BOTH;
        let stream = NO_THREAD;
        Self { stream, ends, bytes, tick_ns: 0, first_ns: 0, last_ns: 0, samples: 0, begin }
    }

    /// Bytes of BLOCK_START, if it has one.
    pub(super) fn head_bytes(&self) -> usize {
        if self.ends.first { BLOCK_START_BYTES } else { 0 }
    }

    /// Bytes of the stream in it.
    pub(super) fn data_bytes(&self) -> u64 {
        let ends = self.head_bytes() + usize::from(self.ends.last);
        u64::from(self.bytes).saturating_sub(ends as u64)
    }

    /// More than its encoded size, within reason.
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

    pub(super) fn decode(cursor: &mut Cursor<'_>) -> Parsed<Self> {
        let stream = cursor.varint32()?;
        let ends = match cursor.varint()? {
            word @ 0..4 => Ends { first: word & 1 != 0, last: word & 2 != 0 },
            _ => return cursor.fail("a block has ends that do not exist"),
        };
        let bytes = cursor.varint32()?;
        if stream == NO_THREAD {
            let whole = ends == Ends::BOTH;
            return if whole { Ok(Self::neutral(bytes)) } else { cursor.fail(PARTED) };
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
            return cursor.fail("a block begins too deep");
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

/// `base` plus the next varint.
fn add(cursor: &mut Cursor<'_>, base: u64) -> Parsed<u64> {
    match base.checked_add(cursor.varint()?) {
        Some(sum) => Ok(sum),
        None => cursor.fail("a number in a directory overflows"),
    }
}
