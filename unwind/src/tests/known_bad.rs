//! Code whose unwind information is known to be wrong or missing, as data: `known_bad.txt`.

use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol};

const TEXT: &str = include_str!("known_bad.txt");
/// Bytes from the call that installs another function's registers to the jump there: 128 in libgcc
/// of GCC 12.
const END_LEN: u64 = 144;

/// A line of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KnownBad {
    module: &'static str,
    place: &'static str,
    outcome: &'static str,
}

/// Returns all lines.
pub(super) fn known_bad() -> Vec<KnownBad> {
    let lines = TEXT.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let parsed = lines.map(|line| {
        let mut words = line.split_whitespace();
        let mut word = || words.next().unwrap_or_else(|| panic!("{line}: four columns"));
        let found = KnownBad { module: word(), place: word(), outcome: word() };
        assert!(words.next().is_some(), "{line}: a reason is needed");
        found
    });
    parsed.collect()
}

impl KnownBad {
    /// Returns whether the line excuses this outcome, written with dashes instead of spaces, at one
    /// of these locations of a module.
    pub(super) fn excuses(&self, module: &str, places: &[String], outcome: &str) -> bool {
        let is_module = self.module == "*" || self.module == module;
        let is_outcome = outcome.split(' ').eq(self.outcome.split('-'));
        is_module && is_outcome && places.iter().any(|place| place == self.place)
    }
}

/// Returns the descriptions of an address of a module: its function by the module's own symbols,
/// whether it is in that function's end, and its section.
pub(super) fn places(module: &[u8], svma: u64) -> Vec<String> {
    let file = ElfFile64::<LittleEndian>::parse(module).expect("a module that was compiled");
    let holds = |start: u64, len: u64| start <= svma && svma - start < len;
    let mut symbols = file.symbols().chain(file.dynamic_symbols());
    let symbol = symbols.find(|symbol| {
        symbol.kind() == object::SymbolKind::Text && holds(symbol.address(), symbol.size())
    });
    let section = file.sections().find(|section| holds(section.address(), section.size()));
    // Symbols of the compiler's start files have no size. The code ends with its section.
    let first = section.as_ref().map_or(svma, ObjectSection::address);
    let at_start = file.symbols().filter(|symbol| symbol.size() == 0);
    let before = at_start.filter(|symbol| (first..=svma).contains(&symbol.address()));
    let before = before.filter(|it| it.kind() == object::SymbolKind::Text);
    let nearest = symbol.or_else(|| before.max_by_key(ObjectSymbol::address));
    let mut places = Vec::new();
    if let Some(symbol) = nearest {
        let name = symbol.name().unwrap_or_default();
        places.push(name.to_owned());
        let code = section.as_ref().and_then(|section| {
            section.data_range(symbol.address(), symbol.size()).expect("code in the file")
        });
        let end = code.and_then(exception_return).map(|end| symbol.address() + end);
        if end.is_some_and(|end| (end - END_LEN.min(end)..end).contains(&svma)) {
            places.push(format!("{name}:end"));
        }
    }
    places.extend(section.map(|it| it.name().unwrap_or_default().to_owned()));
    places
}

/// Finds the end of a function that returns to another one: `mov %rcx,%rsp; pop %rcx; jmp *%rcx`,
/// or `mov %rcx,%rsp; ret`. No other function has it.
fn exception_return(code: &[u8]) -> Option<u64> {
    let ends = [&[0x48, 0x89, 0xCC, 0x59, 0xFF, 0xE1][..], &[0x48, 0x89, 0xCC, 0xC3]];
    let found = |end: &&[u8]| {
        let at = code.windows(end.len()).position(|window| window == *end)?;
        Some((at + end.len()) as u64)
    };
    ends.iter().find_map(found)
}

#[test]
fn the_end_of_a_function_that_returns_to_another_is_distinguished_from_its_start() {
    let libgcc = std::fs::read("/usr/lib/x86_64-linux-gnu/libgcc_s.so.1").expect("libgcc");
    let file = ElfFile64::<LittleEndian>::parse(&*libgcc).expect("a library");
    for name in known_bad().iter().filter_map(|it| it.place.strip_suffix(":end")) {
        let of_name = |symbol: &object::read::elf::ElfSymbol64<'_, '_, _>| {
            symbol.name().is_ok_and(|it| it == name)
        };
        let symbol = file.dynamic_symbols().find(of_name).expect("a function of libgcc");
        let (start, len) = (symbol.address(), symbol.size());
        let is_end = |at: u64| places(&libgcc, at).contains(&format!("{name}:end"));
        let ends = (start..start + len).filter(|at| is_end(*at)).count() as u64;
        assert_eq!(ends, END_LEN, "{name}");
        assert!(!is_end(start) && !is_end(start + len), "{name}");
    }
}

#[test]
fn a_line_excuses_only_what_it_says() {
    let line = KnownBad { module: "libc.so.6", place: ".fini", outcome: "no-module" };
    let check = |module: &str, place: &str, outcome: &str, expected: bool| {
        assert_eq!(line.excuses(module, &["f".into(), place.into()], outcome), expected);
    };
    check("libc.so.6", ".fini", "no module", true);
    check("libm.so.6", ".fini", "no module", false);
    check("libc.so.6", ".init", "no module", false);
    check("libc.so.6", ".fini", "wrong", false);
    let everywhere = KnownBad { module: "*", ..line };
    assert!(everywhere.excuses("libm.so.6", &[".fini".into()], "no module"));
}
