//! Which blocks of a heap of code are not as they were.

use std::ops::Range;

use super::segment_map::SegmentMap;

/// Maximum number of separate parts of a heap that wait for their comparison.
const PARTS_MAX: usize = 256;

/// A heap of code over time.
#[derive(Debug)]
pub(super) struct WatchedHeap {
    /// The last map.
    pub(super) map: SegmentMap,
    /// The buffer of the map before.
    spare: Vec<u8>,
    /// Segments whose blocks may be others than those that are known: in order, and apart from each
    /// other.
    changed: Vec<Range<usize>>,
    /// When the last map of which all blocks are known had been read, in CLOCK_MONOTONIC
    /// nanoseconds.
    pub(super) known_ns: Option<u64>,
}

impl WatchedHeap {
    /// Starts to watch a heap of which no block is known.
    pub(super) fn of(map: SegmentMap) -> Self {
        let changed = std::iter::once(0..map.len()).collect();
        Self { map, spare: Vec::new(), changed, known_ns: None }
    }

    /// Takes over a later map of the heap.
    pub(super) fn update(&mut self, map: SegmentMap) {
        let news = map.changed_since(&self.map);
        self.spare = std::mem::replace(&mut self.map, map).into_buffer();
        if news.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut self.changed);
        all.extend(news);
        all.sort_by_key(|part| part.start);
        if all.len() > PARTS_MAX {
            let end = all.iter().map(|part| part.end).max();
            all = all.first().zip(end).map(|(first, end)| first.start..end).into_iter().collect();
        }
        for part in all {
            match self.changed.last_mut().filter(|last| last.end >= part.start) {
                Some(last) => last.end = last.end.max(part.end),
                None => self.changed.push(part),
            }
        }
    }

    /// Takes the buffer for the next map.
    pub(super) fn take_spare(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.spare)
    }

    /// Whether segments wait for their comparison.
    pub(super) fn is_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns the first segments that wait.
    pub(super) fn first(&self) -> Option<Range<usize>> {
        self.changed.first().cloned()
    }

    /// Notes that the blocks of all segments before this one are known.
    pub(super) fn note_known(&mut self, end: usize) {
        self.changed.retain(|part| part.end > end);
        if let Some(first) = self.changed.first_mut() {
            first.start = first.start.max(end);
        }
    }
}
