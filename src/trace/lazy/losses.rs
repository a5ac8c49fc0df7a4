//! What a scan found to be lost of a trace.

use std::collections::HashMap;

use crate::trace::{Loss, SIDE, ThreadId};

/// The losses of a trace; none, if it was not scanned.
#[derive(Debug, Default)]
pub(super) struct Losses {
    pub(super) found: Vec<Loss>,
    /// How many samples of each stream they are, as far as blocks after them tell.
    pub(super) samples: HashMap<u32, u64>,
    /// Offset of the last place where frames are lost.
    pub(super) last_at: Option<u64>,
}

impl Losses {
    /// Something is lost. What stands for it counts as a child, other than in the index.
    pub(super) fn any(&self) -> bool {
        !self.found.is_empty()
    }

    /// How many samples of a stream are known to be lost.
    pub(super) fn samples_of(&self, stream: u32) -> u64 {
        self.samples.get(&stream).copied().unwrap_or(0)
    }

    /// What is lost of a stream's thread behind its last block.
    pub(super) fn tail(&self, stream: u32) -> Option<Loss> {
        let thread = Some(ThreadId(stream & !SIDE));
        let tail = |loss: &&Loss| loss.thread == thread && loss.to_ns == u64::MAX;
        self.found.iter().find(tail).copied()
    }
}
