//! Slices of raw stacks that came with samples whose stacks did not reach their root.

use std::ops::Range;

use traceprof_abi::storage::log::Sample;
use traceprof_abi::storage::slice::Slice;
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::unwind::EndReason;

use crate::record::batch::traces::empty;

/// Bytes of slices that an empty batch keeps room for.
const BYTES_LEAST: usize = 1 << 16;

/// A slice whose bytes lie from here on.
#[derive(Debug, Clone, Copy)]
struct Kept {
    slice: Slice,
    from: usize,
    /// Index of its sample in the batch, once that is known.
    sample: Option<usize>,
}

impl Kept {
    fn sample_of<'b>(&self, samples: &'b [Sample]) -> Option<&'b Sample> {
        samples.get(self.sample?)
    }
}

/// The slices of a batch.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slices {
    kept: Vec<Kept>,
    /// The words of all, one after the other.
    bytes: Vec<u8>,
}

impl Slices {
    /// Adds the slices of a table; which of them they are.
    pub(crate) fn take<'a>(
        &mut self,
        slices: impl Iterator<Item = (Slice, &'a [AtomicU64])>,
    ) -> Range<usize> {
        let first = self.kept.len();
        for (slice, words) in slices {
            self.kept.push(Kept { slice, from: self.bytes.len(), sample: None });
            // Relaxed: no thread is inside the table.
            let words = words.iter().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
            self.bytes.extend(words.flatten());
        }
        let own = first..self.kept.len();
        self.kept[own.clone()].sort_unstable_by_key(|kept| kept.slice.sample);
        own
    }

    /// The sample at this place of the table's log has this index in the batch.
    pub(crate) fn place(&mut self, own: &Range<usize>, place: usize, index: usize) {
        let own = &mut self.kept[own.clone()];
        if let Ok(found) = own.binary_search_by_key(&place, |kept| kept.slice.sample) {
            own[found].sample = Some(index);
        }
    }

    /// Each slice whose sample is known: the sample's index in the batch, the slice and its bytes.
    pub(crate) fn of_samples(&self) -> impl Iterator<Item = (usize, &Slice, &[u8])> {
        self.kept.iter().filter_map(|kept| {
            let bytes = &self.bytes[kept.from..][..kept.slice.count * 8];
            Some((kept.sample?, &kept.slice, bytes))
        })
    }

    /// One of them is of a sample in code that no table covered.
    pub(crate) fn has_unknown_code(&self, samples: &[Sample]) -> bool {
        let is_unknown = |sample: &Sample| sample.reason == EndReason::NoModule as u16;
        self.kept.iter().filter_map(|kept| kept.sample_of(samples)).any(is_unknown)
    }

    /// Bytes of memory that they have.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.capacity() * size_of::<Kept>() + self.bytes.capacity()
    }

    /// Empties it to be used again.
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        empty(&mut self.bytes, BYTES_LEAST);
    }
}
