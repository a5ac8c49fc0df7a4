//! The kernel's functions, from `/proc/kallsyms`.
//!
//! The file has a line for each symbol: address, type, name, and the module in brackets. A user who
//! may not know where the kernel's code is reads zeros for the addresses.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;

const PATH: &str = "/proc/kallsyms";
/// The lowest address of the kernel's half; below are the offsets of variables of each processor.
const KERNEL_START: u64 = 0xff00_0000_0000_0000;
/// How many bytes are read to find the first function: the variables of a processor come before.
const HEAD_MAX: usize = 1 << 20;
/// The marks at the end of a section of code.
const ENDS: [&[u8]; 2] = [b"_etext", b"_einittext"];
/// Begins the names of padding before functions.
const PADDING: [&[u8]; 2] = [b"__pfx_", b"__cfi_"];

/// Whether this user may know the names of the kernel's functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelNames {
    /// Addresses have names.
    Shown,
    /// The kernel hides the addresses.
    Hidden,
    /// There is no list of symbols here.
    Unreadable,
}

/// A function of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelFunction<'a> {
    /// The name.
    pub name: &'a str,
    /// The module; `None` in the kernel itself.
    pub module: Option<&'a str>,
}

/// A symbol at which a function starts, or code ends.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    avma: u64,
    /// The name in [`KernelSymbols::names`]; empty at the end of code.
    name: (u32, u16),
    /// The number of the module plus 1, or 0.
    module: u16,
}

/// The functions of the kernel by address.
#[derive(Debug, Default)]
pub struct KernelSymbols {
    /// Sorted, one for each address.
    symbols: Vec<Symbol>,
    names: String,
    modules: Vec<KernelModule>,
}

/// A module, with its range of addresses if the kernel lists it. It lists none for the code that it
/// generates.
#[derive(Debug)]
struct KernelModule {
    name: String,
    range: Option<Range<u64>>,
}

/// The most bytes that a function has which is in no module that the kernel lists: a page.
const UNLISTED_MOST: u64 = 4096;

/// A line of the file.
struct Line<'l> {
    avma: u64,
    kind: u8,
    name: &'l [u8],
    /// The module, empty in the kernel itself.
    module: &'l [u8],
}

impl<'l> Line<'l> {
    fn parse(line: &'l [u8]) -> Option<Self> {
        let mut words = line.trim_ascii().splitn(3, |byte| *byte == b' ');
        let avma = std::str::from_utf8(words.next()?).ok()?;
        let avma = u64::from_str_radix(avma, 16).ok()?;
        let [kind] = *words.next()? else { return None };
        let mut rest = words.next()?.splitn(2, |byte| *byte == b'\t');
        let name = rest.next()?.trim_ascii();
        let module = rest.next().unwrap_or_default().trim_ascii();
        let module = module.strip_prefix(b"[").and_then(|it| it.strip_suffix(b"]"));
        Some(Self { avma, kind, name, module: module.unwrap_or_default() })
    }

    fn is_code(&self) -> bool {
        matches!(self.kind, b't' | b'T' | b'w' | b'W') && !ENDS.contains(&self.name)
    }
}

/// Returns whether this user may know the names of the kernel's functions.
pub fn kernel_names() -> KernelNames {
    let names = || -> io::Result<Option<bool>> {
        let mut file = BufReader::new(File::open(PATH)?);
        let (mut line, mut read) = (Vec::new(), 0);
        while read < HEAD_MAX {
            line.clear();
            match file.read_until(b'\n', &mut line)? {
                0 => break,
                count => read += count,
            }
            if let Some(line) = Line::parse(&line).filter(Line::is_code) {
                return Ok(Some(line.avma >= KERNEL_START));
            }
        }
        Ok(None)
    };
    match names() {
        Ok(Some(true)) => KernelNames::Shown,
        Ok(Some(false)) => KernelNames::Hidden,
        Ok(None) | Err(_) => KernelNames::Unreadable,
    }
}

/// The loaded modules: their names, addresses and sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelModules(Vec<(String, u64, u64)>);

impl KernelModules {
    /// Reads the modules. A kernel without modules has none.
    pub fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/modules").unwrap_or_default())
    }

    /// Parses lines such as `nf_tables 331776 0 - Live 0xffffffffc0000000`.
    fn parse(text: &str) -> Self {
        let module = |line: &str| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [name, size, _, _, _, address, ..] = words[..] else { return None };
            let address = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
            Some((name.to_owned(), address, size.parse().ok()?))
        };
        Self(text.lines().filter_map(module).collect())
    }

    /// Returns the range of a module, if its address is not hidden.
    fn range(&self, name: &str) -> Option<Range<u64>> {
        let (_, start, size) = self.0.iter().find(|(module, ..)| module == name)?;
        (*start > 0).then(|| *start..start.saturating_add(*size))
    }
}

impl KernelSymbols {
    /// Reads the symbols, also of these modules; there are none if the kernel hides their
    /// addresses.
    pub fn read(modules: &KernelModules) -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read(PATH)?, modules))
    }

    /// Parses the contents of the file. Lines of another form are left out.
    fn parse(text: &[u8], modules: &KernelModules) -> Self {
        let mut parsed = Self::default();
        for line in text.split(|byte| *byte == b'\n').filter_map(Line::parse) {
            parsed.add(&line);
        }
        for module in &mut parsed.modules {
            module.range = modules.range(&module.name);
        }
        parsed.sort();
        parsed
    }

    fn add(&mut self, line: &Line<'_>) {
        let is_padding = PADDING.iter().any(|prefix| line.name.starts_with(prefix));
        if line.avma < KERNEL_START || is_padding {
            return;
        }
        let Ok(name) = std::str::from_utf8(line.name) else { return };
        let mut symbol = Symbol { avma: line.avma, name: (0, 0), module: 0 };
        if line.is_code() {
            let place = (u32::try_from(self.names.len()), u16::try_from(name.len()));
            let (Ok(start), Ok(len)) = place else { return };
            self.names.push_str(name);
            symbol.name = (start, len);
            symbol.module = self.module(line.module);
        }
        self.symbols.push(symbol);
    }

    /// Returns the number of a module plus 1, and 0 for the kernel itself.
    fn module(&mut self, name: &[u8]) -> u16 {
        let name = String::from_utf8_lossy(name);
        if name.is_empty() {
            return 0;
        }
        // The symbols of a module are together.
        let known = self.modules.iter().rposition(|module| module.name == name);
        let index = known.unwrap_or_else(|| {
            self.modules.push(KernelModule { name: name.into_owned(), range: None });
            self.modules.len() - 1
        });
        u16::try_from(index + 1).unwrap_or(0)
    }

    /// Sorts the symbols, and keeps the first of each address, as the kernel itself does: so a
    /// function has the name that it has in `/proc/PID/stack`.
    fn sort(&mut self) {
        let Self { symbols, .. } = self;
        // Stable.
        symbols.sort_by_key(|symbol| (symbol.avma, symbol.name.1 == 0));
        symbols.dedup_by_key(|symbol| symbol.avma);
        // One end of code is enough.
        symbols.dedup_by(|next, before| next.name.1 == 0 && before.name.1 == 0);
        symbols.shrink_to_fit();
    }

    /// Returns the function that an address is in.
    pub fn find(&self, avma: u64) -> Option<KernelFunction<'_>> {
        let after = self.symbols.partition_point(|symbol| symbol.avma <= avma);
        let symbol = self.symbols.get(after.checked_sub(1)?)?;
        let name = Some(text_of(&self.names, symbol)).filter(|name| !name.is_empty())?;
        let module = usize::from(symbol.module).checked_sub(1);
        let module = module.and_then(|index| self.modules.get(index));
        // Behind the last function of a module is code that the list does not have.
        let is_within = module.is_none_or(|module| match &module.range {
            Some(range) => range.contains(&avma),
            None => avma - symbol.avma < UNLISTED_MOST,
        });
        is_within
            .then(|| KernelFunction { name, module: module.map(|module| module.name.as_str()) })
    }
}

fn text_of<'n>(names: &'n str, symbol: &Symbol) -> &'n str {
    let (start, len) = (symbol.name.0 as usize, usize::from(symbol.name.1));
    names.get(start..start + len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "0000000000000000 A fixed_percpu_data\n\
        ffffffff81000000 T _stext\n\
        ffffffff81000000 T _text\n\
        ffffffff81000000 t early\n\
        ffffffff81000040 t local_alias\n\
        ffffffff81000040 T vfs_read\n\
        ffffffff81000040 T __vfs_read_long_alias\n\
        ffffffff810000f0 t __pfx_vfs_write\n\
        ffffffff81000100 T vfs_write\n\
        ffffffff81000100 W weak_vfs_write\n\
        ffffffff81000200 T _etext\n\
        ffffffff81000300 R constants\n\
        ffffffff81000310 r more\n\
        ffffffffc0000020 t nft_do_chain\t[nf_tables]\n\
        ffffffffc0000000 t first\t[nf_tables]\n\
        ffffffffc0000400 d table\t[nf_tables]\n\
        ffffffffc0001000 t bpf_prog_6deef7357e7b4530\t[bpf]\n";

    fn modules() -> KernelModules {
        KernelModules::parse("nf_tables 2048 0 - Live 0xffffffffc0000000\nodd\n")
    }

    #[test]
    fn a_module_that_is_loaded_again_elsewhere_is_another_one() {
        let other = KernelModules::parse("nf_tables 2048 3 - Live 0xffffffffc0002000 (E)\n");
        let used = KernelModules::parse("nf_tables 2048 7 x, Live 0xffffffffc0000000\n");
        assert!(modules() != other && modules() == used);
        let hidden = KernelModules::parse("nf_tables 2048 0 - Live 0x0000000000000000\n");
        assert_eq!(hidden.range("nf_tables"), None);
    }

    fn name(symbols: &KernelSymbols, avma: u64) -> Option<String> {
        symbols.find(avma).map(|it| match it.module {
            Some(module) => format!("{}[{module}]", it.name),
            None => it.name.to_owned(),
        })
    }

    #[test]
    fn an_address_is_in_the_function_that_starts_before_it() {
        let symbols = KernelSymbols::parse(TEXT.as_bytes(), &modules());
        let check = |avma: u64, expected: Option<&str>| {
            assert_eq!(name(&symbols, avma).as_deref(), expected, "{avma:x}");
        };
        check(0x10, None);
        check(0xffff_ffff_80ff_ffff, None);
        check(0xffff_ffff_8100_0000, Some("_stext"));
        check(0xffff_ffff_8100_003f, Some("_stext"));
        // The first one of the list.
        check(0xffff_ffff_8100_0040, Some("local_alias"));
        // Padding is a part of the function before it.
        check(0xffff_ffff_8100_00ff, Some("local_alias"));
        check(0xffff_ffff_8100_0100, Some("vfs_write"));
        check(0xffff_ffff_8100_01ff, Some("vfs_write"));
        check(0xffff_ffff_8100_0200, None);
        check(0xffff_ffff_8100_0318, None);
        check(0xffff_ffff_c000_0008, Some("first[nf_tables]"));
        check(0xffff_ffff_c000_0020, Some("nft_do_chain[nf_tables]"));
        check(0xffff_ffff_c000_0400, None);
        check(0xffff_ffff_c000_1fff, Some("bpf_prog_6deef7357e7b4530[bpf]"));
        check(0xffff_ffff_c000_2000, None);
        check(u64::MAX, None);
        // Behind its last function, but not in the module.
        let text = "ffffffffc0000000 t first\t[nf_tables]\n";
        let symbols = KernelSymbols::parse(text.as_bytes(), &modules());
        assert_eq!(name(&symbols, 0xffff_ffff_c000_07ff).as_deref(), Some("first[nf_tables]"));
        assert_eq!(name(&symbols, 0xffff_ffff_c000_0800), None);
    }

    #[test]
    fn hidden_addresses_and_garbage_have_no_names() {
        let hidden = "0000000000000000 T _stext\n0000000000000000 t vfs_read\n";
        for text in [
            hidden,
            "",
            "\n\n",
            "x T y",
            "ffffffff81000000",
            "ffffffff81000000 TT x",
            "ffffffff81000000 T",
            "fffffffff81000000ff T x",
            "\u{fffd}\u{fffd} T x",
        ] {
            let symbols = KernelSymbols::parse(text.as_bytes(), &modules());
            assert_eq!(symbols.find(0xffff_ffff_8100_0000), None, "{text}");
        }
        let invalid = KernelSymbols::parse(b"ffffffff81000000 T \xff\xfe\t[\xff]\n", &modules());
        assert_eq!(invalid.find(0xffff_ffff_8100_0000), None);
        // Every prefix is parsed.
        for end in 0..TEXT.len() {
            KernelSymbols::parse(&TEXT.as_bytes()[..end], &modules());
        }
    }

    #[test]
    fn the_own_kernels_functions_are_found_where_it_shows_them() {
        let symbols = KernelSymbols::read(&KernelModules::read()).unwrap_or_default();
        assert_eq!(kernel_names() == KernelNames::Shown, !symbols.symbols.is_empty());
        for symbol in symbols.symbols.iter().filter(|symbol| symbol.name.1 > 0) {
            let found = symbols.find(symbol.avma).unwrap();
            assert_eq!(found.name, text_of(&symbols.names, symbol));
        }
    }
}
