//! The stack of free thread slots.

use super::ThreadSlot;
use crate::sync::{AtomicU64, Ordering, next_tag};

/// Maximum number of attempts to change the stack.
const ATTEMPTS_MAX: usize = 16;

/// A stack of free slots, linked by [`ThreadSlot::next_free`].
#[derive(Debug, Clone, Copy)]
pub struct FreeSlots<'a> {
    /// tag << 32 | slot + 1 of the topmost free slot.
    pub top: &'a AtomicU64,
    /// All slots.
    pub slots: &'a [ThreadSlot],
    /// Counts the slots that are neither free nor claimed any more:
    /// [`crate::layout::Counter::SlotLeaked`].
    pub leaked: &'a AtomicU64,
}

impl FreeSlots<'_> {
    /// Takes the slot that was given back last. `None` if there is none, or after too many lost
    /// races.
    pub(super) fn pop(self) -> Option<usize> {
        // Acquire: pairs with the Release in `push`; `next_free` and the cleared slot are visible.
        let mut top = self.top.load(Ordering::Acquire);
        for _ in 0..ATTEMPTS_MAX {
            let index = (top as u32 as usize).checked_sub(1)?;
            let slot = self.slots.get(index)?;
            // Relaxed: if the value is stale, the tag has changed and the swap fails.
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
        // Relaxed: the swap confirms the value.
        let mut top = self.top.load(Ordering::Relaxed);
        for _ in 0..ATTEMPTS_MAX {
            slot.next_free.store(top as u32, Ordering::Relaxed);
            let raised = tagged(top, index as u64 + 1);
            // Release: pairs with the Acquire in `pop`; the cleared slot and `next_free` are
            // visible. Relaxed on failure: the loop retries.
            match self.top.compare_exchange(top, raised, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => top = seen,
            }
        }
        // All races were lost: the slot stays unused until the segment is unmapped.
        // Relaxed: a count.
        self.leaked.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the stack's word after `top`. Each change changes the tag, so a swap against an older
/// top fails even if the same slot is on top again (ABA).
fn tagged(top: u64, next: u64) -> u64 {
    next_tag(top >> 32) << 32 | next
}
