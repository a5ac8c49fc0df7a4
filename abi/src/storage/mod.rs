//! The call-trace storage. Handlers put traces and samples into the ACTIVE table. The recorder
//! rotates the tables and collects their contents.
//!
//! Registration: a handler claims a hazard slot with one word that names its owner, the table and
//! the generation ([`hazard`]). Rotation: the recorder makes a cleared table ACTIVE and executes a
//! fence. It reads or clears the old table only once no hazard names the ACTIVE word that the table
//! had ([`rotation`]). Each side has one fence between its store and its load. So either the
//! handler sees the new ACTIVE word, or the recorder sees the handler's hazard.
//!
//! # Invariants
//! - A trace is written completely before one compare-and-swap publishes its slot ([`table`]).
//! - An id is never used twice: each rotation uses a new instance id, the upper half of the trace
//!   ids.
//! - A constant of this module bounds every loop on the handler's side.
//!
//! # A handler's steps
//! ```
//! use traceprof_abi::storage::hazard::{self, HazardSlots};
//! use traceprof_abi::storage::log::{Sample, SampleRecord};
//! use traceprof_abi::storage::table::Put;
//! use traceprof_abi::sync::AtomicU64;
//!
//! # use traceprof_abi::storage::{rotation::Rotation, table::{TableHeader, TraceTable}};
//! # let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
//! # let log = || (0..4).map(|_| SampleRecord::default()).collect::<Vec<_>>();
//! # let part = |_| (TableHeader::default(), words(64), words(64), log());
//! # let parts: Vec<_> = (0..3).map(part).collect();
//! # let table = |(header, slots, arena, log): &'static (TableHeader, Vec<_>, Vec<_>, Vec<_>)| {
//! #     header.arena_limit.store(64, traceprof_abi::sync::Ordering::Relaxed);
//! #     header.log_limit.store(4, traceprof_abi::sync::Ordering::Relaxed);
//! #     TraceTable { header, slots, arena, log }
//! # };
//! # let tables: Vec<_> = Vec::leak(parts).iter().map(table).collect();
//! # let (active, hazard_words) = (AtomicU64::new(0), words(8));
//! # let mut rotation = Rotation::start(&tables, &active);
//! let hazards = HazardSlots(&hazard_words);
//! let (thread_slot, generation) = (0, 0);
//! let hazard = hazards.protect(hazard::owner(thread_slot, generation), &active).unwrap();
//! let table = tables[hazard.table()];
//! let stack = [0x4010, 0x4020, 0x4030].map(AtomicU64::new);
//! let put = table.put(&stack, 0, 1);
//! assert_eq!(put, Put::New(1 << 32));
//! let index = table.append_at(&Sample { trace_id: put.id(), ..Sample::default() });
//! assert_eq!(index, Some(0));
//! assert!(hazards.release(hazard));
//! # rotation.rotate(&tables, &active, hazards, || true);
//! ```
//!
//! # Does not
//! - allocate or own memory: the caller passes slices of a segment.

pub mod hazard;
pub mod log;
pub mod rotation;
pub mod slice;
pub mod table;

/// Id of a trace that found no room. Ids whose upper half is 0 are reserved.
pub const DROPPED_TRACE_ID: u64 = 1;

/// The reason why a trace has no id of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// The table's arena is full.
    Arena,
    /// All probed slots hold other traces.
    Probes,
}
