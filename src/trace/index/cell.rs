//! Cells of 21 bytes, and the cells that describe a frame.

use crate::trace::bytes::put_u64;
use crate::trace::checkpoint::BlockEntry;
use crate::trace::frame::FrameHeader;
use crate::trace::kind::Kind;
use crate::trace::output::Identity;
use crate::trace::{INDEX_MAGIC, NO_THREAD};

/// The size of a cell in bytes.
pub(in crate::trace) const CELL_BYTES: usize = 21;
/// The value of an unused offset.
pub(in crate::trace) const UNUSED: u64 = u64::MAX;

/// A cell to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::trace) struct Cell {
    pub(in crate::trace) kind: Kind,
    pub(in crate::trace) id: u32,
    pub(in crate::trace) start: u64,
    pub(in crate::trace) end: u64,
}

impl Cell {
    pub(in crate::trace) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    /// Returns the encoded cell.
    pub(super) fn bytes(&self) -> [u8; CELL_BYTES] {
        let mut bytes = [0; CELL_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1..5].copy_from_slice(&self.id.to_be_bytes());
        bytes[5..13].copy_from_slice(&self.start.to_be_bytes());
        bytes[13..].copy_from_slice(&self.end.to_be_bytes());
        bytes
    }
}

/// A cell that was read. Its kind may be one of a later version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawCell {
    pub(super) number: u8,
    pub(super) id: u32,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl RawCell {
    /// Decodes a cell from the first [`CELL_BYTES`] of `bytes`. If there are fewer bytes, returns a
    /// cell of the invalid kind 0.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        Self::parse(bytes).unwrap_or(Self { number: 0, id: 0, start: 0, end: 0 })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first()?;
        let (id, rest) = rest.split_first_chunk()?;
        let (start, rest) = rest.split_first_chunk()?;
        let (end, _) = rest.split_first_chunk()?;
        Some(Self {
            number: *number,
            id: u32::from_be_bytes(*id),
            start: u64::from_be_bytes(*start),
            end: u64::from_be_bytes(*end),
        })
    }

    pub(super) fn is(&self, kind: Kind) -> bool {
        self.number == kind as u8
    }

    pub(super) fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.number)
    }
}

/// Returns the first two cells: salt and first frame of the trace, and its UUID. `covered` is the
/// number of bytes of the data file that a sorted index covers.
pub(in crate::trace) fn identity(
    identity: Identity,
    first_crc: u32,
    covered: Option<u64>,
) -> [Cell; 2] {
    let Identity { salt, uuid } = identity;
    let end = covered.unwrap_or(UNUSED);
    let frame = Cell { kind: Kind::Identity, id: first_crc, start: salt, end };
    let (start, end) = ((uuid >> 64) as u64, uuid as u64);
    [frame, Cell { kind: Kind::Identity, id: u32::MAX, start, end }]
}

/// Returns the first cell of a group: the frame that the group describes.
pub(in crate::trace) fn frame(header: &FrameHeader) -> Cell {
    let (start, end) = (header.offset, header.offset + header.total_bytes());
    Cell { kind: Kind::Frame, id: header.crc(), start, end }
}

/// Returns the cells of the block, or the part of a block, at offset `at` in the payload of a
/// frame.
pub(in crate::trace) fn block(header: &FrameHeader, at: usize, entry: &BlockEntry) -> Vec<Cell> {
    let kind = if entry.ends.first { Kind::BlockStart } else { Kind::BlockPart };
    let start = header.position(at);
    let end = header.position(at + (entry.bytes as usize).saturating_sub(1));
    let block = Cell { kind, id: entry.stream, start, end };
    if entry.stream == NO_THREAD {
        return vec![block];
    }
    let samples = u32::try_from(entry.samples).unwrap_or(u32::MAX);
    let (start, end) = (entry.begin.logical, entry.first_ns);
    vec![block, Cell { kind: Kind::BlockSpan, id: samples, start, end }]
}

/// Encodes a GROUP cell and the `cells` of the frame at `frame_offset`.
pub(in crate::trace) fn group(frame_offset: u64, cells: &[Cell]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((cells.len() + 1) * CELL_BYTES);
    let mut head = Cell { kind: Kind::Group, id: 0, start: frame_offset, end: cells.len() as u64 };
    head.encode(&mut bytes);
    cells.iter().for_each(|cell| cell.encode(&mut bytes));
    head.id = crc32fast::hash(&bytes);
    bytes[..CELL_BYTES].copy_from_slice(&head.bytes());
    bytes
}

/// Returns the end of a complete index.
pub(in crate::trace) fn footer() -> Vec<u8> {
    let end = Cell { kind: Kind::Eof, id: u32::MAX, start: UNUSED, end: UNUSED };
    let mut bytes = end.bytes().to_vec();
    put_u64(&mut bytes, INDEX_MAGIC);
    bytes
}
