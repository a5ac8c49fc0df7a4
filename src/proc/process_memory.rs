//! The memory of another process, which is not stopped for it.

use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// Maximum number of pieces that the kernel reads in one call.
const PIECES_MAX: usize = 1024;

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

    /// Reads pieces, given by their addresses and lengths, one behind the other. Returns whether
    /// all of them are readable and fill the buffer.
    pub fn read_pieces(&self, pieces: &[(u64, usize)], into: &mut [u8]) -> bool {
        let mut rest = into;
        for some in pieces.chunks(PIECES_MAX) {
            let len: usize = some.iter().map(|(_, len)| len).sum();
            let Some((now, later)) = rest.split_at_mut_checked(len) else { return false };
            let remote: Option<Vec<RemoteIoVec>> = some
                .iter()
                .map(|(avma, len)| Some(RemoteIoVec { base: (*avma).try_into().ok()?, len: *len }))
                .collect();
            let Some(remote) = remote else { return false };
            if process_vm_readv(self.0, &mut [IoSliceMut::new(now)], &remote) != Ok(len) {
                return false;
            }
            rest = later;
        }
        rest.is_empty()
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
    #[test]
    fn pieces_are_read_together_or_not_at_all() {
        let own = ProcessMemory::of(std::process::id() as i32);
        let words: Vec<u64> = (0..3000).collect();
        let at = |index: usize| (&raw const words[index]) as u64;
        let pieces: Vec<(u64, usize)> =
            (0..2500).map(|piece| (at(piece), 8 + piece % 2 * 8)).collect();
        let expected: Vec<u8> = (0..2500)
            .flat_map(|piece| words[piece..].iter().take(1 + piece % 2))
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let mut into = vec![0; expected.len()];
        assert!(own.read_pieces(&pieces, &mut into));
        assert_eq!(into, expected);
        assert!(!own.read_pieces(&pieces, &mut into[1..]), "another length");
        assert!(!own.read_pieces(&[(at(0), 8), (16, 8)], &mut [0; 16]), "unreadable");
        assert!(own.read_pieces(&[], &mut []));
    }
}
