//! The index from thread ids to slots.
//!
//! # Invariants
//! - A thread's word is within [`PROBES_MAX`] probes of its hash, or absent.

use crate::sync::{AtomicU64, Ordering};

/// Number of index words probed for a thread id, starting at its hash.
pub const PROBES_MAX: usize = 64;
/// Marks an index word whose claim is not decided yet.
pub(super) const TENTATIVE: u64 = 1 << 31;

/// The hash table that maps thread ids to slots.
#[derive(Debug, Clone, Copy)]
pub struct ThreadIndex<'a> {
    /// thread id << 32 | `TENTATIVE` | slot + 1, or 0; the length is a power of two.
    pub words: &'a [AtomicU64],
}

/// Returns the slot that an index word names, if the word belongs to this thread.
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

    /// Returns the slot of a thread, if its index is below `slots`.
    pub(super) fn find(self, tid: u32, slots: usize) -> Option<usize> {
        self.probes(tid).find_map(|word| {
            // Acquire: pairs with the Release in `commit`; the slot's first values are visible.
            let word = word.load(Ordering::Acquire);
            let slot = slot_of(word, tid).filter(|&slot| slot < slots);
            slot.filter(|_| word & TENTATIVE == 0)
        })
    }

    /// Removes the word of a thread that has exited.
    pub(super) fn remove(self, tid: u32, index: usize) {
        for probe in self.probes(tid) {
            // Relaxed: the swap below compares the complete word.
            let word = probe.load(Ordering::Relaxed);
            if slot_of(word, tid) == Some(index) {
                // Relaxed on both: the word's thread has exited, and nothing is read through the
                // word.
                let _ = probe.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}
