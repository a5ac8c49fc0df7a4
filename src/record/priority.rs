//! The collector's priority.
//!
//! A target with a thousand busy threads would leave the collector one turn in seconds: reading its
//! list of threads would take minutes, and its tables would run full. The thread sleeps nearly all of
//! the time.
//!
//! # Invariants
//! - It is one thread's: what must not inherit it is started in [`Raised::as_before`].
//!
//! # Safety
//! Two system calls without pointers.
#![allow(unsafe_code, reason = "getpriority and setpriority have no safe wrapper")]

/// The calling thread is scheduled before others, where that is permitted.
#[derive(Debug)]
pub(super) struct Raised {
    before: i32,
}

impl Raised {
    /// Raises the calling thread's priority.
    pub(super) fn raise() -> Self {
        const HIGHEST: i32 = -20;
        // SAFETY: no pointers. On Linux the priority is the thread's.
        let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        set(HIGHEST);
        Self { before }
    }

    /// Does something with the priority that there was before: threads and programs that it starts
    /// keep that one.
    pub(super) fn as_before<T>(&self, work: impl FnOnce() -> T) -> T {
        // SAFETY: as above.
        let raised = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        set(self.before);
        let done = work();
        set(raised);
        done
    }
}

fn set(priority: i32) {
    // SAFETY: no pointers. Refusal leaves it as it is.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, priority) };
}
