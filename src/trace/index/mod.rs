//! The index file: cells of 21 bytes.
//!
//! After the header lies an IDENTITY cell, then per frame of the data file one GROUP cell and the
//! cells that it counts; a complete index ends with an EOF cell and the magic once more.
//!
//! # Invariants
//! - A group is written after its frame, so that no cell points at what is not there.
//! - The checksum of a group is in the id of its GROUP cell.

pub(in crate::trace) mod tables;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use crate::trace::bytes::{Cursor, put_u32, put_u64};
use crate::trace::checkpoint::BlockEntry;
use crate::trace::frame::FrameHeader;
use crate::trace::frames::{open_regular, read_up_to};
use crate::trace::kind::Kind;
use crate::trace::output::Identity;
use crate::trace::{HEADER_BYTES, INDEX_MAGIC, NO_THREAD, TraceError};

/// Bytes of a cell.
pub(in crate::trace) const CELL_BYTES: usize = 21;
/// An offset that is not used.
pub(in crate::trace) const UNUSED: u64 = u64::MAX;

/// A cell as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::trace) struct Cell {
    pub(in crate::trace) kind: Kind,
    pub(in crate::trace) id: u32,
    pub(in crate::trace) start: u64,
    pub(in crate::trace) end: u64,
}

impl Cell {
    pub(in crate::trace) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8);
        put_u32(out, self.id);
        put_u64(out, self.start);
        put_u64(out, self.end);
    }
}

/// The first two cells: salt and first frame of the trace, and its UUID.
pub(in crate::trace) fn identity(identity: Identity, first: &FrameHeader) -> [Cell; 2] {
    let Identity { salt, uuid } = identity;
    let frame = Cell { kind: Kind::Identity, id: first.crc(), start: salt, end: UNUSED };
    let (start, end) = ((uuid >> 64) as u64, uuid as u64);
    [frame, Cell { kind: Kind::Identity, id: u32::MAX, start, end }]
}

/// The first cell of a group: the frame that it belongs to.
pub(in crate::trace) fn frame(header: &FrameHeader) -> Cell {
    let (start, end) = (header.offset, header.offset + header.total_bytes());
    Cell { kind: Kind::Frame, id: header.crc(), start, end }
}

/// The cells of the block, or the part of one, that lies at `at` in the payload of a frame.
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

/// A GROUP cell and `cells`, which belong to the frame at `frame_offset`.
pub(in crate::trace) fn group(frame_offset: u64, cells: &[Cell]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((cells.len() + 1) * CELL_BYTES);
    let mut head = Cell { kind: Kind::Group, id: 0, start: frame_offset, end: cells.len() as u64 };
    head.encode(&mut bytes);
    cells.iter().for_each(|cell| cell.encode(&mut bytes));
    head.id = crc32fast::hash(&bytes);
    let mut sealed = Vec::with_capacity(CELL_BYTES);
    head.encode(&mut sealed);
    bytes[..CELL_BYTES].copy_from_slice(&sealed);
    bytes
}

/// The end of a complete index.
pub(in crate::trace) fn footer() -> Vec<u8> {
    let mut bytes = Vec::new();
    Cell { kind: Kind::Eof, id: u32::MAX, start: UNUSED, end: UNUSED }.encode(&mut bytes);
    put_u64(&mut bytes, INDEX_MAGIC);
    bytes
}

/// A cell of an index as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexCell {
    /// Number of its kind.
    pub kind: u8,
    /// Name of its kind, `unknown` for a kind that this version does not know.
    pub kind_name: &'static str,
    /// Id of the object; for a block and a call the thread, for a group its checksum.
    pub id: u32,
    /// Start offset, -1 if not used.
    pub start: i64,
    /// End offset, -1 if not used.
    pub end: i64,
}

/// The cells of the index file at `path`, in file order. The checksum of each group is compared; a
/// wrong one is the last item. An index whose recording was killed ends without its EOF cell.
pub fn dump_index(
    path: &Path,
) -> Result<impl Iterator<Item = Result<IndexCell, TraceError>>, TraceError> {
    let mut input = open_regular(path)?;
    let header = read_up_to(&mut input, HEADER_BYTES as u64)
        .map_err(|source| TraceError::read(path, source))?;
    crate::trace::check_header(&header, INDEX_MAGIC, path)?;
    Ok(Cells { input, path: path.to_owned(), at: HEADER_BYTES as u64, group: None, ended: false })
}

/// A group whose cells are being read.
#[derive(Debug)]
struct OpenGroup {
    left: u64,
    crc: u32,
    hasher: crc32fast::Hasher,
}

#[derive(Debug)]
struct Cells {
    input: BufReader<File>,
    path: PathBuf,
    at: u64,
    group: Option<OpenGroup>,
    ended: bool,
}

impl Iterator for Cells {
    type Item = Result<IndexCell, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let cell = self.read_cell();
        self.ended |= !matches!(cell, Ok(Some(_)));
        cell.transpose()
    }
}

impl Cells {
    fn read_cell(&mut self) -> Result<Option<IndexCell>, TraceError> {
        let offset = self.at;
        let corrupt = |what| Err(TraceError::Corrupt { offset, what });
        let bytes = read_up_to(&mut self.input, CELL_BYTES as u64)
            .map_err(|source| TraceError::read(&self.path, source))?;
        self.at += bytes.len() as u64;
        if bytes.is_empty() {
            return match self.group.as_ref().is_some_and(|group| group.left > 0) {
                true => corrupt("the index ends within a group"),
                false => Ok(None),
            };
        }
        if bytes.len() < CELL_BYTES {
            return corrupt("the index ends within a cell");
        }
        let mut cursor = Cursor::new(&bytes);
        let fields = (|| Ok((cursor.u8()?, cursor.u32()?, cursor.u64()?, cursor.u64()?)))();
        let (number, id, start, end) = fields.map_err(|bad: crate::trace::bytes::Malformed| {
            TraceError::Corrupt { offset, what: bad.what }
        })?;
        let kind = Kind::from_number(number);
        if number == 0 {
            return corrupt("a cell has the kind 0");
        }
        match (&mut self.group, kind) {
            (Some(group), _) if group.left > 0 => {
                group.hasher.update(&bytes);
                group.left -= 1;
            }
            (_, Some(Kind::Group)) => self.open_group(&bytes, id, end),
            (_, Some(Kind::Eof)) => self.read_footer(offset)?,
            (_, Some(Kind::Identity)) if offset <= (HEADER_BYTES + CELL_BYTES) as u64 => {}
            _ => return corrupt("a cell lies in no group"),
        }
        if let Some(group) = self.group.take_if(|group| group.left == 0)
            && group.hasher.finalize() != group.crc
        {
            return corrupt("the checksum of a group is wrong");
        }
        let kind_name = kind.map_or("unknown", Kind::name);
        let (start, end) = (start as i64, end as i64);
        Ok(Some(IndexCell { kind: number, kind_name, id, start, end }))
    }

    fn open_group(&mut self, bytes: &[u8], crc: u32, left: u64) {
        let mut unsealed = bytes.to_vec();
        unsealed[1..5].fill(0);
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&unsealed);
        self.group = Some(OpenGroup { left, crc, hasher });
    }

    /// Checks what follows the EOF cell.
    fn read_footer(&mut self, offset: u64) -> Result<(), TraceError> {
        let rest = read_up_to(&mut self.input, 9)
            .map_err(|source| TraceError::read(&self.path, source))?;
        self.ended = true;
        if rest != INDEX_MAGIC.to_be_bytes() {
            let what = "the EOF cell is not followed by the magic alone";
            return Err(TraceError::Corrupt { offset, what });
        }
        Ok(())
    }
}
