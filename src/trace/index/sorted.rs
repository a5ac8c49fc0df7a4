//! Writer of sorted index files.
//!
//! # Invariants
//! - Equal tables give equal bytes.
//! - The memory use beside the tables is one page and four bytes per page.

use std::io::{self, Write};

use super::cell::{self, CELL_BYTES, Cell, UNUSED};
use super::pages::PAGE_BYTES;
use super::tables::{BlockRow, CallRow, IndexTables, NEUTRAL_KINDS, StreamTables};
use crate::trace::kind::Kind;
use crate::trace::output::Identity;
use crate::trace::{HEADER_BYTES, INDEX_MAGIC, NO_THREAD, file_header};

/// The offset of the TABLE cells.
pub(super) const TABLES_AT: u64 = (HEADER_BYTES + 2 * CELL_BYTES) as u64;
/// The number of TABLE cells that do not belong to streams.
pub(super) const FIXED_TABLES: usize = 1 + NEUTRAL_KINDS.len();

/// The identity of the data file that an index belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::trace) struct Stamp {
    pub(in crate::trace) identity: Identity,
    /// The checksum in the header of the first frame.
    pub(in crate::trace) first_crc: u32,
    /// The number of bytes of the data file that were read. What follows the end of a complete
    /// trace does not count.
    pub(in crate::trace) covered: u64,
}

/// Writes a sorted index. Returns its size in bytes.
pub(in crate::trace) fn write(
    tables: &IndexTables,
    stamp: &Stamp,
    out: &mut dyn Write,
) -> io::Result<u64> {
    let mut paged = Paged { out, page: Vec::with_capacity(PAGE_BYTES), checksums: Vec::new() };
    paged.put(&file_header(INDEX_MAGIC))?;
    let Stamp { identity, first_crc, covered } = *stamp;
    for cell in cell::identity(identity, first_crc, Some(covered)) {
        paged.cell(cell)?;
    }
    for cell in table_cells(tables) {
        paged.cell(cell)?;
    }
    for frame in &tables.frames {
        let (id, start, end) = (frame.crc, frame.offset, frame.end);
        paged.cell(Cell { kind: Kind::Frame, id, start, end })?;
    }
    for (kind, id, start) in tables.neutral.iter().flatten() {
        paged.cell(Cell { kind: *kind, id: *id, start: *start, end: UNUSED })?;
    }
    for (stream, StreamTables { blocks, calls }) in of_threads(tables) {
        for block in blocks {
            block_cells(stream, block).into_iter().try_for_each(|cell| paged.cell(cell))?;
        }
        for call in calls {
            call_cells(stream, call).into_iter().try_for_each(|cell| paged.cell(cell))?;
        }
    }
    paged.finish()
}

/// Returns the size in bytes of a sorted index before its checksums.
pub(super) fn size(tables: &IndexTables) -> u64 {
    let end = |last: &Cell| last.start + last.end * CELL_BYTES as u64;
    table_cells(tables).last().map_or(0, end)
}

fn of_threads(tables: &IndexTables) -> impl Iterator<Item = (u32, &StreamTables)> {
    tables
        .streams
        .iter()
        .map(|(stream, tables)| (*stream, tables))
        .filter(|(stream, _)| *stream != NO_THREAD)
}

/// Returns the TABLE cells, which locate the cells that follow.
fn table_cells(tables: &IndexTables) -> Vec<Cell> {
    let neutral = NEUTRAL_KINDS.iter().zip(&tables.neutral);
    let mut counts = vec![(Kind::Frame as u32, tables.frames.len())];
    counts.extend(neutral.map(|(kind, rows)| (*kind as u32, rows.len())));
    for (stream, StreamTables { blocks, calls }) in of_threads(tables) {
        counts.extend([(stream, 2 * blocks.len()), (stream, 2 * calls.len())]);
    }
    let mut start = TABLES_AT + (counts.len() * CELL_BYTES) as u64;
    let cells = counts.into_iter().map(|(id, cells)| {
        let table = Cell { kind: Kind::Table, id, start, end: cells as u64 };
        start += (cells * CELL_BYTES) as u64;
        table
    });
    cells.collect()
}

fn block_cells(stream: u32, block: &BlockRow) -> [Cell; 2] {
    let kind = if block.first { Kind::BlockStart } else { Kind::BlockPart };
    let BlockRow { start, end, logical, first_ns, samples, .. } = *block;
    [
        Cell { kind, id: stream, start, end },
        Cell { kind: Kind::BlockSpan, id: samples, start: logical, end: first_ns },
    ]
}

fn call_cells(stream: u32, call: &CallRow) -> [Cell; 2] {
    let CallRow { start, end, children, samples, last_ns } = *call;
    [
        Cell { kind: Kind::Call, id: stream, start, end },
        Cell { kind: Kind::CallSummary, id: children, start: samples, end: last_ns },
    ]
}

/// A writer that computes the checksums of the pages.
struct Paged<'a> {
    out: &'a mut dyn Write,
    page: Vec<u8>,
    checksums: Vec<u32>,
}

impl Paged<'_> {
    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = bytes.len().min(PAGE_BYTES - self.page.len());
            self.page.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.page.len() == PAGE_BYTES {
                self.end_page()?;
            }
        }
        Ok(())
    }

    fn cell(&mut self, cell: Cell) -> io::Result<()> {
        self.put(&cell.bytes())
    }

    fn end_page(&mut self) -> io::Result<()> {
        self.checksums.push(crc32fast::hash(&self.page));
        self.out.write_all(&self.page)?;
        self.page.clear();
        Ok(())
    }

    /// Writes the checksums and the end of the index.
    fn finish(mut self) -> io::Result<u64> {
        let end = (self.checksums.len() * PAGE_BYTES + self.page.len()) as u64;
        if !self.page.is_empty() {
            self.end_page()?;
        }
        let tail = tail(end, &self.checksums);
        self.out.write_all(&tail)?;
        Ok(end + tail.len() as u64)
    }
}

/// Returns the PAGE cells of pages that end at `end`, the SEAL, the EOF and the magic.
pub(super) fn tail(end: u64, checksums: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((checksums.len() + 2) * CELL_BYTES + 8);
    let mut start = 0;
    for id in checksums {
        let len = (end - start).min(PAGE_BYTES as u64);
        Cell { kind: Kind::Page, id: *id, start, end: len }.encode(&mut bytes);
        start += len;
    }
    let sealed = bytes.len();
    let mut seal = Cell { kind: Kind::Seal, id: 0, start: end, end: checksums.len() as u64 };
    seal.encode(&mut bytes);
    seal.id = crc32fast::hash(&bytes);
    bytes.truncate(sealed);
    seal.encode(&mut bytes);
    bytes.extend_from_slice(&cell::footer());
    bytes
}
