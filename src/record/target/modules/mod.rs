//! The modules of the target.
//!
//! Each ELF file is opened when it is first mapped. Its unwind information is compiled and
//! published, and its descriptor is kept for symbolization.
//!
//! # Invariants
//! - Whatever handlers read is complete before one store publishes it (`unwind::TableWriter`).
//! - No snapshot contains the agent's own segments.

pub(crate) mod address_map;
mod compiled;
mod images;
mod java_code;
mod loaded_module;
mod loop_code;
mod module_file;
mod module_files;
mod reservation;
mod runtimes;
mod writable;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::inject::image;
use crate::proc::{self, DescriptorUse, Mapping};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::target::jit_dump::{DUMPS_MAX, DumpFile, is_dump};
use crate::record::target::memory_file;
use crate::symbol::{DebugFiles, ElfFile};
use crate::unwind::{self, ExecRange, ModuleRef, TRAMPOLINE_PROBE, TableWriter};

pub(crate) use self::address_map::{AddressMap, AddressRange, is_before};
use self::address_map::{RETIRED_MAX, is_continued, is_same_range, remember_unmapped};
use self::compiled::debug_files;
pub(crate) use self::images::{ImageTables, ProcessImage};
use self::java_code::FollowedJavaCode;
pub(crate) use self::loaded_module::LoadedModule;
use self::loop_code::{GeneratedTables, share_loop};
use self::module_file::ModuleFile;
pub(crate) use self::module_files::ModuleFiles;
use self::runtimes::RuntimeSearch;
use self::writable::writable;

/// The message about a module whose table has no room.
const TABLES_FULL: &str = "the tables segment is full: later modules have no unwind table";

/// The identity of a file (device, inode and path), by which a new mapping of it is recognised.
type ModuleFileKey = ((u32, u32), u64, std::ffi::OsString);

/// All modules of a recording, and the writer of their tables.
pub(crate) struct Modules<'a> {
    pid: i32,
    files: Arc<ModuleFiles>,
    tables: TableWriter<'a>,
    /// The modules by file; `None` for a file that is not an ELF file.
    known: HashMap<ModuleFileKey, Option<Arc<LoadedModule>>>,
    dumps: Vec<Arc<DumpFile>>,
    debug_files: Arc<DebugFiles>,
    /// Tables of mappings without a file, by their bounds.
    generated: GeneratedTables,
    /// Recently unmapped code without a file, which may be mapped again.
    away: Vec<AddressRange>,
    /// The number of the next module.
    next: u32,
    current: Arc<AddressMap>,
    epoch: u16,
    writable: Vec<(u64, u64)>,
    /// The agent's addresses in the target.
    own: Range<u64>,
    runtimes: RuntimeSearch,
    /// The tables of the code of a Java machine.
    java_code: FollowedJavaCode,
    /// Messages for the user about files that could not be opened or compiled.
    pub(crate) notices: Vec<String>,
    /// Whether a file could not stay open.
    has_not_kept: bool,
}

impl<'a> Modules<'a> {
    /// Makes the empty set of modules of a process; `own` are the agent's addresses.
    pub(crate) fn new(
        pid: i32,
        files: Arc<ModuleFiles>,
        tables: TableWriter<'a>,
        own: Range<u64>,
    ) -> Self {
        Self {
            pid,
            files,
            tables,
            known: HashMap::new(),
            dumps: Vec::new(),
            debug_files: debug_files(pid, false),
            generated: HashMap::new(),
            away: Vec::new(),
            next: 0,
            current: Arc::default(),
            epoch: 0,
            writable: Vec::new(),
            own,
            runtimes: RuntimeSearch::default(),
            java_code: FollowedJavaCode::default(),
            notices: Vec::new(),
            has_not_kept: false,
        }
    }

    /// Enables the fetching of missing debug files from servers.
    pub(crate) fn fetch_debug_files(&mut self) {
        self.debug_files = debug_files(self.pid, true);
    }

    /// Starts another program, in which the agent will be at these addresses and nothing is mapped
    /// yet.
    ///
    /// Modules of unchanged files stay known.
    pub(crate) fn start_program(&mut self, own: Range<u64>) {
        let is_same =
            |module: &LoadedModule| module.elf.as_ref().is_some_and(ElfFile::is_unchanged);
        self.known.retain(|_, module| module.as_deref().is_some_and(is_same));
        let program = self.current.program.wrapping_add(1);
        self.current = Arc::new(AddressMap { program, ..AddressMap::default() });
        self.dumps.clear();
        self.generated.clear();
        self.away.clear();
        self.writable.clear();
        self.own = own;
        self.runtimes = RuntimeSearch::default();
        self.tables.set_runtimes(Vec::new());
        self.java_code.clear(&mut self.tables);
        // No handler of the last program runs any more.
        self.tables.recycle();
    }

    /// Continues with empty tables.
    ///
    /// Every module is compiled again and gets a new number.
    pub(crate) fn restart_tables(&mut self, tables: TableWriter<'a>) {
        self.tables = tables;
        self.tables.begin_epoch(self.epoch);
        self.known.clear();
        self.generated.clear();
        self.tables.set_runtimes(self.runtimes.blocks());
    }

    /// Returns the bytes of tables in use.
    #[cfg(test)]
    pub(crate) fn table_bytes(&self) -> u64 {
        self.tables.used()
    }

    /// Returns whether more than half of `room`, the bytes for tables, is used.
    pub(crate) fn is_crowded(&self, room: u64) -> bool {
        self.tables.used() > room / 2
    }

    /// Returns the address map of the last refresh.
    pub(crate) fn current(&self) -> Arc<AddressMap> {
        Arc::clone(&self.current)
    }

    /// Reuses tables, since no handler from before the last completed rotation is running any more,
    /// and nothing was replaced since.
    pub(crate) fn recycle(&mut self) {
        self.tables.begin_grace();
        self.tables.recycle();
    }

    /// Publishes tables of the code that a Java machine has generated since the last call, if that
    /// is due, first of that at the demanded addresses. Returns whether a machine was found: the
    /// next refresh adds it.
    pub(crate) fn follow_code(&mut self, demanded: impl Iterator<Item = u64>) -> bool {
        let target = (self.pid, &mut self.runtimes.java);
        self.java_code.follow(demanded, target, &mut self.tables, &mut self.notices);
        self.runtimes.search_again(self.pid, &self.current.ranges, &mut self.notices)
    }

    /// Makes the next reading of generated code one that finds other code at the same addresses.
    pub(crate) fn distrust_code(&mut self) {
        self.java_code.hasten_deep();
    }

    /// Reads the mappings; publishes and returns the new address map if anything changed.
    pub(crate) fn refresh(&mut self, mappings: &[Mapping]) -> io::Result<Option<Arc<AddressMap>>> {
        let mut ranges: Vec<AddressRange> = Vec::new();
        for mapping in mappings {
            // The handler cannot read unreadable code either.
            let is_code = mapping.exec && mapping.read && mapping.path != "[vsyscall]";
            if is_code && is_dump(&mapping.path) {
                self.keep_dump(mapping);
            } else if is_code && !self.own.contains(&mapping.start) {
                ranges.push(self.range(mapping));
            }
        }
        if ranges.iter().filter_map(|range| range.module.as_ref()).any(|it| it.v8.is_some()) {
            self.extend_code(&mut ranges, mappings);
        }
        share_loop(&mut ranges, mappings, (&mut self.tables, &mut self.generated));
        // A mapping that replaced another one is examined again.
        let is_there = |range: &AddressRange, key: &(u64, u64)| (range.start, range.end) == *key;
        self.generated.retain(|key, _| {
            let index = ranges.partition_point(|range| range.start < key.0);
            ranges.get(index).is_some_and(|range| is_there(range, key))
        });
        let writable = writable(mappings, &self.own);
        let mut has_new_runtime = self.runtimes.search(self.pid, &ranges, &mut self.notices);
        if has_new_runtime {
            self.tables.set_runtimes(self.runtimes.blocks());
        }
        if let Some(machine) = self.runtimes.takes_new_java() {
            has_new_runtime = true;
            self.java_code.add(machine, self.pid, &mut self.tables, &mut self.notices);
        }
        let unchanged = !has_new_runtime
            && ranges.len() == self.current.ranges.len()
            && ranges.iter().zip(&self.current.ranges).all(|(a, b)| is_same_range(a, b));
        let are_dumps_known = self.current.dumps.len() == self.dumps.len();
        if unchanged && are_dumps_known && writable == self.writable {
            return Ok(None);
        }
        let stack = mappings.iter().find(|mapping| mapping.path == "[stack]");
        self.tables.end_stack_at(stack.map_or(0, |stack| stack.end));
        let retired = self.retire(&mut ranges);
        let published: Vec<ExecRange> = ranges
            .iter()
            .map(|range| ExecRange {
                start: range.start,
                end: range.end,
                bias: range.bias,
                module: range.module.as_ref().map_or(range.table, |module| module.table),
            })
            .collect();
        if self.tables.publish(&published, &writable).is_err() {
            return Err(io::Error::other("the tables segment is full"));
        }
        self.writable = writable;
        if unchanged && are_dumps_known {
            return Ok(None);
        }
        let (dumps, seen_ns, epoch) = (self.dumps.clone(), monotonic_now_ns(), self.epoch);
        let (program, runtimes) = (self.current.program, self.runtimes.found.clone());
        let RuntimeSearch { java, v8, node, .. } = &self.runtimes;
        let (java, v8, node) = (java.clone(), v8.clone(), node.clone());
        self.current = Arc::new(AddressMap {
            ranges,
            dumps,
            seen_ns,
            retired,
            epoch,
            program,
            runtimes,
            java,
            v8,
            node,
        });
        Ok(Some(Arc::clone(&self.current)))
    }

    /// Makes generated code as large as the address space that is reserved for it.
    fn extend_code(&self, ranges: &mut Vec<AddressRange>, mappings: &[Mapping]) {
        let others = mappings.iter().filter(|mapping| !self.own.contains(&mapping.start));
        for whole in reservation::reservations(others) {
            let is_part = |range: &AddressRange| {
                !range.has_table() && whole.start <= range.start && range.end <= whole.end
            };
            let Some(first) = ranges.iter().position(is_part) else { continue };
            let (start, end) = (whole.start, whole.end);
            let range = AddressRange { start, end, ..ranges[first].clone() };
            ranges.retain(|range| !is_part(range));
            let at = ranges.partition_point(|range| range.start < start);
            ranges.insert(at, range);
        }
    }

    /// Starts another epoch if a range disappeared, and sets the epoch of each range.
    ///
    /// Returns all former ranges that are still known.
    fn retire(&mut self, ranges: &mut [AddressRange]) -> Vec<(AddressRange, u16)> {
        let current = Arc::clone(&self.current);
        let mut retired = current.retired.clone();
        let were = current.ranges.iter().chain(&self.away);
        let gone = were.filter(|range| !is_continued(range, ranges));
        let gone: Vec<_> = gone.cloned().map(|range| (range, self.epoch.wrapping_add(1))).collect();
        if !gone.is_empty() {
            self.epoch = self.epoch.wrapping_add(1);
            self.tables.begin_epoch(self.epoch);
            retired.extend(gone);
            retired.drain(..retired.len().saturating_sub(RETIRED_MAX));
        }
        remember_unmapped(&mut self.away, &current.ranges, ranges);
        for range in ranges {
            let before = current
                .find(range.start)
                .filter(|was| is_continued(was, std::slice::from_ref(&*range)));
            range.since = before.map_or(self.epoch, |was| was.since);
        }
        retired
    }

    fn range(&mut self, mapping: &Mapping) -> AddressRange {
        let module = self.module(mapping);
        let table = if module.is_none() { self.generated(mapping) } else { None };
        // The addresses in a table without a file are relative to the mapping's start.
        let own = table.map_or(0, |_| mapping.start);
        let bias = module.as_ref().map_or(own, |module| module.loads.bias(mapping));
        AddressRange {
            start: mapping.start,
            end: mapping.end,
            file_offset: mapping.file_offset,
            bias,
            module,
            since: self.epoch,
            table,
            is_loop: false,
        }
    }

    /// Returns the table of memory that a runtime has filled with a known pattern of code.
    ///
    /// Each mapping is examined once, when it is new.
    fn generated(&mut self, mapping: &Mapping) -> Option<ModuleRef> {
        let key = (mapping.start, mapping.end);
        if let Some(known) = self.generated.get(&key) {
            return *known;
        }
        let len = mapping.end - mapping.start;
        let first = self.read(mapping, TRAMPOLINE_PROBE.min(len as usize)).unwrap_or_default();
        let table = unwind::python_trampolines(&first, len);
        let reference = table.and_then(|table| self.tables.add_module(&table).ok());
        self.generated.insert(key, reference);
        reference
    }

    fn module(&mut self, mapping: &Mapping) -> Option<Arc<LoadedModule>> {
        let is_vdso = mapping.path == "[vdso]";
        if !is_vdso && (mapping.inode == 0 || mapping.is_shared_memory()) {
            return None;
        }
        let key = (mapping.device, mapping.inode, mapping.path.clone());
        if let Some(module) = self.known.get(&key) {
            return module.clone();
        }
        let module = self.load(self.next, mapping, is_vdso).map(Arc::new);
        self.next += u32::from(module.is_some());
        self.known.insert(key, module.clone());
        module
    }

    /// Keeps the dump that a mapping announces.
    fn keep_dump(&mut self, mapping: &Mapping) {
        let file = (mapping.device, mapping.inode);
        if self.dumps.len() >= DUMPS_MAX || self.dumps.iter().any(|dump| dump.file == file) {
            return;
        }
        let opened = proc::open_mapping(self.pid, mapping);
        if let Ok(descriptor) = opened.and_then(|it| DescriptorUse::Files.admit(it)) {
            let path = mapping.path.to_string_lossy().into_owned();
            self.dumps.push(Arc::new(DumpFile { descriptor, file, path }));
        }
    }

    /// Loads a module; `None` for a file that is not an ELF file, in which a runtime generates
    /// code.
    fn load(&mut self, index: u32, mapping: &Mapping, is_vdso: bool) -> Option<LoadedModule> {
        let path = mapping.path.to_string_lossy().into_owned();
        let opened = self.open(mapping, is_vdso);
        let read = match self.files.read_opened(opened, &path, &self.debug_files, is_vdso) {
            Ok(read) => read?,
            Err(what) => {
                self.notices.push(format!("{path}: {what}"));
                let file = Arc::new(ModuleFile::unopened(path));
                return Some(LoadedModule { index, table: None, file });
            }
        };
        if !read.is_kept {
            self.note_not_kept(&path);
        }
        Some(LoadedModule::add(&read, index, &mut self.tables, &mut self.notices))
    }

    /// Reports the first file that cannot stay open. Its stacks are complete, but they have no
    /// names.
    fn note_not_kept(&mut self, path: &str) {
        if !std::mem::replace(&mut self.has_not_kept, true) {
            let limit = proc::descriptor_limit();
            self.notices.push(format!(
                "{path}: too few descriptors to keep it open (the limit is {limit}, see `ulimit \
                 -Hn`), so its code has no names; nor has that of files that are loaded later"
            ));
        }
    }

    fn open(&self, mapping: &Mapping, is_vdso: bool) -> io::Result<OwnedFd> {
        if is_vdso {
            let image = self.read(mapping, (mapping.end - mapping.start) as usize)?;
            return memory_file::in_memory(c"vdso", &image);
        }
        if image::is_mapped(mapping, |len| self.read(mapping, len)) {
            return memory_file::in_memory(c"agent", image::bytes());
        }
        proc::open_mapping(self.pid, mapping)
    }

    fn read(&self, mapping: &Mapping, len: usize) -> io::Result<Vec<u8>> {
        proc::read_memory(self.pid, mapping.start, len)
    }
}

#[cfg(test)]
mod tests {
    use super::address_map::tests::range;
    use super::*;
    use crate::record::target::shm;

    #[test]
    fn generated_code_comes_and_goes_in_one_epoch_until_a_file_replaces_it() {
        let segment = shm::own_segment(shm::Use::Tables, traceprof_abi::layout::TABLES_LEN);
        let mut modules = Modules::new(0, Arc::default(), TableWriter::new(segment.words()), 0..0);
        let mut epoch = |ranges: &[(u64, Option<u32>)]| {
            let mut ranges: Vec<_> =
                ranges.iter().map(|(at, number)| range(*at, *number)).collect();
            let retired = modules.retire(&mut ranges);
            let (dumps, epoch) = (Vec::new(), modules.epoch);
            modules.current =
                Arc::new(AddressMap { ranges, dumps, retired, epoch, ..AddressMap::default() });
            epoch
        };
        let (file, code) = ((0x1000, Some(1)), (0x5000, None));
        assert_eq!(epoch(&[file, code]), 0);
        for _ in 0..3 {
            assert_eq!((epoch(&[file]), epoch(&[file, code])), (0, 0));
        }
        assert_eq!(epoch(&[file]), 0);
        assert_eq!(epoch(&[file, (0x5000, Some(2))]), 1, "its frames are not the file's");
        assert_eq!(epoch(&[file, (0x5000, Some(2))]), 1);
        assert_eq!(epoch(&[file]), 2, "a file is gone");
        assert_eq!(epoch(&[file, code]), 2);
        assert_eq!(epoch(&[(0x5000, None)]), 3);
    }
}
