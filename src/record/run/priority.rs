//! The collector's priority.
//!
//! A target with a thousand busy threads would leave the collector one turn in seconds: reading its
//! list of threads would take minutes, and its tables would run full. The thread sleeps nearly all
//! of the time.
//!
//! # Invariants
//! - It is one thread's: what must not inherit it is started in [`Raised::as_before`].
//!
//! # Safety
//! Two system calls without pointers.
#![allow(unsafe_code, reason = "getpriority and setpriority have no safe wrapper")]

/// A thread's priority, for one that is started while that of its parent is raised.
#[derive(Debug, Clone, Copy)]
pub struct Priority(i32);

impl Priority {
    /// That of the calling thread.
    pub fn of_this_thread() -> Self {
        // SAFETY: no pointers. On Linux the priority is the thread's.
        Self(unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) })
    }

    /// Gives it to the calling thread, where that is permitted: a lower one is always.
    pub fn assume(self) {
        set(self.0);
    }
}

/// The calling thread is scheduled before others, where that is permitted.
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

    /// Does something with the priority that there was before: threads and programs that it starts
    /// keep that one.
    pub(crate) fn as_before<T>(&self, work: impl FnOnce() -> T) -> T {
        let raised = Priority::of_this_thread();
        self.before.assume();
        let done = work();
        raised.assume();
        done
    }
}

fn set(priority: i32) {
    // SAFETY: no pointers. Refusal leaves it as it is.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, priority) };
}
