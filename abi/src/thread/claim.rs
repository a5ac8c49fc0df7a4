//! The claim of a slot for a thread, which two claimers may make at the same time.
//!
//! A claimer writes a tentative word into the first empty one of the thread's probe positions, then
//! checks all other positions. The fences of two claimers pair, so at least one of them sees the
//! other's word. The claimer in the lower position wins: it removes the other's tentative word,
//! which the other can then no longer commit. The exception is that the other has committed
//! already, because it checked before the lower word was written. Then the claimer in the lower
//! position withdraws. A claimer that withdraws gives its slot back and uses the winner's.
//!
//! # Invariants
//! - At most two claimers exist for one thread at a time: the thread and the recorder.
//! - Only the recorder removes a committed word, after the thread has exited.

use super::index::{TENTATIVE, ThreadIndex, slot_of};
use super::{SlotState, ThreadSlot, swap_state};
use crate::sync::{AtomicU64, Ordering, fence};

/// An undecided claim: a tentative word in the index.
#[derive(Debug, Clone, Copy)]
pub(super) struct TentativeClaim<'a> {
    index: ThreadIndex<'a>,
    tid: u32,
    /// The claimed slot.
    slot: &'a ThreadSlot,
    /// The word's position among the thread's probes.
    position: usize,
    word: u64,
}

impl<'a> TentativeClaim<'a> {
    /// Writes a tentative word for `slot`, which the claimer owns, into the first empty probe
    /// position. `None` if no position is empty.
    pub(super) fn insert(
        index: ThreadIndex<'a>,
        tid: u32,
        (number, slot): (usize, &'a ThreadSlot),
    ) -> Option<Self> {
        let word = u64::from(tid) << 32 | TENTATIVE | (number as u64 + 1);
        let mut probes = index.probes(tid);
        let position = probes.position(|probe| {
            // Relaxed on both: no claimer reads data through a tentative word, and the fence of
            // `decide` makes it visible to the other claimer.
            probe.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })?;
        Some(Self { index, tid, slot, position, word })
    }

    /// Decides the claim and returns the thread's slot: this claimer's or the winner's.
    pub(super) fn decide(self) -> Option<usize> {
        let Self { index, tid, position, word, .. } = self;
        let own = index.probes(tid).nth(position)?;
        // SeqCst: pairs with the same fence in the other claimer. Each claimer wrote its own word
        // before and reads afterwards, so at least one of the two sees the other's word.
        fence(Ordering::SeqCst);
        let winner = self.rival();
        let claimed = slot_of(word, tid)?;
        if winner.is_none() && self.commit(own) {
            return Some(claimed);
        }
        // Relaxed on both: a tentative word publishes nothing. The swap fails if the other claimer
        // removed the word.
        let _ = own.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        // If the other claimer, in a lower position, removed the word, the failed swap in `commit`
        // made its word visible.
        winner.or_else(|| self.rival())
    }

    /// Returns the slot of another claimer that wins against this one. Removes a tentative word in
    /// a higher position.
    fn rival(self) -> Option<usize> {
        let Self { index, tid, position, .. } = self;
        let others = index.probes(tid).enumerate().filter(|(number, _)| *number != position);
        others.into_iter().find_map(|(number, other)| {
            // Acquire: pairs with the Release in `commit`.
            let word = other.load(Ordering::Acquire);
            let slot = slot_of(word, tid)?;
            let is_higher = word & TENTATIVE != 0 && number > position;
            // Release: pairs with the Acquire in the `commit` of the claimer whose word is removed;
            // that claimer sees our word. Acquire on failure: pairs with the Release in `commit`.
            if is_higher
                && let Err(seen) =
                    other.compare_exchange(word, 0, Ordering::Release, Ordering::Acquire)
            {
                // The other claimer has committed meanwhile. If it has withdrawn, there is no
                // rival.
                return slot_of(seen, tid);
            }
            (!is_higher).then_some(slot)
        })
    }

    /// Commits the tentative word. False if the other claimer removed it.
    fn commit(self, own: &AtomicU64) -> bool {
        let Self { slot, word, .. } = self;
        // The state changes before the word, because whoever finds the slot may prime it.
        let is_free = swap_state(slot, SlotState::Unclaimed, SlotState::Claimed);
        let decided = word & !TENTATIVE;
        // Release: pairs with the Acquire in `find`; the slot's first values are visible. Acquire
        // on failure: pairs with the Release in `rival`; the other claimer's word is visible.
        if is_free
            && own.compare_exchange(word, decided, Ordering::Release, Ordering::Acquire).is_ok()
        {
            return true;
        }
        swap_state(slot, SlotState::Claimed, SlotState::Unclaimed);
        false
    }
}
