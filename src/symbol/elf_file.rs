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
use crate::proc::{self, Root};

/// An open ELF file with the path to show for it and its build id.
#[derive(Debug)]
pub struct ElfFile {
    file: Arc<File>,
    path: String,
    build_id: Vec<u8>,
    identity: FileIdentity,
    debug_files: Arc<DebugFiles>,
    /// Dropped with this value: it tells the symbolizer that the file is no longer open.
    holder: Arc<()>,
}

/// Where else than on this system debug files may be looked for.
#[derive(Debug, Default)]
pub struct DebugFiles {
    /// The target's file system.
    pub system: System,
    /// Asks servers, where that is wanted.
    pub fetcher: Option<Fetcher>,
    /// The memory that all debug files together may take.
    pub budget: Arc<MemoryBudget>,
}

/// A target's file system.
#[derive(Debug, Default)]
pub enum System {
    /// The file system of this process.
    #[default]
    This,
    /// Another one.
    Another(Root),
    /// The target's file system cannot be read: the same paths here lead to other files.
    Unknown,
}

impl System {
    /// A key that is equal for equal file systems.
    fn key(&self) -> SystemIdentity {
        match self {
            Self::This => SystemIdentity::This,
            Self::Another(root) => SystemIdentity::Another(root.key()),
            Self::Unknown => SystemIdentity::Unknown,
        }
    }
}

impl DebugFiles {
    /// Where to look for the debug files of a process of this user.
    pub fn of(pid: i32, owner: u32, fetch: bool) -> Self {
        let system = match Root::open(pid, owner) {
            Ok(root) if root.is_own() => System::This,
            Ok(root) => System::Another(root),
            Err(_) => System::Unknown,
        };
        // One of all processes that are recorded together.
        static BUDGET: OnceLock<Arc<MemoryBudget>> = OnceLock::new();
        let budget = Arc::clone(BUDGET.get_or_init(Arc::default));
        Self { system, fetcher: fetch.then(Fetcher::default), budget }
    }
}

/// Two descriptors with equal identities are the same file with the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum FileIdentity {
    Inode {
        device: u64,
        inode: u64,
        size: u64,
        modified_ns: i128,
    },
    /// The descriptor could not be examined: it equals nothing else.
    Unique(u64),
}

/// The key of everything that was parsed of a file: its content, and where its debug files are
/// searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FileKey {
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
    /// Takes over the descriptor. `path` is for display only and is never opened; an empty
    /// `build_id` says that the file has none.
    pub fn new(fd: OwnedFd, path: String, build_id: Vec<u8>) -> Self {
        let file = File::from(fd);
        let identity = FileIdentity::of(&file);
        let (file, debug_files, holder) = (Arc::new(file), Arc::default(), Arc::default());
        Self { file, path, build_id, identity, debug_files, holder }
    }

    /// Adds places to search for the debug file.
    pub fn with_debug_files(self, debug_files: Arc<DebugFiles>) -> Self {
        Self { debug_files, ..self }
    }

    pub(super) fn debug_files(&self) -> &Arc<DebugFiles> {
        &self.debug_files
    }

    /// Whether the file is unchanged since it was taken over.
    pub fn is_unchanged(&self) -> bool {
        FileIdentity::of(&self.file) == self.identity
    }

    /// The path as the target sees it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The GNU build id, empty if there is none.
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }

    /// Maps its bytes.
    pub(super) fn map(&self) -> io::Result<Mmap> {
        proc::map_file(&*self.file)
    }

    /// A path by which this process can open the file again while `self` lives.
    pub(super) fn descriptor_path(&self) -> PathBuf {
        proc::descriptor_path(&*self.file)
    }

    /// Keeps the file open for a reader that uses its descriptor path.
    pub(super) fn opened(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Says whether this value is still there.
    pub(super) fn holder(&self) -> Weak<()> {
        Arc::downgrade(&self.holder)
    }

    /// Files with equal keys have equal names.
    pub(super) fn key(&self) -> FileKey {
        FileKey { identity: self.identity, system: self.debug_files.system.key() }
    }

    /// A number that is the same for files with the same content.
    pub fn hash(&self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        self.identity.hash(&mut hasher);
        hasher.finish()
    }
}
