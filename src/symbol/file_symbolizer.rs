//! The sources of names of one ELF file. The most detailed source is tried first, the most basic
//! one last.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use super::budgeted_source::BudgetedSource;
use super::debug_file::DebugSource;
use super::dynamic_symbols::DynamicSymbols;
use super::elf_headers::ElfHeaders;
use super::go::GoNames;
use super::mini_debug_info::MiniDebugInfo;
use super::parser::NameSource;
use super::plt::PltStubs;
use super::split_dwarf::SplitDwarf;
use super::{ElfFile, Resolved, debug_file, panic_guard};

/// The kinds of names that an ELF file has, found without reading them.
#[derive(Debug, Default)]
pub struct NamesKnown {
    /// Whether functions that are not exported have names.
    pub functions: bool,
    /// Whether there is debug information for it.
    pub lines: bool,
}

impl NamesKnown {
    /// Examines a file.
    pub fn of(elf: &ElfFile) -> Self {
        let headers = panic_guard::contain(|| ElfHeaders::read(&elf.descriptor_path())).flatten();
        let Some(headers) = headers else { return Self::default() };
        let go = GoNames::find(elf).is_some();
        let lines = go || debug_source(&headers, elf).is_some();
        let functions = lines || headers.has_symbols || headers.has_small_symbols;
        Self { functions, lines }
    }
}

fn debug_source(headers: &ElfHeaders, elf: &ElfFile) -> Option<DebugSource> {
    if headers.has_debug_info {
        return Some(DebugSource::Own);
    }
    panic_guard::contain(|| debug_file::find(elf, headers)).flatten().map(DebugSource::Separate)
}

/// Returns the sources of a file with debug information, in the order in which they are asked.
fn debug_sources(elf: &ElfFile, debug: &DebugSource, own: &ElfHeaders) -> Vec<Box<dyn NameSource>> {
    let (path, packed) = match debug {
        DebugSource::Own => (elf.descriptor_path(), own.packed),
        DebugSource::Separate(file) => (file.reachable_path(), file.packed),
    };
    let budget = &elf.debug_files().budget;
    let mut sources: Vec<Box<dyn NameSource>> = Vec::new();
    if let Some(spread) = SplitDwarf::find(elf, debug, path.clone()) {
        sources.push(Box::new(spread));
    }
    sources.push(BudgetedSource::debug_information(&path, packed, budget));
    if matches!(debug, DebugSource::Separate(_)) {
        sources.push(BudgetedSource::symbols(&path, packed, budget));
    }
    sources
}

/// The sources of names of one ELF file.
pub(super) struct FileSymbolizer {
    /// The headers. `None` if the file cannot be parsed, so that every address is unknown.
    headers: Option<ElfHeaders>,
    go: Option<GoNames>,
    /// The debug information, whose file stays open while it is read.
    debug: Option<DebugSource>,
    sources: Vec<Box<dyn NameSource>>,
    own_path: PathBuf,
    /// Keeps the path readable: the `ElfFile` that opened it may have been dropped.
    _opened: Arc<File>,
    /// The stubs, read when the first address in a stub is resolved.
    stubs: Option<PltStubs>,
}

impl FileSymbolizer {
    /// Reads the headers and decides where names come from. Parsing starts with the first address.
    pub(super) fn open(elf: &ElfFile) -> Self {
        let (own_path, _opened) = (elf.descriptor_path(), elf.opened());
        let headers = panic_guard::contain(|| ElfHeaders::read(&own_path)).flatten();
        let Some(headers) = headers else {
            let sources = Vec::new();
            let (headers, go, debug, stubs) = (None, None, None, None);
            return Self { headers, go, debug, sources, own_path, _opened, stubs };
        };
        let mut sources: Vec<Box<dyn NameSource>> = Vec::new();
        let debug = debug_source(&headers, elf);
        if let Some(debug) = &debug {
            sources.extend(debug_sources(elf, debug, &headers));
        }
        let budget = &elf.debug_files().budget;
        if headers.has_small_symbols && !headers.has_symbols {
            sources.push(Box::new(MiniDebugInfo::new(own_path.clone(), Arc::clone(budget))));
            sources.push(Box::new(DynamicSymbols::new(own_path.clone())));
        } else {
            sources.push(BudgetedSource::symbols(&own_path, headers.packed, budget));
        }
        let (headers, go) = (Some(headers), GoNames::find(elf));
        Self { headers, go, debug, sources, own_path, _opened, stubs: None }
    }

    /// Returns a description of where the names come from, for users.
    pub(super) fn source(&self) -> String {
        let source = match (&self.headers, &self.debug) {
            (None, _) => return "nowhere: it cannot be read as an ELF file".to_owned(),
            (Some(_), _) if self.go.is_some() => "Go's own function table".to_owned(),
            (_, Some(DebugSource::Own)) => "its own debug information".to_owned(),
            (_, Some(DebugSource::Separate(file))) => format!("debug file {}", file.path.display()),
            (Some(headers), None) if headers.has_symbols => "its symbol table".to_owned(),
            (Some(headers), None) if headers.has_small_symbols => {
                "its compressed symbol table".to_owned()
            }
            (Some(_), None) => "its exported names only".to_owned(),
        };
        let mut missing_parts: Vec<String> =
            self.sources.iter().filter_map(|source| source.missing()).collect();
        missing_parts.dedup();
        missing_parts.into_iter().fold(source, |source, missing| format!("{source}, {missing}"))
    }

    pub(super) fn resolve(&mut self, elf: &ElfFile, svmas: &[u64]) -> Vec<Resolved> {
        let mut answers = PartialAnswers::none(svmas);
        let Some(headers) = &self.headers else { return answers.found };
        if let Some(go) = &mut self.go {
            answers.add(|asked| Some(go.resolve(elf, asked)));
        }
        for source in &mut self.sources {
            answers.add(|asked| source.resolve(headers, asked));
        }
        let PartialAnswers { mut found, open, .. } = answers;
        for index in open.into_iter().filter(|&index| headers.is_stub(svmas[index])) {
            let read =
                || panic_guard::contain(|| PltStubs::read(&self.own_path)).unwrap_or_default();
            found[index].function = self.stubs.get_or_insert_with(read).find(svmas[index]);
        }
        found
    }
}

/// The names found so far, and the addresses that have none yet.
struct PartialAnswers<'a> {
    svmas: &'a [u64],
    found: Vec<Resolved>,
    open: Vec<usize>,
}

impl<'a> PartialAnswers<'a> {
    fn none(svmas: &'a [u64]) -> Self {
        let found = vec![Resolved::default(); svmas.len()];
        Self { svmas, found, open: (0..svmas.len()).collect() }
    }

    /// Asks a source for the addresses without a name. `ask` returns `None` if it has no names at
    /// all.
    fn add(&mut self, ask: impl FnOnce(&[u64]) -> Option<Vec<Option<Resolved>>>) {
        if self.open.is_empty() {
            return;
        }
        let asked: Vec<u64> = self.open.iter().map(|&index| self.svmas[index]).collect();
        let Some(answers) = ask(&asked) else { return };
        let mut unknown = Vec::new();
        for (index, answer) in std::mem::take(&mut self.open).into_iter().zip(answers) {
            if let Some(resolved) = answer {
                self.found[index].complete_with(resolved);
            }
            if self.found[index].function.is_none() {
                unknown.push(index);
            }
        }
        self.open = unknown;
    }
}
