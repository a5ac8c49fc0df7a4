//! Thread slots: what the handler keeps of each thread, and how it finds it by thread id.
//!
//! # Invariants
//! - A live thread has one slot. Only the thread itself claims one from its handler; the recorder
//!   claims (primes) for threads only before sampling starts.
//! - Only the recorder retires a slot, after the thread is gone and its samples are collected;
//!   retiring raises the generation, so samples name (slot, generation), never a reused slot.

use crate::storage::hazard;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Index words probed for a thread id, from its hash on.
pub const PROBES_MAX: usize = 64;
/// Attempts at the free stack before the slot counter is used.
const POPS_MAX: usize = 16;

/// The life of a slot, in [`ThreadSlot::state`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SlotState {
    /// Nobody's.
    Unclaimed = 0,
    /// A thread's that has not been primed.
    Claimed = 1,
    /// A thread's that is ready: its slot, and on the timer engine its timer.
    Primed = 2,
    /// Its thread is gone; its last samples are not collected yet.
    Retired = 3,
}

/// What came of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// A slot that the thread did not have before.
    New(usize),
    /// The thread has this slot.
    Existing(usize),
    /// No slot is free.
    Exhausted,
}

impl Claim {
    /// The slot, if there is one.
    pub fn index(self) -> Option<usize> {
        match self {
            Self::New(index) | Self::Existing(index) => Some(index),
            Self::Exhausted => None,
        }
    }
}

/// One thread's state: 128 bytes, two cache lines, most of it written by its thread alone while it
/// lives.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ThreadSlot {
    /// Kernel thread id as the target sees it, or 0.
    pub tid: AtomicU32,
    /// Raised each time the slot is recycled.
    pub generation: AtomicU32,
    /// [`SlotState`].
    pub state: AtomicU32,
    /// Next slot + 1 on the free stack.
    pub next_free: AtomicU32,
    /// Accepted event: index + 1, or 0 for the first that fires.
    pub event: AtomicU32,
    /// Another event that fired on this thread: index + 1, or 0. The recorder closes the younger.
    pub other_event: AtomicU32,
    /// Its CPU timer's id + 1, or 0, or [`crate::layout::TIMER_BUSY`]. Stays when the slot is
    /// recycled: the kernel keeps the timer of a thread that is gone until somebody deletes it.
    pub timer: AtomicU32,
    /// Errno of the last attempt to create that timer, or 0.
    pub timer_error: AtomicU32,
    /// Stack addresses [lo, hi) that were found readable in `window_epoch`.
    pub window_lo: AtomicU64,
    /// See `window_lo`.
    pub window_hi: AtomicU64,
    /// The control block's epoch in which the window was verified.
    pub window_epoch: AtomicU64,
    /// Samples stored.
    pub samples: AtomicU64,
    /// Sum of their weights.
    pub weight: AtomicU64,
    /// Id of the trace of its last sample, or 0.
    pub last_trace: AtomicU64,
    /// 1 while its thread is in our handler.
    pub inside: AtomicU32,
    /// Generation of the slot that `timer` was created for.
    pub timer_generation: AtomicU32,
    /// For the thread's context: where it is.
    pub context: [AtomicU64; 4],
}
#[cfg(not(loom))]
const _: () = assert!(size_of::<ThreadSlot>() as u64 == crate::layout::THREAD_SLOT_BYTES);

/// The slots of one data segment and the index that finds them.
#[derive(Debug, Clone, Copy)]
pub struct Threads<'a> {
    /// thread id << 32 | slot + 1, or 0; the length is a power of two.
    pub index: &'a [AtomicU64],
    /// The slots.
    pub slots: &'a [ThreadSlot],
    /// Next slot never used before.
    pub next: &'a AtomicU32,
    /// Number of slots that are populated.
    pub limit: &'a AtomicU32,
    /// tag << 32 | slot + 1 of the topmost retired slot.
    pub free: &'a AtomicU64,
}

impl<'a> Threads<'a> {
    fn probes(self, tid: u32) -> impl Iterator<Item = &'a AtomicU64> {
        let mask = self.index.len().wrapping_sub(1);
        let base = (u64::from(tid).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
        // No indexing: the handler must have no way to panic.
        (0..PROBES_MAX.min(self.index.len())).filter_map(move |i| self.index.get((base + i) & mask))
    }

    /// The slot of a thread, if it has one.
    pub fn find(self, tid: u32) -> Option<usize> {
        self.probes(tid).find_map(|word| {
            // Acquire: pairs with the Release in `claim`; the slot's first values are visible.
            let word = word.load(Ordering::Acquire);
            ((word >> 32) as u32 == tid)
                .then(|| (word as u32 as usize).wrapping_sub(1))
                .filter(|&slot| slot < self.slots.len())
        })
    }

    /// Under which owner the thread that has this slot claims hazards: see [`hazard::owner`].
    pub fn owner(self, index: usize) -> u32 {
        // Relaxed: raised only when the thread is gone.
        let generation =
            self.slots.get(index).map_or(0, |slot| slot.generation.load(Ordering::Relaxed));
        hazard::owner(index as u32, generation)
    }

    /// Claims a slot for a thread that has none. Called by the thread itself, or by the recorder
    /// while the thread takes no samples.
    pub fn claim(self, tid: u32) -> Claim {
        let Some(index) = self.pop().or_else(|| self.fresh()) else { return Claim::Exhausted };
        let Some(slot) = self.slots.get(index) else { return Claim::Exhausted };
        // Relaxed: published by the swap below.
        slot.tid.store(tid, Ordering::Relaxed);
        slot.state.store(SlotState::Claimed as u32, Ordering::Relaxed);
        let word = u64::from(tid) << 32 | (index as u64 + 1);
        for place in self.probes(tid) {
            // Release: pairs with the Acquire in `find`. Relaxed on failure: the value is not used.
            if place.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed).is_ok() {
                return Claim::New(index);
            }
        }
        self.push(index);
        Claim::Exhausted
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
        for _ in 0..POPS_MAX {
            let index = (top as u32 as usize).checked_sub(1)?;
            let slot = self.slots.get(index)?;
            // Relaxed: a stale value is refused by the swap, whose tag has moved on.
            let next = slot.next_free.load(Ordering::Relaxed);
            let lowered = (top >> 32).wrapping_add(1) << 32 | u64::from(next);
            // Acquire on both: as above.
            match self.free.compare_exchange(top, lowered, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(seen) => top = seen,
            }
        }
        None
    }

    fn push(self, index: usize) {
        let Some(slot) = self.slots.get(index) else { return };
        // Relaxed: the swap confirms it.
        let mut top = self.free.load(Ordering::Relaxed);
        for _ in 0..POPS_MAX {
            slot.next_free.store(top as u32, Ordering::Relaxed);
            let raised = (top >> 32).wrapping_add(1) << 32 | (index as u64 + 1);
            // Release: pairs with the Acquire in `pop`. Relaxed on failure: tried again.
            match self.free.compare_exchange(top, raised, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => top = seen,
            }
        }
        // The slot stays unused until the segment goes: sixteen lost races in a row.
    }

    /// Retires the slot that a thread which is gone had in this generation. Only the recorder calls
    /// it. A slot that has been retired since, and may have another owner, is left alone: given
    /// back twice, it would be handed to two threads.
    pub fn retire(self, tid: u32, index: usize, generation: u32) {
        let Some(slot) = self.slots.get(index) else { return };
        // Relaxed on both: the generation is raised by this side only, and the thread id was stored
        // before the slot's samples, or its index word, were seen.
        let owner = (slot.tid.load(Ordering::Relaxed), slot.generation.load(Ordering::Relaxed));
        if owner != (tid, generation) {
            return;
        }
        for place in self.probes(tid) {
            // Relaxed: only the recorder removes, and the thread that would look is gone.
            let word = place.load(Ordering::Relaxed);
            if word == (u64::from(tid) << 32 | (index as u64 + 1)) {
                place.store(0, Ordering::Relaxed);
            }
        }
        // Relaxed: published by the Release in `push`.
        slot.generation.fetch_add(1, Ordering::Relaxed);
        for word in [&slot.tid, &slot.event, &slot.other_event, &slot.timer_error, &slot.inside] {
            word.store(0, Ordering::Relaxed);
        }
        for word in
            [&slot.window_lo, &slot.window_hi, &slot.window_epoch, &slot.samples, &slot.weight]
        {
            word.store(0, Ordering::Relaxed);
        }
        self.push(index);
    }
}
