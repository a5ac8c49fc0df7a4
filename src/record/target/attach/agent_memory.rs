//! The memory of an agent that its handlers touch, made present before they do.

use std::io;

use traceprof_abi::context::ContextSources;
use traceprof_abi::layout;
use traceprof_abi::storage::{rotation::Rotation, slice, table};
use traceprof_abi::sync::Ordering;

use super::Attached;

/// Thread slots that are kept ready beyond those in use.
const SPARE_SLOTS: u32 = layout::INITIAL_THREAD_SLOTS;

impl Attached<'_> {
    /// Makes the memory that handlers touch present, and sets the limits accordingly.
    pub(super) fn populate(&mut self, freq_hz: u32, threads: u32) -> io::Result<()> {
        // Seconds of samples, but few at low rates: a hundred processes may be attached to.
        const RECORDS_MIN: u64 = 1024;
        const RECORDS_OF_SECONDS: u64 = 4096;
        let sources_end = layout::CONTEXT_SOURCES_OFFSET + size_of::<ContextSources>() as u64;
        self.segments.data.populate(0, sources_end)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let each_second = u64::from(freq_hz) * cores;
        let of_seconds = (each_second * 2).min(RECORDS_OF_SECONDS);
        // At high rates, half a second of samples on all cores: five rotations.
        let records =
            (each_second / 2).max(of_seconds).clamp(RECORDS_MIN, table::LOG_RECORDS as u64);
        self.records = records;
        for index in 0..Rotation::ROLES {
            self.populate_table(index)?;
        }
        self.populate_slots(threads.saturating_add(SPARE_SLOTS))
    }

    /// Makes a table present.
    pub(crate) fn populate_table(&self, index: usize) -> io::Result<()> {
        const WORDS_PER_RECORD: u64 = 32;
        const RECORDS_PER_SLICE: u64 = 16;
        const SLICES_MIN: u64 = 64;
        let Some(table) = self.data().table(index) else { return Ok(()) };
        // Relaxed: only the recorder writes it.
        if table.header.log_limit.load(Ordering::Relaxed) == self.records {
            return Ok(());
        }
        let words = (self.records * WORDS_PER_RECORD).min(table::ARENA_WORDS as u64);
        let start = layout::TRACE_TABLES_OFFSET + index as u64 * layout::TRACE_TABLE_STRIDE;
        self.segments.data.populate(start, table::SLOTS_OFFSET + table::SLOTS as u64 * 8)?;
        self.segments.data.populate(start + table::ARENA_OFFSET, words * 8)?;
        self.segments.data.populate(start + table::LOG_OFFSET, self.records * 128)?;
        let slices = (self.records / RECORDS_PER_SLICE).clamp(SLICES_MIN, slice::SLICES as u64);
        let slices_len = table::SLICES_HEADER + slices * size_of::<slice::SliceRecord>() as u64;
        self.segments.data.populate(start + table::SLICES_OFFSET, slices_len)?;
        // Relaxed: published with the agent's installation, or with the rotation that makes the
        // table ACTIVE.
        table.header.arena_limit.store(words, Ordering::Relaxed);
        table.header.log_limit.store(self.records, Ordering::Relaxed);
        if let Some(table) = self.data().slices(index) {
            table.header.limit.store(slices, Ordering::Relaxed);
        }
        Ok(())
    }

    fn populate_slots(&self, wanted: u32) -> io::Result<()> {
        let control = self.data().control();
        let wanted = wanted.min(layout::THREAD_SLOTS as u32);
        // Relaxed: only the recorder writes it.
        let present = u64::from(control.slots_limit.load(Ordering::Relaxed));
        let more = u64::from(wanted).saturating_sub(present);
        let slots = layout::THREAD_SLOTS_OFFSET + present * layout::THREAD_SLOT_BYTES;
        self.segments.data.populate(slots, more * layout::THREAD_SLOT_BYTES)?;
        let frames = layout::SCRATCH_OFFSET + present * layout::SCRATCH_STRIDE;
        self.segments.data.populate(frames, more * layout::SCRATCH_STRIDE)?;
        // Relaxed: the pages are present for both processes before this is stored.
        control.slots_limit.fetch_max(wanted, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps thread slots ready ahead of their use.
    pub(crate) fn grow_slots(&self) -> io::Result<()> {
        let control = self.data().control();
        // Relaxed: counts.
        let used = control.slots_next.load(Ordering::Relaxed);
        let limit = control.slots_limit.load(Ordering::Relaxed);
        // Two cores cannot request more than that until the next turn, even at the highest rates.
        if used.saturating_add(SPARE_SLOTS * 3 / 4) > limit {
            self.populate_slots(limit.saturating_mul(2))?;
        }
        Ok(())
    }
}
