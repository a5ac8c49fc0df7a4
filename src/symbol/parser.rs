//! Reads the symbol tables of a file with blazesym, and optionally its debug information.

use std::path::{Path, PathBuf};

use super::Resolved;
use super::elf_headers::ElfHeaders;
use super::panic_guard::TimeBudget;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolizer as Blazesym};

/// Number of addresses in one batch.
pub(super) const BATCH: usize = 64;

/// Maximum number of labels in front of an address whose function is searched.
const LABELS_MAX: usize = 8;

/// A source of names of one file.
pub(super) trait NameSource {
    /// Resolves addresses, with one answer for each. Returns `None` if the source has no names at
    /// all.
    fn resolve(&mut self, headers: &ElfHeaders, svmas: &[u64]) -> Option<Vec<Option<Resolved>>>;

    /// Returns a description of names that this source should have but does not.
    fn missing(&self) -> Option<String> {
        None
    }
}

/// A file that is read in one way. It stops answering after the first error or panic that concerns
/// the complete file.
pub(super) struct Parser {
    path: PathBuf,
    debug_info: bool,
    state: ParserState,
    allowance: TimeBudget,
}

enum ParserState {
    Untouched,
    Parsed(Box<Blazesym>),
    Dead,
}

impl Parser {
    /// Creates a parser of the file's symbol tables, and with `debug_info` of its debug
    /// information.
    pub(super) fn new(path: PathBuf, debug_info: bool) -> Self {
        Self { path, debug_info, state: ParserState::Untouched, allowance: TimeBudget::default() }
    }

    fn resolve_batch(
        &mut self,
        headers: &ElfHeaders,
        svmas: &[u64],
    ) -> Option<Vec<Option<Resolved>>> {
        let parser = match std::mem::replace(&mut self.state, ParserState::Dead) {
            ParserState::Untouched => Box::new(new_parser()),
            ParserState::Parsed(parser) => parser,
            ParserState::Dead => return None,
        };
        let source = elf_source(&self.path, self.debug_info);
        let (parser, answers) = self.allowance.spend(move || {
            let answers = ask(&parser, &source, headers, svmas);
            (parser, answers)
        })?;
        let answers = answers?;
        if !self.allowance.is_spent() {
            self.state = ParserState::Parsed(parser);
        }
        Some(answers)
    }
}

impl NameSource for Parser {
    fn resolve(&mut self, headers: &ElfHeaders, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        let mut answers = Vec::with_capacity(svmas.len());
        for batch in svmas.chunks(BATCH) {
            match self.resolve_batch(headers, batch) {
                Some(found) => answers.extend(found),
                None if answers.is_empty() => return None,
                None => answers.extend(batch.iter().map(|_| None)),
            }
        }
        Some(answers)
    }
}

fn ask(
    parser: &Blazesym,
    source: &Source<'_>,
    headers: &ElfHeaders,
    svmas: &[u64],
) -> Option<Vec<Option<Resolved>>> {
    let symbols = parser.symbolize(source, Input::VirtOffset(svmas)).ok()?;
    let answers = symbols.iter().zip(svmas).map(|(symbolized, &svma)| {
        let symbol = symbolized.as_sym()?;
        if !is_in_reach(symbol, headers, svma) {
            return None;
        }
        let resolved = Resolved::from_symbol(symbol);
        let around = symbol.size.is_none().then(|| around_label(parser, source, symbol, svma));
        match around.flatten().and_then(|around| around.function) {
            Some(function) => Some(Resolved { function: Some(function), ..resolved }),
            None => Some(resolved),
        }
    });
    Some(answers.collect())
}

/// Returns the function that contains an address behind a symbol without a size, if that is a label
/// in it: written in assembler, or one that V8 has among its own functions.
fn around_label(
    parser: &Blazesym,
    source: &Source<'_>,
    label: &Sym<'_>,
    svma: u64,
) -> Option<Resolved> {
    let mut start = label.addr;
    for _ in 0..LABELS_MAX {
        let before = [start.checked_sub(1)?];
        let symbols = parser.symbolize(source, Input::VirtOffset(&before)).ok()?;
        let symbol = symbols.first()?.as_sym()?;
        let Some(size) = symbol.size else {
            start = symbol.addr;
            continue;
        };
        let is_inside = svma.checked_sub(symbol.addr).is_some_and(|at| at < size as u64);
        return is_inside.then(|| Resolved::from_symbol(symbol));
    }
    None
}

/// Returns whether the symbol may name the address. blazesym lets a symbol without a size extend to
/// the next symbol, wherever that is.
fn is_in_reach(symbol: &Sym<'_>, headers: &ElfHeaders, svma: u64) -> bool {
    match symbol.size {
        Some(_) => true,
        None => symbol.addr == svma || headers.same_section(symbol.addr, svma),
    }
}

fn elf_source(path: &Path, debug_info: bool) -> Source<'static> {
    let mut elf = Elf::new(path);
    elf.debug_syms = debug_info;
    elf.into()
}

fn new_parser() -> Blazesym {
    Blazesym::builder()
        .enable_auto_reload(false)
        .enable_code_info(true)
        .enable_inlined_fns(true)
        .enable_demangling(false)
        // Other files are found, checked and budgeted before blazesym runs.
        .set_debug_dirs(Some(Vec::<PathBuf>::new()))
        .build()
}
