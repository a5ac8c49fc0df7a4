//! The number of a process within a recording.

/// The number of a process within the recording.
pub(crate) type ProcessNumber = u32;
