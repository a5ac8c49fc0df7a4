//! The number of a process in a recording.

/// A process's number within the recording.
pub(crate) type Number = u32;
