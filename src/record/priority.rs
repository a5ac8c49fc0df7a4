//! The collector's priority.
//!
//! # Safety
//! One system call without pointers.
#![allow(unsafe_code, reason = "setpriority has no safe wrapper")]

/// Lets the calling thread be scheduled before others, where that is permitted: a target with a
/// thousand busy threads would otherwise leave the collector one turn in seconds, and the tables
/// would run full. The thread sleeps nearly all of the time.
pub(super) fn raise() {
    const HIGHEST: i32 = -20;
    // SAFETY: no pointers. On Linux the priority is the thread's; refusal leaves it as it is.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, HIGHEST) };
}
