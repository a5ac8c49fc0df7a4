//! A system call that a thread of the target makes.

/// A system call with its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Syscall {
    /// The number of the system call.
    pub(super) number: i64,
    /// The arguments.
    pub(super) args: [u64; 6],
}

impl Syscall {
    /// Creates a call with up to six arguments.
    pub(super) fn new(number: i64, given: &[u64]) -> Syscall {
        let mut args = [0; 6];
        for (arg, value) in args.iter_mut().zip(given) {
            *arg = *value;
        }
        Syscall { number, args }
    }

    /// Creates an `rt_sigaction` call with the addresses of the new action and of the buffer for
    /// the old action; 0 for none.
    pub(super) fn sigaction(signal: i32, new: u64, old: u64) -> Syscall {
        const SIGSET_LEN: u64 = 8;
        Syscall::new(libc::SYS_rt_sigaction, &[signal as u64, new, old, SIGSET_LEN])
    }
}
