//! The memory limit for loading a complete trace.

use super::{TraceError, memory};

/// Limits for loading a trace into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadLimits {
    /// The approximate number of bytes that a loaded trace may take; 4 GiB by default.
    pub memory_bytes: u64,
}

impl Default for LoadLimits {
    fn default() -> Self {
        Self { memory_bytes: 4 << 30 }
    }
}

/// The error text for a budget that does not suffice.
const OVER: &str = "the memory to load a complete trace (`print` and LazyTrace read it in parts)";

/// The part of a memory limit that is not used yet.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    left: u64,
    /// Whether it is for the objects of a trace alone.
    of_objects: bool,
}

impl Budget {
    pub(super) fn new(limits: LoadLimits) -> Self {
        Self { limit: limits.memory_bytes, left: limits.memory_bytes, of_objects: false }
    }

    /// Creates the budget for the objects of a trace, which other readers than
    /// [`load`](fn@super::load) hold.
    pub(super) fn for_objects() -> Self {
        let limit = LoadLimits::default().memory_bytes;
        let limit = memory::for_objects().map_or(limit, |it| it.min(limit));
        Self { limit, left: limit, of_objects: true }
    }

    /// Takes `bytes` from the budget.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), &'static str> {
        self.left = self.left.checked_sub(bytes).ok_or(OVER)?;
        Ok(())
    }

    /// Checks that `bytes` could be taken from the budget.
    pub(super) fn check(&self, bytes: u64) -> Result<(), &'static str> {
        if bytes > self.left { Err(OVER) } else { Ok(()) }
    }

    /// Returns the error for `what` at `offset`.
    pub(super) fn error(&self, offset: u64, what: &'static str) -> TraceError {
        if what == OVER && self.of_objects {
            return TraceError::TooMuchMemory { limit: self.limit };
        }
        if what == OVER {
            return TraceError::LimitExceeded { what, limit: self.limit };
        }
        TraceError::Corrupt { offset, what }
    }
}
