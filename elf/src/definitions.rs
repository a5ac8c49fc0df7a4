//! The definitions of a file: where a named variable or function is.

use std::ops::Range;

use super::Elf;
use super::dynamic::Dynamic;
use super::gnu_hash::GnuHash;
use super::symbols::{Symbol, Symbols};

/// The place of a variable or function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    /// The address.
    pub svma: u64,
    /// The length in bytes, 0 if the file does not tell.
    pub len: u64,
}

impl Definition {
    /// Returns the addresses of the definition. `None` if it has no length, or an impossible one.
    pub fn range(&self) -> Option<Range<u64>> {
        (self.len > 0).then_some(self.svma..self.svma.checked_add(self.len)?)
    }

    fn of(symbol: &Symbol<'_>) -> Self {
        Self { svma: symbol.value, len: symbol.len }
    }
}

/// The definitions of a file, by name.
#[derive(Debug, Clone, Copy)]
pub struct Definitions<'e, 'a>(&'e Elf<'a>);

impl<'e, 'a> Definitions<'e, 'a> {
    /// Returns the definitions of this file.
    pub fn of(elf: &'e Elf<'a>) -> Self {
        Self(elf)
    }

    /// Returns the definition of a variable or function that other modules may use.
    pub fn exported(&self, name: &str) -> Option<Definition> {
        let symbols = Symbols::exported(self.0);
        let Some(table) = GnuHash::of(&Dynamic::of(self.0)) else {
            let [found] = find(symbols, [name]);
            return found;
        };
        let mut candidates = table.candidates(name).filter_map(|index| symbols.get(index));
        let is_it = |it: &Symbol<'_>| (it.is_variable() || it.is_function()) && it.is_named(name);
        candidates.find(is_it).map(|symbol| Definition::of(&symbol))
    }

    /// Returns the definition of a large variable that the file has for itself, if it is a program:
    /// of at least `len_min` bytes. `None` if the file is stripped.
    pub fn own_variable(&self, name: &str, len_min: u64) -> Option<Definition> {
        // The length is checked first: few of a million symbols need a look at the name.
        let is_it = |symbol: &Symbol<'_>| {
            symbol.is_variable() && symbol.len >= len_min && symbol.is_named(name)
        };
        let is_program = Dynamic::of(self.0).is_program();
        let found = is_program.then(|| Symbols::all(self.0).iter().find(is_it)).flatten();
        found.map(|symbol| Definition::of(&symbol))
    }

    /// Returns the definitions of variables and functions, each by the symbols for other modules or
    /// else by the file's own.
    pub fn named<const N: usize>(&self, names: [&str; N]) -> [Option<Definition>; N] {
        let mut found = names.map(|name| self.exported(name));
        if found.iter().any(Option::is_none) {
            let own = find(Symbols::all(self.0), names);
            for (found, own) in found.iter_mut().zip(own) {
                *found = found.or(own);
            }
        }
        found
    }

    /// Returns the variables and functions that other modules may use and whose names begin like
    /// this, each with the rest of its name.
    pub fn exported_after(&self, beginning: &str) -> Vec<(&'a str, Definition)> {
        after(Symbols::exported(self.0), beginning)
    }

    /// Returns the variables and functions whose own symbols begin like this, each with the rest of
    /// its name. Empty if the file is stripped.
    pub fn own_after(&self, beginning: &str) -> Vec<(&'a str, Definition)> {
        after(Symbols::all(self.0), beginning)
    }

    /// Returns all functions whose own symbols have one of these names, each with the index of its
    /// name. Empty if the file is stripped.
    pub fn own_functions(&self, names: &[&str]) -> Vec<(usize, Definition)> {
        let functions = Symbols::all(self.0).iter().filter(Symbol::is_function);
        let named = functions.filter_map(|symbol| {
            let index = names.iter().position(|name| symbol.is_named(name))?;
            Some((index, Definition::of(&symbol)))
        });
        named.collect()
    }

    /// Returns the addresses of the functions whose own symbols begin like this. Empty if the file
    /// is stripped.
    pub fn functions_named(&self, beginning: &str) -> Vec<Range<u64>> {
        let is_it = |symbol: &Symbol<'_>| symbol.is_function() && symbol.begins_with(beginning);
        let found = Symbols::all(self.0).iter().filter(is_it);
        found.filter_map(|symbol| Definition::of(&symbol).range()).collect()
    }
}

fn after<'a>(symbols: Symbols<'a>, beginning: &str) -> Vec<(&'a str, Definition)> {
    let defined = symbols.iter().filter(|it| it.is_variable() || it.is_function());
    defined.filter_map(|it| Some((it.name_after(beginning)?, Definition::of(&it)))).collect()
}

fn find<const N: usize>(symbols: Symbols<'_>, names: [&str; N]) -> [Option<Definition>; N] {
    let mut found = [None; N];
    for symbol in symbols.iter().filter(|it| it.is_variable() || it.is_function()) {
        for (found, name) in found.iter_mut().zip(names) {
            if found.is_none() && symbol.is_named(name) {
                *found = Some(Definition::of(&symbol));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All symbols of a library are found by its hash table, and others are not.
    #[test]
    fn the_hash_table_leads_to_each_symbol() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = maps.lines().find_map(|line| line.find('/').map(|at| &line[at..]));
        let library = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
        let library = library.filter(|path| path.contains("/libc.so")).chain(path).next().unwrap();
        let bytes = std::fs::read(library).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        assert!(GnuHash::of(&Dynamic::of(&elf)).is_some(), "{library}");
        let exported = || after(Symbols::exported(&elf), "").into_iter();
        assert!(exported().count() > 1000, "{library}");
        for (name, _) in exported().step_by(7) {
            let [by_search] = find(Symbols::exported(&elf), [name]);
            assert_eq!(Definitions::of(&elf).exported(name), by_search, "{name}");
            assert_eq!(Definitions::of(&elf).exported(&format!("{name}_")), None);
        }
    }
}
