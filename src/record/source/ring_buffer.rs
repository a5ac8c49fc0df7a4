//! The ring buffer into which the kernel writes a perf event's records.
//!
//! # Safety
//! This is the only module that reads memory while the kernel writes it. Heads and tails are
//! atomics, and the bytes between them belong to the reader until it moves the tail.
#![allow(unsafe_code, reason = "the door to perf's mapped buffers")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
/// Offsets in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// A mapped ring buffer.
#[derive(Debug)]
pub(crate) struct RingBuffer {
    base: NonNull<u8>,
    /// The number of data bytes after the first page, a power of two.
    len: usize,
    /// The buffer for the record that is passed on.
    record: Vec<u8>,
}

// SAFETY: the mapping belongs to the process; one thread at a time reads it, through `&mut self`.
unsafe impl Send for RingBuffer {}

impl RingBuffer {
    /// Maps a buffer of `len` bytes (a power-of-two number of pages) for an event.
    ///
    /// The buffer is smaller if the user may not lock that much memory.
    pub(crate) fn map(event: &OwnedFd, mut len: usize) -> io::Result<Self> {
        const SMALLEST: usize = 16 * PAGE;
        loop {
            // SAFETY: a fresh mapping of the event at an address of the kernel's choice.
            let base = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    PAGE + len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED,
                    event.as_raw_fd(),
                    0,
                )
            };
            if base != libc::MAP_FAILED {
                let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::Other)?;
                return Ok(Self { base, len, record: Vec::new() });
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EPERM) || len <= SMALLEST {
                return Err(error);
            }
            len /= 2;
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the first page, which stays mapped while `self` lives.
        let address = unsafe { self.base.as_ptr().add(offset) }.cast::<u64>();
        // SAFETY: aligned, and both sides use it atomically.
        unsafe { AtomicU64::from_ptr(address) }
    }

    /// Passes each complete record to `each`, header included, and frees its room.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        // Acquire: pairs with the kernel's barrier before it moves the head; the records are
        // complete.
        let head = self.word(DATA_HEAD).load(Ordering::Acquire);
        // Relaxed: only this side writes the tail.
        let mut tail = self.word(DATA_TAIL).load(Ordering::Relaxed);
        let mut record = std::mem::take(&mut self.record);
        while head.wrapping_sub(tail) >= 8 {
            self.copy(tail, 8, &mut record);
            let size = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            if size < 8 || head.wrapping_sub(tail) < size as u64 {
                // The kernel does not write such a record, so the buffer is corrupt: skip
                // everything.
                tail = head;
                break;
            }
            self.copy(tail, size, &mut record);
            each(&record);
            tail += size as u64;
        }
        self.record = record;
        // Release: pairs with the kernel's read of the tail; our reads end before it writes there
        // again.
        self.word(DATA_TAIL).store(tail, Ordering::Release);
    }

    /// Copies `size` bytes from ring position `at`, wrapping around the end.
    fn copy(&self, at: u64, size: usize, out: &mut Vec<u8>) {
        out.clear();
        let start = at as usize & (self.len - 1);
        let first = size.min(self.len - start);
        for (offset, count) in [(start, first), (0, size - first)] {
            // SAFETY: within the data pages, after the first page.
            let from = unsafe { self.base.as_ptr().add(PAGE + offset) };
            // SAFETY: `count` bytes from there are mapped, and between tail and head, where the
            // kernel does not write.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(from, count) });
        }
    }
}

#[cfg(test)]
impl RingBuffer {
    /// Makes a buffer of `len` bytes that no kernel writes to.
    pub(crate) fn in_memory(len: usize) -> Self {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), PAGE + len, access, kind, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let base = NonNull::new(base.cast()).expect("not at address 0");
        Self { base, len, record: Vec::new() }
    }

    /// Writes a record as the kernel does.
    pub(crate) fn feed(&mut self, bytes: impl IntoIterator<Item = u8>) {
        let mut head = self.word(DATA_HEAD).load(Ordering::Relaxed);
        for byte in bytes {
            // SAFETY: within the data pages.
            let address = unsafe { self.base.as_ptr().add(PAGE + head as usize % self.len) };
            // SAFETY: mapped, and nothing else uses it.
            unsafe { address.write(byte) };
            head += 1;
        }
        self.word(DATA_HEAD).store(head, Ordering::Relaxed);
    }
}

impl Drop for RingBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made; no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), PAGE + self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a buffer of one page with these bytes.
    fn ring(head: u64, tail: u64, bytes: impl Fn(u64) -> u8) -> RingBuffer {
        let mut ring = RingBuffer::in_memory(PAGE);
        ring.word(DATA_TAIL).store(tail, Ordering::Relaxed);
        ring.word(DATA_HEAD).store(tail, Ordering::Relaxed);
        ring.feed((0..head - tail).map(bytes));
        ring
    }

    fn drained(ring: &mut RingBuffer) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        ring.drain(|record| records.push(record.to_vec()));
        records
    }

    #[test]
    fn records_that_wrap_around_the_end_are_complete() {
        let tail = 3 * PAGE as u64 - 20;
        // Two records of 24 bytes; the first one wraps around the end.
        let byte = |at: u64| if at % 24 == 6 { 24 } else { (at % 24 > 7) as u8 * at as u8 };
        let mut ring = ring(tail + 48, tail, byte);
        let expected: Vec<Vec<u8>> =
            (0..2).map(|record| (record * 24..record * 24 + 24).map(byte).collect()).collect();
        assert_eq!(drained(&mut ring), expected);
        assert_eq!(ring.word(DATA_TAIL).load(Ordering::Relaxed), tail + 48);
        assert!(drained(&mut ring).is_empty());
    }

    #[test]
    fn garbage_is_skipped() {
        for size in [0, 7, 255] {
            let mut ring = ring(40, 0, |at| if at == 6 { size } else { 0 });
            assert!(drained(&mut ring).is_empty());
            assert_eq!(ring.word(DATA_TAIL).load(Ordering::Relaxed), 40);
        }
    }
}
