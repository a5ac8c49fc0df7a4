//! Segment maps: which blocks the heaps of code have, and where that changed.

use std::ops::Range;

use super::heaps::{CodeHeap, FREE};
use super::pages::TargetPages;

/// The segment map of a heap at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SegmentMap {
    /// The address (AVMA) of the first segment.
    start: u64,
    /// log2 of the size of a segment.
    shift: u32,
    /// For each segment, how far back its block starts.
    bytes: Vec<u8>,
}

impl SegmentMap {
    /// Reads the map. `None` if it is unreadable.
    pub(super) fn read(heap: &CodeHeap, pages: &TargetPages<'_>) -> Option<Self> {
        let segments = (heap.committed.end - heap.committed.start) >> heap.shift;
        let bytes = pages.bytes(heap.segment_map, usize::try_from(segments).ok()?)?;
        Some(Self { start: heap.committed.start, shift: heap.shift, bytes })
    }

    fn avma(&self, segment: usize) -> u64 {
        self.start.saturating_add((segment as u64) << self.shift)
    }

    /// Returns the addresses of all segments.
    pub(super) fn span(&self) -> Range<u64> {
        self.start..self.avma(self.bytes.len())
    }

    /// Whether no block goes on at this segment that began before it.
    fn is_boundary(&self, segment: usize) -> bool {
        self.bytes.get(segment).is_none_or(|back| matches!(*back, FREE | 0))
    }

    /// Returns the addresses of the blocks that are not as they were in an earlier map. `None` if
    /// there are none.
    pub(super) fn changed_since(&self, before: &Self) -> Option<Range<u64>> {
        if (self.start, self.shift) != (before.start, before.shift) {
            return Some(self.span());
        }
        let (old, new) = (&before.bytes, &self.bytes);
        let common = old.len().min(new.len());
        let differs = |at: &usize| old.get(*at) != new.get(*at);
        let is_longer = old.len() != new.len();
        let first = (0..common).find(differs).or_else(|| is_longer.then_some(common))?;
        let last = if is_longer { old.len().max(new.len()) } else { (0..common).rfind(differs)? };
        let is_boundary = |at: &usize| self.is_boundary(*at) && before.is_boundary(*at);
        let start = (0..=first).rfind(is_boundary).unwrap_or(0);
        let all = old.len().max(new.len());
        let end = (last + 1..all).find(is_boundary).unwrap_or(all);
        Some(self.avma(start)..self.avma(end))
    }

    /// Returns the start and the end of each block in these addresses, used or not.
    pub(super) fn blocks(&self, span: &Range<u64>) -> Vec<(u64, u64)> {
        let segment = |avma: u64| (avma.saturating_sub(self.start) >> self.shift) as usize;
        let end = segment(span.end).min(self.bytes.len());
        let (mut blocks, mut start) = (Vec::new(), None);
        for at in segment(span.start).min(end)..end {
            if self.is_boundary(at) {
                blocks.extend(start.take().map(|start| (self.avma(start), self.avma(at))));
                start = self.bytes.get(at).filter(|back| **back == 0).map(|_| at);
            }
        }
        blocks.extend(start.map(|start| (self.avma(start), self.avma(end))));
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(bytes: &[u8]) -> SegmentMap {
        SegmentMap { start: 0x1000, shift: 7, bytes: bytes.to_vec() }
    }

    fn blocks(map: &SegmentMap, span: &Range<u64>) -> Vec<(u64, u64)> {
        let segment = |avma: u64| (avma - 0x1000) >> 7;
        let found = map.blocks(span).into_iter();
        found.map(|(start, end)| (segment(start), segment(end))).collect()
    }

    #[test]
    fn a_map_has_blocks() {
        let map = map(&[0, 1, 2, 0, FREE, FREE, 0, 1]);
        assert_eq!(blocks(&map, &map.span()), [(0, 3), (3, 4), (6, 8)]);
        assert_eq!(blocks(&map, &(0..0x1000)), []);
        assert_eq!(blocks(&map, &(0x1180..0x1300)), [(3, 4)]);
    }

    #[test]
    fn changes_are_found_with_their_blocks() {
        let before = map(&[0, 1, 2, 0, FREE, FREE, 0, 1]);
        let change = |bytes: &[u8]| {
            let range = map(bytes).changed_since(&before)?;
            Some(((range.start - 0x1000) >> 7, (range.end - 0x1000) >> 7))
        };
        assert_eq!(change(&before.bytes), None);
        assert_eq!(change(&[0, 1, 2, 0, 0, 1, 0, 1]), Some((4, 6)), "two were free");
        assert_eq!(change(&[0, 1, 0, 0, FREE, FREE, 0, 1]), Some((0, 3)), "one was cut");
        assert_eq!(change(&[0, 1, 2, 3, FREE, FREE, 0, 1]), Some((0, 4)), "two became one");
        assert_eq!(change(&[0, 1, 2, 0, FREE, FREE, 0, 1, 0, 1]), Some((8, 10)), "the heap grew");
        assert_eq!(change(&[0, 1, 2, 0, FREE, FREE, 0, 1, 2]), Some((6, 9)), "the last one grew");
        assert_eq!(change(&[0, 1, 2, 0, FREE]), Some((5, 8)), "the heap shrank");
        let elsewhere = SegmentMap { start: 0x2000, ..before.clone() };
        assert_eq!(elsewhere.changed_since(&before), Some(elsewhere.span()));
    }
}
