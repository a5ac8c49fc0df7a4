//! Raw stack slices of samples whose unwinding did not reach the root.

use std::ops::Range;

use traceprof_abi::storage::log::Sample;
use traceprof_abi::storage::slice::Slice;
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::unwind::EndReason;

use crate::record::batch::traces::empty;

/// The capacity in bytes that an empty batch keeps for slices.
const BYTES_LEAST: usize = 1 << 16;

/// A slice, and the position of its bytes.
#[derive(Debug, Clone, Copy)]
struct StoredSlice {
    slice: Slice,
    /// The offset of its first byte in [`Slices::bytes`].
    from: usize,
    /// The index of its sample in the batch, once known.
    sample: Option<usize>,
}

impl StoredSlice {
    /// Whether a slice goes on where this one ends.
    fn is_continued(&self, next: &Slice) -> bool {
        let end = self.slice.start.wrapping_add(self.slice.count as u64 * 8);
        (self.slice.sample, end) == (next.sample, next.start)
    }

    fn sample_of<'b>(&self, samples: &'b [Sample]) -> Option<&'b Sample> {
        samples.get(self.sample?)
    }
}

/// The raw stack slices of a batch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slices {
    kept: Vec<StoredSlice>,
    /// The concatenated bytes of all slices.
    bytes: Vec<u8>,
}

impl Slices {
    /// Adds the slices of a table, and returns their range in this list. Those of one sample become
    /// one.
    pub(crate) fn take<'a>(
        &mut self,
        slices: impl Iterator<Item = (Slice, &'a [AtomicU64])>,
    ) -> Range<usize> {
        let first = self.kept.len();
        for (slice, words) in slices {
            match self.kept[first..].last_mut().filter(|last| last.is_continued(&slice)) {
                Some(last) => last.slice.count += slice.count,
                None => {
                    self.kept.push(StoredSlice { slice, from: self.bytes.len(), sample: None });
                }
            }
            // Relaxed: the scan of the hazards showed that no handler is in the table any more.
            let words = words.iter().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
            self.bytes.extend(words.flatten());
        }
        let own = first..self.kept.len();
        self.kept[own.clone()].sort_unstable_by_key(|kept| kept.slice.sample);
        own
    }

    /// Notes that the sample at this position of the table's log has this index in the batch.
    pub(crate) fn note_sample(&mut self, own: &Range<usize>, log_position: usize, index: usize) {
        let own = &mut self.kept[own.clone()];
        if let Ok(found) = own.binary_search_by_key(&log_position, |kept| kept.slice.sample) {
            own[found].sample = Some(index);
        }
    }

    /// Returns the slices whose sample is known: the sample's index, the slice, and its bytes.
    pub(crate) fn of_samples(&self) -> impl Iterator<Item = (usize, &Slice, &[u8])> {
        self.kept.iter().filter_map(|kept| Some((kept.sample?, &kept.slice, self.bytes_of(kept))))
    }

    /// Returns whether a slice belongs to a sample in code that no unwind table covers.
    pub(crate) fn has_unknown_code(&self, samples: &[Sample]) -> bool {
        self.in_unknown_code(samples).next().is_some()
    }

    /// Returns all words that may be addresses of code in samples in code that no unwind table
    /// covers.
    pub(crate) fn words_of_unknown_code(&self, samples: &[Sample]) -> impl Iterator<Item = u64> {
        self.in_unknown_code(samples).flat_map(|kept| {
            let (words, _) = self.bytes_of(kept).as_chunks();
            let words = words.iter().map(|word| u64::from_ne_bytes(*word));
            std::iter::once(kept.slice.pc).chain(words)
        })
    }

    fn in_unknown_code(&self, samples: &[Sample]) -> impl Iterator<Item = &StoredSlice> {
        let is_unknown = |sample: &Sample| sample.reason == EndReason::NoModule as u16;
        self.kept.iter().filter(move |kept| kept.sample_of(samples).is_some_and(is_unknown))
    }

    fn bytes_of(&self, kept: &StoredSlice) -> &[u8] {
        &self.bytes[kept.from..][..kept.slice.count * 8]
    }

    /// Returns the bytes of memory allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.capacity() * size_of::<StoredSlice>() + self.bytes.capacity()
    }

    /// Removes all slices, and keeps the memory for reuse.
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        empty(&mut self.bytes, BYTES_LEAST);
    }
}
