//! The functions of an ELF file by its symbols: their bounds, and the names of those at which calls
//! and jumps aim. No debug information is read.

use std::collections::HashMap;
use std::ops::Range;

use object::{Object, ObjectSymbol, ObjectSymbolTable, SymbolIndex, SymbolKind};

use super::name::readable;
use super::panic_guard;
use super::plt::{PltStubs, slots};

/// Maximum number of functions: more than the largest programs have.
const FUNCTIONS_MAX: usize = 4 << 20;

/// A function that has a symbol. Names are read on demand.
#[derive(Debug, Clone, Copy)]
struct SymbolBounds {
    start: u64,
    len: u64,
    is_dynamic: bool,
    index: SymbolIndex,
}

/// The functions of a file that have symbols, by address.
#[derive(Debug, Default)]
pub struct SymbolTable {
    functions: Vec<SymbolBounds>,
    stubs: PltStubs,
    /// The functions whose addresses the loader puts into the slots of the global offset table.
    slots: HashMap<u64, SymbolIndex>,
}

impl SymbolTable {
    /// Reads the symbols of a file. A corrupt file has none.
    pub fn read(bytes: &[u8]) -> Self {
        panic_guard::contain(|| Self::try_read(bytes)).flatten().unwrap_or_default()
    }

    fn try_read(bytes: &[u8]) -> Option<Self> {
        let elf = object::File::parse(bytes).ok()?;
        let slots = slots(&elf);
        let stubs = PltStubs::of(&elf, &slots).unwrap_or_default();
        Some(Self { functions: functions(&elf), stubs, slots })
    }

    /// Returns the bounds of the function that begins at an address, if a symbol has its length.
    pub fn range(&self, start: u64) -> Option<Range<u64>> {
        let len = self.at(start).iter().map(|function| function.len).max()?;
        (len > 0).then_some(start..start.checked_add(len)?)
    }

    /// Returns the names of the functions that begin at these addresses of the same file, of stubs
    /// (`malloc@plt`), and of functions whose addresses the loader puts there.
    pub fn names(&self, bytes: &[u8], svmas: &[u64]) -> HashMap<u64, String> {
        panic_guard::contain(|| self.try_names(bytes, svmas)).flatten().unwrap_or_default()
    }

    fn try_names(&self, bytes: &[u8], svmas: &[u64]) -> Option<HashMap<u64, String>> {
        let elf = object::File::parse(bytes).ok()?;
        let named = |svma: &u64| {
            let own = self.at(*svma).first().and_then(|it| name_in(&elf, it.is_dynamic, it.index));
            let stub = || self.stubs.find(*svma).map(|stub| stub.name);
            let slot = || name_in(&elf, true, *self.slots.get(svma)?);
            Some((*svma, own.or_else(stub).or_else(slot)?))
        };
        Some(svmas.iter().filter_map(named).collect())
    }

    fn at(&self, start: u64) -> &[SymbolBounds] {
        let from = self.functions.partition_point(|it| it.start < start);
        let rest = self.functions.get(from..).unwrap_or_default();
        rest.get(..rest.partition_point(|it| it.start == start)).unwrap_or_default()
    }
}

fn name_in(elf: &object::File<'_>, is_dynamic: bool, index: SymbolIndex) -> Option<String> {
    let table = if is_dynamic { elf.dynamic_symbol_table() } else { elf.symbol_table() };
    let name = readable(table?.symbol_by_index(index).ok()?.name().ok()?);
    (!name.is_empty()).then_some(name)
}

fn functions(elf: &object::File<'_>) -> Vec<SymbolBounds> {
    let tables = [(false, elf.symbols()), (true, elf.dynamic_symbols())];
    let all = tables.into_iter().flat_map(|(is_dynamic, table)| {
        let functions = table.filter(|it| it.is_definition() && it.kind() == SymbolKind::Text);
        functions.map(move |it| SymbolBounds {
            start: it.address(),
            len: it.size(),
            is_dynamic,
            index: it.index(),
        })
    });
    let mut functions: Vec<_> = all.take(FUNCTIONS_MAX).collect();
    functions.sort_by_key(|it| (it.start, it.is_dynamic));
    functions
}
