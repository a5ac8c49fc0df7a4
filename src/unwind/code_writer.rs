//! The recorder's side of heaps of code: the tables of code that a runtime generates and frees.
//!
//! # Invariants
//! - The bytes of a table are reused only when no handler can read them: they were replaced before
//!   [`TableWriter::begin_grace`], and [`TableWriter::recycle`] followed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use traceprof_abi::unwind::code_heap::{
    CodeHeap, CodeRows, HeapSpan, InterpreterLayout, PAGE_SEGMENTS,
};

use super::code_memory::{CodeHeapRef, PlacedCode, PlacedHeap, TableArea};
use super::writer::{TableWriter, TablesFull};

/// Tables are allocated in multiples of this many bytes, so that freed ones fit again.
const TABLE_STEP: u64 = 64;
/// A freed table is reused for one of at least half its size.
const WASTE_MAX: u64 = 2;

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
