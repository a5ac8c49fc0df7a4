//! The privileges that a file gives to its program: set-uid, set-gid and file capabilities.
//!
//! The kernel withholds them from a program whose tracer lacks CAP_SYS_PTRACE (`bprm_fill_uid` and
//! `cap_bprm_creds_from_file`). The program would run without them and fail, or do something else.
//!
//! # Safety
//! One system call, which writes into a buffer of this module.
#![allow(unsafe_code, reason = "getxattr")]

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access};

use super::command;
use crate::proc;
use crate::record::contract::error::RecordError;

const CAP_SYS_PTRACE: u32 = 19;

/// Refuses a command that would run without the privileges that its file gives.
pub(crate) fn check(command: &OsStr) -> Result<(), RecordError> {
    let Some(file) = command::find(command).map(program_of) else { return Ok(()) };
    let Some(what) = gained(&file) else { return Ok(()) };
    Err(RecordError::NotPermitted(anyhow!(
        "cannot start {} with its privileges: {} {what}, which the kernel withholds if a process \
         without CAP_SYS_PTRACE traces the start; run traceprof as root, or record what the \
         program starts, as in `sudo traceprof record -- COMMAND`",
        command.display(),
        file.display(),
    )))
}

/// Returns what the file gives to a program that this process traces, if that is withheld.
fn gained(file: &Path) -> Option<String> {
    let own = proc::status(std::process::id() as i32).ok()?;
    let is_capable = own.cap_effective >> CAP_SYS_PTRACE & 1 == 1;
    // Without a tracer the program would not get them either.
    let never = || {
        own.no_new_privileges
            || statvfs(file).is_ok_and(|mount| mount.flags().contains(FsFlags::ST_NOSUID))
    };
    if is_capable || access(file, AccessFlags::X_OK).is_err() || never() {
        return None;
    }
    let data = file.metadata().ok().filter(fs::Metadata::is_file)?;
    let (mode, uid, gid) = (data.permissions().mode(), data.uid(), data.gid());
    let is_mapped = is_in_map("uid_map", uid) && is_in_map("gid_map", gid);
    if is_mapped && mode & libc::S_ISUID != 0 && uid != own.uid {
        return Some(format!("is set-uid (uid {uid})"));
    }
    // Without this bit of execution, set-gid means something else. From Linux 6.16 on a program
    // keeps a group that its user is in, but then it cannot be attached to.
    let set_group = libc::S_ISGID | libc::S_IXGRP;
    if is_mapped && mode & set_group == set_group && gid != own.gid {
        return Some(format!("is set-gid (gid {gid})"));
    }
    // Root has all capabilities anyway.
    let lacks = |permitted: u64| permitted & own.cap_bounding & !own.cap_permitted != 0;
    (own.uid != 0 && file_capabilities(file).is_some_and(lacks))
        .then(|| "has file capabilities (see getcap)".to_owned())
}

/// Whether the id exists in this process's user namespace.
fn is_in_map(map: &str, id: u32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/self/{map}")) else { return true };
    text.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse().unwrap_or(0u64));
        let (first, _, count) = (numbers.next(), numbers.next(), numbers.next());
        let first = first.unwrap_or(0);
        (first..first + count.unwrap_or(0)).contains(&u64::from(id))
    })
}

/// Returns the file whose privileges count: of a script, those of its interpreter.
fn program_of(mut file: PathBuf) -> PathBuf {
    /// The depth of scripts as interpreters of scripts that the kernel permits.
    const DEPTH: u32 = 5;
    for _ in 0..DEPTH {
        match interpreter(&file) {
            Some(next) => file = next,
            None => break,
        }
    }
    file
}

/// Returns the program in the first line of a script.
fn interpreter(file: &Path) -> Option<PathBuf> {
    /// The length of the first line that the kernel reads.
    const HEAD: u64 = 256;
    let mut head = Vec::new();
    // A pipe would wait for a writer.
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    File::open(file).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.split(|byte| b" \t".contains(byte)).find(|word| !word.is_empty())?;
    Some(OsString::from_vec(name.to_vec()).into())
}

/// Returns the permitted capabilities in the attribute of the file, if they count in this user
/// namespace.
fn file_capabilities(file: &Path) -> Option<u64> {
    const NAME: &std::ffi::CStr = c"security.capability";
    /// The largest attribute, with the root user of a namespace.
    const LENGTH: usize = 24;
    let path = CString::new(file.as_os_str().as_bytes()).ok()?;
    let mut value = [0u8; LENGTH];
    // SAFETY: both names end with a zero byte, and the kernel writes at most the buffer's length.
    let len = unsafe {
        libc::getxattr(path.as_ptr(), NAME.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    permitted(value.get(..usize::try_from(len).ok()?)?)
}

/// Returns the permitted capabilities of an attribute's value.
fn permitted(value: &[u8]) -> Option<u64> {
    let word = |at: usize| {
        let bytes = value.get(at * 4..at * 4 + 4)?;
        Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)))
    };
    // The third revision is for the namespaces of another root user; the kernel shows it as the
    // second one where it counts.
    match word(0)? >> 24 {
        1 => word(1),
        2 => Some(word(1)? | word(3)? << 32),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_each_revision_are_read() {
        let value =
            |words: &[u32]| words.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<_>>();
        let raw = 1 << 13;
        assert_eq!(permitted(&value(&[0x0100_0001, raw, 0])), Some(1 << 13));
        assert_eq!(permitted(&value(&[0x0200_0001, raw, 0, 1, 0])), Some(1 << 13 | 1 << 32));
        assert_eq!(permitted(&value(&[0x0300_0001, raw, 0, 0, 0, 1000])), None);
        assert_eq!(permitted(&value(&[0x0200_0001, raw])), None);
        assert_eq!(permitted(&[]), None);
    }

    #[test]
    fn privileges_of_a_script_are_those_of_its_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("one"), "#! /bin/sh -e\n").unwrap();
        fs::write(path("two"), format!("#!{}\n", path("one").display())).unwrap();
        fs::write(path("ring"), format!("#!{}", path("ring").display())).unwrap();
        fs::write(path("text"), "#!").unwrap();
        assert_eq!(program_of(path("two")), Path::new("/bin/sh"));
        for own in ["ring", "text", "missing"] {
            assert_eq!(program_of(path(own)), path(own));
        }
    }

    #[test]
    fn ordinary_programs_are_started() {
        assert!(check(OsStr::new("true")).is_ok());
        assert!(check(OsStr::new("no-such-program")).is_ok());
        assert!(is_in_map("uid_map", nix::unistd::getuid().as_raw()));
    }
}
