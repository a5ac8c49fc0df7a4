//! Call-trace storage: handlers put traces and samples into the ACTIVE table, the recorder
//! rotates the tables and collects what they hold.
//!
//! Registration: a handler claims a hazard slot with one word that names itself, the table and
//! the generation ([`hazard`]). Rotation: the recorder makes a cleared table ACTIVE, fences, and
//! reads or clears the old one only when no hazard names the word that was ACTIVE with it
//! ([`rotation`]). Between the two stands one fence on each side: either the handler sees the new
//! ACTIVE word, or the recorder sees the handler's hazard.
//!
//! # Invariants
//! - A trace is written whole before one compare-and-swap publishes its slot ([`table`]).
//! - An id is never used twice: the instance id in its upper half is new with each rotation.
//! - Every loop on the handler's side is bounded by a constant of this module.
//!
//! # Does not
//! - allocate or own memory: all of it lies in slices that the caller took from a segment.

use crate::sync::AtomicU64;

use self::hazard::{HazardSlots, Unprotected};
use self::table::{Put, TraceTable};

pub mod hazard;
pub mod log;
pub mod rotation;
pub mod slice;
pub mod table;

/// Id of a trace that found no room. Ids with an upper half of 0 are reserved.
pub const DROPPED_TRACE_ID: u64 = 1;

/// Why a trace has no id of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// The table's arena is full.
    Arena,
    /// All slots that were tried hold other traces.
    Probes,
    /// All hazard slots that were tried are in use.
    Hazard,
    /// The tables rotated faster than the hazard could be published.
    Rotation,
}

impl From<Unprotected> for Dropped {
    fn from(unprotected: Unprotected) -> Self {
        match unprotected {
            Unprotected::Exhausted => Self::Hazard,
            Unprotected::Overtaken => Self::Rotation,
        }
    }
}

/// The storage as one whole: what a handler that wants nothing but a trace's id needs. (Ours stores
/// its sample under the same hazard, and takes the steps of [`Self::put`] one by one.)
#[derive(Debug, Clone, Copy)]
pub struct Storage<'a> {
    /// Generation and index of the ACTIVE table.
    pub active: &'a AtomicU64,
    /// The hazard slots.
    pub hazards: HazardSlots<'a>,
    /// All tables.
    pub tables: &'a [TraceTable<'a>],
}

impl Storage<'_> {
    /// Finds or inserts a trace in the ACTIVE table; `owner` is the calling thread's
    /// ([`hazard::owner`]). Nested calls on one thread do each other no harm.
    ///
    /// ```
    /// use traceprof_abi::storage::hazard::{self, HazardSlots};
    /// use traceprof_abi::storage::{DROPPED_TRACE_ID, Dropped, Storage, table::Put};
    /// use traceprof_abi::sync::AtomicU64;
    ///
    /// # use traceprof_abi::storage::{rotation::Rotation, table::{TableHeader, TraceTable}};
    /// # let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    /// # let parts: Vec<_> = (0..3).map(|_| (TableHeader::default(), words(64), words(64))).collect();
    /// # let table = |(header, slots, arena): &'static (TableHeader, Vec<_>, Vec<_>)| {
    /// #     header.arena_limit.store(64, traceprof_abi::sync::Ordering::Relaxed);
    /// #     TraceTable { header, slots, arena, log: &[] }
    /// # };
    /// # let tables: Vec<_> = Vec::leak(parts).iter().map(table).collect();
    /// # let (active, hazard_words) = (AtomicU64::new(0), words(8));
    /// # let mut rotation = Rotation::start(&tables, &active);
    /// let hazards = HazardSlots(&hazard_words);
    /// let storage = Storage { active: &active, hazards, tables: &tables };
    /// let stack = [0x4010, 0x4020, 0x4030].map(AtomicU64::new);
    /// let (thread_slot, generation) = (0, 0);
    /// let owner = hazard::owner(thread_slot, generation);
    /// let first = storage.put(owner, &stack, 0, 1);
    /// assert_eq!(first, Put::New(1 << 32));
    /// assert_eq!(storage.put(owner, &stack, 0, 1), Put::Hit(first.id()));
    /// rotation.rotate(&tables, &active, hazards, || true);
    /// assert_eq!(storage.put(owner, &stack, 0, 1), Put::New(2 << 32), "another epoch");
    /// hazard_words.iter().for_each(|word| word.store(7, traceprof_abi::sync::Ordering::Relaxed));
    /// let refused = storage.put(owner, &stack, 0, 1);
    /// assert_eq!((refused, refused.id()), (Put::Dropped(Dropped::Hazard), DROPPED_TRACE_ID));
    /// ```
    pub fn put(&self, owner: u32, frames: &[AtomicU64], flags: u32, weight: u32) -> Put {
        let hazard = match self.hazards.protect(owner, self.active) {
            Ok(hazard) => hazard,
            Err(unprotected) => return Put::Dropped(unprotected.into()),
        };
        let put = match self.tables.get(hazard.table()) {
            Some(table) => table.put(frames, flags, weight),
            None => Put::Dropped(Dropped::Rotation),
        };
        // A claim that was taken away says nothing against the id.
        let _ = self.hazards.release(hazard);
        put
    }
}
