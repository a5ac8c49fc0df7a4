//! Which function an address is in, told apart without names: by the unwind information's entries.
//!
//! Two profilers may call a function by different names, or have none for it. Its entry is the
//! same.

use std::collections::HashMap;
use std::fs;
use std::rc::Rc;

use super::perf::Frame;
use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::{
    Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationTarget, SymbolKind,
};
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

/// What decides the name of the code at an address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Naming {
    /// The symbol of this file that starts at this SVMA and reaches as far as the address.
    Symbol(Rc<str>, u64),
    /// A stub of a linkage table, by the relocation of the slot that it jumps through.
    Stub(String),
    /// Whoever made the code at run time.
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
    loads: Vec<Load>,
    /// First SVMA and one past the last of each entry.
    entries: Vec<(u64, u64)>,
    /// Where functions start.
    starts: Vec<u64>,
    /// The same by their names, of the file for debuggers as well.
    symbols: HashMap<String, u64>,
    /// First SVMA and one past the last of each function that has a symbol with a length.
    sized: Vec<(u64, u64)>,
    /// First SVMA and one past the last of each stub, and the function that it leads to.
    stubs: Vec<(u64, u64, String)>,
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

    /// What decides the name at an address in the process, for which perf has this one.
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

    /// What decides the name at an address in a file, or of code that is made at run time.
    pub(super) fn naming_in(&mut self, path: &str, svma: u64, name: &str) -> Option<Naming> {
        if !self.is_mapped(path) {
            return Some(Naming::Maker(name.to_owned()));
        }
        let path: Rc<str> = path.into();
        self.file(&path).naming(&path, svma)
    }

    /// Both names are those of one function.
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
        let mut file = Self { loads, entries, starts, ..Self::default() };
        file.take_names(bytes);
        file.take_stubs(bytes);
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
            if symbol.kind() == SymbolKind::Text && symbol.size() > 0 {
                self.sized.push((symbol.address(), symbol.address() + symbol.size()));
            }
        }
        self.sized.sort_unstable();
    }

    /// The entries of linkage tables, each by the slot that its jump names.
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

    /// Where the function starts, 0 if that is not known.
    fn entry(&self, svma: u64) -> u64 {
        let after = self.entries.partition_point(|(start, _)| *start <= svma);
        let entry = after.checked_sub(1).map(|at| self.entries[at]).filter(|(_, end)| svma < *end);
        let after = self.starts.partition_point(|start| *start <= svma);
        let symbol = after.checked_sub(1).map(|at| self.starts[at]);
        entry.map(|(start, _)| start).or(symbol).unwrap_or(0)
    }
}

/// Stubs are of this length, or of half of it where nothing is bound later.
const STUB_LEN: usize = 16;

/// The stubs of a table, from the end of one jump through a slot to the end of the next.
fn stubs(svma: u64, code: &[u8], slots: &HashMap<u64, String>) -> Vec<(u64, u64, String)> {
    let mut found = Vec::new();
    for at in 0..code.len().saturating_sub(5) {
        // jmp *operand(%rip)
        let [0xFF, 0x25, a, b, c, d] = code[at..at + 6] else { continue };
        let next = svma + at as u64 + 6;
        let slot = next.wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])));
        let Some(name) = slots.get(&slot) else { continue };
        // In front of the jump are endbr64 and bnd, behind it what is bound later.
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
    // A first stub, and two that are bound later.
    let mut code = vec![0x90; 48];
    code[6..12].copy_from_slice(&jump(0x1006, 0x3010));
    code[16..22].copy_from_slice(&jump(0x1010, 0x3000));
    code[32..38].copy_from_slice(&jump(0x1020, 0x3008));
    let stub = |start, end, name: &str| (start, end, name.to_owned());
    let expected = [stub(0x1010, 0x1020, "one"), stub(0x1020, 0x1030, "other")];
    assert_eq!(stubs(0x1000, &code, &slots), expected);
    // Bound at once, and where branch targets are marked.
    let code = [jump(0x1000, 0x3000), vec![0x66, 0x90], jump(0x1008, 0x3008)].concat();
    let expected = [stub(0x1000, 0x1008, "one"), stub(0x1008, 0x1018, "other")];
    assert_eq!(stubs(0x1000, &code, &slots), expected);
    let code = [vec![0xF3, 0x0F, 0x1E, 0xFA], jump(0x1004, 0x3008), vec![0x90; 6]].concat();
    assert_eq!(stubs(0x1000, &code, &slots), [stub(0x1000, 0x1010, "other")]);
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
