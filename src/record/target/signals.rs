//! The signal of timers and of priming: its choice and its delivery.
//!
//! Signals that are ignored by default come first. Whatever the application does with the action,
//! and whatever it executes while one is pending, only samples are lost. A real-time signal kills
//! the program if its action is reset, or if it is still pending at an exec. Two of the four
//! signals ignored by default are usable: the kernel sends SIGURG only on request, and SIGWINCH
//! comes only from terminals. SIGCHLD and SIGCONT are in use. If the application handles both, an
//! unused real-time signal comes next. If it handles all signals, as Go's runtime does, SIGWINCH is
//! shared: our handler passes on every signal that is not ours.
//!
//! # Safety
//! One system call that no crate wraps.
#![allow(unsafe_code, reason = "rt_tgsigqueueinfo")]

use std::io;
use std::time::Duration;

use traceprof_abi::signal::SI_QUEUE;

use crate::proc;

/// Signals that are ignored by default and serve no other purpose here.
const IGNORED: [i32; 2] = [libc::SIGURG, libc::SIGWINCH];
/// Usable real-time signals, tried from the last one down; the C library and runtimes use those
/// from 32 on.
const REAL_TIME: std::ops::RangeInclusive<i32> = 40..=63;

/// How many times a running thread is checked again.
const RECHECKS: usize = 8;
/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(1);

/// A process's use of its signals, as masks in which bit 0 is signal 1.
///
/// A blocked signal stays pending, and a thread that waits for it in a call or through a descriptor
/// would mistake ours for the program's own. During such a call the thread does not block the
/// signals that it waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SignalUse {
    /// Signals that have a handler or are ignored on purpose.
    taken: u64,
    /// Signals that a thread blocks or waits for.
    blocked: u64,
    /// The number of threads that block all signals.
    all_blocked: u32,
    /// The number of threads that block SIGTRAP but not all signals.
    trap_blocked: u32,
    /// Threads that block all signals and wait for some of them in a call.
    pub(crate) waiting: Vec<LeftOutThread>,
    /// The thread or descriptor that waits for SIGTRAP.
    pub(crate) trap_waiter: Option<TrapWaiter>,
}

/// A thread that gets no timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeftOutThread {
    /// The outer thread id.
    pub(crate) tid: i32,
    /// The start time of the thread, since its id may be reused.
    pub(crate) start_time: u64,
}

/// Returns whether a thread is among these. Thread ids are reused, so the start time is compared
/// too.
pub(crate) fn is_listed(threads: &[LeftOutThread], pid: i32, tid: i32) -> bool {
    let started = || proc::task_stat(pid, tid).map_or(0, |stat| stat.start_time);
    threads.iter().any(|it| it.tid == tid && it.start_time == started())
}

/// The way in which the application waits for SIGTRAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrapWaiter {
    /// A descriptor that a thread reads.
    Descriptor,
    /// A thread that waits in a call.
    Thread(i32),
}

impl std::fmt::Display for TrapWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Descriptor => write!(f, "a signalfd of the application waits for SIGTRAP")?,
            Self::Thread(tid) => write!(f, "thread {tid} waits for SIGTRAP")?,
        }
        write!(f, " and would receive sampling signals")
    }
}

impl SignalUse {
    /// Reads the signal use of a process and all its threads.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
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
        for (tid, blocked, awaited) in recheck(pid, running) {
            found.add(pid, tid, blocked, awaited);
        }
        Ok(found)
    }

    /// Adds a thread with its blocked signals and those that it waits for.
    fn add(&mut self, pid: i32, tid: i32, blocked: u64, awaited: u64) {
        if holds(awaited, libc::SIGTRAP) {
            self.trap_waiter.get_or_insert(TrapWaiter::Thread(tid));
        }
        let blocked = blocked | awaited;
        // A thread that blocks all signals receives none of them.
        if blocks_all(blocked) {
            self.all_blocked += 1;
            if awaited != 0 {
                let start_time = proc::task_stat(pid, tid).map_or(0, |stat| stat.start_time);
                self.waiting.push(LeftOutThread { tid, start_time });
            }
        } else {
            self.blocked |= blocked;
            self.trap_blocked += u32::from(holds(blocked, libc::SIGTRAP));
        }
    }

    /// Returns the reason to suspect that something waits for SIGTRAP, if there is one.
    pub(crate) fn trap_doubt(&self) -> Option<String> {
        let blocked = || match self.trap_blocked {
            0 => None,
            1 => Some("a thread blocks SIGTRAP and possibly waits for it".to_owned()),
            some => Some(format!("{some} threads block SIGTRAP and possibly wait for it")),
        };
        self.trap_waiter.map(|waiter| waiter.to_string()).or_else(blocked)
    }

    /// Checks whether some thread blocks SIGTRAP and may receive another signal.
    pub(crate) fn blocks_only_trap(&self) -> bool {
        self.trap_blocked > 0
    }

    /// Returns the number of threads that block all signals, and the number of threads that block
    /// SIGTRAP but not all signals.
    pub(crate) fn signal_blocked(&self) -> (u32, u32) {
        (self.all_blocked, self.trap_blocked)
    }

    /// Excludes a signal from the choice.
    pub(crate) fn exclude(&mut self, signal: i32) {
        if (1..=64).contains(&signal) {
            self.taken |= 1 << (signal - 1);
            self.blocked |= 1 << (signal - 1);
        }
    }

    /// Chooses a free signal that does nothing by default.
    pub(crate) fn choose_harmless(&self) -> Option<i32> {
        IGNORED.into_iter().find(|signal| self.is_free(*signal))
    }

    fn is_free(&self, signal: i32) -> bool {
        !holds(self.taken | self.blocked, signal)
    }

    /// Chooses the signal to use; `None` if every signal is blocked somewhere.
    pub(crate) fn choose(&self) -> Option<i32> {
        let free = IGNORED.into_iter().chain(REAL_TIME.rev()).find(|signal| self.is_free(*signal));
        let shared = || {
            let is_open = |signal: &i32| !holds(self.blocked, *signal);
            // SIGWINCH first, since others send it less often.
            IGNORED.into_iter().rev().find(is_open)
        };
        free.or_else(shared)
    }
}

/// Checks the threads again that ran at the first check, since they may be between two waits.
///
/// Checks each thread until it sleeps, at most [`RECHECKS`] times. Returns thread id, blocked
/// signals and awaited signals.
fn recheck(pid: i32, mut running: Vec<(i32, u64)>) -> Vec<(i32, u64, u64)> {
    let mut found = Vec::new();
    for _ in 0..RECHECKS {
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

/// Returns whether a mask blocks every signal that could be chosen.
pub(crate) fn blocks_all(mask: u64) -> bool {
    IGNORED.iter().all(|signal| mask >> (signal - 1) & 1 == 1)
        && REAL_TIME.clone().all(|signal| mask >> (signal - 1) & 1 == 1)
}

/// Returns whether the recorder may queue the signal from outside.
///
/// A signal that is still pending at an exec must not kill the new program. Signals of timers end
/// with the timers.
pub(crate) fn is_queueable(signal: i32) -> bool {
    IGNORED.contains(&signal)
}

/// Queues a signal with a value to one thread.
pub(crate) fn send(pid: i32, tid: i32, signal: i32, value: u64) -> io::Result<()> {
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
        code: SI_QUEUE,
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

/// The signal of the `perf` engine.
pub(crate) const SIGTRAP: i32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(signals: impl IntoIterator<Item = i32>) -> u64 {
        signals.into_iter().fold(0, |mask, signal| mask | 1 << (signal - 1))
    }

    fn check(taken: u64, blocked: u64, expected: Option<i32>) {
        let signals = SignalUse { taken, blocked, ..SignalUse::default() };
        assert_eq!(signals.choose(), expected, "{taken:x} {blocked:x}");
    }

    #[test]
    fn the_safest_free_signal_is_chosen() {
        check(0, 0, Some(libc::SIGURG));
        check(bits([libc::SIGURG]), 0, Some(libc::SIGWINCH));
        check(0, bits([libc::SIGURG]), Some(libc::SIGWINCH));
        let both = bits(IGNORED);
        check(both, 0, Some(63));
        check(both | bits([63, 62]), bits([61]), Some(60));
        // Every signal has a handler, so the signal is shared.
        check(u64::MAX, 0, Some(libc::SIGWINCH));
        check(u64::MAX, bits([libc::SIGWINCH]), Some(libc::SIGURG));
        check(u64::MAX, u64::MAX, None);
    }

    #[test]
    fn signals_in_use_by_others_are_never_chosen() {
        let allowed = |signal: i32| {
            !matches!(signal, libc::SIGCHLD | libc::SIGCONT | libc::SIGTRAP | 32..=34)
        };
        let mut taken = 0;
        while let Some(signal) =
            (SignalUse { taken, blocked: taken, ..SignalUse::default() }).choose()
        {
            assert!(allowed(signal), "{signal}");
            taken |= bits([signal]);
        }
        assert_eq!(taken.count_ones(), 2 + 24);
    }

    #[test]
    fn after_a_reset_only_signals_ignored_by_default_are_chosen() {
        let mut signals = SignalUse::default();
        assert_eq!(signals.choose_harmless(), Some(libc::SIGURG));
        signals.exclude(libc::SIGURG);
        signals.exclude(0);
        assert_eq!(signals.choose_harmless(), Some(libc::SIGWINCH));
        signals.exclude(libc::SIGWINCH);
        assert_eq!((signals.choose_harmless(), signals.choose()), (None, Some(63)));
        (40..=63).for_each(|signal| signals.exclude(signal));
        assert_eq!(signals.choose(), None, "a signal that was taken from us is not shared");
    }

    fn used(threads: &[(u64, u64)]) -> SignalUse {
        let mut used = SignalUse::default();
        for (tid, (blocked, awaited)) in (1..).zip(threads) {
            used.add(std::process::id() as i32, tid, *blocked, *awaited);
        }
        used
    }

    #[test]
    fn an_awaited_signal_is_not_chosen() {
        let urgent = bits([libc::SIGURG]);
        assert_eq!(used(&[(0, 0), (0, urgent)]).choose(), Some(libc::SIGWINCH));
        let found = used(&[(0, 0), (urgent, bits([libc::SIGTRAP]))]);
        assert_eq!(found.trap_waiter, Some(TrapWaiter::Thread(2)));
        assert_eq!((found.signal_blocked(), found.waiting.len()), ((0, 1), 0));
        assert_eq!(found.choose(), Some(libc::SIGWINCH));
    }

    /// Such a thread would receive its own timer's signals.
    #[test]
    fn a_thread_that_waits_for_all_signals_gets_no_timer_and_excludes_no_signal() {
        for (blocked, awaited) in [(0, u64::MAX), (u64::MAX, u64::MAX), (!2, 2)] {
            let found = used(&[(0, 0), (blocked, awaited)]);
            assert_eq!(found.choose(), Some(libc::SIGURG));
            assert_eq!(found.waiting, [LeftOutThread { tid: 2, start_time: 0 }]);
        }
        assert_eq!(used(&[(u64::MAX, 0)]).waiting, []);
    }

    #[test]
    fn a_thread_that_blocks_all_signals_excludes_no_signal() {
        assert!(blocks_all(u64::MAX));
        // The signals that the C library's sigfillset leaves out.
        assert!(blocks_all(!bits([9, 19, 32, 33])));
        assert!(!blocks_all(!bits([libc::SIGURG])));
        assert!(!blocks_all(0));
    }
}
