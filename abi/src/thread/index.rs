//! The index of the slots: which one a thread id has.
//!
//! # Invariants
//! - The word of a thread is among its [`PROBES_MAX`] probes, or nowhere.

use crate::sync::{AtomicU64, Ordering};

/// Index words probed for a thread id, from its hash on.
pub const PROBES_MAX: usize = 64;
/// Bit of an index word whose claim is not decided yet.
pub(super) const TENTATIVE: u64 = 1 << 31;

/// The words that thread ids are looked up in.
#[derive(Debug, Clone, Copy)]
pub struct ThreadIndex<'a> {
    /// thread id << 32 | `TENTATIVE` | slot + 1, or 0; the length is a power of two.
    pub words: &'a [AtomicU64],
}

/// The slot that an index word names, if it is the word of this thread.
pub(super) fn slot_of(word: u64, tid: u32) -> Option<usize> {
    ((word >> 32) as u32 == tid).then_some(())?;
    ((word & (TENTATIVE - 1)) as usize).checked_sub(1)
}

impl<'a> ThreadIndex<'a> {
    pub(super) fn probes(self, tid: u32) -> impl Iterator<Item = &'a AtomicU64> {
        let mask = self.words.len().wrapping_sub(1);
        let base = (u64::from(tid).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
        // No indexing: the handler must have no way to panic.
        (0..PROBES_MAX.min(self.words.len())).filter_map(move |i| self.words.get((base + i) & mask))
    }

    /// The slot of a thread, if it has one of the first `slots`.
    pub(super) fn find(self, tid: u32, slots: usize) -> Option<usize> {
        self.probes(tid).find_map(|word| {
            // Acquire: pairs with the Release in `commit`; the slot's first values are visible.
            let word = word.load(Ordering::Acquire);
            let slot = slot_of(word, tid).filter(|&slot| slot < slots);
            slot.filter(|_| word & TENTATIVE == 0)
        })
    }

    /// Takes out the word of a thread that is gone.
    pub(super) fn take_out(self, tid: u32, index: usize) {
        for place in self.probes(tid) {
            // Relaxed: the word is compared as a whole below.
            let word = place.load(Ordering::Relaxed);
            if slot_of(word, tid) == Some(index) {
                // Relaxed on both: the thread that wrote the word is gone; nothing is read by it.
                let _ = place.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}
