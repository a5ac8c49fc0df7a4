//! The slots that were given back.

use super::ThreadSlot;
use crate::sync::{AtomicU64, Ordering, next_tag};

/// Attempts at the stack before another way is taken.
const ATTEMPTS_MAX: usize = 16;

/// A stack of slots, linked by [`ThreadSlot::next_free`].
#[derive(Debug, Clone, Copy)]
pub struct FreeSlots<'a> {
    /// tag << 32 | slot + 1 of the topmost free slot.
    pub top: &'a AtomicU64,
    /// All slots.
    pub slots: &'a [ThreadSlot],
    /// Counts slots that are in no one's hands any more: [`crate::layout::Counter::SlotLeaked`].
    pub leaked: &'a AtomicU64,
}

impl FreeSlots<'_> {
    /// Takes the slot that was given back last.
    pub(super) fn pop(self) -> Option<usize> {
        // Acquire: pairs with the Release in `push`; `next_free` and the cleared slot are visible.
        let mut top = self.top.load(Ordering::Acquire);
        for _ in 0..ATTEMPTS_MAX {
            let index = (top as u32 as usize).checked_sub(1)?;
            let slot = self.slots.get(index)?;
            // Relaxed: a stale value is refused by the swap, whose tag has moved on.
            let next = slot.next_free.load(Ordering::Relaxed);
            let lowered = tagged(top, u64::from(next));
            // Acquire on both: as above.
            match self.top.compare_exchange(top, lowered, Ordering::Acquire, Ordering::Acquire) {
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
        let mut top = self.top.load(Ordering::Relaxed);
        for _ in 0..ATTEMPTS_MAX {
            slot.next_free.store(top as u32, Ordering::Relaxed);
            let raised = tagged(top, index as u64 + 1);
            // Release: pairs with the Acquire in `pop`. Relaxed on failure: tried again.
            match self.top.compare_exchange(top, raised, Ordering::Release, Ordering::Relaxed) {
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
