//! The calls into the C library. Seven calls do not justify a crate.
//!
//! # Safety
//! The declarations match the C library of 64-bit Linux. glibc and musl agree on them.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::ptr;

unsafe extern "C" {
    fn mmap(
        address: *mut c_void,
        len: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn munmap(address: *mut c_void, len: usize) -> c_int;
    fn ftruncate(file: c_int, len: i64) -> c_int;
    fn close(file: c_int) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn __errno_location() -> *mut c_int;
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

#[cfg(target_arch = "x86_64")]
const GETTID: c_long = 186;
#[cfg(target_arch = "x86_64")]
const MEMFD_CREATE: c_long = 319;
#[cfg(target_arch = "aarch64")]
const GETTID: c_long = 178;
#[cfg(target_arch = "aarch64")]
const MEMFD_CREATE: c_long = 279;

const READ_WRITE: c_int = 3;
const PRIVATE: c_int = 2;
const ANONYMOUS: c_int = 0x20;
const CLOSE_ON_EXEC: c_uint = 1;
const NEVER_EXECUTED: c_uint = 8;

/// Returns the id of the calling thread in its own pid namespace.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: touches no memory.
    unsafe { syscall(GETTID) as u32 }
}

/// Runs a function and restores the thread's error number, which the caller may still need.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: returns the address of the calling thread's error number.
    let errno = unsafe { __errno_location() };
    // SAFETY: it exists as long as the thread, and only the thread uses it.
    let before = unsafe { errno.read() };
    let result = work();
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}

/// Maps zeros of this length, private to the process. Returns null if there is no memory.
///
/// The mapping is of a memory file with this name, so that a profiler finds it. If the file cannot
/// be created, the mapping is anonymous.
pub(crate) fn map(name: &CStr, len: usize) -> *mut u8 {
    let named = match memory_file(name, len) {
        Some(file) => {
            let mapping = map_private(len, 0, file);
            // SAFETY: `memory_file` opened it, and no other code knows it. The mapping stays.
            unsafe { close(file) };
            mapping
        }
        None => ptr::null_mut(),
    };
    if named.is_null() { map_private(len, ANONYMOUS, -1) } else { named }
}

/// Unmaps a mapping of [`map`].
///
/// # Safety
/// The mapping must not be used any more.
pub(crate) unsafe fn unmap(base: *mut u8, len: usize) {
    // SAFETY: the caller vouches that it is a mapping of `map` and not in use.
    unsafe { munmap(base.cast(), len) };
}

/// Registers a function for each child of `fork`.
pub(crate) fn in_each_child(child: extern "C" fn()) {
    // SAFETY: the function stays. The C library drops the entry when it unloads the caller.
    unsafe { pthread_atfork(None, None, Some(child)) };
}

fn map_private(len: usize, flags: c_int, file: c_int) -> *mut u8 {
    // SAFETY: the kernel chooses the address, so no existing mapping changes.
    let base = unsafe { mmap(ptr::null_mut(), len, READ_WRITE, PRIVATE | flags, file, 0) };
    if base as isize == -1 { ptr::null_mut() } else { base.cast() }
}

fn memory_file(name: &CStr, len: usize) -> Option<c_int> {
    let open = |flags: c_uint| {
        let name: *const c_char = name.as_ptr();
        // SAFETY: the call reads the name, which ends with a zero.
        unsafe { syscall(MEMFD_CREATE, name, flags) as c_int }
    };
    // Kernels before 6.3 do not know the second flag, and later ones may be configured to require
    // it.
    let file = [CLOSE_ON_EXEC | NEVER_EXECUTED, CLOSE_ON_EXEC]
        .into_iter()
        .map(open)
        .find(|file| *file >= 0)?;
    // SAFETY: opened above.
    if unsafe { ftruncate(file, len as i64) } == 0 {
        return Some(file);
    }
    // SAFETY: opened above, and no other code knows it.
    unsafe { close(file) };
    None
}
