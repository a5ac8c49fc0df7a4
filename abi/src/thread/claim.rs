//! How a thread comes to its slot when two may claim it at the same time.
//!
//! A claimer writes a tentative word into the first empty place of the thread's probes, then looks
//! at all the others. Of two claimers of one thread at least one sees the other's word (their
//! fences pair). The one in the lower place wins: it takes the other's word out, which can no
//! longer be decided then; unless the other has been decided already, having looked before the
//! lower one came: then the lower one withdraws. Who withdraws gives its slot back and uses the
//! winner's.
//!
//! # Invariants
//! - At most two claim for one thread at a time: the thread, and the recorder.
//! - A decided word is taken out by the recorder alone, when the thread is gone.

use super::index::{TENTATIVE, ThreadIndex, slot_of};
use super::{SlotState, ThreadSlot, swap_state};
use crate::sync::{AtomicU64, Ordering, fence};

/// A claim that is not decided: a tentative word in the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct TentativeClaim<'a> {
    index: ThreadIndex<'a>,
    tid: u32,
    /// The slot that is claimed.
    slot: &'a ThreadSlot,
    /// The word's place among the thread's probes.
    place: usize,
    word: u64,
}

impl<'a> TentativeClaim<'a> {
    /// Writes a word for this slot, which is the claimer's, into the first empty place. `None` if
    /// there is none.
    pub(super) fn insert(
        index: ThreadIndex<'a>,
        tid: u32,
        (number, slot): (usize, &'a ThreadSlot),
    ) -> Option<Self> {
        let word = u64::from(tid) << 32 | TENTATIVE | (number as u64 + 1);
        let mut places = index.probes(tid);
        let place = places.position(|place| {
            // Relaxed on both: nothing is read through a tentative word, and the fence of `decide`
            // makes it visible to the other claimer.
            place.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })?;
        Some(Self { index, tid, slot, place, word })
    }

    /// The slot that the thread has in the end.
    pub(super) fn decide(self) -> Option<usize> {
        let Self { index, tid, place, word, .. } = self;
        let own = index.probes(tid).nth(place)?;
        // SeqCst: pairs with itself in the other claimer. Of the two at least one sees the other's
        // word, since each wrote its own before and reads afterwards.
        fence(Ordering::SeqCst);
        let winner = self.rival();
        let claimed = slot_of(word, tid)?;
        if winner.is_none() && self.commit(own) {
            return Some(claimed);
        }
        // Relaxed on both: a tentative word publishes nothing. It fails if the word was taken out.
        let _ = own.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        // Taken out by one in a lower place, whose word the failed swap made visible.
        winner.or_else(|| self.rival())
    }

    /// The slot of another claimer that wins against this one.
    fn rival(self) -> Option<usize> {
        let Self { index, tid, place, .. } = self;
        let others = index.probes(tid).enumerate().filter(|(number, _)| *number != place);
        others.into_iter().find_map(|(number, other)| {
            // Acquire: pairs with the Release in `commit`.
            let word = other.load(Ordering::Acquire);
            let slot = slot_of(word, tid)?;
            let is_higher = word & TENTATIVE != 0 && number > place;
            // Release: pairs with the Acquire in `commit` of the one who is taken out: it sees our
            // word. Acquire on failure: pairs with the Release in `commit`.
            if is_higher
                && let Err(seen) =
                    other.compare_exchange(word, 0, Ordering::Release, Ordering::Acquire)
            {
                // Decided meanwhile; or withdrawn, and then there is no rival.
                return slot_of(seen, tid);
            }
            (!is_higher).then_some(slot)
        })
    }

    /// Makes a tentative word the thread's; false if it was taken out.
    fn commit(self, own: &AtomicU64) -> bool {
        let Self { slot, word, .. } = self;
        // Before the word: who finds the slot may prime it.
        let is_free = swap_state(slot, SlotState::Unclaimed, SlotState::Claimed);
        let decided = word & !TENTATIVE;
        // Release: pairs with the Acquire in `find`; the slot's first values are visible. Acquire
        // on failure: pairs with the Release in `rival`.
        if is_free
            && own.compare_exchange(word, decided, Ordering::Release, Ordering::Acquire).is_ok()
        {
            return true;
        }
        swap_state(slot, SlotState::Claimed, SlotState::Unclaimed);
        false
    }
}
