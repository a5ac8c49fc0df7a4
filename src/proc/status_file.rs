//! The status of a process that is read again and again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{DescriptorUse, Status, gone, parse_status, status};

/// Number of bytes that are read at first. Most statuses have half of it.
const LEN: usize = 4096;
const LEN_MAX: usize = 1 << 16;

/// A process whose status is read again and again. Its file stays open if there are descriptors to
/// spare: to open it takes as long as to read it.
#[derive(Debug)]
pub struct StatusFile {
    pid: i32,
    file: Option<File>,
    bytes: Vec<u8>,
}

impl StatusFile {
    /// Opens the status of a process.
    pub fn of(pid: i32) -> Self {
        let opened = File::open(format!("/proc/{pid}/status")).ok();
        let file = opened.filter(|file| DescriptorUse::Savings.allows(file));
        Self { pid, file, bytes: vec![0; LEN] }
    }

    /// Reads the status as it is now.
    pub fn read(&mut self) -> io::Result<Status> {
        let Some(file) = &self.file else { return status(self.pid) };
        loop {
            let got = file.read_at(&mut self.bytes, 0).map_err(gone)?;
            // The kernel writes the whole status in one read if it has room.
            if got < self.bytes.len() || got >= LEN_MAX {
                return parse_status(self.bytes.get(..got).unwrap_or_default());
            }
            self.bytes.resize(got * 2, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_file_has_the_status_of_each_moment() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let mut open = StatusFile::of(pid);
        assert!(open.file.is_some());
        let mut short = StatusFile { bytes: vec![0; 16], ..StatusFile::of(pid) };
        let mut by_path = StatusFile { file: None, ..StatusFile::of(pid) };
        for file in [&mut open, &mut short, &mut by_path] {
            let status = file.read().unwrap();
            assert_eq!((status.tgid, status.has_memory), (pid, true));
        }
        child.kill().unwrap();
        while open.read().unwrap().has_memory {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        for file in [&mut open, &mut short, &mut by_path] {
            assert_eq!(file.read().unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }
}
