//! Reads of the target's memory.

use traceprof_abi::runtime::WordReader;

use crate::proc::ProcessMemory;

/// The memory of the target.
pub trait TargetMemory {
    /// Reads from an address on up to the first unreadable byte, and returns the number of bytes.
    fn read(&self, avma: u64, into: &mut [u8]) -> usize;

    /// Reads pieces, given by their addresses and lengths, one behind the other. Returns whether
    /// all of them are readable and fill the buffer.
    fn read_pieces(&self, pieces: &[(u64, usize)], into: &mut [u8]) -> bool {
        let mut rest = into;
        for (avma, len) in pieces {
            let Some((now, later)) = rest.split_at_mut_checked(*len) else { return false };
            if self.read(*avma, now) != *len {
                return false;
            }
            rest = later;
        }
        rest.is_empty()
    }
}

impl TargetMemory for ProcessMemory {
    fn read(&self, avma: u64, into: &mut [u8]) -> usize {
        Self::read(self, avma, into)
    }

    fn read_pieces(&self, pieces: &[(u64, usize)], into: &mut [u8]) -> bool {
        Self::read_pieces(self, pieces, into)
    }
}

/// Reads from memory that a test made by hand, and that begins at `start`.
#[cfg(test)]
pub(super) fn read_made((start, bytes): (u64, &[u8]), avma: u64, into: &mut [u8]) -> usize {
    let at = avma.checked_sub(start).and_then(|at| usize::try_from(at).ok());
    let Some(rest) = at.and_then(|at| bytes.get(at..)) else { return 0 };
    let len = rest.len().min(into.len());
    into[..len].copy_from_slice(&rest[..len]);
    len
}

/// The words of the target's memory, each read on its own.
#[derive(Clone, Copy)]
pub struct TargetWords<'m>(pub &'m dyn TargetMemory);

impl WordReader for TargetWords<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        word(self.0, avma)
    }
}

/// Bytes that were read at an address.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryPiece<'b> {
    pub(super) avma: u64,
    pub(super) bytes: &'b [u8],
}

impl<'b> MemoryPiece<'b> {
    /// Returns the bytes from this offset on.
    fn chunk<const N: usize>(&self, at: usize) -> Option<&'b [u8; N]> {
        self.bytes.get(at..)?.first_chunk()
    }

    pub(super) fn word(&self, at: usize) -> Option<u64> {
        self.chunk(at).map(|bytes| u64::from_le_bytes(*bytes))
    }

    pub(super) fn half(&self, at: usize) -> Option<u32> {
        self.chunk(at).map(|bytes| u32::from_le_bytes(*bytes))
    }
}

impl WordReader for MemoryPiece<'_> {
    fn load(&mut self, avma: u64) -> Option<u64> {
        self.word(usize::try_from(avma.checked_sub(self.avma)?).ok()?)
    }
}

pub(super) fn array<const N: usize>(memory: &dyn TargetMemory, avma: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (memory.read(avma, &mut bytes) == N).then_some(bytes)
}

pub(super) fn word(memory: &dyn TargetMemory, avma: u64) -> Option<u64> {
    array(memory, avma).map(u64::from_le_bytes)
}
