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
use std::time::Duration;

use crate::proc;

/// Signals that are ignored by default and that nobody needs for anything else.
const IGNORED: [i32; 2] = [libc::SIGURG, libc::SIGWINCH];
/// Real-time signals from the last one down; 32 to 34 are the C library's, 34 and the next ones are
/// what runtimes take.
const REAL_TIME: std::ops::RangeInclusive<i32> = 40..=63;

/// How often a thread that runs is looked at,
const LOOKS: usize = 8;
/// and how long after one another.
const PAUSE: Duration = Duration::from_millis(1);

/// What a process does with its signals; bit 0 is signal 1.
///
/// A signal that is blocked waits, and one who waits for it in a call or through a descriptor would take
/// a hit of ours for the program's own. While it is in that call, the thread does not block what it waits
/// for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// Has a handler, or is ignored on purpose.
    taken: u64,
    /// Is blocked by a thread or waited for.
    blocked: u64,
    /// Threads that block everything.
    deaf: u32,
    /// Threads that take signals, but block SIGTRAP.
    deaf_to_trap: u32,
    /// Of the deaf ones those that wait for signals in a call.
    pub(super) waiting: Vec<Waiting>,
    /// How SIGTRAP is waited for, if it is.
    pub(super) trap_waiter: Option<TrapWaiter>,
}

/// A thread that blocks everything but what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Its id.
    pub(super) tid: i32,
    /// When it started, as its id may be another's later.
    pub(super) start_time: u64,
}

/// Who waits for SIGTRAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TrapWaiter {
    /// Whoever reads a descriptor.
    Descriptor,
    /// A thread that is in a call for it.
    Thread(i32),
}

impl std::fmt::Display for TrapWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Descriptor => write!(f, "a signalfd of the application waits for SIGTRAP")?,
            Self::Thread(tid) => write!(f, "thread {tid} waits for SIGTRAP")?,
        }
        write!(f, " and would be given hits")
    }
}

impl Use {
    /// Looks at a process and at all of its threads.
    pub(super) fn of(pid: i32) -> io::Result<Self> {
        let status = proc::status(pid)?;
        let descriptors = proc::signalfd_masks(pid);
        let mut found = Self {
            taken: status.caught | status.ignored,
            blocked: descriptors,
            trap_waiter: holds(descriptors, libc::SIGTRAP).then_some(TrapWaiter::Descriptor),
            ..Self::default()
        };
        let mut running = Vec::new();
        for tid in proc::tasks(pid)? {
            let Ok(thread) = proc::task_status(pid, tid) else { continue };
            match thread.state {
                'S' => found.add(pid, tid, thread.blocked, proc::awaited_in_call(pid, tid)),
                _ => running.push((tid, thread.blocked)),
            }
        }
        for (tid, blocked, awaited) in look_again(pid, running) {
            found.add(pid, tid, blocked, awaited);
        }
        Ok(found)
    }

    /// One thread more: what it blocks, and what it waits for.
    fn add(&mut self, pid: i32, tid: i32, blocked: u64, awaited: u64) {
        if holds(awaited, libc::SIGTRAP) {
            self.trap_waiter.get_or_insert(TrapWaiter::Thread(tid));
        }
        let blocked = blocked | awaited;
        // One that blocks everything gets no signal, whichever it is.
        if blocks_all(blocked) {
            self.deaf += 1;
            if awaited != 0 {
                let start_time = proc::task_stat(pid, tid).map_or(0, |stat| stat.start_time);
                self.waiting.push(Waiting { tid, start_time });
            }
        } else {
            self.blocked |= blocked;
            self.deaf_to_trap += u32::from(holds(blocked, libc::SIGTRAP));
        }
    }

    /// Why SIGTRAP may be waited for, if so.
    pub(super) fn trap_doubt(&self) -> Option<String> {
        let blocked = || match self.deaf_to_trap {
            0 => None,
            1 => Some("a thread blocks SIGTRAP, as who waits for it does".to_owned()),
            some => Some(format!("{some} threads block SIGTRAP, as who waits for it does")),
        };
        self.trap_waiter.map(|waiter| waiter.to_string()).or_else(blocked)
    }

    /// There is a thread that SIGTRAP does not reach, and another signal may.
    pub(super) fn is_open_elsewhere(&self) -> bool {
        self.deaf_to_trap > 0
    }

    /// Threads that take no signal at all, and those that block SIGTRAP but not all.
    pub(super) fn deaf(&self) -> (u32, u32) {
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
    pub(super) fn choose_harmless(&self) -> Option<i32> {
        IGNORED.into_iter().find(|signal| self.is_free(*signal))
    }

    fn is_free(&self, signal: i32) -> bool {
        !holds(self.taken | self.blocked, signal)
    }

    /// The signal to use; `None` if each of them is blocked somewhere.
    pub(super) fn choose(&self) -> Option<i32> {
        let free = IGNORED.into_iter().chain(REAL_TIME.rev()).find(|signal| self.is_free(*signal));
        let shared = || {
            let is_open = |signal: &i32| !holds(self.blocked, *signal);
            // The one that is sent less often by others first.
            IGNORED.into_iter().rev().find(is_open)
        };
        free.or_else(shared)
    }
}

/// Threads (id, what it blocks, what it waits for) that ran at the first look: such a one may be between
/// two waits. It is looked at until it sleeps, or has been long enough.
fn look_again(pid: i32, mut running: Vec<(i32, u64)>) -> Vec<(i32, u64, u64)> {
    let mut found = Vec::new();
    for _ in 0..LOOKS {
        if running.is_empty() {
            break;
        }
        std::thread::sleep(PAUSE);
        running.retain_mut(|(tid, blocked)| {
            let Ok(thread) = proc::task_status(pid, *tid) else { return false };
            *blocked |= thread.blocked;
            let is_asleep = thread.state == 'S';
            if is_asleep {
                found.push((*tid, *blocked, proc::awaited_in_call(pid, *tid)));
            }
            !is_asleep
        });
    }
    found.extend(running.into_iter().map(|(tid, blocked)| (tid, blocked, 0)));
    found
}

fn holds(mask: u64, signal: i32) -> bool {
    mask >> (signal - 1) & 1 == 1
}

/// What the shell calls a signal.
pub(super) fn name_of(signal: i32) -> String {
    match nix::sys::signal::Signal::try_from(signal) {
        Ok(known) => known.as_str().to_owned(),
        Err(_) => format!("real-time signal {signal}"),
    }
}

/// A signal's name, as in SIGTRAP.
pub(super) fn signal_name(signal: i32) -> String {
    let name = nix::sys::signal::Signal::try_from(signal).map(nix::sys::signal::Signal::as_str);
    name.map_or_else(|_| format!("signal {signal}"), str::to_owned)
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

    fn used(threads: &[(u64, u64)]) -> Use {
        let mut used = Use::default();
        for (tid, (blocked, awaited)) in (1..).zip(threads) {
            used.add(std::process::id() as i32, tid, *blocked, *awaited);
        }
        used
    }

    #[test]
    fn what_is_waited_for_is_not_taken() {
        let urgent = bits([libc::SIGURG]);
        assert_eq!(used(&[(0, 0), (0, urgent)]).choose(), Some(libc::SIGWINCH));
        let found = used(&[(0, 0), (urgent, bits([libc::SIGTRAP]))]);
        assert_eq!(found.trap_waiter, Some(TrapWaiter::Thread(2)));
        assert_eq!((found.deaf(), found.waiting.len()), ((0, 1), 0));
        assert_eq!(found.choose(), Some(libc::SIGWINCH));
    }

    /// Its own timer's hits would come to it.
    #[test]
    fn who_waits_for_everything_has_no_say_and_no_timer() {
        for (blocked, awaited) in [(0, u64::MAX), (u64::MAX, u64::MAX), (!2, 2)] {
            let found = used(&[(0, 0), (blocked, awaited)]);
            assert_eq!(found.choose(), Some(libc::SIGURG));
            assert_eq!(found.waiting, [Waiting { tid: 2, start_time: 0 }]);
        }
        assert_eq!(used(&[(u64::MAX, 0)]).waiting, []);
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
