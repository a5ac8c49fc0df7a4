//! The program that a process runs: its file, and its command line.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{open, read_file, to_io};

/// The class and machine of an executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElfKind {
    /// Whether the executable is 64-bit, not 32-bit.
    pub is_64: bool,
    /// `e_machine`: 62 is x86-64, 183 is aarch64, 3 is i386.
    pub machine: u16,
}

/// Returns the class and machine of the executable that a process runs.
pub fn elf_kind(pid: i32) -> io::Result<ElfKind> {
    let mut header = [0u8; 20];
    File::open(format!("/proc/{pid}/exe"))?.read_exact(&mut header)?;
    if header[..4] != *b"\x7fELF" {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the executable is not ELF"));
    }
    Ok(ElfKind { is_64: header[4] == 2, machine: u16::from_le_bytes([header[18], header[19]]) })
}

/// Returns the path of the executable as the target sees it.
pub fn executable(pid: i32) -> io::Result<PathBuf> {
    open(pid)?.exe().map_err(to_io)
}

/// Returns the command line of a process, without empty arguments at its end. Programs that write a
/// title there fill the remaining space with zeros.
pub fn command_line(pid: i32) -> io::Result<Vec<OsString>> {
    Ok(words(&read_file(format!("/proc/{pid}/cmdline"))?))
}

fn words(command_line: &[u8]) -> Vec<OsString> {
    let end = command_line.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let words = command_line[..end].split(|&byte| byte == 0);
    words.filter(|_| end > 0).map(|word| OsStr::from_bytes(word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_not_followed_by_empty_words() {
        let check = |bytes: &[u8], expected: &[&str]| assert_eq!(words(bytes), expected);
        check(b"cat\0\0a b\0", &["cat", "", "a b"]);
        check(b"redis-server *:7777\0\0\0\0", &["redis-server *:7777"]);
        check(b"nginx: worker", &["nginx: worker"]);
        check(b"\0\0", &[]);
        check(b"", &[]);
    }
}
