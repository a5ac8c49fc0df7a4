//! The resolution of a path inside another root directory, part by part, for kernels without
//! `openat2`.
//!
//! # Invariants
//! - `..` goes back to a directory that the walk came through, and so never above the root,
//!   whatever is renamed meanwhile.
//! - No link of /proc is followed: some of them lead out of the root.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

/// As many links as the kernel follows.
const LINKS_MAX: usize = 40;

/// Opens a path with `O_PATH` as `openat2` does with `RESOLVE_IN_ROOT` and `RESOLVE_NO_MAGICLINKS`.
/// Of the flags, `O_DIRECTORY` and `O_NOFOLLOW` count.
pub(super) fn resolve(root: &OwnedFd, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let mut way = Vec::new();
    let mut rest = VecDeque::new();
    push_front(&mut rest, path, &mut way);
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            way.pop();
            continue;
        }
        let here = way.last().unwrap_or(root);
        let found = open_part(here, &part, OFlag::O_NOFOLLOW)?;
        if !is_link(&found)? || (rest.is_empty() && flags.contains(OFlag::O_NOFOLLOW)) {
            way.push(found);
            continue;
        }
        links += 1;
        if links > LINKS_MAX || fstatfs(&found)?.filesystem_type() == PROC_SUPER_MAGIC {
            return Err(Errno::ELOOP.into());
        }
        let target = readlinkat(&found, "")?;
        push_front(&mut rest, Path::new(&target), &mut way);
    }
    let found = match way.pop() {
        Some(found) => found,
        None => root.try_clone()?,
    };
    if flags.contains(OFlag::O_DIRECTORY) && kind(&found)? != SFlag::S_IFDIR {
        return Err(Errno::ENOTDIR.into());
    }
    Ok(found)
}

/// Puts the parts of a path before the others. An absolute path starts at the root again.
fn push_front(rest: &mut VecDeque<OsString>, path: &Path, way: &mut Vec<OwnedFd>) {
    if path.is_absolute() {
        way.clear();
    }
    for component in path.components().rev() {
        match component {
            Component::Normal(part) => rest.push_front(part.to_owned()),
            Component::ParentDir => rest.push_front("..".into()),
            _ => {}
        }
    }
}

fn open_part(here: impl AsFd, part: &OsStr, flags: OFlag) -> io::Result<OwnedFd> {
    let flags = flags | OFlag::O_PATH | OFlag::O_CLOEXEC;
    Ok(openat(here, part.as_bytes(), flags, Mode::empty())?)
}

fn is_link(found: &OwnedFd) -> io::Result<bool> {
    Ok(kind(found)? == SFlag::S_IFLNK)
}

fn kind(found: &OwnedFd) -> io::Result<SFlag> {
    Ok(SFlag::from_bits_truncate(fstat(found)?.st_mode) & SFlag::S_IFMT)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use nix::fcntl::{OpenHow, ResolveFlag, open, openat2};

    use super::*;

    type Found = Result<(u64, u64), i32>;

    fn identity(found: io::Result<OwnedFd>) -> Found {
        let found = found.map_err(|error| error.raw_os_error().unwrap_or(0))?;
        let about = fs::File::from(found).metadata().unwrap();
        Ok((about.dev(), about.ino()))
    }

    #[test]
    fn it_finds_what_the_kernel_finds() {
        let folder = tempfile::tempdir().unwrap();
        let inside = |name: &str| folder.path().join(name);
        fs::create_dir_all(inside("real/deep")).unwrap();
        fs::write(inside("real/file"), "").unwrap();
        for (target, link) in [
            ("/real", "linked"),
            ("real/deep", "relative"),
            ("../../../real/file", "real/up"),
            ("/etc/passwd", "escape"),
            ("/linked/up", "twice"),
            ("loop", "loop"),
            ("/", "top"),
        ] {
            symlink(target, inside(link)).unwrap();
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open(folder.path(), flags, Mode::empty()).unwrap();
        let check = |path: &str, flags: OFlag, expected: Option<Result<(), i32>>| {
            let how = OpenHow::new().flags(flags | OFlag::O_PATH | OFlag::O_CLOEXEC);
            let in_root = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
            let walked = identity(resolve(&root, Path::new(path), flags));
            if let Ok(opened) = openat2(&root, path, how.resolve(in_root)) {
                assert_eq!(walked, identity(Ok(opened)), "{path}");
            }
            if let Some(expected) = expected {
                assert_eq!(walked.map(|_| ()), expected, "{path}");
            }
        };
        let (none, same) = (OFlag::empty(), Some(Ok(())));
        for path in ["/", "/real/file", "real/./file", "/linked/file", "/twice", "/real/up"] {
            check(path, none, same);
            check(path, OFlag::O_NOFOLLOW, same);
        }
        check("/../../real/deep/../../../real/file", none, same);
        check("top/top/relative/../file", none, same);
        check("/loop", OFlag::O_NOFOLLOW, same);
        check("/loop", none, Some(Err(libc::ELOOP)));
        check("/escape", none, Some(Err(libc::ENOENT)));
        check("/nowhere", none, Some(Err(libc::ENOENT)));
        check("/real/file/more", none, Some(Err(libc::ENOTDIR)));
        check("/linked", OFlag::O_DIRECTORY, same);
        check("/twice", OFlag::O_DIRECTORY, Some(Err(libc::ENOTDIR)));
    }

    #[test]
    fn no_link_of_proc_leads_out() {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = open("/", flags, Mode::empty()).unwrap();
        let found = resolve(&root, Path::new("/proc/self/root/etc"), OFlag::empty());
        assert_eq!(identity(found), Err(libc::ELOOP));
    }
}
