//! The target's file system, as the target sees it.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, fstat, stat};

use super::root_walk;

/// The root directory of a process. It stays usable after the process has exited.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    /// The user whose files are trusted, besides root.
    owner: u32,
}

impl Root {
    /// Opens the root of a process that runs as the user `owner`.
    pub fn open(pid: i32, owner: u32) -> io::Result<Self> {
        Self::at(Path::new(&format!("/proc/{pid}/root")), owner)
    }

    /// Opens this directory as the root of a process.
    pub fn at(path: &Path, owner: u32) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self { directory: open(path, flags, Mode::empty())?, owner })
    }

    /// Whether this is also the root of the calling process.
    pub fn is_own(&self) -> bool {
        let (Ok(own), Ok(its)) = (stat("/"), fstat(&self.directory)) else { return false };
        (own.st_dev, own.st_ino) == (its.st_dev, its.st_ino)
    }

    /// Returns the identity of the root: its device and inode, and the user whose files are
    /// trusted.
    pub fn key(&self) -> Option<(u64, u64, u32)> {
        fstat(&self.directory).ok().map(|it| (it.st_dev, it.st_ino, self.owner))
    }

    /// Opens a file for reading. The file must be a regular file of the process's user or of root,
    /// and not a link: a file of another user is not trusted.
    pub fn read(&self, path: &Path) -> io::Result<File> {
        self.open_file(path, OFlag::O_NOFOLLOW)
    }

    /// Does the same as [`Self::read`], but through a link, for paths where only those two users
    /// can put one.
    pub fn read_linked(&self, path: &Path) -> io::Result<File> {
        self.open_file(path, OFlag::empty())
    }

    /// Opens a regular file of any user for reading. The caller checks which file it is.
    pub fn open_regular(&self, path: &Path) -> io::Result<File> {
        reopen(self.resolve(path, OFlag::O_PATH)?, |_| true)
    }

    fn open_file(&self, path: &Path, flags: OFlag) -> io::Result<File> {
        let found = self.resolve(path, flags | OFlag::O_PATH)?;
        let is_its_own = |found: &Metadata| found.uid() == self.owner || found.uid() == 0;
        reopen(found, is_its_own).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => {
                let text = format!("{} is no file of its own", path.display());
                io::Error::new(io::ErrorKind::PermissionDenied, text)
            }
            _ => error,
        })
    }

    /// Opens a directory, which the caller watches under [`descriptor_path`].
    pub fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        self.resolve(path, OFlag::O_PATH | OFlag::O_DIRECTORY)
    }

    /// Links are followed as the process would follow them.
    fn resolve(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC);
        let how = how.resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        match openat2(self.directory.as_fd(), path, how) {
            // Linux has this call since 5.6; a seccomp filter may refuse it.
            Err(Errno::ENOSYS | Errno::EPERM) => root_walk::resolve(&self.directory, path, flags),
            opened => Ok(opened?),
        }
    }
}

/// Opens a regular file of this system for reading, through links.
pub fn open_regular(path: &Path) -> io::Result<File> {
    reopen(open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?, |_| true)
}

/// Opens a found file for reading, if it is a regular file that is trusted. The file is not opened
/// before that: opening a device has effects, and opening a pipe waits for a writer.
fn reopen(found: OwnedFd, is_trusted: impl FnOnce(&Metadata) -> bool) -> io::Result<File> {
    let found = File::from(found);
    let status = found.metadata()?;
    if !status.is_file() || !is_trusted(&status) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut options = File::options();
    // Without this flag, opening a file with a lease would wait.
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(descriptor_path(&found))
}

/// Returns a path by which this process can reach an open file.
pub fn descriptor_path(descriptor: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use inotify::{Inotify, WatchMask};

    use super::*;

    #[test]
    fn links_lead_where_they_lead_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name);
        fs::create_dir(inside("real")).unwrap();
        fs::write(inside("real/file"), "its own").unwrap();
        symlink("/real", inside("linked")).unwrap();
        symlink("/etc/passwd", inside("escape")).unwrap();
        symlink("../../../../real/file", inside("up")).unwrap();
        let own = nix::unistd::geteuid().as_raw();
        let root = Root::at(folder.path(), own).unwrap();
        assert!(!root.is_own() && Root::open(std::process::id() as i32, own).unwrap().is_own());
        let read = |path: &str| root.read(Path::new(path)).is_ok();
        assert!(read("/real/file") && read("/linked/file") && read("real/file"));
        assert!(!read("/escape"), "a link in the last part is not followed");
        let linked = |path: &str| root.read_linked(Path::new(path)).ok();
        let text = std::io::read_to_string(linked("/up").unwrap()).unwrap();
        assert_eq!(text, "its own", "a link cannot lead above the root");
        assert!(linked("/escape").is_none(), "a link led outside of the root");
        assert!(!read("/up") && !read("/real") && !read("/nowhere"));
        // A file that is open for reading would be in use.
        let pipe = inside("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let writer =
            || File::options().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&pipe);
        let mut watched = Inotify::init().unwrap();
        watched.watches().add(&pipe, WatchMask::OPEN).unwrap();
        assert!(!read("/pipe") && linked("/pipe").is_none() && open_regular(&pipe).is_err());
        assert!(
            watched.read_events(&mut [0; 4096]).is_err() && writer().is_err(),
            "the pipe was opened"
        );
        assert!(open_regular(&inside("real/file")).is_ok() && open_regular(folder.path()).is_err());
        if own == 0 {
            std::os::unix::fs::chown(inside("real/file"), Some(12345), None).unwrap();
            assert!(!read("/real/file"), "a file of another user");
        }
    }
}
