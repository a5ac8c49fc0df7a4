//! A [`Parser`] that runs only if the memory budget has the bytes that it needs.

use std::path::Path;
use std::sync::Arc;

use super::Resolved;
use super::elf_headers::{ElfHeaders, Packed};
use super::memory_budget::{MemoryBudget, ReservedMemory};
use super::parser::{NameSource, Parser};

/// A parser that unpacks sections on demand, if the memory budget allows.
pub(super) struct BudgetedSource {
    parser: Parser,
    budget: Arc<MemoryBudget>,
    /// Number of bytes that the parser needs.
    len: u64,
    /// The reservation, made when the first address is resolved. `Some(None)` if too little memory
    /// was left.
    taken: Option<Option<ReservedMemory>>,
}

impl BudgetedSource {
    /// Creates a source that reads the symbol tables of a file.
    pub(super) fn symbols(path: &Path, packed: Packed, budget: &Arc<MemoryBudget>) -> Box<Self> {
        Self::new(Parser::new(path.to_owned(), false), budget, packed.other)
    }

    /// Creates a source that reads the debug information of a file and its symbol tables.
    pub(super) fn debug_information(
        path: &Path,
        packed: Packed,
        budget: &Arc<MemoryBudget>,
    ) -> Box<Self> {
        let len = packed.debug.saturating_add(packed.other);
        Self::new(Parser::new(path.to_owned(), true), budget, len)
    }

    fn new(parser: Parser, budget: &Arc<MemoryBudget>, len: u64) -> Box<Self> {
        Box::new(Self { parser, budget: Arc::clone(budget), len, taken: None })
    }
}

impl NameSource for BudgetedSource {
    fn resolve(&mut self, headers: &ElfHeaders, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        self.taken.get_or_insert_with(|| self.budget.take(self.len)).as_ref()?;
        self.parser.resolve(headers, svmas)
    }

    fn missing(&self) -> Option<String> {
        matches!(self.taken, Some(None)).then(|| self.budget.missing())
    }
}
