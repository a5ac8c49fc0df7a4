//! Reads of stack memory that cannot fault.
//!
//! # Safety
//! A load happens only inside pages that a probe found readable while the thread was in its
//! handler, or in the description of generated code that has a table. HotSpot commits a heap of
//! code from its lowest address on, and never unmaps or protects what it has committed. A
//! description is before the code that it describes, in the same heap, and the recorder has read
//! both. Pages of the thread's own stack, between its stack pointer and its root, stay mapped while
//! it runs on them. Another thread may unmap other pages between the probe and the load. Only three
//! kinds of loads reach such pages. A wrong unwinding reads single words, within the mapping that
//! contains the stack pointer. The unwinder reads the operand of a call in code that is being
//! unloaded. The start and the end of a goroutine's stack are in an object that Go never frees; a
//! wrong unwinding may take another address for that of the object. Many words are read from the
//! first thread's stack, which is a mapping of its own as long as the process lives. From other
//! stacks, many words are read only in pages that the unwinding has read before, or the thread's
//! last one within a second, or that are less than `FRAME_MAX` above such a page and below another
//! one ([`StackMemory::known`]). A probe just before the first word of each page finds it readable.
//! Pages of the last unwinding must adjoin those of this one. The kernel merges mappings, so memory
//! further up need not be stack, and a smaller stack may be where the thread had a larger one. C
//! libraries put the block of a thread at the top of its stack. So the pages up to the thread's own
//! block are stack, if they are in the mapping of the stack pointer.
//!
//! # Invariants
//! - No handler for SIGSEGV: faults are prevented, not caught.
//! - A verified window is trusted only within one epoch of the recorder, and only by one thread.

use traceprof_abi::layout::{ControlBlock, Counter};
use traceprof_abi::runtime::WordReader;
use traceprof_abi::sync::{AtomicU64, Ordering};
use traceprof_abi::thread::ThreadSlot;
use traceprof_abi::unwind::{Memory, Snapshot};

use crate::objects::ProbedMemory;
use crate::probe::PAGE;
use crate::sys;

/// Number of bytes below a leaf's stack pointer in which x86_64 code may keep values.
const RED_ZONE: u64 = 128;
/// Upper bound of the stack, in bytes above the stack pointer, where the mapping is not known.
const UNKNOWN_SPAN: u64 = 64 << 10;
/// Number of bytes between two visited pages that are taken to be stack, too: frames may be larger
/// than a page.
const FRAME_MAX: u64 = 4 * PAGE;
/// Number of epochs for which the pages of a thread's last unwinding are taken to be stack: a
/// second.
const EPOCHS_MAX: u64 = 10;

/// The stack on which a thread runs.
#[derive(Debug)]
pub struct StackMemory<'a> {
    snapshot: &'a Snapshot<'a>,
    control: &'a ControlBlock,
    /// Objects of runtimes.
    pub objects: ProbedMemory,
    /// Bounds [lo, hi) of the addresses that may be read.
    lo: u64,
    hi: u64,
    /// A contiguous range of complete pages that were found readable.
    window: (u64, u64),
    /// The pages that the last unwinding of this thread has visited, which may be unmapped now.
    earlier: (u64, u64),
    /// Another readable page, outside the window.
    spot: u64,
}

impl<'a> StackMemory<'a> {
    /// Creates the stack around `sp`, with the slot's window if that is still valid.
    pub fn new(
        snapshot: &'a Snapshot<'a>,
        slot: &ThreadSlot,
        epoch: u64,
        sp: u64,
        control: &'a ControlBlock,
    ) -> Self {
        // Relaxed: only this thread uses its slot's window.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let age = epoch.wrapping_sub(load(&slot.window_epoch));
        let last = (load(&slot.window_lo), load(&slot.window_hi));
        let window = if age == 0 { last } else { (0, 0) };
        let earlier = if age <= EPOCHS_MAX { last } else { (0, 0) };
        let spot = u64::MAX;
        let objects = ProbedMemory::unprobed();
        let mut memory = Self { snapshot, control, objects, lo: 0, hi: 0, window, earlier, spot };
        memory.bound(sp);
        if !(window.0 <= sp && sp <= window.1) {
            memory.window = (0, 0);
        }
        memory
    }

    /// Stores the window for the thread's next sample in this epoch.
    pub fn keep(&self, slot: &ThreadSlot, epoch: u64) {
        // Relaxed: only this thread uses its slot's window.
        slot.window_lo.store(self.window.0, Ordering::Relaxed);
        slot.window_hi.store(self.window.1, Ordering::Relaxed);
        slot.window_epoch.store(epoch, Ordering::Relaxed);
    }

    /// Returns the range at `sp` that is known to be stack, at most `most` bytes. It begins in the
    /// red zone. It ends with the pages that the unwinding has visited, in this sample or in the
    /// last one, as far as they are readable now. Those of the last sample count if they follow at
    /// once: a stack is in one piece. If the unwinding visited none, the range is within the page
    /// of `sp`. The first thread's stack is known completely, and so is one below the thread's own
    /// block, `top`.
    pub fn known(&mut self, sp: u64, top: Option<u64>, most: u64) -> (u64, u64) {
        if let Some(end) = self.snapshot.stack_end(sp) {
            self.rebound(sp);
            let start = self.lo.wrapping_add(7) & !7;
            return (start, end.min(start.saturating_add(most)));
        }
        // At a page's first byte the stack may be empty, and the page may belong to something else.
        let is_inside = self.window.0 < sp && sp < self.window.1;
        if !is_inside && (sp & (PAGE - 1) == 0 || !self.rebound(sp)) {
            return (sp, sp);
        }
        self.bound(sp);
        let start = self.lo.max(self.window.0).wrapping_add(7) & !7;
        let is_next = (self.window.0..=self.window.1).contains(&self.earlier.0)
            || (self.earlier.0..self.earlier.1).contains(&self.window.0);
        let visited = self.window.1.max(if is_next { self.earlier.1 } else { 0 });
        let top = top.filter(|top| sp < *top && *top <= self.hi);
        let visited = top.map_or(visited, |top| visited.max(top & !7));
        let walked = self.hi.min(visited).min(start.saturating_add(most));
        // Pages that an earlier sample found readable may be unmapped now.
        (self.window, self.spot) = ((0, 0), u64::MAX);
        let mut page = start & !(PAGE - 1);
        while page < walked && self.verify(page) {
            page = page.saturating_add(PAGE);
        }
        (start, walked.min(page))
    }

    /// Makes each page be probed once more just before it is read. To read many takes a while, in
    /// which another thread may unmap what is not this thread's stack.
    pub fn probe_again(&mut self) {
        (self.window, self.spot) = ((0, 0), u64::MAX);
    }

    fn bound(&mut self, sp: u64) {
        let lowest = sp.saturating_sub(RED_ZONE);
        (self.lo, self.hi) = match self.snapshot.writable(sp) {
            Some((lo, hi)) => (lowest.max(lo), hi),
            None => (lowest, sp.saturating_add(UNKNOWN_SPAN)),
        };
    }

    /// Whether all pages between the window and a page above it are readable.
    fn reaches(&self, page: u64) -> bool {
        let mut between = self.window.1;
        while between < page {
            if !sys::readable(between) {
                return false;
            }
            between = between.wrapping_add(PAGE);
        }
        true
    }

    fn verify(&mut self, page: u64) -> bool {
        let (lo, hi) = self.window;
        if lo <= page && page < hi || page == self.spot {
            return true;
        }
        if !sys::readable(page) {
            self.control.count(Counter::ProbeFailed);
            return false;
        }
        if lo == hi {
            self.window = (page, page + PAGE);
        } else if page >= hi && page - hi <= FRAME_MAX && self.reaches(page) {
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
    #[inline]
    fn load(&mut self, avma: u64) -> Option<u64> {
        let is_within = self.lo <= avma && self.hi >= 8 && avma <= self.hi - 8;
        if !is_within || avma & 7 != 0 {
            return None;
        }
        let is_known = self.window.0 <= avma && avma < self.window.1;
        if !is_known && !self.verify(avma & !(PAGE - 1)) {
            return None;
        }
        let word = avma as *const u64;
        // SAFETY: the address is aligned, so all eight bytes are in one page. This thread found the
        // page readable and is in its handler. Any value is valid.
        Some(unsafe { word.read() })
    }

    fn rebound(&mut self, sp: u64) -> bool {
        let page = sp & !(PAGE - 1);
        let (lo, hi) = self.window;
        let is_known = lo <= page && page < hi;
        // The old stack's window and spot are dropped for the new stack.
        if !is_known && !sys::readable(page) {
            self.control.count(Counter::ProbeFailed);
            return false;
        }
        self.bound(sp);
        self.spot = u64::MAX;
        if !is_known {
            let start = if lo <= sp && sp == hi { lo } else { page };
            self.window = (start, page + PAGE);
        }
        true
    }

    fn bounds(&self) -> (u64, u64) {
        (self.lo, self.hi)
    }

    fn load_code(&mut self, avma: u64) -> Option<u64> {
        if !sys::readable(avma) {
            return None;
        }
        let word = avma as *const u64;
        // SAFETY: these eight bytes were just found readable, and any value is valid.
        Some(unsafe { word.read_unaligned() })
    }

    #[inline]
    fn load_description(&mut self, avma: u64) -> Option<u64> {
        if avma & 7 != 0 {
            return None;
        }
        let word = avma as *const u64;
        // SAFETY: aligned, and in the committed part of a heap of code, which stays mapped and
        // readable as long as the process lives. A probe for each of the many pages of a stack's
        // code would take longer than the rest of a step. Any value is valid.
        Some(unsafe { word.read_volatile() })
    }

    fn load_object(&mut self, avma: u64) -> Option<u64> {
        self.objects.load(avma)
    }

    fn count_no_function(&mut self) {
        self.control.count(Counter::RuntimeForeignObject);
    }
}

#[cfg(test)]
mod tests {
    use traceprof_abi::unwind::Tables;

    use super::*;
    use crate::sample::tests::{Aligned, NO_MODULES, segment};

    #[repr(align(4096))]
    struct Stack([u64; 512 * 4]);

    const MOST: u64 = 16 << 10;

    fn failed(control: &ControlBlock) -> u64 {
        control.counters[Counter::ProbeFailed as usize].load(Ordering::Relaxed)
    }

    fn no_modules() -> Tables {
        static TABLES: Aligned = Aligned(NO_MODULES);
        // SAFETY: aligned, as long as said, never written.
        unsafe { Tables::new(TABLES.0.as_ptr().cast(), size_of::<Aligned>()) }
    }

    /// All four pages are readable. Only the unwinding knows which of them are the thread's.
    #[test]
    fn only_the_page_of_sp_and_the_walked_pages_are_known_to_be_stack() {
        let stack = Box::new(Stack([7; 512 * 4]));
        let base = stack.0.as_ptr() as u64;
        let data = segment();
        let slot = &data.threads().slots[0];
        let control = data.control();
        let tables = no_modules();
        let snapshot = tables.snapshot().unwrap();
        let at = |sp: u64| StackMemory::new(&snapshot, slot, 1, sp, control);
        let sp = base + PAGE + 0x108;
        let mut memory = at(sp);
        assert_eq!(memory.known(sp, None, MOST), (sp - RED_ZONE, base + 2 * PAGE));
        assert_eq!(
            memory.known(base + PAGE + 8, None, MOST),
            (base + PAGE, base + 2 * PAGE),
            "no page below"
        );
        assert_eq!(memory.known(base + PAGE + 11, None, MOST).0, base + PAGE, "whole words");
        assert_eq!(memory.load(base + 2 * PAGE), Some(7));
        assert_eq!(memory.known(sp, None, MOST), (sp - RED_ZONE, base + 3 * PAGE));
        memory.keep(slot, 1);
        assert_eq!(
            at(sp).known(sp, None, MOST).1,
            base + 3 * PAGE,
            "the pages of an earlier sample"
        );
        let later =
            |epoch| StackMemory::new(&snapshot, slot, epoch, sp, control).known(sp, None, MOST).1;
        let ends = [2, 1 + EPOCHS_MAX, 2 + EPOCHS_MAX].map(later);
        assert_eq!(ends, [base + 3 * PAGE, base + 3 * PAGE, base + 2 * PAGE], "not for long");
        // The stack has grown since.
        let deeper = base + 0x108;
        assert_eq!(at(deeper).known(deeper, None, MOST).1, base + 3 * PAGE);
        let mut memory = at(sp);
        assert_eq!(memory.known(sp, None, MOST).1, base + 3 * PAGE);
        let top = base + 3 * PAGE;
        assert_eq!(
            at(top).known(top, None, MOST),
            (top, top),
            "nothing is known above the end of the stack"
        );
        // The last walk was on another stack.
        assert_eq!(memory.known(top + 8, None, MOST), (top, top + PAGE));
        // The same memory as the first thread's stack.
        let mut words = NO_MODULES;
        // The first and only writable range is the stack.
        (words[8], words[10]) = (1 << 32, 1 << 32);
        (words[12], words[13]) = (base, base + 4 * PAGE);
        let segment = Aligned(words);
        // SAFETY: aligned, as long as said, lives longer.
        let tables = unsafe { Tables::new(segment.0.as_ptr().cast(), size_of::<Aligned>()) };
        let snapshot = tables.snapshot().unwrap();
        let mut memory = StackMemory::new(&snapshot, slot, 2, sp, control);
        assert_eq!(memory.known(sp, None, MOST), (sp - RED_ZONE, base + 4 * PAGE));
        assert_eq!(memory.load(base + 4 * PAGE - 8), Some(7));
        assert_eq!(
            memory.known(sp, None, PAGE),
            (sp - RED_ZONE, sp - RED_ZONE + PAGE),
            "at most that"
        );
        let nowhere = 0x18;
        assert_eq!(at(nowhere).known(nowhere, None, MOST), (nowhere, nowhere));
        assert_eq!(failed(control), 1);
    }

    #[test]
    fn pages_that_were_visited_apart_from_this_stack_are_not_known() {
        let stack = Box::new(Stack([7; 512 * 4]));
        let base = stack.0.as_ptr() as u64;
        let data = segment();
        let slot = &data.threads().slots[2];
        let control = data.control();
        let tables = no_modules();
        let snapshot = tables.snapshot().unwrap();
        let at = |sp: u64| StackMemory::new(&snapshot, slot, 1, sp, control);
        let above = base + 2 * PAGE + 0x108;
        let mut memory = at(above);
        assert_eq!([above, above + PAGE].map(|avma| memory.load(avma & !7)), [Some(7); 2]);
        memory.keep(slot, 1);
        let sp = base + 0x108;
        let mut memory = at(sp);
        assert_eq!(memory.known(sp, None, MOST).1, base + PAGE);
        // Once this stack was found to reach them, they are.
        let mut memory = at(sp);
        assert_eq!([sp, sp + PAGE].map(|avma| memory.load(avma)), [Some(7); 2]);
        assert_eq!(memory.known(sp, None, MOST).1, base + 4 * PAGE);
    }

    #[test]
    fn pages_within_a_large_frame_are_known_to_be_stack() {
        let stack = Box::new(Stack([7; 512 * 4]));
        let base = stack.0.as_ptr() as u64;
        let data = segment();
        let control = data.control();
        let tables = no_modules();
        let snapshot = tables.snapshot().unwrap();
        let sp = base + 0x108;
        let mut memory = StackMemory::new(&snapshot, &data.threads().slots[3], 1, sp, control);
        assert_eq!([sp, sp + 3 * PAGE].map(|avma| memory.load(avma)), [Some(7); 2]);
        assert_eq!(memory.known(sp, None, MOST).1, base + 4 * PAGE);
    }

    #[test]
    fn pages_of_an_earlier_sample_are_probed_again() {
        const MPROTECT: u64 = 10;
        let stack = Box::new(Stack([7; 512 * 4]));
        let base = stack.0.as_ptr() as u64;
        let data = segment();
        let slot = &data.threads().slots[1];
        let control = data.control();
        let tables = no_modules();
        let snapshot = tables.snapshot().unwrap();
        let at = |sp: u64| StackMemory::new(&snapshot, slot, 1, sp, control);
        let sp = base + 0x108;
        let mut memory = at(sp);
        assert!((0..3).all(|page| memory.load(sp + page * PAGE).is_some()));
        memory.keep(slot, 1);
        assert_eq!(at(sp).known(sp, None, MOST).1, base + 3 * PAGE);
        assert_eq!(at(sp).known(sp, None, PAGE).1, sp - RED_ZONE + PAGE);
        let protect = |rights| {
            // SAFETY: the pages belong to a box that nothing reads or writes meanwhile.
            unsafe { sys::syscall4(MPROTECT, [base + PAGE, PAGE, rights, 0]) }
        };
        let mut memory = at(sp);
        assert_eq!(memory.known(sp, None, MOST).1, base + 3 * PAGE);
        memory.probe_again();
        assert_eq!(protect(0), 0);
        let loads = [0, 1, 2].map(|page| memory.load(sp + page * PAGE));
        let known = at(sp).known(sp, None, MOST);
        assert_eq!(protect(3), 0);
        assert_eq!(loads, [Some(7), None, Some(7)], "found readable a moment before");
        assert_eq!((known.1, failed(control)), (base + PAGE, 2));
    }
}
