//! The memory budget that all debug files share when they are unpacked or copied.
//!
//! Mapped files do not count, because the kernel can reclaim them. The data that parsers build for
//! units does not count either.
//!
//! # Invariants
//! - Reserved memory stays reserved. A reader that finds too little memory left does not wait, and
//!   goes without.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::proc;

/// Divisor of the memory that this process may use: the budget is an eighth.
const MEMORY_SHARE: u64 = 8;

/// A number of bytes that is shared by all debug files.
#[derive(Debug)]
pub struct MemoryBudget {
    left: AtomicU64,
    len: u64,
}

/// A reservation of budget bytes that ends when it is dropped.
#[derive(Debug)]
pub(super) struct ReservedMemory {
    budget: Arc<MemoryBudget>,
    len: u64,
}

impl Default for MemoryBudget {
    /// Returns a budget of an eighth of the memory that this process may use.
    fn default() -> Self {
        Self::new(proc::memory_len().map_or(u64::MAX, |len| len / MEMORY_SHARE))
    }
}

impl MemoryBudget {
    /// Creates a budget of `len` bytes.
    pub(super) fn new(len: u64) -> Self {
        Self { left: AtomicU64::new(len), len }
    }

    /// Returns the reason why a part of a file was not read, for users.
    pub(super) fn missing(&self) -> String {
        format!("without what did not fit in the {} MiB for debug files", self.len >> 20)
    }

    /// Reserves `len` bytes, if the budget has that many left.
    pub(super) fn take(self: &Arc<Self>, len: u64) -> Option<ReservedMemory> {
        // Relaxed, both: the count publishes no other data.
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(len));
        taken.ok().map(|_| ReservedMemory { budget: Arc::clone(self), len })
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        // Relaxed: as in `MemoryBudget::take`.
        self.budget.left.fetch_add(self.len, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_memory_is_returned() {
        let budget = Arc::new(MemoryBudget::new(10));
        let first = budget.take(6);
        assert!(first.is_some() && budget.take(5).is_none());
        let second = budget.take(4);
        assert!(second.is_some() && budget.take(1).is_none() && budget.take(0).is_some());
        drop(first);
        assert!(budget.take(7).is_none() && budget.take(6).is_some());
    }

    #[test]
    fn part_of_the_memory_is_left_for_others() {
        let len = MemoryBudget::default().len;
        assert!(len > 1 << 20 && len < proc::memory_len().unwrap() / 4, "{len}");
    }
}
