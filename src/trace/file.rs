//! An output file: created, locked while it is written, with room kept for its end.
//!
//! # Invariants
//! - Nothing of an existing file is changed before the lock on it is held.
//! - A write that would exceed the limit for files' sizes is refused before the first byte, so that
//!   the kernel has no reason to send SIGXFSZ.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, Flock, FlockArg, fallocate};
use nix::sys::resource::{Resource, getrlimit};

use super::TraceError;
use super::sink::{Sink, Target};

/// Room for the last words: closing metadata, the last frame, and its index group take a few KiB.
const RESERVE_BYTES: u64 = 64 << 10;
/// How often a lock is tried: somebody who only asks whether it is held holds it for a moment.
const LOCK_ATTEMPTS: u32 = 5;
/// Between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Which of the two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Locked while it is written; has a reserve.
    Data,
    /// Neither: it belongs to whoever holds the data file, and can be made anew.
    Index,
}

/// Opens a new regular file; with `force` one that exists is emptied.
pub(super) fn create(path: &Path, force: bool, role: Role) -> Result<Target, TraceError> {
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
    // Looked at again through the descriptor: the name may have changed hands.
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
    let file = OutputFile {
        file,
        at: 0,
        role,
        directory: Some(directory),
        reserve,
        released: false,
        started: Instant::now(),
        _lock: lock,
    };
    Ok(Target::new(Box::new(file), path.to_owned()))
}

/// Whether a recorder is writing the data file at `path` at this moment.
///
/// # Errors
/// Those of opening the file. On a file system without locks the answer is always no.
pub fn is_being_written(path: &Path) -> io::Result<bool> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        // Unlocked again at once, by the drop.
        _ => Ok(false),
    }
}

/// Locks a data file against other recorders, as far as the file system has locks.
fn lock(file: &File, path: &Path) -> Result<Option<Flock<File>>, TraceError> {
    for _ in 0..LOCK_ATTEMPTS {
        let same = file.try_clone().map_err(|source| TraceError::write(path, source))?;
        match Flock::lock(same, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(Some(lock)),
            Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => std::thread::sleep(LOCK_PAUSE),
            Err(_) => return Ok(None),
        }
    }
    Err(TraceError::Busy { path: path.to_owned() })
}

/// A file without a name that occupies room on the same disk. Where there is none to be had, the
/// last words find what a frame that was cut off leaves.
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
    /// Until its entry in there is durable.
    directory: Option<PathBuf>,
    reserve: Option<File>,
    released: bool,
    started: Instant,
    _lock: Option<Flock<File>>,
}

impl OutputFile {
    /// How far it may grow: the limit can be changed from outside at any time.
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
            // Not every file system can do this; the data itself is durable all the same.
            let synced = File::open(directory).and_then(|directory| directory.sync_all());
            synced.or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL | libc::EACCES | libc::EPERM) => Ok(()),
                _ => Err(error),
            })?;
            self.directory = None;
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

/// The directory that a file is in, or would be.
pub fn directory_of(path: &Path) -> &Path {
    let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_written_is_seen_to_be_and_refused_to_others() {
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
    fn who_only_asks_does_not_stand_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "old").unwrap();
        let asking = Flock::lock(File::open(&path).unwrap(), FlockArg::LockSharedNonblock);
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
