//! An ELF file that the recorder holds open.

use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use memmap2::Mmap;

use super::{Fetcher, MemoryBudget};
use crate::proc::{self, DescriptorUse, Root};

/// An open ELF file, with its display path and its build id.
#[derive(Debug)]
pub struct ElfFile {
    file: Arc<File>,
    path: String,
    build_id: Vec<u8>,
    identity: FileIdentity,
    debug_files: Arc<DebugFiles>,
    /// Dropped with this value, so that the symbolizer sees that the file is no longer open.
    holder: Arc<()>,
}

/// The locations of debug files besides this system, and their memory budget.
#[derive(Debug, Default)]
pub struct DebugFiles {
    /// The target's file system.
    pub system: System,
    /// The fetcher that asks servers, if enabled.
    pub fetcher: Option<Fetcher>,
    /// The memory that all debug files together may use.
    pub budget: Arc<MemoryBudget>,
}

/// A target's file system.
#[derive(Debug, Default)]
pub enum System {
    /// The file system of this process.
    #[default]
    This,
    /// Another file system.
    Another(Root),
    /// The target's file system cannot be read. The same paths here would name other files.
    Unknown,
}

impl System {
    /// Returns a key that is equal for equal file systems.
    fn key(&self) -> SystemIdentity {
        match self {
            Self::This => SystemIdentity::This,
            Self::Another(root) => SystemIdentity::Another(root.key()),
            Self::Unknown => SystemIdentity::Unknown,
        }
    }
}

impl DebugFiles {
    /// Returns the locations of debug files for a process of this user.
    pub fn of(pid: i32, owner: u32, fetch: bool) -> Self {
        let system = match Root::open(pid, owner) {
            Ok(root) if root.is_own() => System::This,
            Ok(root) => System::Another(root),
            Err(_) => System::Unknown,
        };
        // All processes that are recorded together share one budget.
        static BUDGET: OnceLock<Arc<MemoryBudget>> = OnceLock::new();
        let budget = Arc::clone(BUDGET.get_or_init(Arc::default));
        Self { system, fetcher: fetch.then(Fetcher::default), budget }
    }
}

/// The identity of a file. Descriptors with equal identities refer to the same file with the same
/// content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum FileIdentity {
    Inode {
        device: u64,
        inode: u64,
        size: u64,
        modified_ns: i128,
    },
    /// The descriptor could not be examined. It equals no other identity.
    Unique(u64),
}

/// The key of a file's parsed data: its content, and the file system that is searched for debug
/// files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ParsedFileKey {
    identity: FileIdentity,
    system: SystemIdentity,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum SystemIdentity {
    This,
    Another(Option<(u64, u64, u32)>),
    Unknown,
}

impl FileIdentity {
    fn of(file: &File) -> Self {
        match file.metadata() {
            Ok(meta) => Self::Inode {
                device: meta.dev(),
                inode: meta.ino(),
                size: meta.size(),
                modified_ns: i128::from(meta.mtime()) * 1_000_000_000
                    + i128::from(meta.mtime_nsec()),
            },
            Err(_) => {
                static NEXT: AtomicU64 = AtomicU64::new(0);
                // Relaxed: the number only has to be unique.
                Self::Unique(NEXT.fetch_add(1, Ordering::Relaxed))
            }
        }
    }
}

impl ElfFile {
    /// Takes ownership of the descriptor. `path` is for display only and is never opened. An empty
    /// `build_id` means that the file has none.
    pub fn new(fd: OwnedFd, path: String, build_id: Vec<u8>) -> Self {
        let file = File::from(fd);
        let identity = FileIdentity::of(&file);
        let (file, debug_files, holder) = (Arc::new(file), Arc::default(), Arc::default());
        Self { file, path, build_id, identity, debug_files, holder }
    }

    /// Sets the GNU build id.
    pub fn with_build_id(self, build_id: Vec<u8>) -> Self {
        Self { build_id, ..self }
    }

    /// Sets the locations to search for the debug file.
    pub fn with_debug_files(self, debug_files: Arc<DebugFiles>) -> Self {
        Self { debug_files, ..self }
    }

    pub(super) fn debug_files(&self) -> &Arc<DebugFiles> {
        &self.debug_files
    }

    /// Returns whether the descriptor is within the share of such files.
    pub fn is_within(&self, files: DescriptorUse) -> bool {
        files.allows(&*self.file)
    }

    /// Returns whether the file is unchanged since [`ElfFile::new`].
    pub fn is_unchanged(&self) -> bool {
        FileIdentity::of(&self.file) == self.identity
    }

    /// Returns the path as the target sees it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the GNU build id, empty if there is none.
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }

    /// Maps the file's bytes.
    pub fn map(&self) -> io::Result<Mmap> {
        proc::map_file(&*self.file)
    }

    /// Returns a path by which this process can open the file again while `self` lives.
    pub(super) fn descriptor_path(&self) -> PathBuf {
        proc::descriptor_path(&*self.file)
    }

    /// Returns a handle that keeps the file open for a reader of its descriptor path.
    pub(super) fn opened(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Returns a weak handle that shows whether this value still exists.
    pub(super) fn holder(&self) -> Weak<()> {
        Arc::downgrade(&self.holder)
    }

    /// Returns a key. Files with equal keys have equal names and unwind tables.
    pub fn key(&self) -> ParsedFileKey {
        ParsedFileKey { identity: self.identity, system: self.debug_files.system.key() }
    }

    /// Returns a hash that is the same for files with the same content.
    pub fn hash(&self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        self.identity.hash(&mut hasher);
        hasher.finish()
    }
}
