//! Hazard slots: one word each that says which thread is inside which table.
//!
//! # Invariants
//! - The word is the whole claim: owner, generation and table change together, so the recorder
//!   can never see an owner without its table (a bitmap beside the pointers would be two stores).
//! - A slot belongs to the thread that swapped its word in; only that thread clears it, or the
//!   recorder once the thread is gone. Both swap the whole word out, so neither can clear the
//!   claim of somebody else.
//! - An owner is one life of one thread slot ([`owner`]), never a thread id: the kernel gives ids
//!   out again, and the dead thread's claim would pass for the new thread's.
//! - The recorder waits for claims of the ACTIVE word that it took back, not of the table: a claim
//!   with an older word was never confirmed, and never will be. So a thread that is stopped between
//!   claiming and confirming holds up nothing.
//!
//! # Collisions
//! First probes that meet another thread's claim, with 2,000 threads inside at once (the document
//! says "under 3 %"), as `tests/hazard.rs` measures and asserts them; refused was none:
//!
//! | keys | collisions |
//! |---|---:|
//! | consecutive (thread slots, what we have) | 0.0 %; 4,000: 0.0 % |
//! | multiples of eight | 0.0 % |
//! | pointer-like (stacks 8 MiB + 4 KiB apart) | 0.0 % |
//! | random | about 12 % |
//!
//! Random keys cannot do better: chance alone is n / 2m = 12.2 %. Nor is it a loss: a collision
//! costs one more probe, and handlers that run at the same time are as many as cores.
//! (`examples/storage_cost.rs` has more numbers of threads.)

use crate::sync::{AtomicU64, Ordering, fence};

/// Probe steps, all prime and so coprime to the number of slots: threads that collide at their
/// first slot part at the second (call-trace storage document, "semi-random prime steps").
pub const PRIME_STEPS: [usize; 16] = [
    1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087, 1091, 1093, 1097,
];
/// Slots tried before a sample is given up.
pub const PROBES_MAX: usize = 32;
/// Times that a handler follows a rotation that overtakes it. The models have all interleavings of
/// fewer.
pub const RETRIES_MAX: usize = if cfg!(loom) { 2 } else { 8 };
/// Bits of the ACTIVE word that hold the table index; the rest is the generation.
pub const TABLE_BITS: u32 = 3;
/// Bits of an owner that hold the generation of the thread slot.
pub const LIFE_BITS: u32 = 15;
const _: () = assert!(crate::layout::THREAD_SLOTS < 1 << (u32::BITS - LIFE_BITS));
const _: () = assert!(crate::layout::TRACE_TABLES <= 1 << TABLE_BITS);

/// The owner of the hazards of a thread slot in one of its generations. Never 0.
pub fn owner(slot: u32, generation: u32) -> u32 {
    slot.wrapping_add(1) << LIFE_BITS | generation & ((1 << LIFE_BITS) - 1)
}

/// The thread slot of an owner, and the lower [`LIFE_BITS`] of its generation.
pub fn slot_of(owner: u32) -> Option<(u32, u32)> {
    let slot = (owner >> LIFE_BITS).checked_sub(1)?;
    Some((slot, owner & ((1 << LIFE_BITS) - 1)))
}

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
    owner: u32,
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

/// A hazard slot in use, as the recorder sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Index of the hazard slot.
    pub slot: usize,
    /// See [`owner`].
    pub owner: u32,
    /// The ACTIVE word that the owner is inside of, or found no longer current.
    pub active: u32,
}

/// The table index in an ACTIVE word.
pub fn table_of(active: u32) -> usize {
    (active & ((1 << TABLE_BITS) - 1)) as usize
}

/// The hazard slots of one data segment; the length is a power of two.
#[derive(Debug, Clone, Copy)]
pub struct HazardSlots<'a>(pub &'a [AtomicU64]);

impl<'a> HazardSlots<'a> {
    /// The slots that a thread tries, in order. Its generation has no part in it: neighbouring
    /// thread slots get first slots that are far apart, whatever lives they are in.
    pub fn probes(self, owner: u32) -> impl Iterator<Item = usize> + use<'a> {
        self.probes_of(u64::from(owner >> LIFE_BITS))
    }

    /// The same for any key.
    pub fn probes_of(self, key: u64) -> impl Iterator<Item = usize> + use<'a> {
        let mask = self.0.len().wrapping_sub(1);
        // Knuth's multiplicative hash; the topmost bits are the well mixed ones.
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let base = hash.checked_shr(64 - self.0.len().trailing_zeros()).unwrap_or(0) as usize;
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

    /// Moves or gives up a claim that was not confirmed.
    fn swap(self, slot: usize, old: u64, new: u64) -> Result<(), Unprotected> {
        // No indexing here: the handler must have no way to panic.
        let word = self.0.get(slot).ok_or(Unprotected::Overtaken)?;
        // Relaxed on both: nothing of the table that the slot named was touched.
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

    /// Ends the use of the table. False if the slot did not hold this claim any more: the recorder
    /// took the thread for dead, or the target wrote over it.
    #[must_use = "a claim that was taken away is to be counted"]
    pub fn release(self, hazard: Hazard) -> bool {
        let claim = hazard_word(hazard.owner, hazard.active);
        let Some(word) = self.0.get(hazard.slot) else { return false };
        // Release: pairs with the Acquire in `claims`; what was put is visible to the recorder.
        // Relaxed on failure: nothing is done with it.
        word.compare_exchange(claim, 0, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// True when no thread is inside the table of `active`, which is not current any more. Once
    /// true after the fence of the rotation that took `active` back, it is true for good: a claim
    /// that shows up later will not be confirmed.
    pub fn is_clear(self, active: u32) -> bool {
        self.holders(active).next().is_none()
    }

    /// The claims of threads that are inside under this ACTIVE word.
    pub fn holders(self, active: u32) -> impl Iterator<Item = Claim> + use<'a> {
        self.claims().filter(move |claim| claim.active == active)
    }

    /// All slots in use.
    pub fn claims(self) -> impl Iterator<Item = Claim> + use<'a> {
        self.0.iter().enumerate().filter_map(|(slot, word)| {
            // Acquire: pairs with the Release of `release`, so that what a thread put is visible
            // once its claim is gone, and with that of `claim`.
            let word = word.load(Ordering::Acquire);
            (word != 0).then_some(Claim { slot, owner: (word >> 32) as u32, active: word as u32 })
        })
    }

    /// Frees a slot whose owner is known to have died inside the handler; false if the claim is
    /// not there any more.
    pub fn reclaim(self, claim: Claim) -> bool {
        let Some(word) = self.0.get(claim.slot) else { return false };
        #[cfg(loom)]
        if crate::sync::planted::has(crate::sync::planted::Mistake::ReclaimUnseen) {
            word.store(0, Ordering::Relaxed);
            return true;
        }
        let old = hazard_word(claim.owner, claim.active);
        // Relaxed on both: the dead thread writes no more, and what it wrote became visible with
        // the news of its death.
        word.compare_exchange(old, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// The table may be ACTIVE again by now, in another instance: the generation tells.
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
