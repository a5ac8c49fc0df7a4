//! The losses of a trace that a scan found.

use std::collections::HashMap;

use crate::trace::{Loss, SIDE, ThreadId};

/// The losses of a trace; empty if it was not scanned.
#[derive(Debug, Default)]
pub(super) struct Losses {
    pub(super) found: Vec<Loss>,
    /// The number of lost samples of each stream, as far as later blocks state it.
    pub(super) samples: HashMap<u32, u64>,
    /// The offset of the last loss of frames.
    pub(super) last_at: Option<u64>,
}

impl Losses {
    /// Returns whether something is lost. A node for a loss counts as a child, unlike in the index.
    pub(super) fn any(&self) -> bool {
        !self.found.is_empty()
    }

    /// Returns the number of samples of a stream that are known to be lost.
    pub(super) fn samples_of(&self, stream: u32) -> u64 {
        self.samples.get(&stream).copied().unwrap_or(0)
    }

    /// Returns the loss of a stream's thread after its last block.
    pub(super) fn tail(&self, stream: u32) -> Option<Loss> {
        let thread = Some(ThreadId(stream & !SIDE));
        let tail = |loss: &&Loss| loss.thread == thread && loss.to_ns == u64::MAX;
        self.found.iter().find(tail).copied()
    }
}
