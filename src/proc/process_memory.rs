//! The memory of another process, which is not stopped for it.

use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// The memory of a process.
#[derive(Debug, Clone, Copy)]
pub struct ProcessMemory(Pid);

impl ProcessMemory {
    /// Refers to the memory of the process with this id.
    pub fn of(pid: i32) -> Self {
        Self(Pid::from_raw(pid))
    }

    /// Reads up to the first unreadable page, and returns the number of bytes.
    pub fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        let Ok(base) = usize::try_from(avma) else { return 0 };
        let remote = [RemoteIoVec { base, len: into.len() }];
        process_vm_readv(self.0, &mut [IoSliceMut::new(into)], &remote).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_end_at_unreadable_memory() {
        let own = ProcessMemory::of(std::process::id() as i32);
        let text = b"some bytes of this process".to_vec();
        let mut into = vec![0; text.len()];
        assert_eq!(own.read(text.as_ptr() as u64, &mut into), text.len());
        assert_eq!(into, text);
        // No page follows the last one of the stack.
        let mappings = crate::proc::mappings(std::process::id() as i32).unwrap();
        let stack = mappings.iter().find(|it| it.path == "[stack]").unwrap();
        let mut more = [1; 64];
        assert_eq!(own.read(stack.end - 24, &mut more), 24);
        assert_eq!(more[24..], [1; 40]);
        assert_eq!(own.read(16, &mut more), 0);
        assert_eq!(ProcessMemory::of(0).read(text.as_ptr() as u64, &mut into), 0);
    }
}
