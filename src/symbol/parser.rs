//! A file that blazesym reads: its symbol tables, with or without its debug information.

use std::path::{Path, PathBuf};

use super::Resolved;
use super::guard::Allowance;
use super::outline::Outline;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolizer as Blazesym};

/// Addresses that are asked for at once.
pub(super) const BATCH: usize = 64;

/// One source of names of a file.
pub(super) trait NameSource {
    /// An answer for each address; `None` if there is nothing to say about any.
    fn resolve(&mut self, outline: &Outline, svmas: &[u64]) -> Option<Vec<Option<Resolved>>>;

    /// What it should have found and did not, for people.
    fn lack(&self) -> Option<String> {
        None
    }
}

/// One file read in one way. Dead after the first error or panic that concerns the whole file.
pub(super) struct Parser {
    path: PathBuf,
    debug_info: bool,
    state: State,
    allowance: Allowance,
}

enum State {
    Untouched,
    Parsed(Box<Blazesym>),
    Dead,
}

impl Parser {
    /// Of the symbol tables of the file, and of its debug information if that is asked for.
    pub(super) fn new(path: PathBuf, debug_info: bool) -> Self {
        Self { path, debug_info, state: State::Untouched, allowance: Allowance::default() }
    }

    fn resolve_batch(&mut self, outline: &Outline, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        let parser = match std::mem::replace(&mut self.state, State::Dead) {
            State::Untouched => Box::new(new_parser()),
            State::Parsed(parser) => parser,
            State::Dead => return None,
        };
        let source = elf_source(&self.path, self.debug_info);
        let (parser, answers) = self.allowance.spend(move || {
            let answers = ask(&parser, &source, outline, svmas);
            (parser, answers)
        })?;
        let answers = answers?;
        if !self.allowance.is_spent() {
            self.state = State::Parsed(parser);
        }
        Some(answers)
    }
}

impl NameSource for Parser {
    fn resolve(&mut self, outline: &Outline, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        let mut answers = Vec::with_capacity(svmas.len());
        for batch in svmas.chunks(BATCH) {
            match self.resolve_batch(outline, batch) {
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
    outline: &Outline,
    svmas: &[u64],
) -> Option<Vec<Option<Resolved>>> {
    let symbols = parser.symbolize(source, Input::VirtOffset(svmas)).ok()?;
    let answers = symbols.iter().zip(svmas).map(|(symbolized, &svma)| {
        let symbol = symbolized.as_sym()?;
        is_in_reach(symbol, outline, svma).then(|| Resolved::from_symbol(symbol))
    });
    Some(answers.collect())
}

/// blazesym lets a symbol without a size reach up to the next symbol, wherever that is.
fn is_in_reach(symbol: &Sym<'_>, outline: &Outline, svma: u64) -> bool {
    match symbol.size {
        Some(_) => true,
        None => symbol.addr == svma || outline.same_section(symbol.addr, svma),
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
        // Other files are found, looked at and given room by others, before it is asked.
        .set_debug_dirs(Some(Vec::<PathBuf>::new()))
        .build()
}
