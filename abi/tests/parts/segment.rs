//! A data segment in memory of its own, and a handler's steps for one sample.

use traceprof_abi::storage::hazard::{HazardSlots, Unprotected};
use traceprof_abi::storage::log::Sample;
use traceprof_abi::storage::slice::{Slice, SliceRecord, Slices, SlicesHeader};
use traceprof_abi::storage::table::{Put, TraceTable};
use traceprof_abi::sync::{AtomicU64, Ordering};

use crate::parts::{Parts, words};

/// Tables with their slices, an ACTIVE word and hazard slots.
pub(crate) struct Segment {
    pub(crate) parts: Vec<Parts>,
    slices: Vec<(SlicesHeader, Vec<SliceRecord>)>,
    pub(crate) active: AtomicU64,
    pub(crate) hazards: Vec<AtomicU64>,
}

/// The outcome of storing a sample: its trace, its index in the log, and whether its slice found
/// room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) put: Put,
    pub(crate) log_index: Option<usize>,
    pub(crate) has_slice: bool,
}

impl Segment {
    /// Creates a segment with `hazards` hazard slots, and `slices` slices for each table.
    pub(crate) fn new(parts: Vec<Parts>, hazards: usize, slices: usize) -> Self {
        let of_table = |_: &Parts| {
            let header = SlicesHeader::default();
            // Relaxed: no other thread knows the segment yet.
            header.limit.store(slices as u64, Ordering::Relaxed);
            (header, (0..slices).map(|_| SliceRecord::default()).collect())
        };
        let slices = parts.iter().map(of_table).collect();
        Self { parts, slices, active: AtomicU64::new(0), hazards: words(hazards) }
    }

    pub(crate) fn tables(&self) -> Vec<TraceTable<'_>> {
        self.parts.iter().map(Parts::table).collect()
    }

    pub(crate) fn slices(&self, table: usize) -> Slices<'_> {
        let (header, records) = &self.slices[table];
        Slices { header, records }
    }

    pub(crate) fn slots(&self) -> HazardSlots<'_> {
        HazardSlots(&self.hazards)
    }

    /// Stores one sample by the agent's steps. `stack` has the words of its slice, if there are
    /// any.
    pub(crate) fn store(
        &self,
        owner: u32,
        frames: &[AtomicU64],
        sample: Sample,
        stack: &[u64],
    ) -> Result<Stored, Unprotected> {
        let hazard = self.slots().protect(owner, &self.active)?;
        let table = self.parts[hazard.table()].table();
        let (put, _) = table.put_probed(frames, u32::from(sample.reason), sample.weight);
        let log_index = table.append_at(&Sample { trace_id: put.id(), ..sample });
        let slice = log_index.filter(|_| !stack.is_empty()).map(|sample| {
            // Relaxed: published with the ACTIVE word, which the hazard acquired.
            let instance = table.header.instance.load(Ordering::Relaxed) as u32;
            let slice = Slice { sample, pc: u64::from(owner), ..Slice::default() };
            let load = |avma: u64| stack.get(avma as usize / 8).copied();
            self.slices(hazard.table()).put(instance, &slice, 1, load)
        });
        assert!(self.slots().release(hazard), "nobody else clears it");
        Ok(Stored { put, log_index, has_slice: slice == Some(true) })
    }
}
