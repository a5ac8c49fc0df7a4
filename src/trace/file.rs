//! An output file, locked while it is written, with space reserved for its end.
//!
//! # Invariants
//! - An existing file is not changed before the lock on it is held.
//! - The writer refuses a write above the file size limit before the first byte, so that the kernel
//!   does not send SIGXFSZ.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::resource::{Resource, getrlimit};

use super::TraceError;
use super::sink::{Sink, TraceFile};
use crate::proc::FileLock;

/// The space reserved for the end: closing metadata, the last frame, and its index group take a few
/// KiB.
const RESERVE_BYTES: u64 = 64 << 10;
/// The number of attempts to take a lock: [`is_being_written`] holds it for a moment.
const LOCK_ATTEMPTS: u32 = 5;
/// The pause between two attempts to take the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The role of a file: data or index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The data file: locked while it is written, with a reserve.
    Data,
    /// The index file: neither locked nor reserved. It belongs to the owner of the data file and
    /// can be rebuilt.
    Index,
}

/// Creates a regular file; with `force`, truncates an existing one.
pub(super) fn create(path: &Path, force: bool, role: Role) -> Result<TraceFile, TraceError> {
    let write = |source| TraceError::write(path, source);
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK);
    let file = match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let meta = std::fs::symlink_metadata(path).map_err(write)?;
            if !meta.is_file() {
                return Err(TraceError::NotRegular { path: path.to_owned() });
            }
            if !force {
                return Err(TraceError::Exists { path: path.to_owned() });
            }
            options.open(path).map_err(write)?
        }
        other => other.map_err(write)?,
    };
    // Checked again through the descriptor: the name may refer to another file by now.
    if !file.metadata().map_err(write)?.is_file() {
        return Err(TraceError::NotRegular { path: path.to_owned() });
    }
    let lock = match role {
        Role::Data => lock(&file, path)?,
        Role::Index => None,
    };
    file.set_len(0).map_err(write)?;
    let directory = directory_of(path).to_owned();
    let reserve = if role == Role::Data { reserve(&directory) } else { None };
    let opened_directory = File::open(&directory).ok();
    let file = OutputFile {
        file,
        at: 0,
        role,
        directory: Some(directory),
        opened_directory,
        reserve,
        released: false,
        started: Instant::now(),
        _lock: lock,
    };
    Ok(TraceFile::new(Box::new(file), path.to_owned()))
}

/// Returns whether a recorder is writing the data file at `path` at this moment.
///
/// # Errors
/// Those of opening the file. On a file system without locks the function always returns false.
pub fn is_being_written(path: &Path) -> io::Result<bool> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match FileLock::shared(file) {
        Err((_, error)) => Ok(error.kind() == io::ErrorKind::WouldBlock),
        // The drop releases the lock at once.
        Ok(_) => Ok(false),
    }
}

/// Locks a data file against other recorders, if the file system supports locks.
fn lock(file: &File, path: &Path) -> Result<Option<FileLock>, TraceError> {
    for _ in 0..LOCK_ATTEMPTS {
        let same = file.try_clone().map_err(|source| TraceError::write(path, source))?;
        match FileLock::exclusive(same) {
            Ok(lock) => return Ok(Some(lock)),
            Err((_, error)) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(_) => return Ok(None),
        }
    }
    Err(TraceError::Busy { path: path.to_owned() })
}

/// Creates an unnamed file that occupies space on the same disk. If there is no space for it, the
/// end of the trace uses the space that the cut of an incomplete frame frees.
fn reserve(directory: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600).custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC);
    let file = options.open(directory).ok()?;
    fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES as libc::off_t).ok()?;
    Some(file)
}

#[derive(Debug)]
struct OutputFile {
    file: File,
    at: u64,
    role: Role,
    /// The directory, until the file's entry in it is durable.
    directory: Option<PathBuf>,
    /// The same, if it could be opened with the file: later there may be no descriptor for it.
    opened_directory: Option<File>,
    reserve: Option<File>,
    released: bool,
    started: Instant,
    _lock: Option<FileLock>,
}

impl OutputFile {
    /// Returns the size limit of the file. Others can change the limit at any time.
    fn limit(&self) -> u64 {
        let limit = getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft);
        match (self.role, self.released) {
            (Role::Data, false) => limit - RESERVE_BYTES.min(limit / 4),
            _ => limit,
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.at + bytes.len() as u64 > self.limit() {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let written = self.file.write(bytes)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Sink for OutputFile {
    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.at = self.file.seek(SeekFrom::Start(bytes))?;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        if let Some(directory) = &self.directory {
            let synced = match &self.opened_directory {
                Some(opened) => sync_opened(opened),
                None => sync_directory(directory),
            };
            match synced {
                // There was no descriptor left for the directory. The next sync tries again.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                    return Ok(());
                }
                synced => synced?,
            }
            (self.directory, self.opened_directory) = (None, None);
        }
        Ok(())
    }

    fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    fn release(&mut self) {
        self.reserve = None;
        self.released = true;
    }
}

/// Makes the names in a directory durable, as far as [`sync_opened`] can. A user who may create
/// files in a directory may not be able to open it.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    match File::open(directory) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => Ok(()),
        opened => sync_opened(&opened?),
    }
}

/// Makes the names in a directory durable, where that is possible: not every file system can sync a
/// directory. The data of the files is durable anyway.
fn sync_opened(directory: &File) -> io::Result<()> {
    directory.sync_all().or_else(|error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::EACCES | libc::EPERM) => Ok(()),
        _ => Err(error),
    })
}

/// Returns the directory of a file, which need not exist.
pub fn directory_of(path: &Path) -> &Path {
    let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_being_written_is_reported_and_refused_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let mut first = create(&path, false, Role::Data).unwrap();
        first.write(b"precious").unwrap();
        assert!(is_being_written(&path).unwrap());
        let error = create(&path, true, Role::Data).unwrap_err();
        assert!(matches!(error, TraceError::Busy { .. }) && error.is_output_error(), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        drop(first);
        assert!(!is_being_written(&path).unwrap());
        create(&path, true, Role::Data).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        assert!(is_being_written(&dir.path().join("none")).is_err());
    }

    #[test]
    fn a_check_for_a_writer_does_not_block_the_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "old").unwrap();
        let asking = FileLock::shared(File::open(&path).unwrap());
        let asking = asking.map_err(|(_, error)| error).unwrap();
        let waiter = std::thread::spawn(move || create(&path, true, Role::Data).map(drop));
        std::thread::sleep(LOCK_PAUSE);
        drop(asking);
        waiter.join().unwrap().unwrap();
    }

    #[test]
    fn the_reserve_has_no_name_and_takes_room() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let Some(reserve) = reserve(dir.path()) else { return };
        assert!(reserve.metadata().unwrap().blocks() * 512 >= RESERVE_BYTES);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
