//! Where free slots come from: those given back first, then those never used.

use super::Threads;
use crate::sync::{Ordering, next_tag};

/// Attempts at the stack before another way is taken.
const ATTEMPTS_MAX: usize = 16;

impl Threads<'_> {
    /// A slot that is nobody's.
    pub(super) fn take(self) -> Option<usize> {
        self.pop().or_else(|| self.fresh())
    }

    fn fresh(self) -> Option<usize> {
        // Relaxed: reservation only. The load first keeps a full table from counting on for ever.
        let limit = self.limit.load(Ordering::Relaxed).min(self.slots.len() as u32);
        if self.next.load(Ordering::Relaxed) >= limit {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < limit).then_some(index as usize)
    }

    fn pop(self) -> Option<usize> {
        // Acquire: pairs with the Release in `push`; `next_free` and the cleared slot are visible.
        let mut top = self.free.load(Ordering::Acquire);
        for _ in 0..ATTEMPTS_MAX {
            let index = (top as u32 as usize).checked_sub(1)?;
            let slot = self.slots.get(index)?;
            // Relaxed: a stale value is refused by the swap, whose tag has moved on.
            let next = slot.next_free.load(Ordering::Relaxed);
            let lowered = tagged(top, u64::from(next));
            // Acquire on both: as above.
            match self.free.compare_exchange(top, lowered, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(seen) => top = seen,
            }
        }
        None
    }

    /// Gives a slot back.
    pub(super) fn push(self, index: usize) {
        let Some(slot) = self.slots.get(index) else { return };
        // Relaxed: the swap confirms it.
        let mut top = self.free.load(Ordering::Relaxed);
        for _ in 0..ATTEMPTS_MAX {
            slot.next_free.store(top as u32, Ordering::Relaxed);
            let raised = tagged(top, index as u64 + 1);
            // Release: pairs with the Acquire in `pop`. Relaxed on failure: tried again.
            match self.free.compare_exchange(top, raised, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => top = seen,
            }
        }
        // Lost all the races: the slot stays unused until the segment goes.
        // Relaxed: a count.
        self.leaked.fetch_add(1, Ordering::Relaxed);
    }
}

/// A word of the stack that follows `top`: the tag moves with each change, so that a swap against
/// a top that was there before, and is there again, fails.
fn tagged(top: u64, next: u64) -> u64 {
    next_tag(top >> 32) << 32 | next
}
