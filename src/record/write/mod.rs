//! The thread that writes the trace, and the files that it writes.

pub(crate) mod output;
pub(crate) mod saving;
pub(crate) mod trigger;
pub(crate) mod writer;
