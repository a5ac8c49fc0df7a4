//! What a scan of the heaps of code is to do, and what it finds.

use std::ops::Range;
use std::time::Duration;

use traceprof_abi::unwind::Rule;
use traceprof_abi::unwind::code_heap::{CodeIdentity, HeapSpan};

use crate::proc::thread_time;

/// Code with its unwind rules. Addresses are AVMAs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScannedCode {
    /// The block of a heap that has the code.
    pub block: Range<u64>,
    /// The first instruction.
    pub start: u64,
    /// Length in bytes.
    pub length: u32,
    /// What tells it from later code.
    pub identity: CodeIdentity,
    /// Rules and the offsets from which on they apply.
    pub rows: Vec<(u32, Rule)>,
}

/// What changed since the last scan.
#[derive(Debug, Default)]
pub struct CodeChanges {
    /// Blocks that are not there any more, or have no code.
    pub removed: Vec<Range<u64>>,
    /// New code.
    pub added: Vec<ScannedCode>,
    /// Whether anything is new, or was not settled yet.
    pub has_news: bool,
    /// Whether the budget ended before all blocks were read that are known to be new.
    pub is_behind: bool,
    /// Whether the machine has allocated or freed a block since seals were compared.
    pub has_moved: bool,
    /// Number of blocks whose seals say that they have other code than before, or none.
    pub others: usize,
    /// The addresses of the heaps. Empty if they cannot be read.
    pub spans: Vec<HeapSpan>,
    /// Number of blocks for which there is no room.
    pub left_out: usize,
    /// Number of segments of the maps that were looked at, each as often as it was.
    pub segments: usize,
    /// Number of blocks that were read.
    pub blocks: usize,
    /// Number of followed instructions, and of those without a rule.
    pub instructions: usize,
    /// Number of these without a rule.
    pub unknown: usize,
    /// Number of pieces of code that took too much work.
    pub cut: usize,
}

/// How much a scan reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanDepth {
    /// The maps of segments: new blocks are found, and blocks that were freed.
    Maps,
    /// Also the seal of each block: other code in a block of the same size is found.
    Seals,
    /// Also the code that is no method: some grows.
    Blocks,
}

/// How much work a scan may do. What is left is for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanBudget {
    /// Number of blocks that are compared with the map.
    pub blocks: usize,
    /// Number of instructions, exceeded by one piece of code at most.
    pub instructions: usize,
    /// CPU time of the thread, exceeded by one piece of code at most.
    pub time: Duration,
    /// The part of it that is for methods without a sample.
    pub ahead: Duration,
}

/// What is left of a budget.
pub(super) struct BudgetLeft {
    budget: ScanBudget,
    began: Duration,
}

impl BudgetLeft {
    pub(super) fn of(budget: ScanBudget) -> Self {
        Self { budget, began: thread_time() }
    }

    /// Returns what is left of it for methods without a sample.
    pub(super) fn ahead(&self) -> Self {
        let time = self.budget.time.saturating_sub(self.took()).min(self.budget.ahead);
        Self::of(ScanBudget { time, ..self.budget })
    }

    fn took(&self) -> Duration {
        thread_time().saturating_sub(self.began)
    }

    pub(super) fn is_used_up(&self, changes: &CodeChanges) -> bool {
        changes.instructions > self.budget.instructions || self.took() > self.budget.time
    }
}
