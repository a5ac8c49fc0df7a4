//! The losses of a trace that a scan found.

use std::collections::HashMap;

use crate::trace::loss::{self, BadRange, Loss};
use crate::trace::{SIDE, ThreadId};

/// The losses of a trace; empty if it was not scanned.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The ranges that belong to no complete frame.
    pub(super) bad: Vec<BadRange>,
    /// The losses of threads and of thread-neutral objects that others refer to.
    pub(super) found: Vec<Loss>,
    /// The number of lost samples of each stream, as far as later blocks state it.
    pub(super) samples: HashMap<u32, u64>,
    /// The union of the flags of all samples that can be read.
    pub(super) flags: u32,
    /// The size of the file when it was scanned.
    pub(super) file_bytes: u64,
}

impl Losses {
    /// Returns whether something is lost. A node for a loss counts as a child, unlike in the index.
    pub(super) fn any(&self) -> bool {
        loss::is_lossy(&self.bad, &self.found)
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
