//! The samples that a view gets: each once, while the memory suffices.

use crate::trace::meter::note_sample;
use crate::trace::{LocationId, TraceError, memory};

/// What a view may hold for each call of a stack.
const CALL_BYTES: u64 = 100;

/// Passes each sample once, even if the index turns out to be wrong in the middle and all samples
/// are read again.
#[derive(Debug, Default)]
pub(super) struct PassedOnce {
    /// The number of samples of this reading.
    number: u64,
    /// The number of samples that were passed.
    given: u64,
    /// Why no further sample is passed.
    refused: Option<TraceError>,
}

impl PassedOnce {
    /// Starts to read from the first sample.
    pub(super) fn again(&mut self) {
        self.number = 0;
    }

    /// Counts a sample. Returns whether to pass it on.
    pub(super) fn is_new(&mut self, stack: &[LocationId]) -> bool {
        self.number += 1;
        if self.number <= self.given || self.refused.is_some() {
            return false;
        }
        self.given = self.number;
        note_sample();
        self.refused = memory::note((stack.len() as u64 + 1) * CALL_BYTES).err();
        self.refused.is_none()
    }

    /// Returns the error if samples were not passed.
    pub(super) fn end(self) -> Result<(), TraceError> {
        self.refused.map_or(Ok(()), Err)
    }
}
