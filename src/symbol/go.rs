//! Names from the table that Go's runtime keeps for itself.

use super::ElfFile;
use super::name::printable;
use super::panic_guard::{self, TimeBudget};
use super::parser::BATCH;
use super::resolved::{Function, Inlined, Resolved};
use crate::elf::{Elf, GoPlace, Pclntab, PclntabPlace};

/// The place of the table in one file.
///
/// The file is mapped anew for each batch of addresses, so that nothing stays mapped.
pub(super) struct GoNames {
    place: PclntabPlace,
    allowance: TimeBudget,
}

impl GoNames {
    /// Finds the table, if the file is a Go program.
    pub(super) fn find(file: &ElfFile) -> Option<Self> {
        panic_guard::contain(|| {
            let bytes = file.map().ok()?;
            let elf = Elf::parse(&bytes).ok()?;
            // Only Go programs have one, and a search takes time.
            let place = elf.is_go().then(|| PclntabPlace::find(&elf)).flatten()?;
            Some(Self { place, allowance: TimeBudget::default() })
        })
        .flatten()
    }

    /// Answers in the order of the addresses.
    pub(super) fn resolve(&mut self, file: &ElfFile, svmas: &[u64]) -> Vec<Option<Resolved>> {
        let mut answers = Vec::with_capacity(svmas.len());
        for batch in svmas.chunks(BATCH) {
            // A damaged table makes each address a search through the whole of it.
            if self.allowance.is_spent() {
                break;
            }
            let place = self.place;
            let found = self.allowance.spend(|| resolve_batch(file, place, batch));
            answers.extend(found.flatten().unwrap_or_else(|| vec![None; batch.len()]));
        }
        answers.resize(svmas.len(), None);
        answers
    }
}

fn resolve_batch(
    file: &ElfFile,
    place: PclntabPlace,
    svmas: &[u64],
) -> Option<Vec<Option<Resolved>>> {
    let bytes = file.map().ok()?;
    let elf = Elf::parse(&bytes).ok()?;
    let table = Pclntab::at(&elf, place)?;
    Some(svmas.iter().map(|&svma| resolve(&table, svma)).collect())
}

fn resolve(table: &Pclntab<'_>, svma: u64) -> Option<Resolved> {
    let function = table.find_function(svma)?;
    let places = function.places(svma);
    let (own, inlined) = places.split_first()?;
    Some(Resolved {
        function: Some(Function { name: printable(own.name), start_svma: function.range.start }),
        file: own.file.map(printable),
        line: own.line,
        inlined: inlined.iter().map(inlined_call).collect(),
    })
}

fn inlined_call(place: &GoPlace<'_>) -> Inlined {
    let (name, file) = (printable(place.name), place.file.map(printable));
    Inlined { name, file, line: place.line }
}
