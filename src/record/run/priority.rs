//! The collector's priority.
//!
//! Beside a target with a thousand busy threads, the collector would run once in several seconds.
//! Reading the list of threads would take minutes, and the tables would fill up. The collector
//! sleeps nearly all of the time, so a high priority does not disturb others.
//!
//! # Invariants
//! - Only one thread has the high priority. Threads and programs that must not inherit it are
//!   started in [`Raised::as_before`].
//!
//! # Safety
//! Two system calls without pointers.
#![allow(unsafe_code, reason = "getpriority and setpriority have no safe wrapper")]

/// A thread's priority (nice value), for a thread that a parent with raised priority starts.
#[derive(Debug, Clone, Copy)]
pub struct Priority(i32);

impl Priority {
    /// Returns the priority of the calling thread.
    pub fn of_this_thread() -> Self {
        // SAFETY: no pointers. On Linux the call concerns the calling thread alone.
        Self(unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) })
    }

    /// Sets this priority for the calling thread, if that is permitted. Lowering always is.
    pub fn assume(self) {
        set(self.0);
    }
}

/// The raised priority of the calling thread, if that is permitted.
#[derive(Debug)]
pub(crate) struct Raised {
    before: Priority,
}

impl Raised {
    /// Raises the calling thread's priority.
    pub(crate) fn raise() -> Self {
        const HIGHEST: i32 = -20;
        let before = Priority::of_this_thread();
        set(HIGHEST);
        Self { before }
    }

    /// Runs `work` with the earlier priority. Threads and programs that `work` starts keep the
    /// earlier priority.
    pub(crate) fn as_before<T>(&self, work: impl FnOnce() -> T) -> T {
        let raised = Priority::of_this_thread();
        self.before.assume();
        let done = work();
        raised.assume();
        done
    }
}

fn set(priority: i32) {
    // SAFETY: no pointers. A refused call changes nothing.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, priority) };
}
