//! The reason why an index cannot be used.

use std::fmt;

/// The error for an index that is damaged, belongs to another trace, or contradicts its data. The
/// data file suffices to make a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::trace) struct Broken {
    /// The offset in the index file.
    pub(in crate::trace) offset: u64,
    /// The reason.
    pub(in crate::trace) what: &'static str,
}

impl Broken {
    pub(super) fn at<T>(offset: u64, what: &'static str) -> Result<T, Self> {
        Err(Self { offset, what })
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at {:#x})", self.what, self.offset)
    }
}

impl std::error::Error for Broken {}
