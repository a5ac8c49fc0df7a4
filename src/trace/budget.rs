//! What reading a whole trace at once may take in memory.

use super::TraceError;

/// Limits of what is held in memory at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadLimits {
    /// About how many bytes a loaded trace may take; 4 GiB by default.
    pub memory_bytes: u64,
}

impl Default for LoadLimits {
    fn default() -> Self {
        Self { memory_bytes: 4 << 30 }
    }
}

/// Says that a budget does not suffice.
const OVER: &str = "the memory for a whole trace (`print` and LazyTrace read a part at a time)";

/// What is left of a limit.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    left: u64,
}

impl Budget {
    pub(super) fn new(limits: LoadLimits) -> Self {
        Self { limit: limits.memory_bytes, left: limits.memory_bytes }
    }

    /// Takes bytes from it.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), &'static str> {
        self.left = self.left.checked_sub(bytes).ok_or(OVER)?;
        Ok(())
    }

    /// Checks that bytes could be taken from it.
    pub(super) fn check(&self, bytes: u64) -> Result<(), &'static str> {
        if bytes > self.left { Err(OVER) } else { Ok(()) }
    }

    /// The error for `what` at `offset`.
    pub(super) fn error(&self, offset: u64, what: &'static str) -> TraceError {
        if what == OVER {
            return TraceError::LimitExceeded { what, limit: self.limit };
        }
        TraceError::Corrupt { offset, what }
    }
}
