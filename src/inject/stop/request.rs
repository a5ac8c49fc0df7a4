//! A requested stop of a thread that has not been observed yet.
//!
//! Most threads stop within some tens of microseconds. Some never do: threads in uninterruptible
//! sleep, such as the parent of a `vfork`. A tracer of many threads polls each of them repeatedly.
//! A thread that has not stopped cannot be detached; only the end of the tracing thread releases
//! it.

use std::time::{Duration, Instant};

use super::{NotStopped, SETTLED_MAX, Stopped, failed, wait_interrupt};
use crate::inject::ptrace::Tracee;
use crate::proc;

/// Longest wait for the delivery of signals to a thread in a call.
const SIGNALS_MAX: Duration = Duration::from_millis(50);

/// A requested stop.
#[derive(Debug)]
pub(in crate::inject) struct StopRequest {
    tracee: Tracee,
    /// The time when the thread was last seen to run.
    seen_running: Instant,
}

/// The result of a poll.
pub(in crate::inject) enum StopPoll {
    Stopped(Box<Stopped>),
    NotYet(StopRequest),
}

impl StopRequest {
    /// Seizes a thread of a process and requests its stop.
    pub(in crate::inject) fn send(pid: i32, tid: i32) -> Result<StopRequest, NotStopped> {
        let tracee = Tracee::seize(tid).map_err(|error| failed("PTRACE_SEIZE", &error))?;
        if let Err(error) = proc::task_stat(pid, tid) {
            // The tid belongs to another process now, or that is unknown. The thread continues, and
            // the end of this thread detaches it.
            return Err(NotStopped::from_reading("/proc/PID/task", &error));
        }
        let seen_running = Instant::now();
        tracee.interrupt().map_err(|error| failed("PTRACE_INTERRUPT", &error))?;
        Ok(StopRequest { tracee, seen_running })
    }

    pub(in crate::inject) fn tid(&self) -> i32 {
        self.tracee.tid()
    }

    /// Checks whether the thread has stopped. This does not wait for the stop, but it waits for the
    /// delivery of pending signals.
    pub(in crate::inject) fn poll(self) -> Result<StopPoll, NotStopped> {
        let now = Instant::now();
        let StopRequest { tracee, seen_running } = self;
        match wait_interrupt(&tracee, now) {
            Err(NotStopped::Timeout) => {
                Ok(StopPoll::NotYet(StopRequest { tracee, seen_running: now }))
            }
            Err(failure) => Err(failure),
            Ok(group) => {
                let mut stopped = Stopped::take(tracee, group, seen_running, now + SETTLED_MAX)?;
                stopped.take_signals(now + SIGNALS_MAX)?;
                Ok(StopPoll::Stopped(Box::new(stopped)))
            }
        }
    }
}
