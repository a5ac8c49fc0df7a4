//! Segment maps: which blocks the heaps of code have, and where that changed.

use std::ops::Range;

use super::heaps::{CodeHeap, FREE};
use crate::runtime::memory::TargetMemory;

/// Number of bytes of maps that are compared at once.
const PART: usize = 4096;

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
    /// Reads the map into a buffer. `None` if it is unreadable.
    pub(super) fn read(
        heap: &CodeHeap,
        memory: &dyn TargetMemory,
        mut bytes: Vec<u8>,
    ) -> Option<Self> {
        let segments = (heap.committed.end - heap.committed.start) >> heap.shift;
        bytes.resize(usize::try_from(segments).ok()?, 0);
        let got = memory.read(heap.segment_map, &mut bytes);
        (got == bytes.len()).then_some(Self {
            start: heap.committed.start,
            shift: heap.shift,
            bytes,
        })
    }

    /// Returns the buffer of a map that is no longer needed.
    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// Whether both are maps of one heap.
    pub(super) fn is_of_same_heap(&self, other: &Self) -> bool {
        (self.start, self.shift) == (other.start, other.shift)
    }

    pub(super) fn avma(&self, segment: usize) -> u64 {
        self.start.saturating_add((segment as u64) << self.shift)
    }

    /// Returns the number of the segment that contains an address.
    pub(super) fn segment(&self, avma: u64) -> usize {
        (avma.saturating_sub(self.start) >> self.shift) as usize
    }

    /// Returns the addresses of all segments.
    pub(super) fn span(&self) -> Range<u64> {
        self.avma(0)..self.avma(self.len())
    }

    /// Returns the number of segments.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no block goes on at this segment that began before it.
    fn is_boundary(&self, segment: usize) -> bool {
        self.bytes.get(segment).is_none_or(|back| matches!(*back, FREE | 0))
    }

    /// Returns the start of the block that contains a segment.
    pub(super) fn boundary_before(&self, segment: usize) -> usize {
        (0..=segment).rfind(|at| self.is_boundary(*at)).unwrap_or(0)
    }

    /// Returns the segments whose bytes are not those of an earlier map of the heap, in order.
    pub(super) fn changed_since(&self, before: &Self) -> Vec<Range<usize>> {
        let (old, new) = (&before.bytes, &self.bytes);
        let common = old.len().min(new.len());
        let parts = old[..common].chunks(PART).zip(new[..common].chunks(PART));
        let mut changed = Vec::new();
        for (number, (old, new)) in parts.enumerate().filter(|(_, (old, new))| old != new) {
            let differs = |at: &usize| old[*at] != new[*at];
            let (first, last) = ((0..old.len()).find(differs), (0..old.len()).rfind(differs));
            if let (Some(first), Some(last)) = (first, last) {
                changed.push(number * PART + first..number * PART + last + 1);
            }
        }
        let all = old.len().max(new.len());
        changed.extend((common < all).then_some(common..all));
        changed
    }

    /// Returns the start and the end of each block, used or not, from a segment on at which a block
    /// may start: all that contain a part of the span, or only as many as said. The segment is
    /// returned up to which that is.
    pub(super) fn blocks(&self, span: &Range<usize>, most: usize) -> (Vec<(u64, u64)>, usize) {
        let end = self.bytes.len();
        let (mut blocks, mut start) = (Vec::new(), None);
        let mut at = span.start.min(end);
        while at < end {
            if self.is_boundary(at) {
                blocks.extend(start.take().map(|start| (self.avma(start), self.avma(at))));
                if at >= span.end || blocks.len() >= most {
                    return (blocks, at);
                }
                start = self.bytes.get(at).filter(|back| **back == 0).map(|_| at);
            }
            at += 1;
        }
        blocks.extend(start.map(|start| (self.avma(start), self.avma(end))));
        (blocks, span.end.max(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(bytes: &[u8]) -> SegmentMap {
        SegmentMap { start: 0x1000, shift: 7, bytes: bytes.to_vec() }
    }

    #[test]
    fn a_map_has_blocks() {
        let map = map(&[0, 1, 2, 0, FREE, FREE, 0, 1]);
        let blocks = |span: Range<usize>, most| {
            let (found, end) = map.blocks(&span, most);
            let segments = |(start, end)| (map.segment(start), map.segment(end));
            (found.into_iter().map(segments).collect::<Vec<_>>(), end)
        };
        assert_eq!(blocks(0..8, 9), (vec![(0, 3), (3, 4), (6, 8)], 8));
        assert_eq!(blocks(0..1, 9), (vec![(0, 3)], 3));
        assert_eq!(blocks(3..5, 9), (vec![(3, 4)], 5));
        assert_eq!(blocks(0..8, 1), (vec![(0, 3)], 3));
        assert_eq!(blocks(3..8, 1), (vec![(3, 4)], 4));
        assert_eq!(blocks(4..8, 1), (vec![(6, 8)], 8));
        assert_eq!(blocks(8..12, 9), (vec![], 12), "the heap was longer before");
        assert_eq!([0, 2, 3, 5, 7].map(|at| map.boundary_before(at)), [0, 0, 3, 5, 6]);
    }

    #[test]
    fn changes_of_a_map_are_found() {
        let before = map(&[0, 1, 2, 0, FREE, FREE, 0, 1]);
        let changed = |new: &SegmentMap, before: &SegmentMap| {
            let parts = new.changed_since(before).into_iter();
            parts.map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        let change = |bytes: &[u8]| changed(&map(bytes), &before);
        assert_eq!(change(&before.bytes), []);
        assert_eq!(change(&[0, 1, 2, 0, 0, 1, 0, 1]), [(4, 6)]);
        assert_eq!(change(&[0, 1, 0, 0, FREE, FREE, 0, 1]), [(2, 3)]);
        assert_eq!(change(&[0, 1, 2, 0, FREE, FREE, 0, 1, 0, 1]), [(8, 10)], "the heap grew");
        assert_eq!(change(&[0, 1, 2, 0, FREE]), [(5, 8)], "the heap shrank");
        let (mut one, mut other) = (vec![0; 3 * PART], vec![0; 3 * PART]);
        (one[7], one[9], other[2 * PART]) = (1, 2, 1);
        assert_eq!(changed(&map(&one), &map(&other)), [(7, 10), (2 * PART, 2 * PART + 1)]);
    }
}
