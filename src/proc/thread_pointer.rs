//! The thread pointer of a thread, found without stopping it.
//!
//! # Safety
//! One system call that no crate in use wraps; it writes two words that this module owns.
#![allow(unsafe_code, reason = "a system call that no crate in use wraps")]

use std::ptr;

/// The offsets of the robust list in a C library's thread block. The library registers the list
/// with the kernel when the thread starts (glibc) or takes its first robust lock (musl).
const LISTS_AT: [u64; 2] = [0x2e0, 0x88];
/// The bytes at the start of the block that are read. The block begins with its own address.
const BLOCK_LEN: usize = 24;

/// Returns the thread pointer of a thread, if its C library is known. It is derived from the one
/// address in the thread's block that the kernel shows, and the block must confirm it. `read` fills
/// a buffer from the thread's memory and returns the number of bytes.
pub fn thread_pointer(tid: i32, read: impl FnMut(u64, &mut [u8]) -> usize) -> Option<u64> {
    block_around(robust_list(tid)?, read)
}

fn block_around(list: u64, mut read: impl FnMut(u64, &mut [u8]) -> usize) -> Option<u64> {
    let mut is_block = |start: u64| {
        let mut block = [0; BLOCK_LEN];
        let got = read(start, &mut block);
        let (words, _) = block.as_chunks::<8>();
        got == BLOCK_LEN && words.first().is_some_and(|word| *word == start.to_le_bytes())
    };
    LISTS_AT.into_iter().filter_map(|at| list.checked_sub(at)).find(|start| is_block(*start))
}

/// Returns the list that the thread has registered with the kernel.
fn robust_list(tid: i32) -> Option<u64> {
    let (mut list, mut len) = (ptr::null_mut::<u8>(), 0usize);
    let places = (&raw mut list, &raw mut len);
    // SAFETY: writes one word to each of two locals that live across the call.
    let outcome = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, places.0, places.1) };
    (outcome == 0 && !list.is_null()).then_some(list as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use nix::unistd::gettid;

    use super::*;
    use crate::proc::read_memory;

    fn read(avma: u64, into: &mut [u8]) -> usize {
        let Ok(bytes) = read_memory(std::process::id() as i32, avma, into.len()) else { return 0 };
        into.copy_from_slice(&bytes);
        bytes.len()
    }

    #[test]
    fn a_thread_that_sleeps_is_known_by_its_block() {
        let ((sender, tid), (end, wait)) = (channel(), channel::<()>());
        let sleeper = std::thread::spawn(move || {
            let block: u64;
            // SAFETY: glibc's block begins with its own address, here and in the other thread.
            unsafe { std::arch::asm!("mov {}, fs:0", out(reg) block) };
            sender.send((gettid().as_raw(), block)).unwrap();
            wait.recv().unwrap_err();
        });
        let (tid, block) = tid.recv().unwrap();
        assert_eq!(thread_pointer(tid, read), Some(block));
        drop(end);
        sleeper.join().unwrap();
        assert_eq!(thread_pointer(tid, read), None, "the thread has exited");
    }

    #[test]
    fn memory_without_its_own_address_at_its_start_is_no_block() {
        let blocks = |start: u64| {
            move |avma: u64, into: &mut [u8]| {
                into[..8].copy_from_slice(&start.to_le_bytes());
                if avma == start { into.len() } else { 0 }
            }
        };
        assert_eq!(block_around(0x12e0, blocks(0x1000)), Some(0x1000));
        assert_eq!(block_around(0x1088, blocks(0x1000)), Some(0x1000));
        assert_eq!(block_around(0x1090, blocks(0x1000)), None);
        assert_eq!(block_around(0x80, blocks(0x1000)), None);
        assert_eq!(block_around(0x12e0, |_, into: &mut [u8]| into.len()), None);
    }
}
