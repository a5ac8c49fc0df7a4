//! What an index says, as tables: in memory, or in the pages of a sorted index file.

use std::collections::BTreeMap;

use super::cell::RawCell;
use crate::trace::NO_THREAD;
use crate::trace::checkpoint::BlockEntry;
use crate::trace::codec::Codec;
use crate::trace::frame::FrameHeader;
use crate::trace::kind::Kind;

/// Kinds of thread-neutral objects that have a table; LONG_STRING is in that of STRING.
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

/// The place of a kind in [`NEUTRAL_KINDS`].
pub(in crate::trace) fn neutral_place(kind: Kind) -> Option<usize> {
    let kind = if kind == Kind::LongString { Kind::String } else { kind };
    NEUTRAL_KINDS.iter().position(|known| *known == kind)
}

/// A frame of the data file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::trace) struct FrameRow {
    /// Its offset.
    pub(in crate::trace) offset: u64,
    /// Offset of the byte behind it.
    pub(in crate::trace) end: u64,
    /// The checksum in its header.
    pub(in crate::trace) crc: u32,
}

impl FrameRow {
    /// Whether a position lies in it, as far as the row tells.
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
    /// It begins with BLOCK_START.
    pub(in crate::trace) first: bool,
    /// Position of its first byte.
    pub(in crate::trace) start: u64,
    /// Position of its last byte.
    pub(in crate::trace) end: u64,
    /// Logical offset of its first byte of data.
    pub(in crate::trace) logical: u64,
    /// Time of its first sample; without one, of the last before it.
    pub(in crate::trace) first_ns: u64,
    /// Samples in it.
    pub(in crate::trace) samples: u32,
}

impl BlockRow {
    /// The row of a block's cell and the BLOCK_SPAN behind it.
    pub(super) fn of_cells(block: RawCell, span: RawCell) -> Self {
        Self {
            first: block.is(Kind::BlockStart),
            start: block.start,
            end: block.end,
            logical: span.start,
            first_ns: span.end,
            samples: span.id,
        }
    }

    /// Whether it can be the next of a stream after `before`.
    pub(super) fn follows(&self, before: &Self) -> bool {
        self.start > before.end
            && self.logical >= before.logical
            && self.first_ns >= before.first_ns
    }
}

/// A call, or with start 0 a whole stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::trace) struct CallRow {
    /// Logical offset of the first byte of its content.
    pub(in crate::trace) start: u64,
    /// Logical offset of its footer.
    pub(in crate::trace) end: u64,
    /// Its children.
    pub(in crate::trace) children: u32,
    /// Samples in it and in all calls below it.
    pub(in crate::trace) samples: u64,
    /// Time of the last sample in it; without one, of the last before it.
    pub(in crate::trace) last_ns: u64,
}

impl CallRow {
    /// The row of a call's cell and the CALL_SUMMARY behind it.
    pub(super) fn of_cells(call: RawCell, summary: RawCell) -> Self {
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
    /// By logical offset.
    pub(in crate::trace) blocks: Vec<BlockRow>,
    /// By start.
    pub(in crate::trace) calls: Vec<CallRow>,
}

/// An index in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::trace) struct Tables {
    /// By offset.
    pub(in crate::trace) frames: Vec<FrameRow>,
    /// Kind, id and position of the thread-neutral objects, by place in [`NEUTRAL_KINDS`], in the
    /// order of id and position.
    pub(in crate::trace) neutral: [Vec<(Kind, u32, u64)>; NEUTRAL_KINDS.len()],
    /// By stream.
    pub(in crate::trace) streams: BTreeMap<u32, StreamTables>,
}

impl Tables {
    /// Adds a frame; they come by offset.
    pub(in crate::trace) fn add_frame(&mut self, header: &FrameHeader) {
        let (offset, end) = (header.offset, header.offset + header.total_bytes());
        self.frames.push(FrameRow { offset, end, crc: header.crc() });
    }

    /// Adds a block, or a part of one, that lies at `at` in the payload of a frame. Those of a
    /// stream come by logical offset; that of thread-neutral objects has no row.
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
        if let Some(place) = neutral_place(kind) {
            self.neutral[place].push((kind, id, position));
        }
    }

    /// Adds a call; [`Self::sort`] follows when all are there.
    pub(in crate::trace) fn add_call(&mut self, stream: u32, call: CallRow) {
        self.streams.entry(stream).or_default().calls.push(call);
    }

    /// Brings calls (which come in the order of their ends) and objects (which may be written
    /// again) into the order of their tables.
    pub(in crate::trace) fn sort(&mut self) {
        for table in &mut self.neutral {
            table.sort_unstable_by_key(|(_, id, position)| (*id, *position));
        }
        for stream in self.streams.values_mut() {
            stream.calls.sort_unstable_by_key(|call| call.start);
        }
    }
}
