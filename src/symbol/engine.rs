//! The parsers of one ELF file, tried from the one that knows most to the one that trusts least.

use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolizer as Blazesym};

use super::outline::Outline;
use super::plt::Stubs;
use super::{ElfFile, Resolved, debug_file, guard};

/// Where the debug information of an ELF file comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DebugSource {
    /// It holds its own.
    Own,
    /// A file that is found by build id.
    Separate(PathBuf),
    /// A file that its `.gnu_debuglink` names, if that is there.
    Linked,
}

impl DebugSource {
    /// Of a file, if there is any.
    pub fn of(elf: &ElfFile) -> Option<Self> {
        let outline = guard::contain(|| Outline::read(&elf.descriptor_path())).flatten()?;
        debug_source(&outline, elf)
    }
}

fn debug_source(outline: &Outline, elf: &ElfFile) -> Option<DebugSource> {
    if outline.has_debug_info {
        return Some(DebugSource::Own);
    }
    let separate = guard::contain(|| debug_file::find(elf.build_id())).flatten();
    let linked = || outline.has_debug_link.then_some(DebugSource::Linked);
    separate.map(DebugSource::Separate).or_else(linked)
}

/// The sources of names of one ELF file.
pub(super) struct Engine {
    /// None: the file is not worth a parser, every address is unknown.
    outline: Option<Outline>,
    sources: Vec<NameSource>,
    own_path: PathBuf,
    /// Read when the first address of a stub is asked for.
    stubs: Option<Stubs>,
}

impl Engine {
    /// Reads the headers and decides where names come from; parsing itself waits for the first
    /// address.
    pub(super) fn open(elf: &ElfFile) -> Self {
        let own_path = elf.descriptor_path();
        let outline = guard::contain(|| Outline::read(&own_path)).flatten();
        let Some(outline) = outline else {
            return Self { outline: None, sources: Vec::new(), own_path, stubs: None };
        };
        let mut sources = Vec::new();
        match debug_source(&outline, elf) {
            Some(DebugSource::Own | DebugSource::Linked) => {
                sources.push(NameSource::new(own_path.clone(), true));
            }
            Some(DebugSource::Separate(path)) => sources.push(NameSource::new(path, true)),
            None => {}
        }
        sources.push(NameSource::new(own_path.clone(), false));
        Self { outline: Some(outline), sources, own_path, stubs: None }
    }

    pub(super) fn resolve(&mut self, svmas: &[u64]) -> Vec<Resolved> {
        let mut answers = vec![Resolved::default(); svmas.len()];
        let Some(outline) = &self.outline else { return answers };
        let mut open: Vec<usize> = (0..svmas.len()).collect();
        for source in &mut self.sources {
            if open.is_empty() {
                break;
            }
            let asked: Vec<u64> = open.iter().map(|&index| svmas[index]).collect();
            let Some(found) = source.resolve(outline, &asked) else { continue };
            let mut unknown = Vec::new();
            for (index, answer) in open.into_iter().zip(found) {
                match answer {
                    Some(resolved) => answers[index] = resolved,
                    None => unknown.push(index),
                }
            }
            open = unknown;
        }
        for index in open.into_iter().filter(|&index| outline.is_stub(svmas[index])) {
            let read = || guard::contain(|| Stubs::read(&self.own_path)).unwrap_or_default();
            answers[index].function = self.stubs.get_or_insert_with(read).find(svmas[index]);
        }
        answers
    }
}

/// One file read in one way. Dead after the first error or panic that concerns the whole file.
struct NameSource {
    path: PathBuf,
    debug_info: bool,
    state: State,
}

enum State {
    Untouched,
    Parsed(Box<Blazesym>),
    Dead,
}

impl NameSource {
    fn new(path: PathBuf, debug_info: bool) -> Self {
        Self { path, debug_info, state: State::Untouched }
    }

    /// `None` if this source has nothing to say about any address.
    fn resolve(&mut self, outline: &Outline, svmas: &[u64]) -> Option<Vec<Option<Resolved>>> {
        let parser = match std::mem::replace(&mut self.state, State::Dead) {
            State::Untouched => Box::new(new_parser()),
            State::Parsed(parser) => parser,
            State::Dead => return None,
        };
        let source = elf_source(&self.path, self.debug_info);
        let (parser, answers) = guard::contain(move || {
            let answers = ask(&parser, &source, outline, svmas);
            (parser, answers)
        })?;
        let answers = answers?;
        self.state = State::Parsed(parser);
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
        covers(symbol, outline, svma).then(|| Resolved::from_symbol(symbol))
    });
    Some(answers.collect())
}

/// blazesym lets a symbol without a size reach up to the next symbol, wherever that is, and reports
/// functions that debug information mentions without naming them.
fn covers(symbol: &Sym<'_>, outline: &Outline, svma: u64) -> bool {
    let in_reach = match symbol.size {
        Some(_) => true,
        None => symbol.addr == svma || outline.same_section(symbol.addr, svma),
    };
    in_reach && !symbol.name.is_empty()
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
        .build()
}
