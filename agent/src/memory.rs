//! Reads of stack memory that cannot fault.
//!
//! # Safety
//! A load happens only inside pages that a probe found readable while the thread was stopped in
//! its handler. Pages of the thread's own stack between its stack pointer and its root stay mapped
//! while it runs on them; what another thread may unmap meanwhile can only be reached by an
//! unwinding that went wrong, and is bounded to the mapping that holds the stack pointer.
//!
//! # Invariants
//! - No handler for SIGSEGV: faults are prevented, not caught.
//! - A verified window is trusted within one epoch of the recorder only, and by one thread only.

use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::thread::ThreadSlot;
use traceprof_abi::unwind::{Memory, Snapshot};

use crate::sys;

const PAGE: u64 = 4096;
/// Below the stack pointer of a leaf, x86_64 code may keep values.
const RED_ZONE: u64 = 128;
/// How far above the stack pointer to look where the mapping is not known.
const UNKNOWN_SPAN: u64 = 64 << 10;

/// The stack that a thread runs on.
#[derive(Debug)]
pub struct StackMemory<'a> {
    snapshot: &'a Snapshot<'a>,
    probe_failed: &'a AtomicU64,
    /// Addresses that may be read at all.
    lo: u64,
    hi: u64,
    /// Whole pages that were found readable; contiguous.
    window: (u64, u64),
    /// One more such page, outside the window.
    spot: u64,
}

impl<'a> StackMemory<'a> {
    /// The stack around `sp`, with what is left of the slot's window.
    pub fn new(
        snapshot: &'a Snapshot<'a>,
        slot: &ThreadSlot,
        epoch: u64,
        sp: u64,
        probe_failed: &'a AtomicU64,
    ) -> Self {
        // Relaxed: only this thread uses its slot's window.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let same_epoch = load(&slot.window_epoch) == epoch;
        let window =
            if same_epoch { (load(&slot.window_lo), load(&slot.window_hi)) } else { (0, 0) };
        let mut memory = Self { snapshot, probe_failed, lo: 0, hi: 0, window, spot: u64::MAX };
        memory.bound(sp);
        if !(window.0 <= sp && sp <= window.1) {
            memory.window = (0, 0);
        }
        memory
    }

    /// Keeps the window for the thread's next sample of this epoch.
    pub fn keep(&self, slot: &ThreadSlot, epoch: u64) {
        // Relaxed: only this thread uses its slot's window.
        slot.window_lo.store(self.window.0, Ordering::Relaxed);
        slot.window_hi.store(self.window.1, Ordering::Relaxed);
        slot.window_epoch.store(epoch, Ordering::Relaxed);
    }

    fn bound(&mut self, sp: u64) {
        let lowest = sp.saturating_sub(RED_ZONE);
        (self.lo, self.hi) = match self.snapshot.writable(sp) {
            Some((lo, hi)) => (lowest.max(lo), hi),
            None => (lowest, sp.saturating_add(UNKNOWN_SPAN)),
        };
    }

    fn verify(&mut self, page: u64) -> bool {
        let (lo, hi) = self.window;
        if lo <= page && page < hi || page == self.spot {
            return true;
        }
        if !sys::readable(page) {
            // Relaxed: a count.
            self.probe_failed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if lo == hi {
            self.window = (page, page + PAGE);
        } else if page == hi {
            self.window.1 = page + PAGE;
        } else if page + PAGE == lo {
            self.window.0 = page;
        } else {
            self.spot = page;
        }
        true
    }
}

impl Memory for StackMemory<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        let last = avma.checked_add(7)?;
        if avma < self.lo || last >= self.hi {
            return None;
        }
        let (first_page, last_page) = (avma & !(PAGE - 1), last & !(PAGE - 1));
        if !self.verify(first_page) || (first_page != last_page && !self.verify(last_page)) {
            return None;
        }
        let place = avma as *const u64;
        // SAFETY: both pages that the eight bytes lie in were found readable by this thread, which
        // stands in its handler above them; the value may be anything.
        Some(unsafe { place.read_unaligned() })
    }

    fn rebound(&mut self, sp: u64) -> bool {
        self.bound(sp);
        self.spot = u64::MAX;
        let inside = self.window.0 <= sp && sp <= self.window.1;
        if !inside {
            self.window = (0, 0);
        }
        self.verify(sp & !(PAGE - 1))
    }

    fn bounds(&self) -> (u64, u64) {
        (self.lo, self.hi)
    }

    fn load_code(&mut self, avma: u64) -> Option<u64> {
        if !sys::readable(avma) {
            return None;
        }
        let place = avma as *const u64;
        // SAFETY: these eight bytes were just found readable; the value may be anything.
        Some(unsafe { place.read_unaligned() })
    }
}
