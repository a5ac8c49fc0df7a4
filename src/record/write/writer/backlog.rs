//! Batches of a process that wait for names.
//!
//! # Invariants
//! - They come out in the order in which they went in.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::record::batch::Batch;

/// The most memory of waiting batches, of all processes together, in bytes. Beyond it, batches are
/// written with or without names. At the usual rate two busy cores fill it in minutes. Reading
/// gigabytes of debug information takes less, unless the target leaves no CPU time for it.
pub(super) const ROOM: usize = 64 << 20;

/// A batch that is not written yet.
#[derive(Debug)]
pub(super) struct WaitingBatch {
    pub(super) batch: Arc<Batch>,
    /// The batch can be written once all questions up to this one are answered.
    question: u64,
    /// Whether only new traces are left in it.
    pub(super) is_condensed: bool,
    bytes: usize,
}

/// The batches that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    waiting: VecDeque<WaitingBatch>,
    bytes: usize,
    /// The number of batches that have been popped.
    popped: u64,
}

impl Backlog {
    /// Adds a batch. `is_answered` says whether the names for its question are known.
    pub(super) fn push(
        &mut self,
        mut batch: Arc<Batch>,
        question: u64,
        is_answered: impl Fn(u64) -> bool,
    ) {
        let must_wait = !self.waiting.is_empty() || !is_answered(question);
        let own = if must_wait { Arc::get_mut(&mut batch) } else { None };
        // A batch that others share stays unchanged.
        let is_condensed = own.map(Batch::condense).is_some();
        let bytes = batch.bytes();
        self.bytes += bytes;
        self.waiting.push_back(WaitingBatch { batch, question, is_condensed, bytes });
    }

    /// Takes the oldest batch, if it need not wait.
    pub(super) fn pop(&mut self, is_answered: impl Fn(u64) -> bool) -> Option<WaitingBatch> {
        self.waiting.front().filter(|held| is_answered(held.question))?;
        let held = self.waiting.pop_front()?;
        self.bytes -= held.bytes;
        self.popped += 1;
        Some(held)
    }

    /// Returns the memory of the waiting batches, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the mark that is passed once all batches that wait now have been popped.
    pub(super) fn mark(&self) -> u64 {
        self.popped + self.waiting.len() as u64
    }

    /// Whether all batches that waited at this mark have been popped.
    pub(super) fn has_passed(&self, mark: u64) -> bool {
        self.popped >= mark
    }

    /// Whether no batch waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
