//! A lock on an open file (flock), which ends when the file is closed.
//!
//! # Safety
//! One system call, on a descriptor that stays open across it.
//!
//! # Does not
//! - unlock: the kernel does that with the last descriptor of the open file. An unlock may fail on
//!   a network file system, when nothing can be done about it any more.
#![allow(unsafe_code, reason = "flock")]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;

/// A locked file.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks a file for this holder alone.
    ///
    /// # Errors
    /// `WouldBlock` if another holder has a lock. The file comes back with every error.
    pub fn exclusive(file: File) -> Result<Self, (File, io::Error)> {
        Self::take(file, libc::LOCK_EX)
    }

    /// Locks a file against exclusive holders.
    ///
    /// # Errors
    /// `WouldBlock` if another holder has an exclusive lock. The file comes back with every error.
    pub fn shared(file: File) -> Result<Self, (File, io::Error)> {
        Self::take(file, libc::LOCK_SH)
    }

    fn take(file: File, kind: i32) -> Result<Self, (File, io::Error)> {
        loop {
            // SAFETY: takes numbers; the file is open.
            if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
                return Ok(Self(file));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err((file, error));
            }
        }
    }
}

impl Deref for FileLock {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_ends_with_its_last_descriptor() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(path.path()).unwrap();
        let first = open();
        let lock = FileLock::exclusive(first.try_clone().unwrap()).unwrap();
        let (_, refused) = FileLock::shared(open()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        assert!(FileLock::shared(open()).is_err(), "the first descriptor is still open");
        drop(first);
        let shared = [FileLock::shared(open()).unwrap(), FileLock::shared(open()).unwrap()];
        assert!(FileLock::exclusive(open()).is_err());
        drop(shared);
        assert!(FileLock::exclusive(open()).is_ok());
    }
}
