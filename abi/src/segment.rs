//! The data segment as seen from one of the two processes that map it.
//!
//! # Safety
//! This is the one place where an address becomes references into the data segment.
//!
//! # Invariants
//! - Everything handed out is made of atomics, so that the other process may write at any time.

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

// SAFETY: the segment consists of atomics only; any thread may use it.
unsafe impl Send for DataSegment {}
// SAFETY: as above.
unsafe impl Sync for DataSegment {}

impl DataSegment {
    /// Takes the address at which the segment is mapped.
    ///
    /// # Safety
    /// `base` is page aligned, [`layout::DATA_LEN`] bytes from it on are mapped readable and
    /// writable for as long as any copy of the value or a reference from it is used, and only
    /// this type (or atomics of the same width) reaches them.
    pub unsafe fn new(base: *mut u8) -> Self {
        Self { base }
    }

    /// Start of the segment in this process.
    pub fn base(self) -> *mut u8 {
        self.base
    }

    /// # Safety
    /// `offset + count * size_of::<T>()` lies within the segment, `T` is made of atomics, and
    /// `offset` is aligned for `T`.
    unsafe fn slice<'a, T>(self, offset: u64, count: usize) -> &'a [T] {
        // SAFETY: in bounds of the mapping by the caller's promise and that of `new`.
        let start = unsafe { self.base.add(offset as usize) }.cast::<T>();
        // SAFETY: mapped, aligned, and zero bytes are valid atomics; shared writes go through
        // atomics on both sides.
        unsafe { core::slice::from_raw_parts(start, count) }
    }

    /// The control block.
    pub fn control<'a>(self) -> &'a ControlBlock {
        // SAFETY: the block is at offset 0 and smaller than the segment (asserted in `layout`).
        unsafe { &self.slice::<ControlBlock>(0, 1)[0] }
    }

    /// The hazard slots.
    pub fn hazards<'a>(self) -> HazardSlots<'a> {
        // SAFETY: region asserted in `layout`.
        HazardSlots(unsafe { self.slice(layout::HAZARD_OFFSET, layout::HAZARD_SLOTS) })
    }

    /// The thread slots with their index.
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

    /// The frame buffer of a thread slot, [`layout::SCRATCH_STRIDE`] / 8 words.
    pub fn scratch<'a>(self, slot: usize) -> Option<&'a [AtomicU64]> {
        if slot >= layout::THREAD_SLOTS {
            return None;
        }
        let offset = layout::SCRATCH_OFFSET + slot as u64 * layout::SCRATCH_STRIDE;
        // SAFETY: `slot` is below the count that `layout` asserts the region for.
        Some(unsafe { self.slice(offset, layout::SCRATCH_STRIDE as usize / 8) })
    }

    /// Where contexts are looked for.
    pub fn context_sources<'a>(self) -> &'a ContextSources {
        // SAFETY: region asserted in `layout`.
        unsafe { &self.slice::<ContextSources>(layout::CONTEXT_SOURCES_OFFSET, 1)[0] }
    }

    /// The bitmap of retired events.
    pub fn events_retired<'a>(self) -> &'a [AtomicU64] {
        // SAFETY: region asserted in `layout`.
        unsafe { self.slice(layout::EVENTS_RETIRED_OFFSET, layout::EVENTS_MAX / 64) }
    }

    /// The bitmap of slots whose timers are to be armed, or deleted if their threads are gone.
    pub fn arm_pending<'a>(self) -> &'a [AtomicU64] {
        // SAFETY: region asserted in `layout`.
        unsafe { self.slice(layout::ARM_PENDING_OFFSET, layout::ARM_PENDING_WORDS) }
    }

    /// Asks the next code of ours that runs in the target to arm the timer of a slot, or to delete
    /// it if its thread is gone.
    pub fn want_timer(self, index: usize) {
        let Some(word) = self.arm_pending().get(index / 64) else { return };
        // Release: pairs with the Acquire with which the bit is taken; the slot is visible.
        word.fetch_or(1 << (index % 64), Ordering::Release);
        // Release: pairs with the Acquire with which the word is taken back; the bit is visible.
        self.control().arm_wanted.store(1, Ordering::Release);
    }

    /// A trace table.
    pub fn table<'a>(self, index: usize) -> Option<TraceTable<'a>> {
        if index >= layout::TRACE_TABLES {
            return None;
        }
        let start = layout::TRACE_TABLES_OFFSET + index as u64 * layout::TRACE_TABLE_STRIDE;
        // SAFETY: `index` is below the count that `layout` asserts the region for; the parts of a
        // table are asserted in `storage::table`.
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

    /// The slices of a trace table.
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
