//! Thread slots: what the handler keeps of each thread, and how it finds it by thread id.
//!
//! # Invariants
//! - A live thread has one slot, whoever claims it: the thread itself from its handler, the
//!   recorder from outside, or both at the same time ([`Threads::claim`]).
//! - A slot changes hands through its states alone, each step a compare-and-swap: Unclaimed,
//!   Claimed, Primed, Retired, Unclaimed. Claiming and priming is anybody's, the last two steps
//!   are the recorder's.
//! - A retired slot cannot be found, but stays its thread's until the thread's last sample has been
//!   read. Recycling raises the generation, so samples name (slot, generation), never a slot that
//!   has been given to another thread since.

mod claim;
mod free;
mod index;

use claim::TentativeClaim;
pub use free::FreeSlots;
pub use index::{PROBES_MAX, ThreadIndex};

use crate::storage::hazard;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

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
    /// Accepted event: [`crate::event::EventWord`] + 1, or 0 for the first that fires.
    pub event: AtomicU32,
    /// Another event that fired on this thread: the same of it, or 0. The recorder closes the
    /// younger.
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
    /// For the thread's context: in the first word its thread pointer, as it last was when its
    /// record of OpenTelemetry was looked at, or 0.
    pub context: [AtomicU64; 4],
    /// Exponent of the divisor of its timer's rate. Like the timer, it stays when the slot is
    /// recycled.
    pub timer_shift: AtomicU32,
}
#[cfg(not(loom))]
const _: () = assert!(size_of::<ThreadSlot>() as u64 == crate::layout::THREAD_SLOT_BYTES);

/// The slots of one data segment and the index that finds them.
#[derive(Debug, Clone, Copy)]
pub struct Threads<'a> {
    /// Which slot a thread has.
    pub index: ThreadIndex<'a>,
    /// The slots.
    pub slots: &'a [ThreadSlot],
    /// Next slot never used before.
    pub next: &'a AtomicU32,
    /// Number of slots that are populated.
    pub limit: &'a AtomicU32,
    /// Slots that were given back.
    pub free: FreeSlots<'a>,
}

impl<'a> Threads<'a> {
    /// The slot of a thread, if it has one.
    pub fn find(self, tid: u32) -> Option<usize> {
        self.index.find(tid, self.slots.len())
    }

    /// Claims a slot for a thread, unless it has one. May be called by the thread itself, from its
    /// handler, and by the recorder at the same time.
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

    /// A slot that is nobody's: one given back, or else one never used.
    fn take(self) -> Option<usize> {
        self.free.pop().or_else(|| self.fresh())
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

    /// Whether the slot is the thread's, still, in the life that `owner` names. A handler that
    /// found its slot asks again once its hazard is published under that owner: from then on the
    /// slot is not recycled before the hazard is gone. (A thread can find the slot of a dead one
    /// that had its id, just before the recorder retires it. It may even get the same slot in its
    /// next life; the hazard of the old one would be taken for a dead thread's.)
    pub fn is_held(self, tid: u32, index: usize, owner: u32) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        // Acquire: pairs with the Release in `mark_retired` and in the claim's commit; the
        // generation of that life is visible. Keeps the reads in order, too.
        let state = slot.state.load(Ordering::Acquire);
        let is_live = state == SlotState::Claimed as u32 || state == SlotState::Primed as u32;
        // Relaxed: a slot that is recycled and claimed by another was retired before.
        is_live && slot.tid.load(Ordering::Relaxed) == tid && self.owner(index) == owner
    }

    /// Under which owner the thread that has this slot claims hazards: see [`hazard::owner`].
    pub fn owner(self, index: usize) -> u32 {
        // Relaxed: raised only when the thread is gone.
        let generation =
            self.slots.get(index).map_or(0, |slot| slot.generation.load(Ordering::Relaxed));
        hazard::owner(index as u32, generation)
    }

    /// Notes that the thread is ready. True if it was not before, and is still there; told of the
    /// same thread twice, only one of the callers hears it.
    pub fn prime(self, index: usize, generation: u32) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        // Acquire: pairs with the Release in `push`, so that a recycled slot is seen as such.
        slot.generation.load(Ordering::Acquire) == generation
            && swap_state(slot, SlotState::Claimed, SlotState::Primed)
    }

    /// The thread that had the slot in this generation is gone: its id finds it no more, so the
    /// next thread with that id claims a slot of its own. The slot keeps its values until
    /// [`Self::recycle`]. Only the recorder calls it; false if the slot is another's, or was told
    /// before.
    pub fn mark_retired(self, tid: u32, index: usize, generation: u32) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        // Relaxed on both: the generation is raised by this side only, and the thread id was stored
        // before the slot's samples, or its index word, were seen.
        let owner = (slot.tid.load(Ordering::Relaxed), slot.generation.load(Ordering::Relaxed));
        if owner != (tid, generation) {
            return false;
        }
        // Claimed may become Primed in between, so it is tried first.
        let live = [SlotState::Claimed, SlotState::Primed];
        if !live.into_iter().any(|state| swap_state(slot, state, SlotState::Retired)) {
            return false;
        }
        self.index.take_out(tid, index);
        true
    }

    /// Gives back a retired slot whose last sample has been read. Only the recorder calls it. A
    /// slot that is not retired, or was recycled before, is left alone: given back twice, it would
    /// be handed to two threads.
    pub fn recycle(self, index: usize, generation: u32) -> bool {
        let Some(slot) = self.slots.get(index) else { return false };
        // Relaxed on both: this side alone raises the generation and leaves that state.
        let is_retired = slot.state.load(Ordering::Relaxed) == SlotState::Retired as u32
            && slot.generation.load(Ordering::Relaxed) == generation;
        if !is_retired {
            return false;
        }
        // All but the timer: the kernel keeps the timer of a thread that is gone, and its id is
        // needed to delete it, by whoever has the slot next at the latest. Relaxed: published by
        // the Release in `push`.
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
    // Release: pairs with the Acquire in `is_held`; what was decided before the step is visible.
    // Relaxed on failure: the value is not used.
    slot.state
        .compare_exchange(from as u32, to as u32, Ordering::Release, Ordering::Relaxed)
        .is_ok()
}
