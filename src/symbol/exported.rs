//! The exported names of a file, for those that blazesym refuses: it reads the symbols of a file
//! without `.symtab` from `.gnu_debugdata`, and without a decoder for that, not at all.

use std::fs::File;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol, ObjectSymbolTable, ReadCache, SymbolIndex, SymbolKind};

use super::name::readable;
use super::outline::Outline;
use super::parser::NameSource;
use super::resolved::Function;
use super::{Resolved, guard};

/// Symbols around one another that are looked through.
const NESTED_MAX: usize = 64;

/// An exported function. Names are read when they are asked for: a file may give any number of symbols
/// the same long one.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    start: u64,
    len: u64,
    index: SymbolIndex,
    /// The last byte of it and of all in front of it.
    reach: u64,
}

/// The functions of `.dynsym`, read when the first address is asked for.
pub(super) struct Exported {
    path: PathBuf,
    /// Sorted by address.
    symbols: Option<Vec<Symbol>>,
}

impl Exported {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, symbols: None }
    }
}

impl NameSource for Exported {
    fn resolve(&mut self, _: &Outline, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        let read = || guard::contain(|| read(&self.path)).flatten().unwrap_or_default();
        let symbols = self.symbols.get_or_insert_with(read);
        let found = svmas.iter().map(|&svma| find(symbols, svma)).collect::<Vec<_>>();
        if found.iter().all(Option::is_none) {
            return Some(vec![None; svmas.len()]);
        }
        guard::contain(|| named(&self.path, &found)).flatten()
    }
}

fn read(path: &Path) -> Option<Vec<Symbol>> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let elf = object::File::parse(&cache).ok()?;
    let functions = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
    let symbols: Vec<Symbol> = functions
        .map(|symbol| {
            let (start, len) = (symbol.address(), symbol.size());
            Symbol { start, len, index: symbol.index(), reach: 0 }
        })
        .collect();
    Some(by_address(symbols))
}

fn by_address(mut symbols: Vec<Symbol>) -> Vec<Symbol> {
    // Of several with the same start the longest comes last.
    symbols.sort_by_key(|symbol| (symbol.start, symbol.len));
    let mut reach = 0;
    for symbol in &mut symbols {
        reach = reach.max(symbol.last());
        symbol.reach = reach;
    }
    symbols
}

impl Symbol {
    /// A symbol without a length names its first byte only: what is exported is not all that there is.
    fn last(&self) -> u64 {
        self.start.saturating_add(self.len.max(1) - 1)
    }
}

/// The innermost of those that an address lies in.
fn find(symbols: &[Symbol], svma: u64) -> Option<Symbol> {
    let after = symbols.partition_point(|symbol| symbol.start <= svma);
    let before = symbols[..after].iter().rev();
    let mut before = before.take_while(|symbol| symbol.reach >= svma).take(NESTED_MAX);
    before.find(|symbol| symbol.last() >= svma).copied()
}

fn named(path: &Path, found: &[Option<Symbol>]) -> Option<Vec<Option<Resolved>>> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let elf = object::File::parse(&cache).ok()?;
    let table = elf.dynamic_symbol_table()?;
    let resolved = |symbol: &Symbol| {
        let name = table.symbol_by_index(symbol.index).ok()?.name().ok()?.to_owned();
        let function = Function { name: readable(&name), start_svma: symbol.start };
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
        let symbols = (0..).zip(spans).map(|(index, (start, len))| Symbol {
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
