//! Call-trace storage: handlers put traces and samples into the ACTIVE table, the recorder
//! rotates the tables and collects what they hold.
//!
//! Registration: a handler claims a hazard slot with one word that names itself, the table and
//! the generation ([`hazard`]). Rotation: the recorder makes a cleared table ACTIVE, fences, and
//! reads or clears the old one only when no hazard names it ([`rotation`]). Between the two stands
//! one fence on each side: either the handler sees the new ACTIVE word, or the recorder sees the
//! handler's hazard.
//!
//! # Invariants
//! - A trace is written whole before one compare-and-swap publishes its slot ([`table`]).
//! - An id is never used twice: the instance id in its upper half is new with each rotation.
//! - Every loop on the handler's side is bounded by a constant of this module.
//!
//! # Does not
//! - allocate or own memory: all of it lies in slices that the caller took from a segment.

pub mod hazard;
pub mod log;
pub mod rotation;
pub mod table;

/// Id of a trace that found no room. Ids with an upper half of 0 are reserved.
pub const DROPPED_TRACE_ID: u64 = 1;
