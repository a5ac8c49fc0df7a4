//! The ways in which a module reaches a thread-local variable, by the name of its symbol.
//!
//! Constant parts are returned as numbers. Where the loader decides a part, the result is the
//! address of the word that the loader fills in. The caller reads that word in the live process.

use std::collections::HashSet;

use object::elf::{
    EM_X86_64, PT_TLS, R_X86_64_DTPMOD64, R_X86_64_TLSDESC, R_X86_64_TPOFF64, STT_TLS,
};
use object::read::elf::ProgramHeader;

use super::dynamic::Dynamic;
use super::relocation::{Relocation, Relocations};
use super::symbols::{Symbol, Symbols};
use super::{Elf, LE};

/// Most relocations that are kept for one variable; a linker makes one or two.
const WAYS_MAX: usize = 8;

/// A way to reach a thread-local variable. Addresses are SVMAs, and all sums wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TlsAccess {
    /// The variable is at this distance from the thread pointer.
    Offset(u64),
    /// The variable is at the distance in the word at `svma`, plus `delta`.
    OffsetWord {
        /// The address of the word.
        svma: u64,
        /// The number to add.
        delta: u64,
    },
    /// The variable is in the block of the module whose number is in the word at `svma`, at the
    /// offset in the next word.
    ModuleAndOffset {
        /// The address of the first word.
        svma: u64,
    },
    /// The variable is in the block of the module whose number is in the word at `svma`, at this
    /// offset.
    Module {
        /// The address of the word.
        svma: u64,
        /// The offset in the block.
        offset: u64,
    },
    /// The descriptor at `svma` leads to the variable: a function of the loader and its argument.
    /// The argument is a distance from the thread pointer, or leads to a module's number and an
    /// offset. `delta` is added to either.
    Descriptor {
        /// The address of the descriptor.
        svma: u64,
        /// The number to add.
        delta: u64,
    },
}

/// The thread-local variables that a module defines or uses.
#[derive(Debug, Clone, Copy)]
pub struct ThreadLocals<'e, 'a> {
    elf: &'e Elf<'a>,
    /// The symbols of variables that other modules may use or define.
    symbols: Symbols<'a>,
    is_program: bool,
}

impl<'e, 'a> ThreadLocals<'e, 'a> {
    /// Returns the thread-local variables of this file.
    pub fn of(elf: &'e Elf<'a>) -> Self {
        let is_program = Dynamic::of(elf).is_program();
        Self { elf, symbols: Symbols::exported(elf), is_program }
    }

    /// Returns the ways in which this module reaches the thread-local variable of that name,
    /// whether this or another module defines it. Empty if there are none. Without such a symbol,
    /// the search checks the kind of each symbol.
    pub fn ways_to(&self, name: &str) -> Vec<TlsAccess> {
        // On another machine, the loader's words have other numbers.
        if self.elf.machine() != EM_X86_64.0 {
            return Vec::new();
        }
        let is_it = |symbol: &Symbol<'_>| symbol.kind == STT_TLS.0 && symbol.is_named(name);
        // A statically linked program may have no dynamic symbols at all.
        let all =
            || Symbols::all(self.elf).iter().find(|symbol| is_it(symbol) && symbol.is_defined);
        let known = self.symbols.iter().find(is_it);
        let Some(symbol) = known.or_else(|| self.is_program.then(all).flatten()) else {
            return Vec::new();
        };
        let is_named = |number: u32| {
            self.symbols.get(number as usize).is_some_and(|symbol| number != 0 && is_it(&symbol))
        };
        self.ways_to_symbol(&symbol, is_named)
    }

    /// Returns the ways to the variable of that name that no other module may use. Empty if the
    /// file is stripped. The search checks the kind of each symbol.
    pub fn ways_to_own(&self, name: &str) -> Vec<TlsAccess> {
        if self.elf.machine() != EM_X86_64.0 {
            return Vec::new();
        }
        let is_it = |symbol: &Symbol<'_>| {
            symbol.kind == STT_TLS.0 && symbol.is_defined && symbol.is_named(name)
        };
        let symbol = Symbols::all(self.elf).iter().find(is_it);
        symbol.map(|symbol| self.ways_to_symbol(&symbol, |_| false)).unwrap_or_default()
    }

    /// Returns the ways to a symbol. `is_named` tells whether the symbol with a number is it.
    fn ways_to_symbol(
        &self,
        symbol: &Symbol<'_>,
        is_named: impl Fn(u32) -> bool,
    ) -> Vec<TlsAccess> {
        // The program's own block is below the thread pointer, at any link address.
        if symbol.is_defined && self.is_program {
            let offset = self.offset_in_program(symbol.value);
            return offset.map(TlsAccess::Offset).into_iter().collect();
        }
        let (mut ways, mut seen) = (Vec::new(), HashSet::new());
        for relocation in Relocations::of(self.elf).iter() {
            if ways.len() >= WAYS_MAX {
                break;
            }
            if let Some(way) = way(&relocation, symbol, &is_named)
                && seen.insert(way)
            {
                ways.push(way);
            }
        }
        ways
    }

    /// Returns the distance of a variable in the program's own block from the thread pointer. The
    /// block ends below the thread pointer, at an address that is congruent to the segment's.
    fn offset_in_program(&self, value: u64) -> Option<u64> {
        let segment = self.elf.segment(PT_TLS)?;
        let align = segment.p_align(LE).max(1);
        if !align.is_power_of_two() || value >= segment.p_memsz(LE) {
            return None;
        }
        let end = segment.p_vaddr(LE).wrapping_add(segment.p_memsz(LE));
        let distance = segment.p_memsz(LE).wrapping_add(end.wrapping_neg() & (align - 1));
        Some(value.wrapping_sub(distance))
    }
}

/// Returns the way to the symbol through a relocation, if the relocation leads to it. A relocation
/// without a symbol concerns the module itself, which knows the positions of its own variables.
fn way(
    relocation: &Relocation,
    symbol: &Symbol<'_>,
    is_named: impl Fn(u32) -> bool,
) -> Option<TlsAccess> {
    let Relocation { at: svma, kind, symbol: number, addend } = *relocation;
    let is_modules = number == 0 && symbol.is_defined;
    if !is_modules && !is_named(number) {
        return None;
    }
    // The distance from the relocation's target to the variable.
    let base = if is_modules { symbol.value } else { 0 };
    let delta = base.wrapping_sub(addend);
    match kind {
        kind if kind == R_X86_64_TLSDESC.0 => Some(TlsAccess::Descriptor { svma, delta }),
        kind if kind == R_X86_64_TPOFF64.0 => Some(TlsAccess::OffsetWord { svma, delta }),
        kind if kind == R_X86_64_DTPMOD64.0 && is_modules => {
            Some(TlsAccess::Module { svma, offset: symbol.value })
        }
        kind if kind == R_X86_64_DTPMOD64.0 => Some(TlsAccess::ModuleAndOffset { svma }),
        _ => None,
    }
}

/// Reads thread-local variables from any bytes, for fuzzing. Panics if, and only if, an invariant
/// is broken.
pub fn probe(bytes: &[u8]) {
    for elf in [Elf::parse(bytes), Elf::parse_image(bytes)].into_iter().flatten() {
        assert!(ThreadLocals::of(&elf).ways_to("otel_thread_ctx_v1").len() <= WAYS_MAX);
        assert!(ThreadLocals::of(&elf).ways_to_own("other").len() <= WAYS_MAX);
        elf.variable("variable", 8);
        elf.interpreter();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;
    use crate::tests::own;

    const SOURCE: &str = "\
struct record;
__attribute__((visibility(\"default\"))) __thread struct record *otel_thread_ctx_v1;
__thread int other = 3;
__attribute__((visibility(\"default\"))) long long variable;
struct record *get(void) { other++; return otel_thread_ctx_v1; }
int main(void) { return get() ? variable != 0 : 0; }
";

    /// Returns the file that the compiler makes with these flags.
    fn built(flags: &[&str]) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("variable.c"), SOURCE).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-o", "built", "variable.c"]).args(flags).current_dir(dir.path());
        let output = compiler.output().expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read(dir.path().join("built")).unwrap()
    }

    fn ways(bytes: &[u8]) -> Vec<TlsAccess> {
        ThreadLocals::of(&Elf::parse(bytes).unwrap()).ways_to("otel_thread_ctx_v1")
    }

    #[test]
    fn variables_of_programs_have_an_offset() {
        let export = "-Wl,--export-dynamic-symbol=otel_thread_ctx_v1";
        for flags in [&[export][..], &["-no-pie", export], &["-static"], &["-static-pie", export]] {
            let bytes = built(flags);
            let [TlsAccess::Offset(offset)] = ways(&bytes)[..] else {
                panic!("{:?}", ways(&bytes))
            };
            // A statically linked libc has variables of its own in the block.
            let offset = offset as i64;
            assert!((-4096..=-8).contains(&offset) && offset % 8 == 0, "{flags:?}: {offset}");
            let elf = Elf::parse(&bytes).unwrap();
            assert!(Dynamic::of(&elf).is_program());
            assert_eq!(elf.variable("variable", 8), None, "no other module may use it: {flags:?}");
            assert_eq!(elf.interpreter().is_some(), !flags[0].starts_with("-static"));
        }
    }

    #[test]
    fn libraries_have_a_word_of_the_loader_by_their_model() {
        let build = |flags: &[&str]| built(&[&["-shared", "-fPIC"], flags].concat());
        type Is = fn(&TlsAccess) -> bool;
        let kinds: [(&[&str], Is); 5] = [
            (&[], |way| matches!(way, TlsAccess::ModuleAndOffset { .. })),
            (&["-mtls-dialect=gnu2"], |way| matches!(way, TlsAccess::Descriptor { delta: 0, .. })),
            (&["-ftls-model=initial-exec"], |way| {
                matches!(way, TlsAccess::OffsetWord { delta: 0, .. })
            }),
            (&["-ftls-model=local-dynamic"], |way| matches!(way, TlsAccess::Module { .. })),
            (&["-ftls-model=local-dynamic", "-mtls-dialect=gnu2"], |way| {
                matches!(way, TlsAccess::Descriptor { .. })
            }),
        ];
        for (flags, is_it) in kinds {
            let bytes = build(flags);
            let ways = ways(&bytes);
            assert!(ways.iter().any(is_it), "{flags:?}: {ways:?}");
            let elf = Elf::parse(&bytes).unwrap();
            assert!(!Dynamic::of(&elf).is_program() && elf.interpreter().is_none());
            for way in ways {
                let (TlsAccess::ModuleAndOffset { svma }
                | TlsAccess::Descriptor { svma, .. }
                | TlsAccess::OffsetWord { svma, .. }
                | TlsAccess::Module { svma, .. }) = way
                else {
                    panic!("{way:?}: the loader decides");
                };
                let is_there = |load: &&crate::LoadSegment| {
                    load.write && (load.svma..load.svma + load.mem_len).contains(&svma)
                };
                assert!(elf.loads().iter().any(|load| is_there(&load)), "{way:?}");
            }
        }
    }

    #[test]
    fn symbols_are_found_without_section_headers() {
        for hash in ["-Wl,--hash-style=gnu", "-Wl,--hash-style=sysv"] {
            let mut bytes = built(&["-shared", "-fPIC", hash]);
            let with = ways(&bytes);
            // The offset and number of the section headers.
            bytes[0x28..0x30].fill(0);
            bytes[0x3c..0x40].fill(0);
            assert!(!with.is_empty());
            assert_eq!(ways(&bytes), with, "{hash}");
            let elf = Elf::parse(&bytes).unwrap();
            assert!(elf.variable("variable", 8).is_some(), "{hash}");
            assert_eq!(elf.variable("variable", 4), None, "of another length");
        }
    }

    #[test]
    fn a_block_ends_below_the_thread_pointer_at_its_segments_alignment() {
        let mut bytes = built(&["-no-pie", "-Wl,--export-dynamic-symbol=otel_thread_ctx_v1"]);
        let at = usize::from_le_bytes(*bytes[0x20..].first_chunk().unwrap());
        let header =
            (0..).map(|i| at + i * 56).find(|at| bytes[*at..][..4] == [7, 0, 0, 0]).unwrap();
        let symbol = Symbols::exported(&Elf::parse(&bytes).unwrap())
            .iter()
            .find(|symbol| symbol.is_named("otel_thread_ctx_v1"));
        let value = symbol.unwrap().value;
        let mut offset = |vaddr: u64, len: u64, align: u64| {
            for (field, value) in [(0x10, vaddr), (0x28, len), (0x30, align)] {
                bytes[header + field..][..8].copy_from_slice(&value.to_le_bytes());
            }
            match ways(&bytes)[..] {
                [TlsAccess::Offset(offset)] => Some(value.wrapping_sub(offset)),
                _ => None,
            }
        };
        assert_eq!(offset(0x1000, 16, 8), Some(16));
        assert_eq!(offset(0x1000, 20, 8), Some(24));
        assert_eq!(offset(0x1000, 20, 0), Some(20));
        assert_eq!(offset(0x1000, 20, 64), Some(64));
        // The loader does the same if the segment does not start at its alignment.
        assert_eq!(offset(0x1010, 20, 64), Some(48));
        assert_eq!(offset(0x1010, 60, 64), Some(112));
        assert_eq!(offset(0x1000, 20, 24), None, "no alignment");
        assert_eq!(offset(0x1000, 0, 8), None, "outside of the block");
    }

    #[test]
    fn damaged_files_cost_the_variable_alone() {
        assert_eq!(ways(&own()), [], "a program that has none");
        let pristine = built(&["-shared", "-fPIC"]);
        let mut state = 7u64;
        for _ in 0..3000 {
            let mut bytes = pristine.clone();
            for _ in 0..4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (state >> 33) as usize % bytes.len().min(0x1000);
                bytes[at] = (state >> 25) as u8;
            }
            bytes.truncate(bytes.len() - (state >> 40) as usize % bytes.len() / 2);
            probe(&bytes);
        }
    }
}
