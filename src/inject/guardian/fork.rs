//! Forks a process that continues with this program's code.
//!
//! A lock that another thread holds at the fork stays locked in the child for ever, for example the
//! allocator's. So the forking process must have only one thread, which is checked.
//!
//! # Safety
//! The forked child runs one closure, and leaves by `_exit`.
#![allow(unsafe_code, reason = "forks")]

use std::io;
use std::marker::PhantomData;
use std::panic::{UnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nix::unistd::{ForkResult, fork};

use crate::proc;

/// Longest wait for threads that are exiting: the kernel may still list a joined thread.
const ENDING_MAX: Duration = Duration::from_secs(5);
/// Pause between two counts of the threads.
const RETRY: Duration = Duration::from_millis(1);

/// Proof that this process has only one thread. The proof cannot leave that thread.
#[derive(Debug)]
pub(in crate::inject) struct SingleThreaded(PhantomData<*const ()>);

impl SingleThreaded {
    /// Returns the proof, or an error while this process has more than one thread.
    pub(super) fn check() -> io::Result<SingleThreaded> {
        Self::check_for(ENDING_MAX)
    }

    fn check_for(patience: Duration) -> io::Result<SingleThreaded> {
        let since = Instant::now();
        loop {
            let threads = proc::tasks(std::process::id() as i32)?.len();
            if threads == 1 {
                return Ok(SingleThreaded(PhantomData));
            }
            if since.elapsed() >= patience {
                let why = format!("this process has {threads} threads, and must have one to fork");
                return Err(io::Error::other(why));
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Assumes that the other threads of this process are harmless, once the main thread sleeps. A
    /// main thread that is still starting the test's thread changes lists of the C library, which
    /// the child goes through.
    ///
    /// # Safety
    /// No other thread may hold a lock that the child takes. The C library unlocks its allocator in
    /// the child.
    #[cfg(test)]
    pub(in crate::inject) unsafe fn assume() -> SingleThreaded {
        let (since, pid) = (Instant::now(), std::process::id() as i32);
        let is_main = nix::unistd::gettid().as_raw() == pid;
        let main_runs = || proc::status(pid).is_ok_and(|status| status.state == 'R');
        while !is_main && main_runs() && since.elapsed() < ENDING_MAX {
            std::thread::sleep(RETRY);
        }
        SingleThreaded(PhantomData)
    }

    /// Forks a child that runs the closure and exits. Returns the child's pid.
    pub(super) fn fork(
        self,
        child: impl FnOnce() -> io::Result<()> + UnwindSafe,
    ) -> io::Result<i32> {
        // SAFETY: no other thread exists that could hold a lock. The caller of `assume` proves this
        // there.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let outcome = catch_unwind(child);
                // SAFETY: ends the process without the exit handlers of its parent.
                unsafe { libc::_exit(i32::from(outcome.is_err())) }
            }
            ForkResult::Parent { child } => Ok(child.as_raw()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::Pid;

    use super::*;
    use crate::inject::{ForkServer, Guardian};

    #[test]
    fn process_with_another_thread_is_not_forked() {
        let (end, wait) = channel::<()>();
        let other = std::thread::spawn(move || wait.recv());
        let refused = SingleThreaded::check_for(Duration::ZERO).unwrap_err().to_string();
        assert!(refused.contains(" threads, and must have one"), "{refused}");
        drop(end);
        let _ = other.join().unwrap();
    }

    /// Each starting thread is the other's second thread.
    #[test]
    fn neither_guardian_nor_fork_server_starts_beside_another_thread() {
        let starts: [fn() -> io::Result<()>; 2] =
            [|| Guardian::start().map(drop), || ForkServer::start().map(drop)];
        std::thread::scope(|scope| {
            for start in starts {
                scope.spawn(move || {
                    let refused = start().unwrap_err().to_string();
                    assert!(refused.contains("must have one"), "{refused}");
                });
            }
        });
    }

    /// The forked process has one thread, however many the test process has, so it may fork in
    /// turn.
    #[test]
    fn process_with_one_thread_is_forked() {
        let exit_of = |pid: i32| match waitpid(Pid::from_raw(pid), None) {
            Ok(WaitStatus::Exited(_, code)) => code,
            other => panic!("{other:?}"),
        };
        // SAFETY: the children take no lock but the allocator's.
        let alone = unsafe { SingleThreaded::assume() };
        let child = alone.fork(move || {
            let grandchild = SingleThreaded::check()?.fork(|| Ok(()))?;
            assert_eq!(exit_of(grandchild), 0);
            Ok(())
        });
        assert_eq!(exit_of(child.unwrap()), 0);
    }
}
