//! Access to the memory of another process.
//!
//! # Safety
//! Every call passes `process_vm_*` a buffer of its own with its length; nothing outlives the call.
#![allow(unsafe_code, reason = "system calls on the memory of another process")]

use std::ffi::c_void;
use std::io;

use super::watchdog;
use crate::fault;

/// Reads the memory of a process up to the first unmapped page. The process is named by the id of
/// one of its threads. Returns the number of bytes.
pub fn read_part(tid: i32, address: u64, into: &mut [u8]) -> usize {
    usize::try_from(read(tid, address, into)).unwrap_or(0)
}

fn read(tid: i32, address: u64, into: &mut [u8]) -> isize {
    watchdog::feed();
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: into.len() };
    // SAFETY: writes at most `into.len()` bytes to `into`, which this process owns.
    unsafe { libc::process_vm_readv(tid, &local, 1, &remote, 1, 0) }
}

fn whole(got: isize, wanted: usize) -> io::Result<()> {
    match usize::try_from(got) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(got) if got < wanted => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Ok(_) => Ok(()),
    }
}

/// Reads memory completely, or returns an error.
pub(super) fn read_all(tid: i32, address: u64, into: &mut [u8]) -> io::Result<()> {
    whole(read(tid, address, into), into.len())
}

/// Writes memory that the target itself may write, completely, or returns an error.
pub(super) fn write_all(tid: i32, address: u64, bytes: &[u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: bytes.len() };
    // SAFETY: reads `bytes`; the kernel checks the address in the other process.
    let got = unsafe { libc::process_vm_writev(tid, &local, 1, &remote, 1, 0) };
    let written = whole(got, bytes.len());
    fault::touched("process_vm_writev");
    written
}
