//! Code for whose table the segment had no room.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::runtime::java::CodeScan;

/// The pause before such code is tried again. Replaced tables leave room after a second or so.
const PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of pieces of code that are tried again at once.
const RETRIES: usize = 64;
/// Maximum number of pieces of code that are tried again at all.
const PIECES_MAX: usize = 1 << 16;

/// Code that has no table.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// The starts of the blocks.
    blocks: BTreeSet<u64>,
    /// The last one that was tried again.
    last: u64,
    due: Option<Instant>,
}

impl LeftOut {
    pub(super) fn has_any(&self) -> bool {
        !self.blocks.is_empty()
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn add(&mut self, start: u64) {
        if self.blocks.len() < PIECES_MAX {
            self.blocks.insert(start);
        }
    }

    pub(super) fn remove(&mut self, start: u64) {
        self.blocks.remove(&start);
    }

    /// Makes the next scan follow some of the code again, if that is due.
    pub(super) fn retry(&mut self, now: Instant, scan: &mut CodeScan) {
        if !self.has_any() || self.due.is_some_and(|due| now < due) {
            return;
        }
        if self.due.replace(now + PAUSE).is_none() {
            return;
        }
        let after = self.blocks.range(self.last + 1..).chain(&self.blocks);
        let some: Vec<u64> = after.take(RETRIES.min(self.blocks.len())).copied().collect();
        for start in some {
            scan.read_again(start);
            // A block that is gone is not tried again. One that is there comes back if it fails.
            self.blocks.remove(&start);
            self.last = start;
        }
    }
}
