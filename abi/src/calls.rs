//! The system calls that the agent makes in a target, where seccomp filters may forbid them.
//!
//! # Invariants
//! - The agent takes its numbers from here, so that none of its calls can be missing in the list.

/// A system call with what is known of its arguments before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Its name.
    pub name: &'static str,
    /// Its number.
    pub number: u64,
    /// Its arguments; `None` for one that may have any value.
    pub args: [Option<u64>; 6],
}

impl Made {
    /// A call, given its first arguments; the others are not looked at by the kernel.
    pub const fn new(name: &'static str, number: u64, given: &[Option<u64>]) -> Self {
        let mut args = [None; 6];
        let mut index = 0;
        while index < given.len() {
            args[index] = given[index];
            index += 1;
        }
        Self { name, number, args }
    }
}

/// Names each number, and lists every way in which the call is made.
macro_rules! calls {
    ($($constant:ident = $number:literal $name:literal $([$($arg:expr),*])+;)+) => {
        /// System call numbers.
        pub mod nr {
            $(#[doc = $name] pub const $constant: u64 = $number;)+
        }

        /// Every call of the agent: of its entry, and of its handler in any thread.
        pub const AGENT: &[Made] = &[$($(Made::new($name, $number, &[$($arg),*])),+),+];
    };
}

/// Bytes of the kernel's signal set.
const SET_LEN: Option<u64> = Some(8);

calls! {
    RT_SIGACTION = 13 "rt_sigaction" [None, None, None, SET_LEN];
    // A probe of memory that changes nothing, and the mask of a handler that passes a signal on.
    RT_SIGPROCMASK = 14 "rt_sigprocmask"
        [Some(u32::MAX as u64), None, Some(0), SET_LEN] [Some(2), None, Some(0), SET_LEN];
    RT_SIGRETURN = 15 "rt_sigreturn" [];
    GETPID = 39 "getpid" [];
    GETTID = 186 "gettid" [];
    TIMER_CREATE = 222 "timer_create" [None, None, None];
    TIMER_SETTIME = 223 "timer_settime" [None, Some(0), None, Some(0)];
    TIMER_DELETE = 226 "timer_delete" [None];
    CLOCK_GETTIME = 228 "clock_gettime" [Some(1), None];
    RT_TGSIGQUEUEINFO = 297 "rt_tgsigqueueinfo" [None, None, None, None];
}
