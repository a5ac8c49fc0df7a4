//! The contents of an index as tables: in memory, or in the pages of a sorted index file.

use std::collections::BTreeMap;

use super::cell::RawCell;
use crate::trace::NO_THREAD;
use crate::trace::checkpoint::BlockEntry;
use crate::trace::codec::Codec;
use crate::trace::frame::FrameHeader;
use crate::trace::kind::Kind;

/// The kinds of thread-neutral objects that have a table; LONG_STRING is in that of STRING.
pub(in crate::trace) const NEUTRAL_KINDS: [Kind; 9] = [
    Kind::String,
    Kind::Module,
    Kind::Method,
    Kind::Location,
    Kind::StackNode,
    Kind::CallTrace,
    Kind::Thread,
    Kind::Mapping,
    Kind::Metadata,
];

/// Returns the position of a kind in [`NEUTRAL_KINDS`].
pub(in crate::trace) fn neutral_kind_index(kind: Kind) -> Option<usize> {
    let kind = if kind == Kind::LongString { Kind::String } else { kind };
    NEUTRAL_KINDS.iter().position(|known| *known == kind)
}

/// A frame of the data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::trace) struct FrameRow {
    /// The offset of the frame.
    pub(in crate::trace) offset: u64,
    /// The offset of the first byte after the frame.
    pub(in crate::trace) end: u64,
    /// The checksum in the frame's header.
    pub(in crate::trace) crc: u32,
}

impl FrameRow {
    /// Returns whether a position is in the frame, as far as the row tells.
    pub(super) fn holds(&self, position: u64, codec: Codec) -> bool {
        match codec {
            Codec::Plain => position > self.offset && position < self.end,
            Codec::Zstd | Codec::Columns => position >> 24 == self.offset,
        }
    }
}

/// A block of a thread, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::trace) struct BlockRow {
    /// Whether it starts with BLOCK_START.
    pub(in crate::trace) first: bool,
    /// The position of its first byte.
    pub(in crate::trace) start: u64,
    /// The position of its last byte.
    pub(in crate::trace) end: u64,
    /// The logical offset of its first byte of data.
    pub(in crate::trace) logical: u64,
    /// The time of its first sample; without samples, that of the last sample before it.
    pub(in crate::trace) first_ns: u64,
    /// The number of samples in it.
    pub(in crate::trace) samples: u32,
}

impl BlockRow {
    /// Creates the row from a block's cell and the BLOCK_SPAN after it.
    pub(super) fn from_cells(block: RawCell, span: RawCell) -> Self {
        Self {
            first: block.is(Kind::BlockStart),
            start: block.start,
            end: block.end,
            logical: span.start,
            first_ns: span.end,
            samples: span.id,
        }
    }

    /// Returns whether this block can follow `before` in a stream.
    pub(super) fn follows(&self, before: &Self) -> bool {
        self.start > before.end
            && self.logical >= before.logical
            && self.first_ns >= before.first_ns
    }
}

/// A call; with start 0, a complete stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::trace) struct CallRow {
    /// The logical offset of the first byte of its content.
    pub(in crate::trace) start: u64,
    /// The logical offset of its footer.
    pub(in crate::trace) end: u64,
    /// The number of its children.
    pub(in crate::trace) children: u32,
    /// The number of samples in it and in all calls below it.
    pub(in crate::trace) samples: u64,
    /// The time of the last sample in it; without samples, that of the last sample before it.
    pub(in crate::trace) last_ns: u64,
}

impl CallRow {
    /// Creates the row from a call's cell and the CALL_SUMMARY after it.
    pub(super) fn from_cells(call: RawCell, summary: RawCell) -> Self {
        Self {
            start: call.start,
            end: call.end,
            children: summary.id,
            samples: summary.start,
            last_ns: summary.end,
        }
    }
}

/// The rows of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::trace) struct StreamTables {
    /// The blocks by logical offset.
    pub(in crate::trace) blocks: Vec<BlockRow>,
    /// The calls by start.
    pub(in crate::trace) calls: Vec<CallRow>,
}

/// An index in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::trace) struct IndexTables {
    /// The frames by offset.
    pub(in crate::trace) frames: Vec<FrameRow>,
    /// The kind, id and position of each thread-neutral object, sorted by id and position. The
    /// tables have the order of [`NEUTRAL_KINDS`].
    pub(in crate::trace) neutral: [Vec<(Kind, u32, u64)>; NEUTRAL_KINDS.len()],
    /// The tables of each stream.
    pub(in crate::trace) streams: BTreeMap<u32, StreamTables>,
}

impl IndexTables {
    /// Adds a frame; frames are added by offset.
    pub(in crate::trace) fn add_frame(&mut self, header: &FrameHeader) {
        let (offset, end) = (header.offset, header.offset + header.total_bytes());
        self.frames.push(FrameRow { offset, end, crc: header.crc() });
    }

    /// Adds the block, or the part of a block, at offset `at` in the payload of a frame. The blocks
    /// of a stream are added by logical offset. A block of thread-neutral objects has no row.
    pub(in crate::trace) fn add_block(
        &mut self,
        header: &FrameHeader,
        at: usize,
        entry: &BlockEntry,
    ) {
        if entry.stream == NO_THREAD {
            return;
        }
        self.streams.entry(entry.stream).or_default().blocks.push(BlockRow {
            first: entry.ends.first,
            start: header.position(at),
            end: header.position(at + (entry.bytes as usize).saturating_sub(1)),
            logical: entry.begin.logical,
            first_ns: entry.first_ns,
            samples: u32::try_from(entry.samples).unwrap_or(u32::MAX),
        });
    }

    /// Adds a thread-neutral object at a position.
    pub(in crate::trace) fn add_neutral(&mut self, kind: Kind, id: u32, position: u64) {
        if let Some(place) = neutral_kind_index(kind) {
            self.neutral[place].push((kind, id, position));
        }
    }

    /// Adds a call. After the last one the caller calls [`Self::sort`].
    pub(in crate::trace) fn add_call(&mut self, stream: u32, call: CallRow) {
        self.streams.entry(stream).or_default().calls.push(call);
    }

    /// Sorts the calls, which were added in the order of their ends, and the objects, which may
    /// have been written repeatedly.
    pub(in crate::trace) fn sort(&mut self) {
        for table in &mut self.neutral {
            table.sort_unstable_by_key(|(_, id, position)| (*id, *position));
        }
        for stream in self.streams.values_mut() {
            stream.calls.sort_unstable_by_key(|call| call.start);
        }
    }
}
