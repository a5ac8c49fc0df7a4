//! The signal of timers and of priming: which one, and sending it.
//!
//! A signal that is ignored by default comes first: whatever the application does with its action,
//! whatever it executes while one is pending, costs samples at most. A real-time signal that is
//! reset, or that is still pending when another program is executed, ends the program. Of the four
//! signals that are ignored by default two will do: nobody sends SIGURG who was not asked to, and
//! SIGWINCH comes from terminals only; SIGCHLD and SIGCONT have work to do. Where the application
//! handles both, an unused real-time signal is next. Where it handles all of them, as Go's runtime
//! does, SIGWINCH is shared with it: its handler gets all that is not ours.
//!
//! # Safety
//! One system call that no crate wraps.
#![allow(unsafe_code, reason = "rt_tgsigqueueinfo")]

use std::io;

use crate::proc;

/// Signals that are ignored by default and that nobody needs for anything else.
const IGNORED: [i32; 2] = [libc::SIGURG, libc::SIGWINCH];
/// Real-time signals from the last one down; 32 to 34 are the C library's, 34 and the next ones are
/// what runtimes take.
const REAL_TIME: std::ops::RangeInclusive<i32> = 40..=63;

/// What a process does with its signals; bit 0 is signal 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// Has a handler, or is ignored on purpose.
    taken: u64,
    /// Is blocked by a thread or waited for through a descriptor.
    blocked: u64,
    /// Threads that block everything.
    deaf: u32,
    /// Threads that take signals, but block SIGTRAP.
    deaf_to_trap: u32,
}

impl Use {
    /// Looks at a process and at all of its threads.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        let status = proc::status(pid)?;
        let (mut masks, mut deaf, mut deaf_to_trap) = (0, 0, 0);
        for tid in proc::tasks(pid)? {
            match proc::task_status(pid, tid) {
                // One that blocks everything gets no signal, whichever it is.
                Ok(thread) if blocks_all(thread.blocked) => deaf += 1,
                Ok(thread) => {
                    masks |= thread.blocked;
                    deaf_to_trap += u32::from(thread.blocks(libc::SIGTRAP));
                }
                Err(_) => {}
            }
        }
        let blocked = masks | proc::signalfd_masks(pid);
        Ok(Self { taken: status.caught | status.ignored, blocked, deaf, deaf_to_trap })
    }

    /// There is a thread that SIGTRAP does not reach, and another signal may.
    pub(super) fn is_open_elsewhere(self) -> bool {
        self.deaf_to_trap > 0
    }

    /// Threads that take no signal at all, and those that block SIGTRAP but not all.
    pub(super) fn deaf(self) -> (u32, u32) {
        (self.deaf, self.deaf_to_trap)
    }

    /// A signal that is not to be chosen.
    pub(super) fn leave_out(&mut self, signal: i32) {
        if (1..=64).contains(&signal) {
            self.taken |= 1 << (signal - 1);
            self.blocked |= 1 << (signal - 1);
        }
    }

    /// A free signal that does nothing by default.
    pub(super) fn choose_harmless(self) -> Option<i32> {
        IGNORED.into_iter().find(|signal| self.is_free(*signal))
    }

    fn is_free(self, signal: i32) -> bool {
        (self.taken | self.blocked) >> (signal - 1) & 1 == 0
    }

    /// The signal to use; `None` if each of them is blocked somewhere.
    pub(super) fn choose(self) -> Option<i32> {
        let free = IGNORED.into_iter().chain(REAL_TIME.rev()).find(|signal| self.is_free(*signal));
        let shared = || {
            let is_open = |signal: &i32| self.blocked >> (signal - 1) & 1 == 0;
            // The one that is sent less often by others first.
            IGNORED.into_iter().rev().find(is_open)
        };
        free.or_else(shared)
    }
}

/// What the shell calls a signal.
pub(super) fn name_of(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(known) => known.as_str().to_owned(),
        Err(_) => format!("real-time signal {signal}"),
    }
}

/// Whether a mask is that of a thread that wants no signal at all.
pub(super) fn blocks_all(mask: u64) -> bool {
    IGNORED.iter().all(|signal| mask >> (signal - 1) & 1 == 1)
        && REAL_TIME.clone().all(|signal| mask >> (signal - 1) & 1 == 1)
}

/// Whether the signal may be queued from outside: one that is still pending when another program is
/// executed must not end it. (Those of timers go with the timers.)
pub(super) fn is_queueable(signal: i32) -> bool {
    IGNORED.contains(&signal)
}

/// Queues a signal with a value to one thread.
pub(super) fn send(pid: i32, tid: i32, signal: i32, value: u64) -> io::Result<()> {
    /// `siginfo_t` as far as the kernel reads it.
    #[repr(C)]
    struct Queued {
        signal: i32,
        errno: i32,
        code: i32,
        padding: i32,
        sender: i32,
        user: u32,
        value: u64,
        rest: [u64; 12],
    }
    const _: () = assert!(size_of::<Queued>() == 128);
    let queued = Queued {
        signal,
        errno: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        sender: std::process::id() as i32,
        user: nix::unistd::getuid().as_raw(),
        value,
        rest: [0; 12],
    };
    // SAFETY: the call reads the 128 bytes of a siginfo.
    let sent =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, &raw const queued) };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(signals: impl IntoIterator<Item = i32>) -> u64 {
        signals.into_iter().fold(0, |mask, signal| mask | 1 << (signal - 1))
    }

    fn check(taken: u64, blocked: u64, expected: Option<i32>) {
        let signals = Use { taken, blocked, ..Use::default() };
        assert_eq!(signals.choose(), expected, "{taken:x} {blocked:x}");
    }

    #[test]
    fn the_safest_signal_that_is_free_is_taken() {
        check(0, 0, Some(libc::SIGURG));
        check(bits([libc::SIGURG]), 0, Some(libc::SIGWINCH));
        check(0, bits([libc::SIGURG]), Some(libc::SIGWINCH));
        let both = bits(IGNORED);
        check(both, 0, Some(63));
        check(both | bits([63, 62]), bits([61]), Some(60));
        // Everything has a handler: shared.
        check(u64::MAX, 0, Some(libc::SIGWINCH));
        check(u64::MAX, bits([libc::SIGWINCH]), Some(libc::SIGURG));
        check(u64::MAX, u64::MAX, None);
    }

    #[test]
    fn nobody_elses_signal_is_ever_taken() {
        let allowed = |signal: i32| {
            !matches!(signal, libc::SIGCHLD | libc::SIGCONT | libc::SIGTRAP | 32..=34)
        };
        let mut taken = 0;
        while let Some(signal) = (Use { taken, blocked: taken, ..Use::default() }).choose() {
            assert!(allowed(signal), "{signal}");
            taken |= bits([signal]);
        }
        assert_eq!(taken.count_ones(), 2 + 24);
    }

    #[test]
    fn after_a_reset_only_what_does_nothing_by_default_is_taken() {
        let mut signals = Use::default();
        assert_eq!(signals.choose_harmless(), Some(libc::SIGURG));
        signals.leave_out(libc::SIGURG);
        signals.leave_out(0);
        assert_eq!(signals.choose_harmless(), Some(libc::SIGWINCH));
        signals.leave_out(libc::SIGWINCH);
        assert_eq!((signals.choose_harmless(), signals.choose()), (None, Some(63)));
        (40..=63).for_each(|signal| signals.leave_out(signal));
        assert_eq!(signals.choose(), None, "none is shared that was taken from us");
    }

    #[test]
    fn a_thread_that_wants_no_signal_has_no_say() {
        assert!(blocks_all(u64::MAX));
        // What sigfillset of the C library leaves out.
        assert!(blocks_all(!bits([9, 19, 32, 33])));
        assert!(!blocks_all(!bits([libc::SIGURG])));
        assert!(!blocks_all(0));
    }
}
