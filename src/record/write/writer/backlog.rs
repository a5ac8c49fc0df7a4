//! Batches of a process that wait for names.
//!
//! # Invariants
//! - They come out in the order in which they went in.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::record::batch::rotation::Batch;

/// Memory of the batches that wait, of all processes together: what is above it is written, named
/// or not. At the usual rate two busy cores fill it in minutes; debug information of gigabytes is
/// read in less, unless the target leaves no time for it.
pub(super) const ROOM: usize = 64 << 20;

/// A batch that is not written yet.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) batch: Arc<Batch>,
    /// When all questions up to this one are answered, it can be written.
    question: u64,
    /// Traces that are not new are not in it any more.
    pub(super) is_condensed: bool,
    bytes: usize,
}

/// The batches that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    held: VecDeque<Held>,
    bytes: usize,
    /// Those that came out.
    out: u64,
}

impl Backlog {
    /// Adds a batch, of which `is_answered` says whether it must wait.
    pub(super) fn push(
        &mut self,
        mut batch: Arc<Batch>,
        question: u64,
        is_answered: impl Fn(u64) -> bool,
    ) {
        let must_wait = !self.held.is_empty() || !is_answered(question);
        let own = if must_wait { Arc::get_mut(&mut batch) } else { None };
        // What others have too stays as it is.
        let is_condensed = own.map(Batch::condense).is_some();
        let bytes = batch.bytes();
        self.bytes += bytes;
        self.held.push_back(Held { batch, question, is_condensed, bytes });
    }

    /// The oldest batch, if it need not wait.
    pub(super) fn pop(&mut self, is_answered: impl Fn(u64) -> bool) -> Option<Held> {
        self.held.front().filter(|held| is_answered(held.question))?;
        let held = self.held.pop_front()?;
        self.bytes -= held.bytes;
        self.out += 1;
        Some(held)
    }

    /// Their memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many had come out when all that wait now have.
    pub(super) fn mark(&self) -> u64 {
        self.out + self.held.len() as u64
    }

    /// All have come out that waited at this mark.
    pub(super) fn has_passed(&self, mark: u64) -> bool {
        self.out >= mark
    }

    /// None waits.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}
