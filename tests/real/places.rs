//! Which function an address is in, told apart without names: by the unwind information's entries.
//!
//! Two profilers may call a function by different names, or have none for it. Its entry is the same.

use std::collections::HashMap;
use std::fs;
use std::rc::Rc;

use super::perf::Frame;
use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::{Object, ObjectSymbol};
use traceprof::elf::{Elf, Load, build_id_text};

/// A function, as far as it can be told from others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// In this file, by the SVMA where its entry starts, or its symbol where there is none.
    Entry(Rc<str>, u64),
    /// In no file, by its name.
    Named(String),
    /// The agent's own.
    Agent,
}

/// The executable mappings of a process.
pub(super) struct Places {
    mappings: Vec<Mapping>,
    files: HashMap<Rc<str>, File>,
}

struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: Rc<str>,
}

#[derive(Default)]
struct File {
    loads: Vec<Load>,
    /// First SVMA and one past the last of each entry.
    entries: Vec<(u64, u64)>,
    /// Where functions start.
    starts: Vec<u64>,
    /// The same by their names, of the file for debuggers as well.
    symbols: HashMap<String, u64>,
}

impl Places {
    /// Of this process, as it is now, with the agent in it.
    pub(super) fn of(pid: i32) -> Self {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
        Self { mappings: maps.lines().filter_map(mapping).collect(), files: HashMap::new() }
    }

    /// Of an address in the process, with the name that perf has for it.
    pub(super) fn at(&mut self, pc: u64, name: Option<&str>) -> Place {
        let found = self.mappings.iter().find(|it| (it.start..it.end).contains(&pc));
        let found = found.filter(|mapping| !mapping.path.is_empty());
        let Some(Mapping { start, offset, path, .. }) = found else {
            return Place::Named(name.unwrap_or("[unknown]").to_owned());
        };
        if path.starts_with("/SYSV") || path.starts_with("/memfd:traceprof") {
            return Place::Agent;
        }
        let (path, offset) = (path.clone(), pc - start + offset);
        self.at_offset(path, offset)
    }

    /// Of a frame as perf has it.
    pub(super) fn of_frame(&mut self, frame: &Frame) -> Place {
        if self.is_mapped(&frame.file) {
            return self.at_offset(frame.file.as_str().into(), frame.offset);
        }
        Place::Named(frame.name.clone().unwrap_or_else(|| "[unknown]".to_owned()))
    }

    fn at_offset(&mut self, path: Rc<str>, offset: u64) -> Place {
        let file = self.file(&path);
        let svma = file.loads.iter().find_map(|load| load.svma_of(offset)).unwrap_or(0);
        Place::Entry(path, file.entry(svma))
    }

    fn is_mapped(&self, path: &str) -> bool {
        self.mappings.iter().any(|mapping| &*mapping.path == path)
    }

    /// Of an address in a file, or of a function with this name that is made at run time.
    pub(super) fn in_module(&mut self, path: &str, svma: u64, name: &str) -> Place {
        if !self.is_mapped(path) {
            return Place::Named(name.to_owned());
        }
        let path: Rc<str> = path.into();
        Place::Entry(path.clone(), self.file(&path).entry(svma))
    }

    /// Both names are those of one function.
    pub(super) fn is_same(&mut self, place: &Place, one: &str, other: &str) -> bool {
        if base(one) == base(other) {
            return true;
        }
        let Place::Entry(path, _) = place else { return false };
        let symbols = &self.file(&path.clone()).symbols;
        let start = symbols.get(one);
        start.is_some() && start == symbols.get(other)
    }

    fn file(&mut self, path: &Rc<str>) -> &File {
        self.files.entry(path.clone()).or_insert_with(|| {
            fs::read(&**path).ok().and_then(|bytes| File::read(&bytes)).unwrap_or_default()
        })
    }
}

/// The last word of the name, without types and versions, which each prints in its own way.
fn base(name: &str) -> String {
    let mut depth = 0;
    let name = name.split(['@', '.']).next().unwrap_or(name);
    let is_outside = |letter: &char| {
        depth += i32::from("<(".contains(*letter)) - i32::from(">)".contains(*letter));
        depth == 0 && !">)".contains(*letter)
    };
    let name: String = name.chars().filter(is_outside).collect();
    let name = name.split(" [").next().unwrap_or(&name).trim_end_matches(" const");
    name.rsplit([' ', ':']).next().unwrap_or(name).to_owned()
}

#[test]
fn names_are_alike_without_their_types() {
    assert_eq!(base("memcpy@plt"), "memcpy");
    assert_eq!(base("a::B<c> d::e::f<g::h>(i<j> const&, (k)1) const [clone .isra.0]"), "f");
    assert_eq!(base("d::e::f"), "f");
}

/// An executable line of `/proc/PID/maps`.
fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_executable = words.next()?.contains('x');
    let offset = words.next()?;
    let path = words.nth(2).unwrap_or_default();
    let hex = |text| u64::from_str_radix(text, 16).ok();
    is_executable.then_some(())?;
    Some(Mapping { start: hex(start)?, end: hex(end)?, offset: hex(offset)?, path: path.into() })
}

impl File {
    fn read(bytes: &[u8]) -> Option<Self> {
        let elf = Elf::parse(bytes).ok()?;
        let (loads, entries, starts) =
            (elf.loads().to_vec(), entries(&elf), elf.function_symbols());
        let mut file = Self { loads, entries, starts, symbols: HashMap::new() };
        file.take_names(bytes);
        let id = elf.build_id().map(build_id_text).unwrap_or_default();
        if let Some((folder, rest)) = id.split_at_checked(2) {
            let path = format!("/usr/lib/debug/.build-id/{folder}/{rest}.debug");
            // Most have none.
            file.take_names(&fs::read(path).unwrap_or_default());
        }
        Some(file)
    }

    fn take_names(&mut self, bytes: &[u8]) {
        let Ok(object) = object::File::parse(bytes) else { return };
        for symbol in object.symbols().chain(object.dynamic_symbols()) {
            if let Ok(name) = symbol.name() {
                self.symbols.insert(name.to_owned(), symbol.address());
            }
        }
    }

    /// Where the function starts, 0 if that is not known.
    fn entry(&self, svma: u64) -> u64 {
        let after = self.entries.partition_point(|(start, _)| *start <= svma);
        let entry = after.checked_sub(1).map(|at| self.entries[at]).filter(|(_, end)| svma < *end);
        let after = self.starts.partition_point(|start| *start <= svma);
        let symbol = after.checked_sub(1).map(|at| self.starts[at]);
        entry.map(|(start, _)| start).or(symbol).unwrap_or(0)
    }
}

/// What each entry of `.eh_frame` is for.
fn entries(elf: &Elf<'_>) -> Vec<(u64, u64)> {
    let Some(section) = elf.section(".eh_frame") else { return Vec::new() };
    let frames = EhFrame::new(section.data, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.svma);
    let (mut walk, mut found) = (frames.entries(&bases), Vec::new());
    while let Ok(Some(entry)) = walk.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        if let Ok(fde) = partial.parse(|_, bases, offset| frames.cie_from_offset(bases, offset)) {
            found.push((fde.initial_address(), fde.end_address()));
        }
    }
    found.sort_unstable();
    found
}
