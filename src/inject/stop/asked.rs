//! A thread that was asked to stop and has not been seen to.
//!
//! Most stop within some tens of microseconds, some never: a thread that waits in the kernel for what
//! no signal ends, or the parent of a `vfork`. Whoever asks many of them looks at each now and then
//! rather than waiting for one after the other. A thread that has not stopped cannot be let go; that
//! takes the end of the tracing thread.

use std::io;
use std::time::{Duration, Instant};

use super::super::ptrace::Tracee;
use super::{NotStopped, SETTLED_MAX, Stopped, failed, wait_interrupt};
use crate::proc;

/// Longest time that signals which wait for a thread in a call are waited for.
const SIGNALS_MAX: Duration = Duration::from_millis(50);

/// See the module.
#[derive(Debug)]
pub(in super::super) struct Asked {
    tracee: Tracee,
    /// It had not yet stopped then.
    running: Instant,
}

/// What a look found.
pub(in super::super) enum Look {
    Stopped(Box<Stopped>),
    NotYet(Asked),
}

impl Asked {
    /// Seizes a thread of a process and asks it to stop.
    pub(in super::super) fn ask(pid: i32, tid: i32) -> Result<Asked, NotStopped> {
        let tracee = Tracee::seize(tid).map_err(|error| failed("PTRACE_SEIZE", &error))?;
        if proc::task_stat(pid, tid).is_err() {
            // The number is another process's by now. It goes on, and is let go with this thread.
            return Err(failed("PTRACE_SEIZE", &io::Error::from_raw_os_error(libc::ESRCH)));
        }
        let running = Instant::now();
        tracee.interrupt().map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
        Ok(Asked { tracee, running })
    }

    pub(in super::super) fn tid(&self) -> i32 {
        self.tracee.tid()
    }

    /// Whether it has stopped. Does not wait for that, but for signals that it is about to take.
    pub(in super::super) fn look(self) -> Result<Look, NotStopped> {
        let now = Instant::now();
        let Asked { tracee, running } = self;
        match wait_interrupt(&tracee, now) {
            Err(NotStopped::Timeout) => Ok(Look::NotYet(Asked { tracee, running: now })),
            Err(failure) => Err(failure),
            Ok(group) => {
                let mut stopped = Stopped::take(tracee, group, running, now + SETTLED_MAX)?;
                stopped.take_signals(now + SIGNALS_MAX)?;
                Ok(Look::Stopped(Box::new(stopped)))
            }
        }
    }
}
