//! The parsers of one ELF file, tried from the one that knows most to the one that trusts least.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use super::debug_file::DebugFile;
use super::exported::Exported;
use super::go::GoNames;
use super::outline::Outline;
use super::parser::NameSource;
use super::plt::Stubs;
use super::roomy::Roomy;
use super::small::SmallSymbols;
use super::spread::SpreadNames;
use super::{ElfFile, Resolved, debug_file, guard};

/// Where the debug information of an ELF file comes from.
#[derive(Debug, Clone)]
pub(super) enum DebugSource {
    /// It holds its own.
    Own,
    /// A file that was found for it.
    Separate(DebugFile),
}

/// What is known of the names of an ELF file without reading them.
#[derive(Debug, Default)]
pub struct NamesKnown {
    /// Its functions have names, more than those that it exports.
    pub functions: bool,
    /// There is debug information for it.
    pub lines: bool,
}

impl NamesKnown {
    /// Of a file.
    pub fn of(elf: &ElfFile) -> Self {
        let outline = guard::contain(|| Outline::read(&elf.descriptor_path())).flatten();
        let Some(outline) = outline else { return Self::default() };
        let go = GoNames::find(elf).is_some();
        let lines = go || debug_source(&outline, elf).is_some();
        let functions = lines || outline.has_symbols || outline.has_small_symbols;
        Self { functions, lines }
    }
}

fn debug_source(outline: &Outline, elf: &ElfFile) -> Option<DebugSource> {
    if outline.has_debug_info {
        return Some(DebugSource::Own);
    }
    guard::contain(|| debug_file::find(elf, outline)).flatten().map(DebugSource::Separate)
}

/// What a file with debug information tells, in the order in which it is asked.
fn debug_sources(elf: &ElfFile, debug: &DebugSource, own: &Outline) -> Vec<Box<dyn NameSource>> {
    let (path, packed) = match debug {
        DebugSource::Own => (elf.descriptor_path(), own.packed),
        DebugSource::Separate(file) => (file.reachable_path(), file.packed),
    };
    let room = &elf.debug_files().room;
    let mut sources: Vec<Box<dyn NameSource>> = Vec::new();
    if let Some(spread) = SpreadNames::find(elf, debug, path.clone()) {
        sources.push(Box::new(spread));
    }
    sources.push(Roomy::debug_information(&path, packed, room));
    if matches!(debug, DebugSource::Separate(_)) {
        sources.push(Roomy::symbols(&path, packed, room));
    }
    sources
}

/// The sources of names of one ELF file.
pub(super) struct Engine {
    /// None: the file is not worth a parser, every address is unknown.
    outline: Option<Outline>,
    go: Option<GoNames>,
    /// Open as long as it is read from.
    debug: Option<DebugSource>,
    sources: Vec<Box<dyn NameSource>>,
    own_path: PathBuf,
    /// Whoever asked first may be gone: by the path it is reached as long as this is open.
    _opened: Arc<File>,
    /// Read when the first address of a stub is asked for.
    stubs: Option<Stubs>,
}

impl Engine {
    /// Reads the headers and decides where names come from; parsing itself waits for the first
    /// address.
    pub(super) fn open(elf: &ElfFile) -> Self {
        let (own_path, _opened) = (elf.descriptor_path(), elf.opened());
        let outline = guard::contain(|| Outline::read(&own_path)).flatten();
        let Some(outline) = outline else {
            let sources = Vec::new();
            let (outline, go, debug, stubs) = (None, None, None, None);
            return Self { outline, go, debug, sources, own_path, _opened, stubs };
        };
        let mut sources: Vec<Box<dyn NameSource>> = Vec::new();
        let debug = debug_source(&outline, elf);
        if let Some(debug) = &debug {
            sources.extend(debug_sources(elf, debug, &outline));
        }
        let room = &elf.debug_files().room;
        if outline.has_small_symbols && !outline.has_symbols {
            sources.push(Box::new(SmallSymbols::new(own_path.clone(), Arc::clone(room))));
            sources.push(Box::new(Exported::new(own_path.clone())));
        } else {
            sources.push(Roomy::symbols(&own_path, outline.packed, room));
        }
        let (outline, go) = (Some(outline), GoNames::find(elf));
        Self { outline, go, debug, sources, own_path, _opened, stubs: None }
    }

    /// Where its names come from, for people.
    pub(super) fn source(&self) -> String {
        let source = match (&self.outline, &self.debug) {
            (None, _) => return "nowhere: it cannot be read as an ELF file".to_owned(),
            (Some(_), _) if self.go.is_some() => "Go's own function table".to_owned(),
            (_, Some(DebugSource::Own)) => "its own debug information".to_owned(),
            (_, Some(DebugSource::Separate(file))) => format!("debug file {}", file.path.display()),
            (Some(outline), None) if outline.has_symbols => "its symbol table".to_owned(),
            (Some(outline), None) if outline.has_small_symbols => {
                "its compressed symbol table".to_owned()
            }
            (Some(_), None) => "its exported names only".to_owned(),
        };
        let mut lacks: Vec<String> =
            self.sources.iter().filter_map(|source| source.lack()).collect();
        lacks.dedup();
        lacks.into_iter().fold(source, |source, lack| format!("{source}, {lack}"))
    }

    pub(super) fn resolve(&mut self, elf: &ElfFile, svmas: &[u64]) -> Vec<Resolved> {
        let mut answers = Answers::none(svmas);
        let Some(outline) = &self.outline else { return answers.found };
        if let Some(go) = &mut self.go {
            answers.add(|asked| Some(go.resolve(elf, asked)));
        }
        for source in &mut self.sources {
            answers.add(|asked| source.resolve(outline, asked));
        }
        let Answers { mut found, open, .. } = answers;
        for index in open.into_iter().filter(|&index| outline.is_stub(svmas[index])) {
            let read = || guard::contain(|| Stubs::read(&self.own_path)).unwrap_or_default();
            found[index].function = self.stubs.get_or_insert_with(read).find(svmas[index]);
        }
        found
    }
}

/// What is known of the addresses, and which ones are still to be found.
struct Answers<'a> {
    svmas: &'a [u64],
    found: Vec<Resolved>,
    open: Vec<usize>,
}

impl<'a> Answers<'a> {
    fn none(svmas: &'a [u64]) -> Self {
        let found = vec![Resolved::default(); svmas.len()];
        Self { svmas, found, open: (0..svmas.len()).collect() }
    }

    /// Asks a source for those that are open; `None` if it has nothing to say about any.
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
