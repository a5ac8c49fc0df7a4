//! The heaps of code in a tables segment, and the memory of their tables.
//!
//! # Invariants
//! - No segment has the table of code that is known to be no longer there.
//! - The memory of a heap is reused only after a snapshot without it.

use std::collections::BTreeMap;
use std::ops::Range;

use traceprof_abi::unwind::code_heap::{CodeHeap, HeapSpan};
use traceprof_abi::unwind::tables::Range as SnapshotRange;

/// A heap of code in the tables segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodeHeapRef(pub(super) usize);

/// Memory of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableArea {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The table of a piece of code.
#[derive(Debug)]
pub(super) struct PlacedCode {
    /// One past its last segment.
    pub(super) end: usize,
    pub(super) area: TableArea,
}

/// A heap of code.
#[derive(Debug)]
pub(super) struct PlacedHeap<'a> {
    /// The memory of the heap itself, and that of its pages.
    pub(super) areas: Vec<TableArea>,
    pub(super) heap: CodeHeap<'a>,
    /// The tables by their first segments.
    pub(super) code: BTreeMap<usize, PlacedCode>,
}

/// The heaps of code in a tables segment, and the memory of their tables.
#[derive(Debug, Default)]
pub(super) struct CodeMemory<'a> {
    pub(super) heaps: Vec<PlacedHeap<'a>>,
    /// The memory of removed heaps that the last snapshot may name.
    pub(super) leaving: Vec<TableArea>,
    /// Replaced tables that a handler may still read.
    pub(super) retired: Vec<TableArea>,
    /// Of these, the ones that were replaced before the grace began.
    pub(super) waiting: Vec<TableArea>,
    /// The offsets of free tables by their lengths.
    pub(super) free: BTreeMap<u64, Vec<u64>>,
}

impl CodeMemory<'_> {
    /// Retires the tables of these segments. Handlers keep the table of exactly these segments if
    /// another one follows at once.
    pub(super) fn clear(&mut self, heap: CodeHeapRef, segments: &Range<usize>, is_followed: bool) {
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

    /// Removes all heaps.
    pub(super) fn remove_all(&mut self) {
        for PlacedHeap { areas, code, .. } in self.heaps.drain(..) {
            self.leaving.extend(areas);
            self.leaving.extend(code.into_values().map(|code| code.area));
        }
    }

    /// Takes freed memory of a length in these bounds.
    pub(super) fn take_free(&mut self, least: u64, most: u64) -> Option<TableArea> {
        let mut fitting = self.free.range_mut(least..=most);
        let (bytes, offset) =
            fitting.find_map(|(bytes, offsets)| Some((*bytes, offsets.pop()?)))?;
        Some(TableArea { offset, bytes })
    }

    /// Notes that a snapshot was published that has the heaps of now.
    pub(super) fn note_snapshot(&mut self) {
        self.retired.append(&mut self.leaving);
    }

    pub(super) fn recycle(&mut self) {
        for TableArea { offset, bytes } in self.waiting.drain(..) {
            self.free.entry(bytes).or_default().push(offset);
        }
    }

    /// Puts the heaps in the place of the ranges there.
    pub(super) fn replace(&self, ranges: &mut Vec<SnapshotRange>) {
        for PlacedHeap { areas, heap, .. } in &self.heaps {
            let HeapSpan { low, high, .. } = heap.span();
            let mut above = Vec::new();
            for range in ranges.iter_mut().filter(|range| range.start < high && low < range.end) {
                above.extend((range.end > high).then_some(SnapshotRange { start: high, ..*range }));
                (range.start, range.end) = (range.start.min(low), low);
            }
            ranges.extend(above);
            // The segment is shorter than 4 GiB (asserted in `abi`), so its offsets fit.
            let heap = areas.first().map_or(0, |area| area.offset as u32);
            ranges.push(SnapshotRange { start: low, end: high, bias: 0, module: 0, heap });
        }
    }
}
