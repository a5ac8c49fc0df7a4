//! The recorder's side of heaps of code: the tables of code that a runtime generates and frees.
//!
//! # Invariants
//! - The bytes of a table are reused only when no handler can read them: they were replaced before
//!   [`TableWriter::begin_grace`], and [`TableWriter::recycle`] followed.
//! - No segment has the table of code that is no longer there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use traceprof_abi::unwind::code_heap::{
    CodeHeap, CodeRows, HeapSpan, InterpreterLayout, PAGE_SEGMENTS,
};
use traceprof_abi::unwind::tables::Range as SnapshotRange;

use super::writer::{TableWriter, TablesFull};

/// Tables are allocated in multiples of this many bytes, so that freed ones fit again.
const TABLE_STEP: u64 = 64;
/// A freed table is reused for one of at least half its size.
const WASTE_MAX: u64 = 2;

/// A heap of code in the tables segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodeHeapRef(usize);

/// Memory of a table.
#[derive(Debug, Clone, Copy)]
struct TableArea {
    offset: u64,
    bytes: u64,
}

/// The table of a piece of code.
#[derive(Debug)]
struct PlacedCode {
    /// One past its last segment.
    end: usize,
    area: TableArea,
}

#[derive(Debug)]
struct PlacedHeap<'a> {
    offset: u64,
    heap: CodeHeap<'a>,
    /// The tables by their first segments.
    code: BTreeMap<usize, PlacedCode>,
}

/// The heaps of code in a tables segment, and the memory of their tables.
#[derive(Debug, Default)]
pub(super) struct CodeMemory<'a> {
    heaps: Vec<PlacedHeap<'a>>,
    /// Replaced tables that a handler may still read.
    retired: Vec<TableArea>,
    /// Of these, the ones that were replaced before the grace began.
    waiting: Vec<TableArea>,
    /// The offsets of free tables by their lengths.
    free: BTreeMap<u64, Vec<u64>>,
}

impl TableWriter<'_> {
    /// Adds a heap of code. Handlers see it with the next snapshot.
    pub fn add_code_heap(
        &mut self,
        span: HeapSpan,
        interpreter: InterpreterLayout,
    ) -> Result<CodeHeapRef, TablesFull> {
        let wanted = span.bytes().unwrap_or(u64::MAX);
        let offset = self.allocate(wanted)?;
        let full = TablesFull { wanted, left: 0 };
        self.clear(offset, wanted);
        let heap = CodeHeap::create(self.words, offset, span, interpreter).ok_or(full)?;
        self.code.heaps.push(PlacedHeap { offset, heap, code: BTreeMap::new() });
        Ok(CodeHeapRef(self.code.heaps.len() - 1))
    }

    /// Sets the table of the code in a block (AVMAs). It replaces what was known of the block's
    /// segments. A block outside the heap has no table.
    pub fn set_code(
        &mut self,
        heap: CodeHeapRef,
        block: &Range<u64>,
        code: &CodeRows<'_>,
    ) -> Result<(), TablesFull> {
        let placed = self.code.heaps[heap.0].heap;
        let Some(segments) = placed.span().segments(block) else { return Ok(()) };
        for page in placed.missing_pages(segments.clone()).collect::<Vec<_>>() {
            let offset = self.allocate(PAGE_SEGMENTS as u64 * 8)?;
            self.clear(offset, PAGE_SEGMENTS as u64 * 8);
            placed.publish_page(page, offset);
        }
        let area = self.table_area(code.bytes())?;
        let full = TablesFull { wanted: area.bytes, left: 0 };
        code.store(self.words, area.offset).ok_or(full)?;
        self.code.clear(heap, &segments, true);
        placed.publish(segments.clone(), area.offset);
        let code = PlacedCode { end: segments.end, area };
        self.code.heaps[heap.0].code.insert(segments.start, code);
        Ok(())
    }

    /// Removes the tables of the code in a block (AVMAs).
    pub fn remove_code(&mut self, heap: CodeHeapRef, block: &Range<u64>) {
        if let Some(segments) = self.code.heaps[heap.0].heap.span().segments(block) {
            self.code.clear(heap, &segments, false);
        }
    }

    /// Removes all heaps of code. Handlers see it with the next snapshot.
    pub fn remove_code_heaps(&mut self) {
        let areas = self.code.heaps.drain(..).flat_map(|heap| heap.code.into_values());
        self.code.retired.extend(areas.map(|code| code.area));
    }

    /// Begins the grace after which [`Self::recycle`] frees the tables of code that are replaced by
    /// now. The caller waits until no handler runs that started before.
    pub fn begin_grace(&mut self) {
        self.code.waiting.append(&mut self.code.retired);
    }

    /// Writes zeros where zeros are: a handler's first read of memory that is not present yet would
    /// allocate it.
    fn clear(&self, offset: u64, bytes: u64) {
        let words = self.words.iter().skip((offset / 8) as usize);
        for word in words.take((bytes / 8) as usize) {
            // Relaxed: published with the heap, or with the page.
            word.store(0, Ordering::Relaxed);
        }
    }

    fn table_area(&mut self, bytes: u64) -> Result<TableArea, TablesFull> {
        let bytes = bytes.next_multiple_of(TABLE_STEP);
        let mut fitting = self.code.free.range_mut(bytes..=bytes.saturating_mul(WASTE_MAX));
        let found = fitting.find_map(|(bytes, offsets)| Some((*bytes, offsets.pop()?)));
        match found {
            Some((bytes, offset)) => Ok(TableArea { offset, bytes }),
            None => Ok(TableArea { offset: self.allocate(bytes)?, bytes }),
        }
    }
}

impl CodeMemory<'_> {
    /// Retires the tables of these segments. Handlers keep the table of exactly these segments if
    /// another one follows at once.
    fn clear(&mut self, heap: CodeHeapRef, segments: &Range<usize>, is_followed: bool) {
        let PlacedHeap { heap, code, .. } = &mut self.heaps[heap.0];
        let before = code.range(..segments.start).next_back();
        let first = match before {
            Some((start, code)) if code.end > segments.start => *start,
            _ => segments.start,
        };
        let old: Vec<usize> = code.range(first..segments.end).map(|(start, _)| *start).collect();
        for start in old {
            let Some(old) = code.remove(&start) else { continue };
            if !is_followed || (start..old.end) != *segments {
                heap.publish(start..old.end, 0);
            }
            self.retired.push(old.area);
        }
    }

    pub(super) fn recycle(&mut self) {
        for TableArea { offset, bytes } in self.waiting.drain(..) {
            self.free.entry(bytes).or_default().push(offset);
        }
    }

    /// Puts the heaps in the place of the ranges there.
    pub(super) fn replace(&self, ranges: &mut Vec<SnapshotRange>) {
        for PlacedHeap { offset, heap, .. } in &self.heaps {
            let HeapSpan { low, high, .. } = heap.span();
            let mut above = Vec::new();
            for range in ranges.iter_mut().filter(|range| range.start < high && low < range.end) {
                above.extend((range.end > high).then_some(SnapshotRange { start: high, ..*range }));
                (range.start, range.end) = (range.start.min(low), low);
            }
            ranges.extend(above);
            // The segment is shorter than 4 GiB (asserted in `abi`), so its offsets fit.
            let heap = *offset as u32;
            ranges.push(SnapshotRange { start: low, end: high, bias: 0, module: 0, heap });
        }
    }
}
