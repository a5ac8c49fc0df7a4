//! Which function contains an address, by the entries of the unwind information and not by names.
//!
//! Two profilers may call a function by different names, or have none for it. Its entry is the same
//! for both.

use std::collections::HashMap;
use std::fs;
use std::rc::Rc;

use super::perf::Frame;
use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::{
    Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget, SymbolKind,
};
use traceprof::elf::{Elf, LoadSegment, build_id_text};

/// A function, in a form that both profilers share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// In this file: the SVMA where its entry starts, or its symbol if there is no entry.
    Entry(Rc<str>, u64),
    /// In no file: its name.
    Named(String),
    /// In the agent.
    Agent,
}

/// What decides the name of the code at an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Naming {
    /// The symbol of this file that starts at this SVMA and covers the address.
    Symbol(Rc<str>, u64),
    /// A stub of a linkage table, named after the relocation of the slot that it jumps through.
    Stub(String),
    /// The name that a runtime gave to its generated code.
    Maker(String),
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
    loads: Vec<LoadSegment>,
    /// First SVMA of each entry and the end after its last.
    entries: Vec<(u64, u64)>,
    /// SVMAs at which functions start.
    starts: Vec<u64>,
    /// SVMAs of functions by their names, those of the debug file included.
    symbols: HashMap<String, u64>,
    /// First SVMA of each function with a sized symbol, and the end after its last.
    sized: Vec<(u64, u64)>,
    /// First SVMA of each stub, the end after its last, and the function that it jumps to.
    stubs: Vec<(u64, u64, String)>,
}

impl Places {
    /// Reads the mappings of a process, with the agent in it.
    pub(super) fn of(pid: i32) -> Self {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
        Self { mappings: maps.lines().filter_map(mapping).collect(), files: HashMap::new() }
    }

    /// Returns the function at an address in the process, for which perf has this name.
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

    /// Returns the function of a frame that perf reports.
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

    /// Returns the function at an address in a file, or a generated function with this name.
    pub(super) fn in_module(&mut self, path: &str, svma: u64, name: &str) -> Place {
        if !self.is_mapped(path) {
            return Place::Named(name.to_owned());
        }
        let path: Rc<str> = path.into();
        Place::Entry(path.clone(), self.file(&path).entry(svma))
    }

    /// Returns what decides the name at an address in the process, for which perf has this name.
    pub(super) fn naming_at(&mut self, pc: u64, name: &str) -> Option<Naming> {
        let found = self.mappings.iter().find(|it| (it.start..it.end).contains(&pc));
        let found = found.filter(|mapping| !mapping.path.is_empty());
        let Some(Mapping { start, offset, path, .. }) = found else {
            return Some(Naming::Maker(name.to_owned()));
        };
        let (path, offset) = (path.clone(), pc - start + offset);
        let svma = self.file(&path).loads.iter().find_map(|load| load.svma_of(offset))?;
        self.file(&path).naming(&path, svma)
    }

    /// Returns what decides the name at an address in a file, or of generated code.
    pub(super) fn naming_in(&mut self, path: &str, svma: u64, name: &str) -> Option<Naming> {
        if !self.is_mapped(path) {
            return Some(Naming::Maker(name.to_owned()));
        }
        let path: Rc<str> = path.into();
        self.file(&path).naming(&path, svma)
    }

    /// Whether both names are names of the same function.
    pub(super) fn is_same(&mut self, naming: &Naming, one: &str, other: &str) -> bool {
        if base(one) == base(other) {
            return true;
        }
        let Naming::Symbol(path, _) = naming else { return false };
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

/// Returns the last word of a name without types and versions, which each profiler prints in its
/// own way.
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

/// Parses an executable line of `/proc/PID/maps`.
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
        let mut file = Self { loads, entries, starts, ..Self::default() };
        file.take_names(bytes);
        file.take_stubs(bytes);
        let id = elf.build_id().map(build_id_text).unwrap_or_default();
        if let Some((folder, rest)) = id.split_at_checked(2) {
            let path = format!("/usr/lib/debug/.build-id/{folder}/{rest}.debug");
            // Most files have no debug file.
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
            if symbol.kind() == SymbolKind::Text && symbol.size() > 0 {
                self.sized.push((symbol.address(), symbol.address() + symbol.size()));
            }
        }
        self.sized.sort_unstable();
    }

    /// Adds the entries of linkage tables, each by the slot that its jump names.
    fn take_stubs(&mut self, bytes: &[u8]) {
        let Ok(object) = object::File::parse(bytes) else { return };
        let (Some(relocations), Some(symbols)) =
            (object.dynamic_relocations(), object.dynamic_symbol_table())
        else {
            return;
        };
        let mut slots = HashMap::new();
        for (slot, relocation) in relocations {
            let RelocationTarget::Symbol(index) = relocation.target() else { continue };
            let symbol = symbols.symbol_by_index(index);
            if let Some(name) = symbol.ok().and_then(|it| it.name().ok().map(str::to_owned)) {
                slots.insert(slot, name);
            }
        }
        for section in object.sections() {
            if section.name().is_ok_and(|name| name.starts_with(".plt")) {
                self.stubs.extend(stubs(section.address(), section.data().unwrap_or(&[]), &slots));
            }
        }
    }

    fn naming(&self, path: &Rc<str>, svma: u64) -> Option<Naming> {
        let stub = self.stubs.iter().find(|(start, end, _)| (*start..*end).contains(&svma));
        if let Some((.., name)) = stub {
            return Some(Naming::Stub(name.clone()));
        }
        let after = self.sized.partition_point(|(start, _)| *start <= svma);
        let (start, end) = self.sized[..after].last()?;
        (svma < *end).then(|| Naming::Symbol(path.clone(), *start))
    }

    /// Returns where the function starts, or 0 if that is unknown.
    fn entry(&self, svma: u64) -> u64 {
        let after = self.entries.partition_point(|(start, _)| *start <= svma);
        let entry = after.checked_sub(1).map(|at| self.entries[at]).filter(|(_, end)| svma < *end);
        let after = self.starts.partition_point(|start| *start <= svma);
        let symbol = after.checked_sub(1).map(|at| self.starts[at]);
        entry.map(|(start, _)| start).or(symbol).unwrap_or(0)
    }
}

/// Length of a stub. Without lazy binding a stub has half of it.
const STUB_LEN: usize = 16;

/// Returns the stubs of a table, from the end of one jump through a slot to the end of the next.
fn stubs(svma: u64, code: &[u8], slots: &HashMap<u64, String>) -> Vec<(u64, u64, String)> {
    let mut found = Vec::new();
    for at in 0..code.len().saturating_sub(5) {
        // jmp *operand(%rip)
        let [0xFF, 0x25, a, b, c, d] = code[at..at + 6] else { continue };
        let next = svma + at as u64 + 6;
        let slot = next.wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])));
        let Some(name) = slots.get(&slot) else { continue };
        // endbr64 and bnd precede the jump, and the code for lazy binding follows it.
        let start = svma + (at & !(STUB_LEN / 2 - 1)) as u64;
        let end = start + STUB_LEN as u64;
        if let Some((_, before, _)) = found.last_mut() {
            *before = start.min(*before);
        }
        found.push((start, end, name.clone()));
    }
    found
}

#[test]
fn stubs_are_named_by_the_slots_that_they_jump_through() {
    let slots = HashMap::from([(0x3000, "one".to_owned()), (0x3008, "other".to_owned())]);
    let jump =
        |at: u64, slot: u64| [&[0xFF, 0x25][..], &((slot - at - 6) as u32).to_le_bytes()].concat();
    // The first stub, and two that are bound lazily.
    let mut code = vec![0x90; 48];
    code[6..12].copy_from_slice(&jump(0x1006, 0x3010));
    code[16..22].copy_from_slice(&jump(0x1010, 0x3000));
    code[32..38].copy_from_slice(&jump(0x1020, 0x3008));
    let stub = |start, end, name: &str| (start, end, name.to_owned());
    let expected = [stub(0x1010, 0x1020, "one"), stub(0x1020, 0x1030, "other")];
    assert_eq!(stubs(0x1000, &code, &slots), expected);
    // Bound at load time, and with marked branch targets.
    let code = [jump(0x1000, 0x3000), vec![0x66, 0x90], jump(0x1008, 0x3008)].concat();
    let expected = [stub(0x1000, 0x1008, "one"), stub(0x1008, 0x1018, "other")];
    assert_eq!(stubs(0x1000, &code, &slots), expected);
    let code = [vec![0xF3, 0x0F, 0x1E, 0xFA], jump(0x1004, 0x3008), vec![0x90; 6]].concat();
    assert_eq!(stubs(0x1000, &code, &slots), [stub(0x1000, 0x1010, "other")]);
}

/// Returns the address range of each entry of `.eh_frame`.
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
