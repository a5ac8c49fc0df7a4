//! Access to the data segment from either of the two processes that map it.
//!
//! # Safety
//! Only this module turns an address into references into the data segment.
//!
//! # Invariants
//! - Every reference that this module returns is to atomics, so the other process may write at any
//!   time.

use crate::context::ContextSources;
use crate::layout::{self, ControlBlock};
use crate::storage::hazard::HazardSlots;
use crate::storage::log::SampleRecord;
use crate::storage::slice::{self, SliceRecord, Slices, SlicesHeader};
use crate::storage::table::{self, TraceTable};
use crate::sync::{AtomicU64, Ordering};
use crate::thread::{FreeSlots, ThreadIndex, Threads};

/// A mapped data segment.
#[derive(Debug, Clone, Copy)]
pub struct DataSegment {
    base: *mut u8,
}

// SAFETY: the segment consists of atomics only, so any thread may use it.
unsafe impl Send for DataSegment {}
// SAFETY: as above.
unsafe impl Sync for DataSegment {}

impl DataSegment {
    /// Wraps the segment that is mapped at `base`.
    ///
    /// # Safety
    /// `base` is page aligned. [`layout::DATA_LEN`] bytes from `base` stay mapped readable and
    /// writable for as long as any copy of the value, or a reference from it, is in use. Only this
    /// type (or atomics of the same width) accesses them.
    pub unsafe fn new(base: *mut u8) -> Self {
        Self { base }
    }

    /// Returns the address of the segment in this process.
    pub fn base(self) -> *mut u8 {
        self.base
    }

    /// # Safety
    /// `offset + count * size_of::<T>()` is within the segment, `T` consists of atomics, and
    /// `offset` is aligned for `T`.
    unsafe fn slice<'a, T>(self, offset: u64, count: usize) -> &'a [T] {
        // SAFETY: the caller promises that the range is in the segment, and the caller of `new`
        // promised that the segment is mapped.
        let start = unsafe { self.base.add(offset as usize) }.cast::<T>();
        // SAFETY: the range is mapped and aligned, and zero bytes are valid atomics. Both sides
        // write the shared memory through atomics.
        unsafe { core::slice::from_raw_parts(start, count) }
    }

    /// Returns the control block.
    pub fn control<'a>(self) -> &'a ControlBlock {
        // SAFETY: the block is at offset 0 and smaller than the segment (asserted in `layout`).
        unsafe { &self.slice::<ControlBlock>(0, 1)[0] }
    }

    /// Returns the hazard slots.
    pub fn hazards<'a>(self) -> HazardSlots<'a> {
        // SAFETY: region asserted in `layout`.
        HazardSlots(unsafe { self.slice(layout::HAZARD_OFFSET, layout::HAZARD_SLOTS) })
    }

    /// Returns the thread slots with their index.
    pub fn threads<'a>(self) -> Threads<'a> {
        let control: &'a ControlBlock = self.control();
        // SAFETY: region asserted in `layout`.
        let words = unsafe { self.slice(layout::TID_INDEX_OFFSET, layout::TID_INDEX_LEN) };
        // SAFETY: region asserted in `layout`.
        let slots = unsafe { self.slice(layout::THREAD_SLOTS_OFFSET, layout::THREAD_SLOTS) };
        Threads {
            index: ThreadIndex { words },
            slots,
            next: &control.slots_next,
            limit: &control.slots_limit,
            free: FreeSlots {
                top: &control.slots_free,
                slots,
                leaked: &control.counters[layout::Counter::SlotLeaked as usize],
            },
        }
    }

    /// Returns the frame buffer of a thread slot: [`layout::FRAME_WORDS_MAX`] words. `None` if
    /// there is no such slot.
    pub fn scratch<'a>(self, slot: usize) -> Option<&'a [AtomicU64]> {
        self.scratch_part(slot, 0, layout::FRAME_WORDS_MAX)
    }

    /// Returns the handler's stack of a thread slot. `None` if there is no such slot.
    pub fn handler_stack<'a>(self, slot: usize) -> Option<&'a [AtomicU64]> {
        let words = layout::HANDLER_STACK_BYTES as usize / 8;
        self.scratch_part(slot, layout::HANDLER_STACK_OFFSET, words)
    }

    /// Returns words at this offset of a thread slot's scratch memory, in which they all are.
    fn scratch_part<'a>(self, slot: usize, offset: u64, words: usize) -> Option<&'a [AtomicU64]> {
        if slot >= layout::THREAD_SLOTS {
            return None;
        }
        let start = layout::SCRATCH_OFFSET + slot as u64 * layout::SCRATCH_STRIDE;
        // SAFETY: `layout` asserts the region for all slots below this count, and its parts.
        Some(unsafe { self.slice(start + offset, words) })
    }

    /// Returns the context sources that the handlers read.
    pub fn context_sources<'a>(self) -> &'a ContextSources {
        // SAFETY: region asserted in `layout`.
        unsafe { &self.slice::<ContextSources>(layout::CONTEXT_SOURCES_OFFSET, 1)[0] }
    }

    /// Returns the bitmap of retired perf events.
    pub fn events_retired<'a>(self) -> &'a [AtomicU64] {
        // SAFETY: region asserted in `layout`.
        unsafe { self.slice(layout::EVENTS_RETIRED_OFFSET, layout::EVENTS_MAX / 64) }
    }

    /// Returns the bitmap of slots with a pending timer request. Serving a request arms the slot's
    /// timer, or deletes it if its thread has exited.
    pub fn arm_pending<'a>(self) -> &'a [AtomicU64] {
        // SAFETY: region asserted in `layout`.
        unsafe { self.slice(layout::ARM_PENDING_OFFSET, layout::ARM_PENDING_WORDS) }
    }

    /// Requests a timer for a slot. The agent code that runs next in the target arms the timer, or
    /// deletes it if its thread has exited.
    pub fn want_timer(self, index: usize) {
        let Some(word) = self.arm_pending().get(index / 64) else { return };
        // Release: pairs with the Acquire that takes the bit in the agent's `timer::drain`; the
        // slot is visible.
        word.fetch_or(1 << (index % 64), Ordering::Release);
        // Release: pairs with the Acquire that clears this word in the agent's `timer::drain`; the
        // bit is visible.
        self.control().arm_wanted.store(1, Ordering::Release);
    }

    /// Returns a trace table, or `None` if there is no such table.
    pub fn table<'a>(self, index: usize) -> Option<TraceTable<'a>> {
        if index >= layout::TRACE_TABLES {
            return None;
        }
        let start = layout::TRACE_TABLES_OFFSET + index as u64 * layout::TRACE_TABLE_STRIDE;
        // SAFETY: `layout` asserts the region for all tables below this count, and `storage::table`
        // asserts the parts of a table.
        let header = unsafe { &self.slice::<table::TableHeader>(start, 1)[0] };
        // SAFETY: as above.
        let slots = unsafe { self.slice(start + table::SLOTS_OFFSET, table::SLOTS) };
        // SAFETY: as above.
        let arena = unsafe { self.slice(start + table::ARENA_OFFSET, table::ARENA_WORDS) };
        // SAFETY: as above.
        let log =
            unsafe { self.slice::<SampleRecord>(start + table::LOG_OFFSET, table::LOG_RECORDS) };
        Some(TraceTable { header, slots, arena, log })
    }

    /// Returns the stack slices of a trace table, or `None` if there is no such table.
    pub fn slices<'a>(self, index: usize) -> Option<Slices<'a>> {
        if index >= layout::TRACE_TABLES {
            return None;
        }
        let start = layout::TRACE_TABLES_OFFSET + index as u64 * layout::TRACE_TABLE_STRIDE;
        let start = start + table::SLICES_OFFSET;
        // SAFETY: as in `table`.
        let header = unsafe { &self.slice::<SlicesHeader>(start, 1)[0] };
        // SAFETY: as in `table`.
        let records =
            unsafe { self.slice::<SliceRecord>(start + table::SLICES_HEADER, slice::SLICES) };
        Some(Slices { header, records })
    }
}
