//! Reads the symbol tables of a file with blazesym, and its debug information if wanted.

use std::path::{Path, PathBuf};

use super::Resolved;
use super::elf_headers::ElfHeaders;
use super::panic_guard::TimeBudget;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolizer as Blazesym};

/// Addresses in one batch.
pub(super) const BATCH: usize = 64;

/// One source of names of a file.
pub(super) trait NameSource {
    /// An answer for each address; `None` if there is nothing to say about any.
    fn resolve(&mut self, headers: &ElfHeaders, svmas: &[u64]) -> Option<Vec<Option<Resolved>>>;

    /// Names that this source should have and has not, in words.
    fn lack(&self) -> Option<String> {
        None
    }
}

/// One file read in one way. Dead after the first error or panic that concerns the whole file.
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
    /// Reads the symbol tables of the file, and with `debug_info` its debug information.
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
        is_in_reach(symbol, headers, svma).then(|| Resolved::from_symbol(symbol))
    });
    Some(answers.collect())
}

/// blazesym lets a symbol without a size reach up to the next symbol, wherever that is.
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
        // Other files are found, checked and budgeted elsewhere, before blazesym runs.
        .set_debug_dirs(Some(Vec::<PathBuf>::new()))
        .build()
}
