//! Hazard slots: words that say which thread is inside which table.
//!
//! # Invariants
//! - The word is the complete claim. Owner, generation and table change together, so the recorder
//!   never sees an owner without its table. (A bitmap beside the pointers would need two stores.)
//! - A slot belongs to the thread that swapped its word in. Only that thread clears it, or the
//!   recorder after the thread's death. Both swap out the complete word, so neither can clear
//!   another thread's claim.
//! - An owner is one life of one thread slot ([`owner`]), never a thread id. The kernel reuses ids,
//!   and a dead thread's claim would pass for the new thread's.
//! - The recorder waits for claims of the ACTIVE word that it replaced, not of the table. A claim
//!   with an older word was never confirmed and never will be. So a thread that is stopped between
//!   claiming and confirming delays nothing.
//!
//! # Collisions
//! The share of first probes that meet another thread's claim, with 2,000 threads inside at once
//! (the document says "under 3 %"). `tests/hazard.rs` measures and asserts it. No thread was
//! refused:
//!
//! | keys | collisions |
//! |---|---:|
//! | consecutive (thread slots, what we have) | 0.0 %; 4,000: 0.0 % |
//! | multiples of eight | 0.0 % |
//! | pointer-like (stacks 8 MiB + 4 KiB apart) | 0.0 % |
//! | random | about 12 % |
//!
//! Random keys cannot do better: chance alone gives n / 2m = 12.2 %. Little is lost by it: a
//! collision costs one more probe, and no more handlers run at the same time than there are cores.
//! (`examples/storage_cost.rs` measures other numbers of threads.)

use crate::sync::{AtomicU64, Ordering, fence};

/// Probe steps. All are prime and so coprime to the number of slots. Threads that collide at their
/// first slot separate at the second (call-trace storage document, "semi-random prime steps").
pub const PRIME_STEPS: [usize; 16] = [
    1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087, 1091, 1093, 1097,
];
/// Maximum number of slots tried before the sample is lost.
pub const PROBES_MAX: usize = 32;
/// Maximum number of times that a handler follows a rotation that overtakes it. The models use
/// fewer, because they run all interleavings.
pub const RETRIES_MAX: usize = if cfg!(loom) { 2 } else { 8 };
/// Number of bits of the ACTIVE word that hold the table index. The others hold the generation.
pub const TABLE_BITS: u32 = 3;
/// Number of bits of an owner that hold the generation of the thread slot.
pub const LIFE_BITS: u32 = 15;
const _: () = assert!(crate::layout::THREAD_SLOTS < 1 << (u32::BITS - LIFE_BITS));
const _: () = assert!(crate::layout::TRACE_TABLES <= 1 << TABLE_BITS);

/// Returns the owner of the hazards of a thread slot in one of its generations. Never 0.
pub fn owner(slot: u32, generation: u32) -> u32 {
    slot.wrapping_add(1) << LIFE_BITS | generation & ((1 << LIFE_BITS) - 1)
}

/// Returns the thread slot of an owner and the lower [`LIFE_BITS`] of its generation.
pub fn slot_of(owner: u32) -> Option<(u32, u32)> {
    let slot = (owner >> LIFE_BITS).checked_sub(1)?;
    Some((slot, owner & ((1 << LIFE_BITS) - 1)))
}

/// The reason why no table could be protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unprotected {
    /// All probed slots belong to other threads.
    Exhausted,
    /// The tables rotated [`RETRIES_MAX`] times during the attempt.
    Overtaken,
}

/// A published hazard. `Drop` does not clear it: call [`HazardSlots::release`].
#[derive(Debug)]
#[must_use = "a hazard that is not released blocks its table"]
pub struct Hazard {
    slot: usize,
    owner: u32,
    /// The ACTIVE word that was current when the hazard was published.
    pub active: u32,
    /// Whether the first probed slot belonged to another thread.
    pub collided: bool,
}

impl Hazard {
    /// Returns the index of the protected table.
    pub fn table(&self) -> usize {
        table_of(self.active)
    }
}

/// A used hazard slot, as the recorder sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HazardClaim {
    /// Index of the hazard slot.
    pub slot: usize,
    /// The claim's owner, see [`owner`].
    pub owner: u32,
    /// The ACTIVE word under which the owner is inside a table, or which the owner found to be out
    /// of date.
    pub active: u32,
}

/// Returns the table index in an ACTIVE word.
pub fn table_of(active: u32) -> usize {
    (active & ((1 << TABLE_BITS) - 1)) as usize
}

/// The hazard slots of one data segment. The length is a power of two.
#[derive(Debug, Clone, Copy)]
pub struct HazardSlots<'a>(pub &'a [AtomicU64]);

impl<'a> HazardSlots<'a> {
    /// Returns the slots that a thread tries, in order. The generation is not part of the key.
    /// Neighbouring thread slots thus have first slots that are far apart, whatever lives they are
    /// in.
    pub fn probes(self, owner: u32) -> impl Iterator<Item = usize> + use<'a> {
        self.probes_of(u64::from(owner >> LIFE_BITS))
    }

    /// Returns the slots to try for any key, in order.
    pub fn probes_of(self, key: u64) -> impl Iterator<Item = usize> + use<'a> {
        let mask = self.0.len().wrapping_sub(1);
        // Knuth's multiplicative hash, whose topmost bits are mixed best.
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let base = hash.checked_shr(64 - self.0.len().trailing_zeros()).unwrap_or(0) as usize;
        let step = PRIME_STEPS.get((hash >> 32 & 15) as usize).copied().unwrap_or(1);
        (0..PROBES_MAX).map(move |i| (base + i * step) & mask)
    }

    /// Claims a slot for `owner` and publishes that the owner uses the table in `active`. The upper
    /// half of `active` is 0.
    pub fn protect(self, owner: u32, active: &AtomicU64) -> Result<Hazard, Unprotected> {
        // Relaxed: a guess, which the load after the fence confirms.
        let mut word = active.load(Ordering::Relaxed) as u32;
        let (slot, collided) = self.claim(owner, word)?;
        for _ in 0..RETRIES_MAX {
            // SeqCst: pairs with the fence in `Rotation::publish`. At least one side sees the
            // other's store: either this thread sees the new ACTIVE word, or the recorder sees this
            // hazard.
            fence(Ordering::SeqCst);
            // Acquire: pairs with the Release of `Rotation::publish`; makes the cleared table
            // visible.
            let again = active.load(Ordering::Acquire) as u32;
            if is_current(word, again) {
                return Ok(Hazard { slot, owner, active: word, collided });
            }
            self.swap(slot, hazard_word(owner, word), hazard_word(owner, again))?;
            word = again;
        }
        #[cfg(loom)]
        if crate::sync::planted::has(crate::sync::planted::Mistake::KeepOvertaken) {
            return Err(Unprotected::Overtaken);
        }
        self.swap(slot, hazard_word(owner, word), 0)?;
        Err(Unprotected::Overtaken)
    }

    /// Moves or withdraws an unconfirmed claim.
    fn swap(self, slot: usize, old: u64, new: u64) -> Result<(), Unprotected> {
        // No indexing here: the handler must have no way to panic.
        let word = self.0.get(slot).ok_or(Unprotected::Overtaken)?;
        // Relaxed on both: the thread has not touched the table that the slot named.
        let swapped = word.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
        swapped.map(|_| ()).map_err(|_| Unprotected::Overtaken)
    }

    fn claim(self, owner: u32, active: u32) -> Result<(usize, bool), Unprotected> {
        let claim = hazard_word(owner, active);
        for (probe, slot) in self.probes(owner).enumerate() {
            let Some(word) = self.0.get(slot) else { break };
            #[cfg(loom)]
            if crate::sync::planted::has(crate::sync::planted::Mistake::ClaimWithoutSwap) {
                if word.load(Ordering::Acquire) == 0 {
                    word.store(claim, Ordering::Release);
                    return Ok((slot, probe > 0));
                }
                continue;
            }
            // Acquire: pairs with the Release of `release` by the slot's last owner.
            // Release: pairs with the Acquire in `claims`; the owner's thread slot is visible.
            // Relaxed on failure: the value is not used.
            if word.compare_exchange(0, claim, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok((slot, probe > 0));
            }
        }
        Err(Unprotected::Exhausted)
    }

    /// Releases the table. False if the slot no longer held this claim: the recorder took the
    /// thread for dead, or the target overwrote the slot.
    #[must_use = "a claim that was taken away is to be counted"]
    pub fn release(self, hazard: Hazard) -> bool {
        let claim = hazard_word(hazard.owner, hazard.active);
        let Some(word) = self.0.get(hazard.slot) else { return false };
        // Release: pairs with the Acquire in `claims`; the recorder sees what was put. Relaxed on
        // failure: the value is not used.
        word.compare_exchange(claim, 0, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Whether no thread is inside the table of `active`, which is no longer current. Once this is
    /// true after the fence of the rotation that replaced `active`, it stays true: a claim that
    /// shows up later will not be confirmed.
    pub fn is_clear(self, active: u32) -> bool {
        self.holders(active).next().is_none()
    }

    /// Returns the claims of threads that are inside under this ACTIVE word.
    pub fn holders(self, active: u32) -> impl Iterator<Item = HazardClaim> + use<'a> {
        self.claims().filter(move |claim| claim.active == active)
    }

    /// Returns the claims in all used slots.
    pub fn claims(self) -> impl Iterator<Item = HazardClaim> + use<'a> {
        self.0.iter().enumerate().filter_map(|(slot, word)| {
            // Acquire: pairs with the Release of `release`: what a thread put is visible once its
            // claim is cleared. Also pairs with the Release of `claim`.
            let word = word.load(Ordering::Acquire);
            (word != 0).then_some(HazardClaim {
                slot,
                owner: (word >> 32) as u32,
                active: word as u32,
            })
        })
    }

    /// Frees the slot of an owner that is known to have died inside the handler. False if the slot
    /// no longer holds the claim.
    pub fn reclaim(self, claim: HazardClaim) -> bool {
        let Some(word) = self.0.get(claim.slot) else { return false };
        #[cfg(loom)]
        if crate::sync::planted::has(crate::sync::planted::Mistake::ReclaimUnseen) {
            word.store(0, Ordering::Relaxed);
            return true;
        }
        let old = hazard_word(claim.owner, claim.active);
        // Relaxed on both: the dead thread writes no more. What it wrote became visible with the
        // report of its death.
        word.compare_exchange(old, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Whether a claimed word is still the current ACTIVE word. The table alone does not show this: it
/// may be ACTIVE again in another instance, with another generation.
fn is_current(claimed: u32, active: u32) -> bool {
    #[cfg(loom)]
    if crate::sync::planted::has(crate::sync::planted::Mistake::IgnoreGeneration) {
        return table_of(claimed) == table_of(active);
    }
    claimed == active
}

fn hazard_word(owner: u32, active: u32) -> u64 {
    u64::from(owner) << 32 | u64::from(active)
}
