//! A thread that traces, and detaches every tracee when it ends.

use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

use super::watchdog::{self, Watchdog, Watched};

/// How long the start of the thread is tried again while no thread can be started.
const SHORTAGE_MAX: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(10);

/// Runs the closure in a thread of its own. When that thread ends, the kernel detaches all its
/// tracees, even those that have not stopped yet. A watchdog ends the process if that thread does
/// not run any more. The caller's own watchdog pauses meanwhile.
///
/// # Panics
/// Panics if the closure does, or if no thread can be started for some time. The end of the process
/// then detaches the tracees, and another process restores the target.
pub(in crate::inject) fn on_tracing_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // An attempt to start a thread consumes its closure, so the work is passed by reference.
    let work = Mutex::new(Some(work));
    let watchdog = Watchdog::new();
    let callers = watchdog::of_this_thread();
    let run = || {
        watchdog.watch_this_thread();
        callers.inspect(Watched::pause);
        work.lock().unwrap_or_else(PoisonError::into_inner).take().map(|work| work())
    };
    let since = Instant::now();
    let value = scope(|scope| {
        loop {
            match Builder::new().spawn_scoped(scope, run) {
                Ok(thread) => match thread.join() {
                    Ok(Some(value)) => return value,
                    Ok(None) => unreachable!("only one thread has taken the work"),
                    Err(panic) => std::panic::resume_unwind(panic),
                },
                Err(_) if since.elapsed() < SHORTAGE_MAX => watchdog::sleep(RETRY),
                Err(error) => panic!("no thread to trace: {error}"),
            }
        }
    });
    watchdog::resume();
    value
}
