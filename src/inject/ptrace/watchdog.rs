//! A watchdog over a tracer, so that no thread stays stopped because its tracer does not run.
//!
//! A stopped thread depends on its tracer. SIGSTOP, a debugger or a paused control group may stop
//! the tracer itself, in the middle of its work, and no other process may be left that notices. So
//! two timers of the kernel watch it, which go on while the process does not. The first one sends
//! SIGCONT, which ends a stop by SIGSTOP. The second one sends SIGKILL, which also reaches a
//! frozen process: the end of a tracer releases its tracees. The tracer sets both timers back with
//! each request and each pause, so they do not expire while it works.
//!
//! # Invariants
//! - The timers outlive the tracing thread, because only the end of that thread releases the last
//!   tracees.
//! - SIGKILL is off while a thread would be lost without its tracer.
//!
//! # Does not
//! - act in a frozen control group of version 1, where SIGKILL, too, waits for the thaw.
//!
//! # Safety
//! Each system call takes numbers, or reads a structure of its caller.
#![allow(unsafe_code, reason = "timers that end their own process")]

use std::cell::Cell;
use std::mem::zeroed;
use std::time::{Duration, Instant};

/// A stopped process continues after this time without a request.
const CONTINUE_AFTER: Duration = Duration::from_millis(200);
/// A process ends after this time without a request. It is long: a tracer without real-time
/// priority waits for a processor for seconds where thousands of threads want one.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// Shortest time between two settings of the timers.
const FEED_INTERVAL: Duration = Duration::from_millis(20);

/// The timers of one tracing thread. Dropping the value deletes them.
#[derive(Debug)]
pub(in crate::inject) struct Watchdog {
    continues: Option<KernelTimer>,
    kills: Option<KernelTimer>,
}

/// A timer that belongs to this process, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KernelTimer(i32);

/// The watchdog of the calling thread, and when it was set last.
#[derive(Debug, Clone, Copy)]
pub(in crate::inject) struct Watched {
    continues: Option<KernelTimer>,
    kills: Option<KernelTimer>,
    fed: Instant,
    may_kill: bool,
}

thread_local! {
    static WATCHED: Cell<Option<Watched>> = const { Cell::new(None) };
}

impl Watchdog {
    /// Creates the timers, which do not run yet. A kernel or a filter that refuses timers leaves
    /// the tracer unwatched: it works all the same.
    pub(in crate::inject) fn new() -> Watchdog {
        let create = |signal| KernelTimer::create(signal).ok();
        Watchdog { continues: create(libc::SIGCONT), kills: create(libc::SIGKILL) }
    }

    /// Starts the timers for the work of the calling thread.
    pub(in crate::inject) fn watch_this_thread(&self) {
        let Watchdog { continues, kills } = *self;
        Watched { continues, kills, fed: Instant::now(), may_kill: true }.restart();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let is_own = |it: &Watched| (it.continues, it.kills) == (self.continues, self.kills);
        // The thread that created the timers may also be the one that they watched.
        if WATCHED.get().as_ref().is_some_and(is_own) {
            WATCHED.set(None);
        }
        for timer in [self.continues, self.kills].into_iter().flatten() {
            timer.delete();
        }
    }
}

impl Watched {
    /// Stops the timers, because another watched thread does the work.
    pub(in crate::inject) fn pause(&self) {
        self.set_to(Duration::ZERO, Duration::ZERO);
    }

    /// Sets the timers back and makes this the watchdog of the calling thread.
    fn restart(self) {
        let kill_after = if self.may_kill { KILL_AFTER } else { Duration::ZERO };
        self.set_to(CONTINUE_AFTER, kill_after);
        WATCHED.set(Some(Watched { fed: Instant::now(), ..self }));
    }

    /// Sets the times after which the timers expire: never for no time.
    fn set_to(&self, continue_after: Duration, kill_after: Duration) {
        for (timer, after) in [(self.continues, continue_after), (self.kills, kill_after)] {
            timer.into_iter().for_each(|timer| timer.set(after));
        }
    }
}

/// Sets the timers of the calling thread back, if it is watched.
pub(in crate::inject) fn feed() {
    if let Some(watched) = WATCHED.get()
        && watched.fed.elapsed() >= FEED_INTERVAL
    {
        watched.restart();
    }
}

/// Sleeps. A loop that waits for the target pauses with this function, so that no timer expires.
pub(in crate::inject) fn sleep(duration: Duration) {
    let until = Instant::now() + duration;
    loop {
        feed();
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(CONTINUE_AFTER / 2));
    }
}

/// Returns the watchdog of the calling thread.
pub(in crate::inject) fn of_this_thread() -> Option<Watched> {
    WATCHED.get()
}

/// Starts the timers of the calling thread again after a pause.
pub(in crate::inject) fn resume() {
    if let Some(watched) = WATCHED.get() {
        watched.restart();
    }
}

/// Sets whether the end of the calling thread's process releases its tracees unharmed.
pub(in crate::inject) fn set_may_kill(may_kill: bool) {
    if let Some(watched) = WATCHED.get()
        && watched.may_kill != may_kill
    {
        Watched { may_kill, ..watched }.restart();
    }
}

impl KernelTimer {
    /// Creates a timer that sends this process a signal.
    fn create(signal: i32) -> std::io::Result<KernelTimer> {
        // SAFETY: all zero is a value of this plain structure.
        let mut event: libc::sigevent = unsafe { zeroed() };
        (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, signal);
        let mut number = 0i32;
        // SAFETY: reads the event and writes the number, both of which are this call's own.
        let outcome = unsafe {
            libc::syscall(libc::SYS_timer_create, libc::CLOCK_MONOTONIC, &event, &mut number)
        };
        match outcome {
            0 => Ok(KernelTimer(number)),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Lets the timer expire once, after this time; never after no time.
    fn set(self, after: Duration) {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let once = libc::timespec {
            tv_sec: after.as_secs() as i64,
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let setting = libc::itimerspec { it_interval: never, it_value: once };
        let old = std::ptr::null_mut::<libc::itimerspec>();
        // SAFETY: reads the setting, which is this call's own.
        unsafe { libc::syscall(libc::SYS_timer_settime, self.0, 0, &setting, old) };
    }

    fn delete(self) {
        // SAFETY: takes a number.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0) };
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{SigSet, Signal, raise};
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    use nix::unistd::{ForkResult, Pid, fork};

    use super::*;
    use crate::inject::ptrace::tracing_thread::on_tracing_thread;

    /// Runs a tracer in a child, and returns its pid.
    fn tracer(work: impl FnOnce()) -> Pid {
        // SAFETY: the child takes no lock that another thread of the test may hold.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let _ = SigSet::all().thread_block();
                let watchdog = Watchdog::new();
                watchdog.watch_this_thread();
                work();
                drop(watchdog);
                // SAFETY: ends the child without the exit handlers of the test.
                unsafe { libc::_exit(3) }
            }
        }
    }

    #[test]
    fn tracer_that_sigstop_stops_continues_each_time() {
        let child = tracer(|| {
            for _ in 0..3 {
                let _ = raise(Signal::SIGSTOP);
                std::thread::sleep(FEED_INTERVAL);
                feed();
            }
        });
        for _ in 0..3 {
            let stopped = waitpid(child, Some(WaitPidFlag::WUNTRACED)).unwrap();
            assert_eq!(stopped, WaitStatus::Stopped(child, Signal::SIGSTOP));
        }
        assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 3));
    }

    #[test]
    fn tracer_that_makes_no_request_ends_unless_its_tracee_would_be_lost() {
        let sleeps = || std::thread::sleep(KILL_AFTER * 2);
        let spared = tracer(|| {
            set_may_kill(false);
            sleeps();
        });
        let child = tracer(sleeps);
        let killed = WaitStatus::Signaled(child, Signal::SIGKILL, false);
        assert_eq!(waitpid(child, None).unwrap(), killed);
        assert_eq!(waitpid(spared, None).unwrap(), WaitStatus::Exited(spared, 3));
    }

    #[test]
    fn tracer_that_works_or_waits_is_left_alone() {
        let works = || {
            let since = Instant::now();
            while since.elapsed() < KILL_AFTER + CONTINUE_AFTER {
                feed();
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let waits = || sleep(KILL_AFTER + CONTINUE_AFTER);
        let children = [tracer(works), tracer(waits), tracer(|| on_tracing_thread(works))];
        for child in children {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 3));
        }
    }

    #[test]
    fn tracer_is_watched_again_after_the_work_of_another_thread() {
        let child = tracer(|| {
            on_tracing_thread(|| ());
            std::thread::sleep(KILL_AFTER * 2);
        });
        let killed = WaitStatus::Signaled(child, Signal::SIGKILL, false);
        assert_eq!(waitpid(child, None).unwrap(), killed);
    }
}
