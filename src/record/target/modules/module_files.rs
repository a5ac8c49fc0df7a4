//! The files that processes of a recording have mapped, each read and compiled once.
//!
//! Ten processes of one program compile its tables once, and so do the compilers that a build
//! starts one after the other.
//!
//! # Invariants
//! - A file that was changed since it was read is another one.
//! - While a thread reads a file, only those that need the same file wait for it.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::module_file::ReadModule;
use crate::symbol::{DebugFiles, ElfFile, ParsedFileKey};
use crate::unwind::TableWriter;

/// The most bytes of tables that are kept for later processes. The table of a compiler of C takes
/// some 5 MB.
const BYTES_MAX: u64 = 64 << 20;
/// The most files that are kept, each with its descriptor.
const FILES_MAX: usize = 256;

/// The content of a file, the files with its debug information, and the path by which it is known.
type FileKey = (ParsedFileKey, String);
/// What a file says: nothing if it is not an ELF file, or why it could not be read.
type ReadFile = Result<Option<Arc<ReadModule>>, String>;

/// A file, once it was read.
#[derive(Debug, Default)]
struct KnownFile {
    read: Arc<OnceLock<ReadFile>>,
    bytes: u64,
    /// Larger for a file that was used later.
    used: u64,
}

/// The files of a recording.
#[derive(Debug, Default)]
pub(crate) struct ModuleFiles {
    /// Whether files are kept for other processes.
    is_shared: bool,
    known: Mutex<KnownFiles>,
}

#[derive(Debug, Default)]
struct KnownFiles {
    files: HashMap<FileKey, KnownFile>,
    uses: u64,
}

impl ModuleFiles {
    /// Makes an empty set; `is_shared` if there may be several processes.
    pub(crate) fn new(is_shared: bool) -> Self {
        Self { is_shared, known: Mutex::default() }
    }

    /// Reads what an opened file says, or the vDSO, which nobody else needs; or why it cannot be
    /// read.
    pub(super) fn read_opened(
        &self,
        opened: io::Result<OwnedFd>,
        path: &str,
        debug_files: &Arc<DebugFiles>,
        is_vdso: bool,
    ) -> ReadFile {
        let elf = ElfFile::new(opened.map_err(unopened)?, path.to_owned(), Vec::new());
        let elf = elf.with_debug_files(Arc::clone(debug_files));
        match is_vdso {
            true => Ok(ReadModule::of(elf, true).map_err(unopened)?.map(Arc::new)),
            false => self.read(elf),
        }
    }

    /// Reads a file, unless it is known.
    fn read(&self, elf: ElfFile) -> ReadFile {
        let read = |elf| Ok(ReadModule::of(elf, false).map_err(unopened)?.map(Arc::new));
        if !self.is_shared {
            return read(elf);
        }
        let key = (elf.key(), elf.path().to_owned());
        let cell = self.known().cell(&key);
        let found = cell.get_or_init(|| read(elf)).clone();
        self.known().keep(&key, &found);
        found
    }

    fn known(&self) -> std::sync::MutexGuard<'_, KnownFiles> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what is said of a file that cannot be opened.
fn unopened(error: io::Error) -> String {
    format!("cannot be opened, so its code has no names: {error}")
}

impl KnownFiles {
    fn cell(&mut self, key: &FileKey) -> Arc<OnceLock<ReadFile>> {
        self.uses += 1;
        let file = self.files.entry(key.clone()).or_default();
        file.used = self.uses;
        Arc::clone(&file.read)
    }

    /// Notes the size of a file that was read, and drops those that were used longest ago if there
    /// are too many.
    fn keep(&mut self, key: &FileKey, found: &ReadFile) {
        let table = found.as_ref().ok().and_then(|read| read.as_ref()?.table.as_ref().ok());
        let bytes = table.map_or(0, TableWriter::module_bytes);
        if let Some(file) = self.files.get_mut(key) {
            file.bytes = bytes;
        }
        while self.files.len() > FILES_MAX
            || self.files.values().map(|file| file.bytes).sum::<u64>() > BYTES_MAX
        {
            let read = self.files.iter().filter(|(_, file)| file.read.get().is_some());
            let oldest = read.min_by_key(|(_, file)| file.used).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { return };
            self.files.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    fn open(path: &std::path::Path) -> ElfFile {
        let path = path.to_str().unwrap();
        ElfFile::new(File::open(path).unwrap().into(), path.to_owned(), Vec::new())
    }

    fn read(files: &ModuleFiles, path: &std::path::Path) -> Arc<ReadModule> {
        files.read(open(path)).unwrap().unwrap()
    }

    #[test]
    fn a_file_is_compiled_once_until_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::copy("/proc/self/exe", &path).unwrap();
        let (shared, own) = (ModuleFiles::new(true), ModuleFiles::new(false));
        let first = read(&shared, &path);
        assert!(first.table.is_ok() && first.file.elf.is_some());
        assert!(Arc::ptr_eq(&first, &read(&shared, &path)));
        assert!(!Arc::ptr_eq(&read(&own, &path), &read(&own, &path)), "kept for nobody");
        let other = folder.path().join("renamed");
        std::fs::hard_link(&path, &other).unwrap();
        assert!(!Arc::ptr_eq(&first, &read(&shared, &other)), "another path to show");
        File::options().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        assert!(!Arc::ptr_eq(&first, &read(&shared, &path)), "changed");
    }

    #[test]
    fn what_is_no_program_is_known_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "no program").unwrap();
        let files = ModuleFiles::new(true);
        for _ in 0..2 {
            assert!(matches!(files.read(open(&path)), Ok(None)));
        }
        assert_eq!(files.known().files.len(), 1);
    }

    #[test]
    fn the_files_used_longest_ago_are_dropped_first() {
        let folder = tempfile::tempdir().unwrap();
        let files = ModuleFiles::new(true);
        let path = |number: usize| folder.path().join(number.to_string());
        for number in 0..FILES_MAX + 3 {
            std::fs::write(path(number), "no program").unwrap();
            files.read(open(&path(number))).unwrap();
            files.read(open(&path(0))).unwrap();
        }
        let is_known = |number| {
            let elf = open(&path(number));
            files.known().files.contains_key(&(elf.key(), elf.path().to_owned()))
        };
        assert_eq!(files.known().files.len(), FILES_MAX);
        assert_eq!(
            [0, 1, 2, 3, 4, FILES_MAX + 2].map(is_known),
            [true, false, false, false, true, true]
        );
    }
}
