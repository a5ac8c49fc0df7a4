//! That the process is still the one that was meant, and who stands in the way if it is not ours.

use super::error::InjectError;
use super::preflight;
use super::stop::Stopped;
use crate::proc;

/// One execution of a program: a process that executes another keeps its pid and its start time, and a
/// program without randomized addresses its code's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Execution {
    /// The address and the bytes that the kernel drew for it.
    Drawn(u64, [u8; 16]),
    /// It has none that could be read.
    Nameless,
    /// The process was just about to execute it, or to end.
    Unsettled,
}

impl Execution {
    /// That which the process is in now. What is read of it after this belongs to it if
    /// [`Execution::is_of`] says so of a thread that is stopped later.
    pub(super) fn of(pid: i32) -> Execution {
        // Of a leader that left its threads behind there is nothing to read.
        let others = std::iter::once_with(|| proc::tasks(pid).unwrap_or_default()).flatten();
        let known = std::iter::once(pid).chain(others).find_map(|tid| proc::drawn_bytes(tid).ok());
        match known {
            Some(Some((address, bytes))) => Execution::Drawn(address, bytes),
            Some(None) => Execution::Nameless,
            None => Execution::Unsettled,
        }
    }

    /// The thread runs this one, and as long as it is stopped it will.
    pub(super) fn is_of(&self, stopped: &Stopped) -> bool {
        match self {
            Execution::Drawn(address, bytes) => stopped.holds(*address, bytes),
            Execution::Nameless => true,
            Execution::Unsettled => false,
        }
    }
}

/// The process still runs and is still the same: a pid is reused, its start time is not.
pub(super) fn check(pid: i32, start_time: u64) -> Result<(), InjectError> {
    let gone = match proc::start_time(pid) {
        Ok(started) => started != start_time,
        Err(_) => true,
    };
    // A leader that left its threads behind is a zombie without memory, and no end.
    let ended = || match proc::status(pid) {
        Ok(status) => !status.has_memory && status.threads <= 1,
        Err(_) => true,
    };
    if gone || ended() { Err(InjectError::Gone) } else { Ok(()) }
}

/// `EPERM` means several things; `/proc` tells them apart.
pub(super) fn explain(pid: i32, tid: i32, error: InjectError) -> InjectError {
    if !matches!(error, InjectError::System { errno: libc::EPERM | libc::EACCES, .. }) {
        return error;
    }
    match proc::task_status(pid, tid) {
        Err(_) => InjectError::Gone,
        Ok(status) if proc::has_ended(status.state) => InjectError::Gone,
        Ok(status) if status.tracer != 0 => preflight::already_traced(status.tracer).into(),
        Ok(_) => InjectError::NotPermitted,
    }
}

/// Runs in a thread of its own. When a thread ends, the kernel lets go of all that it traced, even
/// of what has not stopped yet.
pub(super) fn disposable<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn execution_of_a_process_that_is_gone_is_that_of_nobody() {
        let own = std::process::id() as i32;
        assert!(matches!(Execution::of(own), Execution::Drawn(..)));
        assert_eq!(Execution::of(own), Execution::of(own));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while proc::task_stat(pid, pid).unwrap().state != 'Z' {
            assert!(std::time::Instant::now() < deadline, "it does not end");
            std::thread::yield_now();
        }
        assert_eq!(Execution::of(pid), Execution::Unsettled);
        child.wait().unwrap();
        assert_eq!(Execution::of(pid), Execution::Unsettled);
    }
}
