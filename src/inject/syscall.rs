//! A system call for a thread of the target to make.

/// A system call with its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Syscall {
    /// Its number.
    pub(super) number: i64,
    /// Its arguments.
    pub(super) args: [u64; 6],
}

impl Syscall {
    /// A call with up to six arguments.
    pub(super) fn new(number: i64, given: &[u64]) -> Syscall {
        let mut args = [0; 6];
        for (arg, value) in args.iter_mut().zip(given) {
            *arg = *value;
        }
        Syscall { number, args }
    }

    /// `rt_sigaction` with the addresses of the new action and of room for the old one, 0 for none.
    pub(super) fn sigaction(signal: i32, new: u64, old: u64) -> Syscall {
        const SIGSET_LEN: u64 = 8;
        Syscall::new(libc::SYS_rt_sigaction, &[signal as u64, new, old, SIGSET_LEN])
    }
}
