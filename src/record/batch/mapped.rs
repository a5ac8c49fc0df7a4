//! Executable mappings that the kernel reported.

use std::ops::Range;

/// An executable mapping that the kernel reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// The time of the mapping, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) time_ns: u64,
    /// The mapped addresses.
    pub(crate) range: Range<u64>,
    /// Whether no file backs the mapping.
    pub(crate) is_anonymous: bool,
}
