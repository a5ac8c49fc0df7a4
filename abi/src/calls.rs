//! The system calls that the agent makes in a target, for the check against the target's seccomp
//! filters.
//!
//! # Invariants
//! - The agent takes its system call numbers from here, so the list cannot miss one of its calls.

/// A system call and the arguments that are known before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyscallPattern {
    /// Its name.
    pub name: &'static str,
    /// Its number.
    pub number: u64,
    /// Its arguments. `None` stands for any value.
    pub args: [Option<u64>; 6],
}

impl SyscallPattern {
    /// Creates a pattern from a call's first arguments. The kernel does not read the others.
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

/// Defines the numbers and lists every form in which the agent makes each call.
macro_rules! calls {
    ($($constant:ident = $number:literal $name:literal $([$($arg:expr),*])+;)+) => {
        /// System call numbers.
        pub mod nr {
            $(#[doc = $name] pub const $constant: u64 = $number;)+
        }

        /// Every call that the agent makes: in its entry, and in its handler on any thread.
        pub const AGENT: &[SyscallPattern] =
            &[$($(SyscallPattern::new($name, $number, &[$($arg),*])),+),+];
    };
}

/// Size of the kernel's signal set in bytes.
const SET_LEN: Option<u64> = Some(8);

calls! {
    RT_SIGACTION = 13 "rt_sigaction" [None, None, None, SET_LEN];
    // The memory probe, which changes nothing.
    RT_SIGPROCMASK = 14 "rt_sigprocmask" [Some(u32::MAX as u64), None, Some(0), SET_LEN];
    RT_SIGRETURN = 15 "rt_sigreturn" [];
    GETPID = 39 "getpid" [];
    GETTID = 186 "gettid" [];
    TIMER_CREATE = 222 "timer_create" [None, None, None];
    TIMER_SETTIME = 223 "timer_settime" [None, Some(0), None, Some(0)];
    TIMER_DELETE = 226 "timer_delete" [None];
    CLOCK_GETTIME = 228 "clock_gettime" [Some(1), None];
    RT_TGSIGQUEUEINFO = 297 "rt_tgsigqueueinfo" [None, None, None, None];
}
