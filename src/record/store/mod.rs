//! What was sampled, from the shared tables to batches; threads and their lives.

pub(crate) mod collector;
pub(crate) mod heaviest;
pub(crate) mod liveness;
pub(crate) mod outside_unwind;
pub(crate) mod threads;
pub(crate) mod trace_ids;
