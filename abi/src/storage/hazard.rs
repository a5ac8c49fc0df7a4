//! Hazard slots: one word each that says which thread is inside which table.
//!
//! # Invariants
//! - The word is the whole claim: owner, generation and table change together, so the recorder
//!   can never see an owner without its table (a bitmap beside the pointers would be two stores).
//! - A slot belongs to the thread that swapped its word in; only that thread clears it, or the
//!   recorder once the thread is gone.

use crate::sync::{AtomicU64, Ordering, fence};

/// Probe steps, all prime and so coprime to the number of slots: threads that collide at their
/// first slot part at the second (call-trace storage document, "semi-random prime steps").
pub const PRIME_STEPS: [usize; 16] = [
    1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087, 1091, 1093, 1097,
];
/// Slots tried before a sample is given up.
pub const PROBES_MAX: usize = 32;
/// Times that a handler follows a rotation that overtakes it.
pub const RETRIES_MAX: usize = 8;
/// Bits of the ACTIVE word that hold the table index; the rest is the generation.
pub const TABLE_BITS: u32 = 3;

/// Why no table could be protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unprotected {
    /// All probed slots belong to other threads.
    Exhausted,
    /// The tables rotated [`RETRIES_MAX`] times meanwhile.
    Overtaken,
}

/// A published hazard. It is not cleared by `Drop`: [`HazardSlots::release`] does it.
#[derive(Debug)]
#[must_use = "a hazard that is not released blocks its table"]
pub struct Hazard {
    slot: usize,
    /// The ACTIVE word that was current when the hazard was published.
    pub active: u32,
    /// The first slot that was tried belonged to another thread.
    pub collided: bool,
}

impl Hazard {
    /// Index of the protected table.
    pub fn table(&self) -> usize {
        table_of(self.active)
    }
}

/// The table index in an ACTIVE word.
pub fn table_of(active: u32) -> usize {
    (active & ((1 << TABLE_BITS) - 1)) as usize
}

/// The hazard slots of one data segment; the length is a power of two.
#[derive(Debug, Clone, Copy)]
pub struct HazardSlots<'a>(pub &'a [AtomicU64]);

impl<'a> HazardSlots<'a> {
    /// The slots that a thread tries, in order.
    pub fn probes(self, owner: u32) -> impl Iterator<Item = usize> + use<'a> {
        let mask = self.0.len().wrapping_sub(1);
        // Knuth's multiplicative hash; the upper bits are the well mixed ones.
        let hash = u64::from(owner).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let base = (hash >> 40) as usize;
        let step = PRIME_STEPS.get((hash >> 32 & 15) as usize).copied().unwrap_or(1);
        (0..PROBES_MAX).map(move |i| (base + i * step) & mask)
    }

    /// Claims a slot for `owner` and publishes that it uses the table in `active`.
    /// The upper half of `active` is 0.
    pub fn protect(self, owner: u32, active: &AtomicU64) -> Result<Hazard, Unprotected> {
        // Relaxed: this is a guess that the load behind the fence confirms.
        let mut word = active.load(Ordering::Relaxed) as u32;
        let (slot, collided) = self.claim(owner, word)?;
        for _ in 0..RETRIES_MAX {
            // SeqCst: pairs with the fence in `Rotation::publish`. Of the two threads at least
            // one sees the other's store: we the new ACTIVE word, or the recorder our hazard.
            fence(Ordering::SeqCst);
            // Acquire: pairs with the Release of `Rotation::publish`; makes the cleared table visible.
            let again = active.load(Ordering::Acquire) as u32;
            if again == word {
                return Ok(Hazard { slot, active: word, collided });
            }
            word = again;
            // Relaxed: nothing of the table that the slot named before was touched.
            self.set(slot, hazard_word(owner, word), Ordering::Relaxed);
        }
        // Relaxed: as above, no table was touched.
        self.set(slot, 0, Ordering::Relaxed);
        Err(Unprotected::Overtaken)
    }

    fn claim(self, owner: u32, active: u32) -> Result<(usize, bool), Unprotected> {
        for (probe, slot) in self.probes(owner).enumerate() {
            // Acquire: pairs with the Release of `release` by the slot's last owner.
            // Relaxed on failure: the value is not used.
            let Some(word) = self.0.get(slot) else { break };
            let claimed = word.compare_exchange(
                0,
                hazard_word(owner, active),
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if claimed.is_ok() {
                return Ok((slot, probe > 0));
            }
        }
        Err(Unprotected::Exhausted)
    }

    /// Ends the use of the table.
    pub fn release(self, hazard: Hazard) {
        // Release: pairs with the Acquire in `is_clear`; what was put is visible to the recorder.
        self.set(hazard.slot, 0, Ordering::Release);
    }

    /// No indexing here: the handler must have no way to panic.
    fn set(self, slot: usize, word: u64, ordering: Ordering) {
        if let Some(place) = self.0.get(slot) {
            place.store(word, ordering);
        }
    }

    /// True when no thread is inside the table of `active`. Call after the fence of a rotation.
    pub fn is_clear(self, active: u32) -> bool {
        self.holders(active).next().is_none()
    }

    /// The threads inside the table of `active`: slot index and owner.
    pub fn holders(self, active: u32) -> impl Iterator<Item = (usize, u32)> + use<'a> {
        let table = table_of(active);
        self.0.iter().enumerate().filter_map(move |(slot, word)| {
            // Acquire: pairs with the Release of `release`.
            let word = word.load(Ordering::Acquire);
            (word != 0 && table_of(word as u32) == table).then_some((slot, (word >> 32) as u32))
        })
    }

    /// Frees a slot whose owner is known to have died inside the handler.
    pub fn reclaim(self, slot: usize, owner: u32) {
        // Relaxed: the dead thread writes no more, and its table is read under quarantine rules.
        let word = self.0[slot].load(Ordering::Relaxed);
        if (word >> 32) as u32 == owner {
            // Relaxed on both: as above.
            let _ = self.0[slot].compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

fn hazard_word(owner: u32, active: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(active)
}
