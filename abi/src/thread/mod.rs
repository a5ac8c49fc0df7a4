//! Thread slots: the handler's state for each thread, found by thread id.
//!
//! # Invariants
//! - A live thread has one slot, whether the thread claims it in its handler, the recorder claims
//!   it from outside, or both do so at the same time ([`Threads::claim`]).
//! - A slot changes its owner only through its states: Unclaimed, Claimed, Primed, Retired,
//!   Unclaimed. Each step is a compare-and-swap. Both sides claim and prime. Only the recorder
//!   retires and recycles.
//! - A retired slot cannot be found, but stays reserved for its thread until the recorder has read
//!   the thread's last sample. Recycling increments the generation. A sample names (slot,
//!   generation), so it never names a slot that another thread has got since.

mod claim;
mod free;
mod index;

use claim::TentativeClaim;
pub use free::FreeSlots;
pub use index::{PROBES_MAX, ThreadIndex};

use crate::storage::hazard;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The state of a slot, in [`ThreadSlot::state`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SlotState {
    /// The slot belongs to no thread.
    Unclaimed = 0,
    /// The slot belongs to a thread that is not primed yet.
    Claimed = 1,
    /// The slot belongs to a thread that is ready: it has its slot and, on the timer engine, its
    /// timer.
    Primed = 2,
    /// The slot's thread has exited, and its last samples are not collected yet.
    Retired = 3,
}

/// The outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The thread got this slot.
    New(usize),
    /// The thread had this slot already.
    Existing(usize),
    /// No slot is free.
    Exhausted,
}

impl Claim {
    /// Returns the slot, if the thread has one.
    pub fn index(self) -> Option<usize> {
        match self {
            Self::New(index) | Self::Existing(index) => Some(index),
            Self::Exhausted => None,
        }
    }
}

/// The state of one thread: 128 bytes, two cache lines. While the thread lives, mostly the thread
/// alone writes it.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ThreadSlot {
    /// The kernel's thread id in the target's pid namespace, or 0.
    pub tid: AtomicU32,
    /// The number of times that the slot was recycled.
    pub generation: AtomicU32,
    /// [`SlotState`].
    pub state: AtomicU32,
    /// Index + 1 of the next slot on the free stack, or 0.
    pub next_free: AtomicU32,
    /// The accepted event: its [`crate::event::EventWord`] + 1, or 0 to accept the first one that
    /// fires.
    pub event: AtomicU32,
    /// Another event that fired on this thread: its [`crate::event::EventWord`] + 1, or 0. The
    /// recorder closes the younger of the two.
    pub other_event: AtomicU32,
    /// The id + 1 of the thread's CPU timer, or 0, or [`crate::layout::TIMER_BUSY`]. Recycling
    /// keeps the value, because the kernel keeps the timer of an exited thread until somebody
    /// deletes it.
    pub timer: AtomicU32,
    /// The errno of the last attempt to create that timer, or 0.
    pub timer_error: AtomicU32,
    /// Start of the stack addresses [lo, hi) that the handler found readable in `window_epoch`.
    pub window_lo: AtomicU64,
    /// End of these stack addresses.
    pub window_hi: AtomicU64,
    /// The control block's epoch in which the handler verified the window.
    pub window_epoch: AtomicU64,
    /// Number of stored samples.
    pub samples: AtomicU64,
    /// Sum of the weights of these samples.
    pub weight: AtomicU64,
    /// Id of the last sample's trace, or 0.
    pub last_trace: AtomicU64,
    /// 1 while a handler uses the slot's scratch memory.
    pub inside: AtomicU32,
    /// The slot's generation for which `timer` was created.
    pub timer_generation: AtomicU32,
    /// Context data. The first word is the thread pointer from the handler's last check for an
    /// OpenTelemetry record, or 0.
    pub context: [AtomicU64; 4],
    /// Exponent of the divisor of the timer's rate. Like the timer, it survives recycling.
    pub timer_shift: AtomicU32,
}
#[cfg(not(loom))]
const _: () = assert!(size_of::<ThreadSlot>() as u64 == crate::layout::THREAD_SLOT_BYTES);

impl ThreadSlot {
    /// Takes the slot's scratch memory for a handler, until [`Self::leave`]. False if another
    /// handler has it: one of the same thread, or of a forked child whose thread has the same id in
    /// a pid namespace of its own.
    #[inline]
    pub fn enter(&self) -> bool {
        // Acquire: pairs with the Release in `leave`; what the other handler did in the memory is
        // done. Relaxed on failure: the value is not used.
        self.inside.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Gives back the slot's scratch memory.
    #[inline]
    pub fn leave(&self) {
        // Release: pairs with the Acquire in `enter`.
        self.inside.store(0, Ordering::Release);
    }
}

/// The slots of one data segment and the index that finds them.
#[derive(Debug, Clone, Copy)]
pub struct Threads<'a> {
    /// The index from thread ids to slots.
    pub index: ThreadIndex<'a>,
    /// All slots.
    pub slots: &'a [ThreadSlot],
    /// Index of the next slot that was never used.
    pub next: &'a AtomicU32,
    /// Number of populated slots.
    pub limit: &'a AtomicU32,
    /// The slots that were given back.
    pub free: FreeSlots<'a>,
}

impl<'a> Threads<'a> {
    /// Returns the slot of a thread, if it has one.
    #[inline]
    pub fn find(self, tid: u32) -> Option<usize> {
        self.index.find(tid, self.slots.len())
    }

    /// Claims a slot for a thread, unless it has one. The thread may call this in its handler while
    /// the recorder calls it.
    pub fn claim(self, tid: u32) -> Claim {
        if let Some(index) = self.find(tid) {
            return Claim::Existing(index);
        }
        let Some(index) = self.take() else { return Claim::Exhausted };
        let Some(slot) = self.slots.get(index) else { return Claim::Exhausted };
        // Relaxed: published by the swap in `commit`.
        slot.tid.store(tid, Ordering::Relaxed);
        let claim = TentativeClaim::insert(self.index, tid, (index, slot));
        match claim.and_then(TentativeClaim::decide) {
            Some(winner) if winner == index => Claim::New(index),
            other => {
                // Relaxed: published by the Release in `push`.
                slot.tid.store(0, Ordering::Relaxed);
                self.free.push(index);
                other.map_or(Claim::Exhausted, Claim::Existing)
            }
        }
    }

    /// Takes a slot without an owner: one that was given back, or else one that was never used.
    fn take(self) -> Option<usize> {
        self.free.pop().or_else(|| self.fresh())
    }

    fn fresh(self) -> Option<usize> {
        // Relaxed: reservation only. The load comes first so that a full table does not increment
        // the counter forever.
        let limit = self.limit.load(Ordering::Relaxed).min(self.slots.len() as u32);
        if self.next.load(Ordering::Relaxed) >= limit {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < limit).then_some(index as usize)
    }

    /// Whether the slot still belongs to the thread, in the life that `owner` names. A handler that
    /// has found its slot asks again after it has published its hazard under that owner. From then
    /// on the slot is not recycled until the hazard is released. (Just before the recorder retires
    /// a slot, a thread can find the slot of a dead thread that had the same id. It may even get
    /// the same slot in the slot's next life. The recorder would then take the hazard of the old
    /// life for a dead thread's.)
    pub fn is_held(self, tid: u32, index: usize, owner: u32) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        // Acquire: pairs with the Release of `swap_state`, in `mark_retired` and in the claim's
        // `commit`; the generation of that life is visible. It also keeps the reads in order.
        let state = slot.state.load(Ordering::Acquire);
        let is_live = state == SlotState::Claimed as u32 || state == SlotState::Primed as u32;
        // Relaxed: a slot that is recycled and claimed by another thread was retired before.
        is_live && slot.tid.load(Ordering::Relaxed) == tid && self.owner(index) == owner
    }

    /// Returns the owner under which the thread with this slot claims hazards: see
    /// [`hazard::owner`].
    pub fn owner(self, index: usize) -> u32 {
        // Relaxed: incremented only after the thread has exited.
        let generation =
            self.slots.get(index).map_or(0, |slot| slot.generation.load(Ordering::Relaxed));
        hazard::owner(index as u32, generation)
    }

    /// Marks the thread as ready. True if it was not ready before and still has the slot. Of
    /// several calls for the same thread, one returns true.
    pub fn prime(self, index: usize, generation: u32) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        // Acquire: pairs with the Release in `push`; the new generation of a recycled slot is
        // visible.
        slot.generation.load(Ordering::Acquire) == generation
            && swap_state(slot, SlotState::Claimed, SlotState::Primed)
    }

    /// Retires the slot of a thread that had it in this generation and has exited. Its thread id no
    /// longer leads to the slot, so the next thread with that id claims a slot of its own. The slot
    /// keeps its values until [`Self::recycle`]. Only the recorder calls this. False if the slot
    /// belongs to another thread or is retired already.
    pub fn mark_retired(self, tid: u32, index: usize, generation: u32) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        // Relaxed on both: only this side increments the generation, and the thread id was stored
        // before the slot's samples, or its index word, were seen.
        let owner = (slot.tid.load(Ordering::Relaxed), slot.generation.load(Ordering::Relaxed));
        if owner != (tid, generation) {
            return false;
        }
        // Claimed may become Primed in between, so Claimed comes first.
        let live = [SlotState::Claimed, SlotState::Primed];
        if !live.into_iter().any(|state| swap_state(slot, state, SlotState::Retired)) {
            return false;
        }
        self.index.remove(tid, index);
        true
    }

    /// Gives back a retired slot whose last sample has been read. Only the recorder calls this. It
    /// leaves a slot alone that is not retired or was recycled before: a slot given back twice
    /// would go to two threads.
    pub fn recycle(self, index: usize, generation: u32) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        // Relaxed on both: only this side increments the generation and leaves the Retired state.
        let is_retired = slot.state.load(Ordering::Relaxed) == SlotState::Retired as u32
            && slot.generation.load(Ordering::Relaxed) == generation;
        if !is_retired {
            return false;
        }
        // Everything is cleared but the timer. The kernel keeps the timer of an exited thread, and
        // its id is needed to delete it: at the latest by the slot's next thread. Relaxed:
        // published by the Release in `push`.
        slot.generation.fetch_add(1, Ordering::Relaxed);
        for word in [
            &slot.tid,
            &slot.event,
            &slot.other_event,
            &slot.timer_error,
            &slot.inside,
            &slot.state,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        let words = [
            &slot.window_lo,
            &slot.window_hi,
            &slot.window_epoch,
            &slot.samples,
            &slot.weight,
            &slot.last_trace,
        ];
        for word in words.into_iter().chain(&slot.context) {
            word.store(0, Ordering::Relaxed);
        }
        self.free.push(index);
        true
    }
}

fn swap_state(slot: &ThreadSlot, from: SlotState, to: SlotState) -> bool {
    // Release: pairs with the Acquire in `is_held`; what was written before the step is visible.
    // Relaxed on failure: the value is not used.
    slot.state
        .compare_exchange(from as u32, to as u32, Ordering::Release, Ordering::Relaxed)
        .is_ok()
}
