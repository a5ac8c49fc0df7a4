//! The heaps of code of a machine, and the blocks in them.
//!
//! A heap is a reserved range, of which a part is committed and grows. It is cut into segments. One
//! byte for each segment says how far back the block starts, and 0xff that the segment is free.

use std::ops::Range;

use super::layout::HeapLayout;
use crate::runtime::pages::TargetPages;

/// Maximum number of heaps. Machines have three at most.
const HEAPS_MAX: u64 = 16;
/// Maximum length in bytes of all heaps together. The options that set them end at 2 GiB.
const HEAPS_LEN_MAX: u64 = 4 << 30;
/// Maximum number of segments of all heaps together.
const SEGMENTS_MAX: u64 = 1 << 26;
/// The exponents of possible lengths of segments.
const SHIFTS: Range<u64> = 4..17;
/// The byte of a free segment.
pub(super) const FREE: u8 = 0xff;
/// Maximum number of steps back to the start of a block. The largest blobs take ten.
const STEPS_MAX: usize = 256;

/// A heap of code. Addresses are AVMAs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CodeHeap {
    /// Where the machine describes it.
    pub(super) at: u64,
    /// The part that may hold code now.
    pub(super) committed: Range<u64>,
    /// The part that may ever hold code.
    pub(super) reserved: Range<u64>,
    pub(super) segment_map: u64,
    pub(super) shift: u32,
}

/// Reads the heaps. `None` if the machine has none yet.
pub(super) fn code_heaps(layout: &HeapLayout, pages: &TargetPages<'_>) -> Option<Vec<CodeHeap>> {
    let known = pages.pointer(layout.heaps)?;
    let Some((len, elements)) = layout.array else {
        return Some(vec![heap(layout, known, pages)?]);
    };
    let len = len.count(pages, known).filter(|len| (1..=HEAPS_MAX).contains(len))?;
    let elements = elements.pointer(pages, known)?;
    let heaps: Option<Vec<CodeHeap>> = (0..len)
        .map(|index| heap(layout, pages.pointer(elements.checked_add(index * 8)?)?, pages))
        .collect();
    heaps.filter(|heaps| {
        let bytes: u64 = heaps.iter().map(CodeHeap::bytes).sum();
        let segments: u64 = heaps.iter().map(|heap| heap.bytes() >> heap.shift).sum();
        bytes <= HEAPS_LEN_MAX && segments <= SEGMENTS_MAX && are_apart(heaps)
    })
}

fn are_apart(heaps: &[CodeHeap]) -> bool {
    let mut spans: Vec<_> = heaps.iter().map(|it| (it.reserved.start, it.reserved.end)).collect();
    spans.sort_unstable();
    spans.is_sorted_by(|(_, end), (start, _)| end <= start)
}

fn heap(layout: &HeapLayout, at: u64, pages: &TargetPages<'_>) -> Option<CodeHeap> {
    let word = |field: super::tables::Field| field.read(pages, at);
    let (low, high) = (word(layout.low)?, word(layout.high)?);
    let reserved_end = word(layout.reserved_end)?;
    let shift = word(layout.segment_shift).filter(|shift| SHIFTS.contains(shift))?;
    let is_possible = low != 0 && low <= high && high <= reserved_end;
    if !is_possible || reserved_end - low > HEAPS_LEN_MAX {
        return None;
    }
    Some(CodeHeap {
        at,
        committed: low..high,
        reserved: low..reserved_end,
        segment_map: layout.segment_map.pointer(pages, at)?,
        shift: shift as u32,
    })
}

impl CodeHeap {
    fn bytes(&self) -> u64 {
        self.reserved.end - self.reserved.start
    }

    /// Returns the contents of a block, which starts here, if it is used.
    pub(super) fn contents(
        &self,
        start: u64,
        layout: &HeapLayout,
        pages: &TargetPages<'_>,
    ) -> Option<Range<u64>> {
        let len = layout.block_len.count(pages, start)?;
        let end = len.checked_mul(1 << self.shift)?.checked_add(start)?;
        let is_used = layout.is_used.read(pages, start)? != 0;
        let contents = start.checked_add(layout.header_len)?;
        let is_inside = contents < end && end <= self.committed.end;
        (is_used && is_inside).then_some(contents..end)
    }

    /// Returns the free blocks in the list of the heap, in order, at most so many. In `heap.hpp`,
    /// the heap points to the first one, and each has a pointer to the next one behind its
    /// header.
    pub(super) fn free_blocks(
        &self,
        layout: &HeapLayout,
        pages: &TargetPages<'_>,
        most: usize,
    ) -> Vec<u64> {
        let is_free = |start: &u64| {
            let segment = start.checked_sub(self.committed.start).map(|at| at >> self.shift);
            let segment = segment.filter(|_| *start < self.committed.end);
            let back = segment.and_then(|at| pages.byte(self.segment_map.checked_add(at)?));
            back == Some(0) && layout.is_used.read(pages, *start) == Some(0)
        };
        let words = (0..layout.heap_len.unwrap_or(0) as u64).step_by(8);
        let words = words.filter_map(|at| pages.pointer(self.at.checked_add(at)?));
        // Others that point to a free block are those to the place of the last insertion.
        let mut next = words.filter(is_free).min();
        let mut found = Vec::new();
        while let Some(start) = next.filter(|_| found.len() < most) {
            found.push(start);
            let link = start.checked_add(layout.header_len).and_then(|at| pages.pointer(at));
            next = link.filter(|link| *link > start && is_free(link));
        }
        found
    }

    /// Returns the used block that contains an address: where its contents start, and where it
    /// ends.
    pub(super) fn block_at(
        &self,
        avma: u64,
        layout: &HeapLayout,
        pages: &TargetPages<'_>,
    ) -> Option<Range<u64>> {
        let mut segment = avma.checked_sub(self.committed.start)? >> self.shift;
        if avma >= self.committed.end {
            return None;
        }
        for _ in 0..STEPS_MAX {
            match pages.byte(self.segment_map.checked_add(segment)?)? {
                FREE => return None,
                0 => {
                    let start = self.committed.start + (segment << self.shift);
                    return self.contents(start, layout, pages).filter(|it| avma < it.end);
                }
                back => segment = segment.checked_sub(u64::from(back))?,
            }
        }
        None
    }
}
