//! The target process: its identity, its tracer, and the claim of one recorder on it.

pub(super) mod claim;
pub(super) mod identity;
pub(super) mod tracer;
