//! Names from the function table of Go's runtime.

use super::ElfFile;
use super::panic_guard::{self, TimeBudget};
use super::parser::BATCH;
use super::resolved::{Inlined, Resolved, ResolvedFunction};
use crate::elf::{Elf, GoLocation, Pclntab, PclntabLocation};
use crate::text::printable;

/// The position of the table in a file.
///
/// Each batch of addresses maps the file again, so that nothing stays mapped.
pub(super) struct GoNames {
    location: PclntabLocation,
    allowance: TimeBudget,
}

impl GoNames {
    /// Finds the table, if the file is a Go program.
    pub(super) fn find(file: &ElfFile) -> Option<Self> {
        panic_guard::contain(|| {
            let bytes = file.map().ok()?;
            let elf = Elf::parse(&bytes).ok()?;
            // Only Go programs have the table, and the search takes time.
            let location = elf.is_go().then(|| PclntabLocation::find(&elf)).flatten()?;
            Some(Self { location, allowance: TimeBudget::default() })
        })
        .flatten()
    }

    /// Resolves the addresses. The answers have the order of the addresses.
    pub(super) fn resolve(&mut self, file: &ElfFile, svmas: &[u64]) -> Vec<Option<Resolved>> {
        let mut answers = Vec::with_capacity(svmas.len());
        for batch in svmas.chunks(BATCH) {
            // With a corrupt table each address becomes a search through all of it.
            if self.allowance.is_spent() {
                break;
            }
            let location = self.location;
            let found = self.allowance.spend(|| resolve_batch(file, location, batch));
            answers.extend(found.flatten().unwrap_or_else(|| vec![None; batch.len()]));
        }
        answers.resize(svmas.len(), None);
        answers
    }
}

fn resolve_batch(
    file: &ElfFile,
    location: PclntabLocation,
    svmas: &[u64],
) -> Option<Vec<Option<Resolved>>> {
    let bytes = file.map().ok()?;
    let elf = Elf::parse(&bytes).ok()?;
    let table = Pclntab::at(&elf, location)?;
    Some(svmas.iter().map(|&svma| resolve(&table, svma)).collect())
}

fn resolve(table: &Pclntab<'_>, svma: u64) -> Option<Resolved> {
    let function = table.find_function(svma)?;
    let locations = function.locations(svma);
    let (own, inlined) = locations.split_first()?;
    Some(Resolved {
        function: Some(ResolvedFunction {
            name: printable(own.name),
            start_svma: function.range.start,
        }),
        file: own.file.map(printable),
        line: own.line,
        inlined: inlined.iter().map(inlined_call).collect(),
    })
}

fn inlined_call(location: &GoLocation<'_>) -> Inlined {
    let (name, file) = (printable(location.name), location.file.map(printable));
    Inlined { name, file, line: location.line }
}
