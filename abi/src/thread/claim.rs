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

use super::{Claim, SlotState, TENTATIVE, Threads, slot_of, swap_state};
use crate::sync::{AtomicU64, Ordering, fence};

impl<'a> Threads<'a> {
    /// Claims a slot for a thread, unless it has one. May be called by the thread itself, from its
    /// handler, and by the recorder at the same time.
    pub fn claim(self, tid: u32) -> Claim {
        if let Some(index) = self.find(tid) {
            return Claim::Existing(index);
        }
        let Some(index) = self.take() else { return Claim::Exhausted };
        let Some(slot) = self.slots.get(index) else { return Claim::Exhausted };
        // Relaxed: published by the swap in `commit`.
        slot.tid.store(tid, Ordering::Relaxed);
        let word = u64::from(tid) << 32 | TENTATIVE | (index as u64 + 1);
        let claim = match self.insert(tid, word) {
            Some(place) => self.decide(tid, place, word),
            None => None,
        };
        match claim {
            Some(winner) if winner == index => Claim::New(index),
            other => {
                // Relaxed: published by the Release in `push`.
                slot.tid.store(0, Ordering::Relaxed);
                self.push(index);
                other.map_or(Claim::Exhausted, Claim::Existing)
            }
        }
    }

    /// Writes the word into the first empty place, whose number is returned.
    fn insert(self, tid: u32, word: u64) -> Option<usize> {
        self.probes(tid).position(|place| {
            // Relaxed on both: nothing is read through a tentative word, and the fence of `decide`
            // makes it visible to the other claimer.
            place.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    }

    /// The slot that the thread has in the end, given our tentative word.
    fn decide(self, tid: u32, place: usize, word: u64) -> Option<usize> {
        let own = self.probes(tid).nth(place)?;
        // SeqCst: pairs with itself in the other claimer. Of the two at least one sees the other's
        // word, since each wrote its own before and reads afterwards.
        fence(Ordering::SeqCst);
        let winner = self.rival(tid, place);
        let index = slot_of(word, tid)?;
        if winner.is_none() && self.commit(own, word, index) {
            return Some(index);
        }
        // Relaxed on both: a tentative word publishes nothing. It fails if the word was taken out.
        let _ = own.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        // Taken out by one in a lower place, whose word the failed swap made visible.
        winner.or_else(|| self.rival(tid, place))
    }

    /// The slot of another claimer that wins against the one in `place`.
    fn rival(self, tid: u32, place: usize) -> Option<usize> {
        let others = self.probes(tid).enumerate().filter(|(number, _)| *number != place);
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
    fn commit(self, own: &AtomicU64, word: u64, index: usize) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
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
