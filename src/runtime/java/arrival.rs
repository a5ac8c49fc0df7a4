//! When code came to its place in a heap.
//!
//! # What proves that code was at its place at a time
//! The recorder unwinds some samples a moment after they were taken, by the code that is there
//! then. The machine may have freed the code that ran, and have put other code in its place. So a
//! scan of the heaps notes when it first saw code, and what was seen there before. Code was there
//! at a time if one of these holds:
//! - A scan saw it before that time. No two compilations have one number.
//! - A scan saw before that time that there was no code, and one soon after saw this. Other code
//!   could have run in between only if the machine had written, run and freed that, and then
//!   written this, all within [`VACANT_MAX_NS`]. It frees code that several passes over all stacks
//!   (up to Java 19), or a collection, have found to be unused.
//! - The handler found that what ran was no code that it knew there, and a scan soon after the
//!   sample saw this code. Other code could have run only if the machine had freed that and
//!   written this within [`VACANT_MAX_NS`], as above.
//!
//! Where a scan saw other code before, and no handler looked, it is not known which of the two was
//! there until the new one was seen. It does not matter where both have the same rule: methods that
//! are compiled again mostly come to a place of the same size, with the same calls in it. That takes
//! for granted, too, that no third code was there within [`VACANT_MAX_NS`].

/// The longest time between two scans for which no other code is thought to have come and gone, in
/// nanoseconds. Scans are 10 to 80 ms apart, unless the computer is overloaded.
const VACANT_MAX_NS: u64 = 100_000_000;

/// Whether one time is so soon after another that no other code is thought to have come and gone in
/// between.
pub(super) fn is_soon(before_ns: u64, after_ns: u64) -> bool {
    after_ns.saturating_sub(before_ns) <= VACANT_MAX_NS
}

/// When code came to its place. Times are in CLOCK_MONOTONIC nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    /// When the code was first seen.
    pub(super) since_ns: u64,
    /// When it was last seen that no code was there, if that is what was seen before.
    pub(super) vacant_ns: Option<u64>,
}

impl Arrival {
    /// Whether the code was there at a time, if it is there now. `is_new`: at that time, there was
    /// no code that had been seen there.
    pub(super) fn is_before(&self, time_ns: u64, is_new: bool) -> bool {
        if is_new && is_soon(time_ns, self.since_ns) {
            return true;
        }
        let vacant_ns = self.vacant_ns.filter(|vacant_ns| is_soon(*vacant_ns, self.since_ns));
        let first_ns = vacant_ns.unwrap_or(self.since_ns);
        first_ns.min(self.since_ns) <= time_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_proven_from_when_its_place_was_vacant() {
        let is_before = |vacant_ns, time_ns| {
            Arrival { since_ns: 1_000_000_000, vacant_ns }.is_before(time_ns, false)
        };
        let ms = |ms: u64| ms * 1_000_000;
        assert_eq!([999, 1000].map(|at| is_before(None, ms(at))), [false, true]);
        assert_eq!([979, 980].map(|at| is_before(Some(ms(980)), ms(at))), [false, true]);
        let long_ago = Some(ms(890));
        assert_eq!([950, 1000].map(|at| is_before(long_ago, ms(at))), [false, true]);
        let other = Arrival { since_ns: ms(1000), vacant_ns: None };
        assert_eq!([899, 900].map(|at| other.is_before(ms(at), true)), [false, true]);
    }
}
