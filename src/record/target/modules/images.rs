//! The code of processes that have no agent, as the kernel reports that they map it.
//!
//! # Invariants
//! - A file is opened only if it is the mapped one: from the process if it still runs, else by its
//!   path under the root directory of the process from which all others descend.
//! - A mapping replaces what was mapped at its addresses. Nobody reports that memory is unmapped.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Context;
use traceprof_abi::layout;
use traceprof_abi::unwind::Tables;

use super::compiled::debug_files;
use super::module_file::ModuleFile;
use super::module_files::ModuleFiles;
use super::{AddressMap, AddressRange, LoadedModule, ModuleFileKey, TABLES_FULL};
use crate::proc::{self, Mapping, Root};
use crate::record::contract::error::RecordError;
use crate::record::target::memory_file;
use crate::record::target::shm::{SharedMemory, Use};
use crate::symbol::{DebugFiles, ElfFile};
use crate::unwind::{ExecRange, TableWriter};

/// The most files that are known at once, each with its descriptor.
const KNOWN_MAX: usize = 256;
/// The addresses of programs.
const USER_HALF: (u64, u64) = (4096, 1 << 47);

/// The code that one program of a process has mapped.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessImage {
    map: Arc<AddressMap>,
    /// The number of the program within the process.
    program: u32,
}

impl ProcessImage {
    /// Returns the empty image of the next program.
    pub(crate) fn next_program(&self) -> Self {
        let program = self.program + 1;
        Self { map: Arc::new(AddressMap { program, ..AddressMap::default() }), program }
    }

    /// Returns the mapped code.
    pub(crate) fn addresses(&self) -> &Arc<AddressMap> {
        &self.map
    }

    /// Returns whether something is mapped at these addresses.
    pub(crate) fn has_code(&self, start: u64, end: u64) -> bool {
        self.map.ranges.iter().any(|range| range.start < end && start < range.end)
    }

    /// Adds a mapping in place of what was there.
    fn add(&mut self, range: AddressRange, seen_ns: u64) {
        let map = Arc::make_mut(&mut self.map);
        map.ranges.retain(|old| old.end <= range.start || range.end <= old.start);
        let at = map.ranges.partition_point(|old| old.start < range.start);
        map.ranges.insert(at, range);
        map.seen_ns = seen_ns;
    }
}

/// The tables of all files that such processes map.
pub(crate) struct ImageTables {
    /// The root directory of the process from which all others descend.
    root: Option<Arc<Root>>,
    files: Arc<ModuleFiles>,
    debug_files: Arc<DebugFiles>,
    known: HashMap<ModuleFileKey, Option<Arc<LoadedModule>>>,
    next: u32,
    /// The code that the tables are published for.
    published: Option<Arc<AddressMap>>,
    // Before the memory that it refers to.
    writer: TableWriter<'static>,
    segment: SharedMemory,
    /// Messages for the user about files that could not be opened or compiled.
    pub(crate) notices: Vec<String>,
}

impl ImageTables {
    /// Makes empty tables for the descendants of the process `pid`, with its root directory.
    /// `fetch` enables the fetching of debug files from servers.
    pub(crate) fn new(
        (pid, root): (i32, Option<Arc<Root>>),
        files: Arc<ModuleFiles>,
        fetch: bool,
    ) -> Result<Self, RecordError> {
        let segment = SharedMemory::create(Use::Tables, layout::TABLES_LEN)
            .context("creating a segment for the unwind tables of child processes")
            .map_err(RecordError::Other)?;
        Ok(Self {
            root,
            files,
            debug_files: debug_files(pid, fetch),
            known: HashMap::new(),
            next: 0,
            published: None,
            writer: TableWriter::new(segment.words()),
            segment,
            notices: Vec::new(),
        })
    }

    /// Returns the image of a process as it is now.
    pub(crate) fn image_now(&mut self, pid: i32, time_ns: u64) -> ProcessImage {
        let mut image = ProcessImage::default();
        let mappings = proc::mappings(pid).unwrap_or_default();
        // A fork of a process with an agent has its segments, where nothing runs.
        let is_code = |it: &&Mapping| {
            it.exec && it.read && it.path != "[vsyscall]" && !it.is_system_v_segment()
        };
        for mapping in mappings.iter().filter(is_code) {
            self.map(&mut image, mapping, (pid, time_ns));
        }
        image
    }

    /// Adds a mapping of the process `pid` to its image.
    pub(crate) fn map(
        &mut self,
        image: &mut ProcessImage,
        mapping: &Mapping,
        (pid, time_ns): (i32, u64),
    ) {
        let module = self.module(mapping, pid);
        let range = AddressRange {
            start: mapping.start,
            end: mapping.end,
            file_offset: mapping.file_offset,
            bias: module.as_ref().map_or(0, |module| module.loads.bias(mapping)),
            module,
            since: 0,
            table: None,
            is_loop: false,
        };
        image.add(range, time_ns);
    }

    /// Publishes the tables of an image, and returns them.
    pub(crate) fn publish(&mut self, image: &ProcessImage) -> Option<Tables> {
        let is_published = self.published.as_ref().is_some_and(|it| Arc::ptr_eq(it, &image.map));
        if !is_published {
            let table = |range: &AddressRange| range.module.as_ref()?.table;
            let ranges = image.map.ranges.iter().map(|range| ExecRange {
                start: range.start,
                end: range.end,
                bias: range.bias,
                module: table(range),
            });
            let ranges: Vec<_> = ranges.collect();
            // No handler reads these tables.
            self.writer.begin_grace();
            self.writer.recycle();
            // Nobody reports where stacks are. The kernel copies what is above the stack pointer.
            if self.writer.publish(&ranges, &[USER_HALF]).is_err() {
                self.notices.push(TABLES_FULL.to_owned());
                return None;
            }
            self.published = Some(Arc::clone(&image.map));
        }
        Some(self.segment.as_tables())
    }

    fn module(&mut self, mapping: &Mapping, pid: i32) -> Option<Arc<LoadedModule>> {
        let is_vdso = mapping.path == "[vdso]";
        // A fork of a process with an agent has its segments, where nothing runs.
        let has_no_file = mapping.inode == 0 || mapping.is_shared_memory() || mapping.is_segment();
        if !is_vdso && has_no_file {
            return None;
        }
        let key = (mapping.device, mapping.inode, mapping.path.clone());
        if let Some(module) = self.known.get(&key) {
            // A build replaces its own programs, and an inode may be used again.
            let is_same = |it: &LoadedModule| it.elf.as_ref().is_none_or(ElfFile::is_unchanged);
            if module.as_deref().is_none_or(is_same) {
                return module.clone();
            }
        }
        let module = match self.load(mapping, pid, is_vdso) {
            Ok(module) => module.map(Arc::new),
            Err(what) => {
                let path = mapping.path.to_string_lossy().into_owned();
                self.notices.push(format!("{path}: {what}"));
                let file = Arc::new(ModuleFile::unopened(path));
                let module = LoadedModule { index: self.next, table: None, file };
                self.next += 1;
                // The next process may open it.
                return Some(Arc::new(module));
            }
        };
        self.next += u32::from(module.is_some());
        if self.known.len() >= KNOWN_MAX {
            // Programs that a build has made and removed.
            self.known.retain(|_, it| it.as_ref().is_some_and(|it| Arc::strong_count(it) > 1));
        }
        self.known.insert(key, module.clone());
        module
    }

    fn load(
        &mut self,
        mapping: &Mapping,
        pid: i32,
        is_vdso: bool,
    ) -> Result<Option<LoadedModule>, String> {
        let path = mapping.path.to_string_lossy();
        let under_root = |error| match &self.root {
            Some(root) => proc::open_mapping_under(root, mapping),
            None => Err(error),
        };
        let opened = match is_vdso {
            true => own_vdso(),
            false => proc::open_mapping(pid, mapping).or_else(under_root),
        };
        let read = self.files.read_opened(opened, &path, &self.debug_files, is_vdso)?;
        let (tables, notices) = (&mut self.writer, &mut self.notices);
        Ok(read.map(|read| LoadedModule::add(&read, self.next, tables, notices)))
    }
}

/// Returns the vDSO of this process, which all processes have.
fn own_vdso() -> std::io::Result<std::os::fd::OwnedFd> {
    let own = std::process::id() as i32;
    let mappings = proc::mappings(own)?;
    let vdso = mappings.iter().find(|mapping| mapping.path == "[vdso]");
    let vdso = vdso.ok_or(std::io::ErrorKind::NotFound)?;
    let image = proc::read_memory(own, vdso.start, (vdso.end - vdso.start) as usize)?;
    memory_file::in_memory(c"vdso", &image)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_root() -> Option<Arc<Root>> {
        Root::open(std::process::id() as i32, 0).ok().map(Arc::new)
    }

    #[test]
    fn code_of_a_process_that_has_exited_is_found_under_the_root() {
        let (own, gone) = (std::process::id() as i32, i32::MAX);
        let mut tables = ImageTables::new((own, own_root()), Arc::default(), false).unwrap();
        let mut image = ProcessImage::default();
        tables.map(&mut image, &mapping("libc.so"), (gone, 5));
        assert_eq!(tables.notices, [] as [&str; 0]);
        assert!(image.addresses().ranges[0].module.as_ref().unwrap().elf.is_some());
        let now = tables.image_now(own, 6);
        assert!(now.addresses().ranges.len() > 3 && tables.notices.is_empty());
    }

    fn mapping(path: &str) -> Mapping {
        let own = proc::mappings(std::process::id() as i32).unwrap();
        own.into_iter().find(|it| it.exec && it.path.to_string_lossy().contains(path)).unwrap()
    }

    #[test]
    fn code_of_a_process_is_published_and_a_mapping_replaces_another() {
        let own = std::process::id() as i32;
        let mut tables = ImageTables::new((own, own_root()), Arc::default(), false).unwrap();
        let mut image = ProcessImage::default();
        let (libc, vdso) = (mapping("libc.so"), mapping("[vdso]"));
        tables.map(&mut image, &libc, (own, 5));
        tables.map(&mut image, &vdso, (own, 6));
        assert_eq!(tables.notices, [] as [&str; 0]);
        assert_eq!((image.addresses().ranges.len(), image.addresses().seen_ns), (2, 6));
        let published = tables.publish(&image).unwrap();
        let snapshot = published.snapshot().unwrap();
        for code in [&libc, &vdso] {
            let range = snapshot.range(code.start).unwrap();
            assert!(snapshot.module(range).is_some(), "{code:?}");
        }
        let other = Mapping { start: libc.start + 4096, end: libc.start + 8192, ..vdso };
        assert!(image.has_code(other.start, other.end) && !image.has_code(0, 4096));
        tables.map(&mut image, &other, (own, 7));
        let starts: Vec<u64> = image.addresses().ranges.iter().map(|it| it.start).collect();
        assert!(starts.contains(&other.start) && !starts.contains(&libc.start), "{starts:x?}");
        let published = tables.publish(&image).unwrap();
        let snapshot = published.snapshot().unwrap();
        assert!(snapshot.range(libc.start).is_none() && snapshot.range(other.start).is_some());
        let next = image.next_program();
        assert_eq!((next.addresses().ranges.len(), next.addresses().program()), (0, 1));
    }

    #[test]
    fn a_file_that_is_not_the_mapped_one_has_no_table() {
        let own = std::process::id() as i32;
        let mut tables = ImageTables::new((own, own_root()), Arc::default(), false).unwrap();
        let mut image = ProcessImage::default();
        let (start, end) = (0x1000, 0x2000);
        tables.map(&mut image, &Mapping { start, end, inode: 1, ..mapping("libc.so") }, (own, 5));
        let range = &image.addresses().ranges[0];
        assert!(range.module.as_ref().is_some_and(|it| it.elf.is_none() && it.table.is_none()));
        assert_eq!(tables.notices.len(), 1);
        assert!(tables.notices[0].contains("was replaced"), "{:?}", tables.notices);
    }
}
