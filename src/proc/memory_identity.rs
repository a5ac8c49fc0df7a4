//! The identity of a process's memory, which shows whether the process still has the same memory.
//!
//! A process that executes another program gets new memory. It keeps everything else that
//! identifies it: its id, its start time, perhaps its name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The memory of a process at one time. The value keeps only the kernel's reference to the memory
/// alive.
///
/// The value stays usable whatever the process executes later, because the descriptor stays open.
/// If another process shares the memory, as a child of `vfork` does, the memory stays in use until
/// the last of them leaves it. For a stopped thread compare [`super::random_bytes`] instead.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// Returns the current memory of a process, or an error if the process may not be traced.
    pub fn of(pid: i32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/mem")).map(Self)
    }

    /// Whether no process uses the memory any more: its process has executed another program, or is
    /// about to exit. One system call of a microsecond.
    pub fn is_gone(&self) -> bool {
        // In memory that is in use, the first byte is readable, or unmapped, which is an error.
        matches!(self.0.read_at(&mut [0], 0), Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn memory_goes_with_the_program_not_with_the_process() {
        assert!(!Memory::of(std::process::id() as i32).unwrap().is_gone());
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo ready; read _; exec sh -c 'echo again; read _'"]);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        let first = Memory::of(child.id() as i32).unwrap();
        assert!(!first.is_gone());
        input.write_all(b"\n").unwrap();
        lines.next().unwrap().unwrap();
        assert!(first.is_gone(), "the same process with another program");
        let second = Memory::of(child.id() as i32).unwrap();
        assert!(!second.is_gone());
        input.write_all(b"\n").unwrap();
        child.wait().unwrap();
        assert!(second.is_gone() && Memory::of(child.id() as i32).is_err());
    }
}
