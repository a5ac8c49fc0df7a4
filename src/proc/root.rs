//! The target's file system, as it sees it itself.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, fstat, stat};

/// The root directory of a process. It stays usable when the process is gone.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    /// Whose files are believed: the process's own and root's.
    owner: u32,
}

impl Root {
    /// Of a process that runs as the user `owner`.
    pub fn open(pid: i32, owner: u32) -> io::Result<Self> {
        Self::at(Path::new(&format!("/proc/{pid}/root")), owner)
    }

    /// Of a process whose root is this directory.
    pub fn at(path: &Path, owner: u32) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self { directory: open(path, flags, Mode::empty())?, owner })
    }

    /// It is the root of this process, too.
    pub fn is_own(&self) -> bool {
        let own = stat("/");
        let its = fstat(&self.directory);
        matches!((own, its), (Ok(own), Ok(its)) if (own.st_dev, own.st_ino) == (its.st_dev, its.st_ino))
    }

    /// What makes two of them the same: where the directory is, and whose files are believed.
    pub fn key(&self) -> Option<(u64, u64, u32)> {
        fstat(&self.directory).ok().map(|it| (it.st_dev, it.st_ino, self.owner))
    }

    /// Opens a file for reading. It must be a regular one of the process's user or of root, and no link:
    /// what a stranger has put there is not what the process says.
    pub fn read(&self, path: &Path) -> io::Result<File> {
        self.open_file(path, OFlag::O_NOFOLLOW)
    }

    /// The same through a link: of places where only those two can put one.
    pub fn read_linked(&self, path: &Path) -> io::Result<File> {
        self.open_file(path, OFlag::empty())
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

    /// A directory, to be watched under [`descriptor_path`].
    pub fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        self.resolve(path, OFlag::O_PATH | OFlag::O_DIRECTORY)
    }

    fn resolve(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        // Links are followed as the process would follow them.
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC);
        let how = how.resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(openat2(self.directory.as_fd(), path, how)?)
    }
}

/// Opens a regular file of this system for reading, through links.
pub fn open_regular(path: &Path) -> io::Result<File> {
    reopen(open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?, |_| true)
}

/// Opens for reading what was found, if it is a regular file that is believed. Before that it was not
/// opened: to open a device has effects, and a pipe waits for a writer.
fn reopen(found: OwnedFd, is_believed: impl FnOnce(&Metadata) -> bool) -> io::Result<File> {
    let found = File::from(found);
    let status = found.metadata()?;
    if !status.is_file() || !is_believed(&status) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut options = File::options();
    // A lease on it would be waited for.
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(descriptor_path(&found))
}

/// A path by which this process can reach an open file.
pub fn descriptor_path(descriptor: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::sys::inotify::{AddWatchFlags, InitFlags};

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
        assert_eq!(text, "its own", "upwards there is nothing but the root");
        assert!(linked("/escape").is_none(), "and nothing outside of it");
        assert!(!read("/up") && !read("/real") && !read("/nowhere"));
        // Opened for reading it would be in use.
        let pipe = inside("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let writer =
            || File::options().write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&pipe);
        let watched = nix::sys::inotify::Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        watched.add_watch(&pipe, AddWatchFlags::IN_OPEN).unwrap();
        assert!(!read("/pipe") && linked("/pipe").is_none() && open_regular(&pipe).is_err());
        assert!(watched.read_events().is_err() && writer().is_err(), "nobody has opened it");
        assert!(open_regular(&inside("real/file")).is_ok() && open_regular(folder.path()).is_err());
        if own == 0 {
            std::os::unix::fs::chown(inside("real/file"), Some(12345), None).unwrap();
            assert!(!read("/real/file"), "a stranger's");
        }
    }
}
