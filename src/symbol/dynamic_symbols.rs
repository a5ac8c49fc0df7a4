//! The exported names of a file (`.dynsym`), for files that blazesym refuses.
//!
//! blazesym reads the symbols of a file without `.symtab` from `.gnu_debugdata`. Without a decoder
//! for that section it reads none.

use std::fs::File;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol, ObjectSymbolTable, ReadCache, SymbolIndex, SymbolKind};

use super::elf_headers::ElfHeaders;
use super::name::readable;
use super::parser::NameSource;
use super::resolved::ResolvedFunction;
use super::{Resolved, panic_guard};

/// Maximum number of nested symbols that are searched.
const NESTED_MAX: usize = 64;

/// An exported function, without its name.
///
/// Names are read on demand, because a file may give any number of symbols the same long name.
#[derive(Debug, Clone, Copy)]
struct DynamicSymbol {
    start: u64,
    len: u64,
    index: SymbolIndex,
    /// The highest last byte of this symbol and all symbols before it.
    reach: u64,
}

/// The functions of `.dynsym`. They are read when the first address is resolved.
pub(super) struct DynamicSymbols {
    path: PathBuf,
    /// Sorted by address.
    symbols: Option<Vec<DynamicSymbol>>,
}

impl DynamicSymbols {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, symbols: None }
    }
}

impl NameSource for DynamicSymbols {
    fn resolve(&mut self, _: &ElfHeaders, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        let read = || panic_guard::contain(|| read(&self.path)).flatten().unwrap_or_default();
        let symbols = self.symbols.get_or_insert_with(read);
        let found = svmas.iter().map(|&svma| find(symbols, svma)).collect::<Vec<_>>();
        if found.iter().all(Option::is_none) {
            return Some(vec![None; svmas.len()]);
        }
        panic_guard::contain(|| named(&self.path, &found)).flatten()
    }
}

fn read(path: &Path) -> Option<Vec<DynamicSymbol>> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let elf = object::File::parse(&cache).ok()?;
    let functions = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
    let symbols: Vec<DynamicSymbol> = functions
        .map(|symbol| {
            let (start, len) = (symbol.address(), symbol.size());
            DynamicSymbol { start, len, index: symbol.index(), reach: 0 }
        })
        .collect();
    Some(by_address(symbols))
}

fn by_address(mut symbols: Vec<DynamicSymbol>) -> Vec<DynamicSymbol> {
    // Of several symbols with the same start, the longest comes last.
    symbols.sort_by_key(|symbol| (symbol.start, symbol.len));
    let mut reach = 0;
    for symbol in &mut symbols {
        reach = reach.max(symbol.last());
        symbol.reach = reach;
    }
    symbols
}

impl DynamicSymbol {
    /// Returns the last address of the symbol. A symbol without a length names only its first byte,
    /// because not every function is exported.
    fn last(&self) -> u64 {
        self.start.saturating_add(self.len.max(1) - 1)
    }
}

/// Returns the innermost symbol that contains an address.
fn find(symbols: &[DynamicSymbol], svma: u64) -> Option<DynamicSymbol> {
    let after = symbols.partition_point(|symbol| symbol.start <= svma);
    let before = symbols[..after].iter().rev();
    let mut before = before.take_while(|symbol| symbol.reach >= svma).take(NESTED_MAX);
    before.find(|symbol| symbol.last() >= svma).copied()
}

fn named(path: &Path, found: &[Option<DynamicSymbol>]) -> Option<Vec<Option<Resolved>>> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let elf = object::File::parse(&cache).ok()?;
    let table = elf.dynamic_symbol_table()?;
    let resolved = |symbol: &DynamicSymbol| {
        let name = table.symbol_by_index(symbol.index).ok()?.name().ok()?.to_owned();
        let function = ResolvedFunction { name: readable(&name), start_svma: symbol.start };
        (!name.is_empty()).then(|| Resolved { function: Some(function), ..Resolved::default() })
    };
    Some(found.iter().map(|symbol| resolved(symbol.as_ref()?)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_symbol_names_an_address() {
        let spans = [(100, 50), (110, 4), (110, 10), (130, 0), (200, 1)];
        let symbols = (0..).zip(spans).map(|(index, (start, len))| DynamicSymbol {
            start,
            len,
            index: SymbolIndex(index),
            reach: 0,
        });
        let symbols = by_address(symbols.collect());
        let index = |svma| find(&symbols, svma).map(|symbol| symbol.index.0);
        assert_eq!(
            [99, 100, 110, 119, 120, 130].map(index),
            [None, Some(0), Some(2), Some(2), Some(0), Some(3)]
        );
        assert_eq!([131, 149, 150, 200, 201].map(index), [Some(0), Some(0), None, Some(4), None]);
    }
}
