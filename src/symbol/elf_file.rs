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

use super::{Fetcher, Room};
use crate::proc::{self, Root};

/// An open ELF file with the path to show for it and its build id.
#[derive(Debug)]
pub struct ElfFile {
    file: Arc<File>,
    path: String,
    build_id: Vec<u8>,
    identity: Identity,
    debug_files: Arc<DebugFiles>,
    /// Nobody else has it: it goes with this value.
    holder: Arc<()>,
}

/// Where else than on this system debug files may be looked for.
#[derive(Debug, Default)]
pub struct DebugFiles {
    /// The target's file system.
    pub system: System,
    /// Asks servers, where that is wanted.
    pub fetcher: Option<Fetcher>,
    /// What all of them may take.
    pub room: Arc<Room>,
}

/// A target's file system.
#[derive(Debug, Default)]
pub enum System {
    /// That of this process.
    #[default]
    This,
    /// Another one.
    Another(Root),
    /// It cannot be looked at: the same paths on this system are others' files.
    Unknown,
}

impl System {
    /// The same for two that are the same.
    fn key(&self) -> SystemKey {
        match self {
            Self::This => SystemKey::This,
            Self::Another(root) => SystemKey::Another(root.key()),
            Self::Unknown => SystemKey::Unknown,
        }
    }
}

impl DebugFiles {
    /// Of a process of this user.
    pub fn of(pid: i32, owner: u32, fetch: bool) -> Self {
        let system = match Root::open(pid, owner) {
            Ok(root) if root.is_own() => System::This,
            Ok(root) => System::Another(root),
            Err(_) => System::Unknown,
        };
        // One of all processes that are recorded together.
        static ROOM: OnceLock<Arc<Room>> = OnceLock::new();
        let room = Arc::clone(ROOM.get_or_init(Arc::default));
        Self { system, fetcher: fetch.then(Fetcher::default), room }
    }
}

/// What makes two descriptors the same file with the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Identity {
    Inode {
        device: u64,
        inode: u64,
        size: u64,
        modified_ns: i128,
    },
    /// The descriptor could not be examined: the same as nothing else.
    Unique(u64),
}

/// What makes what was read of a file that of another descriptor, too: the content, and where its debug
/// files are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    identity: Identity,
    system: SystemKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum SystemKey {
    This,
    Another(Option<(u64, u64, u32)>),
    Unknown,
}

impl Identity {
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
                // Relaxed: only uniqueness is asked for.
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
        let identity = Identity::of(&file);
        let (file, debug_files, holder) = (Arc::new(file), Arc::default(), Arc::default());
        Self { file, path, build_id, identity, debug_files, holder }
    }

    /// The same with more places to look for its debug file.
    pub fn with_debug_files(self, debug_files: Arc<DebugFiles>) -> Self {
        Self { debug_files, ..self }
    }

    pub(super) fn debug_files(&self) -> &Arc<DebugFiles> {
        &self.debug_files
    }

    /// Nobody has written to it since it was taken over.
    pub fn is_unchanged(&self) -> bool {
        Identity::of(&self.file) == self.identity
    }

    /// The path as the target sees it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The GNU build id, empty if there is none.
    pub fn build_id(&self) -> &[u8] {
        &self.build_id
    }

    /// Its bytes, while they are looked at.
    pub(super) fn map(&self) -> io::Result<Mmap> {
        proc::map_file(&*self.file)
    }

    /// A path by which this process can open the file again while `self` lives.
    pub(super) fn descriptor_path(&self) -> PathBuf {
        proc::descriptor_path(&*self.file)
    }

    /// What keeps it open for whoever reads it by that path.
    pub(super) fn opened(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Says whether this value is still there.
    pub(super) fn holder(&self) -> Weak<()> {
        Arc::downgrade(&self.holder)
    }

    /// What is known of one of two files with the same key is true of the other.
    pub(super) fn key(&self) -> Key {
        Key { identity: self.identity, system: self.debug_files.system.key() }
    }

    /// A number that is the same for files with the same content.
    pub fn hash(&self) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        self.identity.hash(&mut hasher);
        hasher.finish()
    }
}
