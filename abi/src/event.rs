//! The word that a perf event's signal carries: the event's index and family, and how many periods
//! one expiry stands for.
//!
//! To sample less often, the recorder opens a new family of events with longer periods and closes
//! the old family. Each expiry carries its own weight, so the two sides need not switch at the same
//! moment.
//!
//! # Invariants
//! - The first family of a recording is 0, and its events are named by their indices alone.

/// Number of bits of an event's index in its family.
const INDEX_BITS: u32 = 16;
/// Number of bits of the exponent of the rate's divisor.
const SHIFT_BITS: u32 = 4;
/// Maximum number of event families in one recording.
pub const FAMILIES_MAX: u32 = 1 << (32 - INDEX_BITS - SHIFT_BITS);
/// Exponent of the largest divisor of the rate: an expiry then stands for 1024 periods.
pub const SHIFT_MAX: u32 = 10;

/// The lower half of the value that an event's signal carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventWord(pub u32);

impl EventWord {
    /// Creates the word of the event with this index (below [`crate::layout::EVENTS_MAX`]) in this
    /// family. One expiry stands for 2 to the power of `shift` periods.
    pub fn new(index: u32, shift: u32, family: u32) -> Self {
        let index = index & ((1 << INDEX_BITS) - 1);
        let family = family % FAMILIES_MAX;
        Self(family << (INDEX_BITS + SHIFT_BITS) | shift.min(SHIFT_MAX) << INDEX_BITS | index)
    }

    /// Returns the event's index in its family.
    pub fn index(self) -> u32 {
        self.0 & ((1 << INDEX_BITS) - 1)
    }

    /// Returns the number of periods that one expiry stands for: a power of two, never 0.
    pub fn weight(self) -> u32 {
        let shift = self.0 >> INDEX_BITS & ((1 << SHIFT_BITS) - 1);
        1 << shift.min(SHIFT_MAX)
    }

    /// Returns the event's family.
    pub fn family(self) -> u32 {
        self.0 >> (INDEX_BITS + SHIFT_BITS)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::EVENTS_MAX;

    #[test]
    fn an_event_word_holds_index_family_and_weight() {
        const LAST: u32 = EVENTS_MAX as u32 - 1;
        for (index, shift, family) in [(0, 0, 0), (7, 3, 5), (LAST, SHIFT_MAX, FAMILIES_MAX - 1)] {
            let word = EventWord::new(index, shift, family);
            assert_eq!((word.index(), word.weight(), word.family()), (index, 1 << shift, family));
        }
        assert_eq!(
            EventWord::new(77, 0, 0),
            EventWord(77),
            "in the first family the word is the index"
        );
        assert_eq!(
            EventWord(u32::MAX).weight(),
            1 << SHIFT_MAX,
            "the weight is bounded for foreign values"
        );
    }
}
