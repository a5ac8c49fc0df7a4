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
/// A freed table is reused for one of at least half its size, as long as there is other room.
const WASTE_MAX: u64 = 2;

impl TableWriter<'_> {
    /// Adds a heap of code. Handlers see it with the next snapshot.
    pub fn add_code_heap(
        &mut self,
        span: HeapSpan,
        interpreter: InterpreterLayout,
    ) -> Result<CodeHeapRef, TablesFull> {
        let wanted = span.bytes().unwrap_or(u64::MAX);
        let area = self.zeroed_area(wanted)?;
        let full = TablesFull { wanted, left: 0 };
        let heap = CodeHeap::create(self.words, area.offset, span, interpreter).ok_or(full)?;
        let (areas, code) = (vec![area], BTreeMap::new());
        self.code.heaps.push(PlacedHeap { areas, heap, code });
        Ok(CodeHeapRef(self.code.heaps.len() - 1))
    }

    /// Sets the table of the code in a block (AVMAs). It replaces what was known of the block's
    /// segments. A block outside the heap has no table.
    ///
    /// # Errors
    /// [`TablesFull`] if there is no room. The block has no table then.
    pub fn set_code(
        &mut self,
        heap: CodeHeapRef,
        block: &Range<u64>,
        code: &CodeRows<'_>,
    ) -> Result<(), TablesFull> {
        let placed = self.code.heaps[heap.0].heap;
        let Some(segments) = placed.span().segments(block) else { return Ok(()) };
        let stored = self.store_code(heap, &segments, code);
        self.code.clear(heap, &segments, stored.is_ok());
        let area = stored?;
        placed.publish(segments.clone(), area.offset);
        let code = PlacedCode { end: segments.end, area };
        self.code.heaps[heap.0].code.insert(segments.start, code);
        Ok(())
    }

    /// Writes a table that no segment has yet, and the pages of these segments.
    fn store_code(
        &mut self,
        heap: CodeHeapRef,
        segments: &Range<usize>,
        code: &CodeRows<'_>,
    ) -> Result<TableArea, TablesFull> {
        let placed = self.code.heaps[heap.0].heap;
        for page in placed.missing_pages(segments.clone()).collect::<Vec<_>>() {
            let area = self.zeroed_area(PAGE_SEGMENTS as u64 * 8)?;
            placed.publish_page(page, area.offset);
            self.code.heaps[heap.0].areas.push(area);
        }
        let area = self.table_area(code.bytes())?;
        let full = TablesFull { wanted: area.bytes, left: 0 };
        code.store(self.words, area.offset).ok_or(full)?;
        Ok(area)
    }

    /// Removes the tables of the code in a block (AVMAs).
    pub fn remove_code(&mut self, heap: CodeHeapRef, block: &Range<u64>) {
        if let Some(segments) = self.code.heaps[heap.0].heap.span().segments(block) {
            self.code.clear(heap, &segments, false);
        }
    }

    /// Removes all heaps of code. Handlers see it with the next snapshot.
    pub fn remove_code_heaps(&mut self) {
        self.code.remove_all();
    }

    /// Begins the grace after which [`Self::recycle`] frees the tables of code that are replaced by
    /// now. The caller waits until no handler runs that started before.
    pub fn begin_grace(&mut self) {
        self.code.waiting.append(&mut self.code.retired);
    }

    /// Returns memory that has zeros. They are written even where zeros are: a handler's first read
    /// of memory that is not present yet would allocate it.
    fn zeroed_area(&mut self, bytes: u64) -> Result<TableArea, TablesFull> {
        let area = self.table_area(bytes)?;
        let words = self.words.iter().skip((area.offset / 8) as usize);
        for word in words.take((area.bytes / 8) as usize) {
            // Relaxed: published with the heap, or with the page.
            word.store(0, Ordering::Relaxed);
        }
        Ok(area)
    }

    fn table_area(&mut self, bytes: u64) -> Result<TableArea, TablesFull> {
        let full = TablesFull { wanted: bytes, left: 0 };
        let bytes = bytes.checked_next_multiple_of(TABLE_STEP).ok_or(full)?;
        if let Some(area) = self.code.take_free(bytes, bytes.saturating_mul(WASTE_MAX)) {
            return Ok(area);
        }
        match self.allocate(bytes) {
            Ok(offset) => Ok(TableArea { offset, bytes }),
            // Waste is better than code without a table.
            Err(full) => self.code.take_free(bytes, u64::MAX).ok_or(full),
        }
    }
}
