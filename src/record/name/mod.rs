//! The module, function and context that an address and a thread belong to.

pub(crate) mod contexts;
pub(crate) mod frames;
pub(crate) mod jit;
pub(crate) mod jvm;
pub(crate) mod mapping_changes;
pub(crate) mod progress;
pub(crate) mod symbolizers;
