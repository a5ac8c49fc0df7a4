//! The data that flows from stage to stage: samples, traces, threads and addresses, as plain owned
//! values.

pub(crate) mod contexts;
pub(crate) mod mapped;
pub(crate) mod process;
pub(crate) mod raw_stacks;
pub(crate) mod rotation;
pub(crate) mod threads;
pub(crate) mod traces;
