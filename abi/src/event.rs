//! What the signal of a perf event tells of it: which of the recording's events it is, of which
//! family, and how many periods a hit of it stands for.
//!
//! A recorder that samples less often opens a new family of events, with periods that are so many
//! times as long, and closes the one before. A hit says itself what it weighs, so nothing has to
//! happen at the same moment on both sides.
//!
//! # Invariants
//! - The first family of a recording is 0, and its events are named by their indices alone.

/// Bits of an event's index among those of its family.
const INDEX_BITS: u32 = 16;
/// Bits of the exponent of its divisor.
const SHIFT_BITS: u32 = 4;
/// Families of events that one recording can have.
pub const FAMILIES_MAX: u32 = 1 << (32 - INDEX_BITS - SHIFT_BITS);
/// Exponent of the largest divisor of a rate: a hit stands for 1024 periods.
pub const SHIFT_MAX: u32 = 10;

/// The lower half of the value of an event's signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventWord(pub u32);

impl EventWord {
    /// Of the event with this index (below [`crate::layout::EVENTS_MAX`]) in this family, whose
    /// hits stand for 2 to the power of `shift` periods.
    pub fn new(index: u32, shift: u32, family: u32) -> Self {
        let index = index & ((1 << INDEX_BITS) - 1);
        let family = family % FAMILIES_MAX;
        Self(family << (INDEX_BITS + SHIFT_BITS) | shift.min(SHIFT_MAX) << INDEX_BITS | index)
    }

    /// Its index in its family.
    pub fn index(self) -> u32 {
        self.0 & ((1 << INDEX_BITS) - 1)
    }

    /// Periods that a hit stands for: a power of two, never 0.
    pub fn weight(self) -> u32 {
        let shift = self.0 >> INDEX_BITS & ((1 << SHIFT_BITS) - 1);
        1 << shift.min(SHIFT_MAX)
    }

    /// Its family.
    pub fn family(self) -> u32 {
        self.0 >> (INDEX_BITS + SHIFT_BITS)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::EVENTS_MAX;

    #[test]
    fn an_event_tells_index_family_and_weight() {
        const LAST: u32 = EVENTS_MAX as u32 - 1;
        for (index, shift, family) in [(0, 0, 0), (7, 3, 5), (LAST, SHIFT_MAX, FAMILIES_MAX - 1)] {
            let word = EventWord::new(index, shift, family);
            assert_eq!((word.index(), word.weight(), word.family()), (index, 1 << shift, family));
        }
        assert_eq!(EventWord::new(77, 0, 0), EventWord(77), "the first family's are indices");
        assert_eq!(EventWord(u32::MAX).weight(), 1 << SHIFT_MAX, "whatever a stranger sends");
    }
}
