//! A program stopped between its execve and its first instruction.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::fault::{self, FaultPoint};
use crate::inject::error::InjectError;
use crate::inject::ptrace::watchdog::Watchdog;
use crate::inject::ptrace::{Resume, Tracee, TraceeEvent};
use crate::inject::stop::{NotStopped, Stopped};
use crate::inject::target::identity;
use crate::proc::wait_readable;

/// Longest time from the seize to the exec: the file may be on a slow disk.
const EXEC_MAX: Duration = Duration::from_secs(30);
/// Interval at which the wait for the exec checks whether the recorder has exited.
const SLICE: Duration = Duration::from_millis(50);

/// A child of the recorder, seized before its exec.
#[derive(Debug)]
pub(in crate::inject) struct HeldProgram {
    pid: i32,
    tracee: Tracee,
    executed: bool,
    watchdog: Watchdog,
}

impl HeldProgram {
    /// Seizes the child, which continues to wait for the recorder.
    pub(in crate::inject) fn seize(pid: i32) -> Result<HeldProgram, InjectError> {
        let tracee = Tracee::seize(pid).map_err(|error| {
            identity::explain(pid, pid, InjectError::system("PTRACE_SEIZE", &error))
        })?;
        let watchdog = Watchdog::new();
        watchdog.watch_this_thread();
        Ok(HeldProgram { pid, tracee, executed: false, watchdog })
    }

    /// Waits for the exec and for the stop after it, before the program's first instruction.
    ///
    /// The exec reports a stop of its own, inside the system call. If the tracer set registers
    /// there, the call's result would overwrite one of them.
    pub(in crate::inject) fn wait_exec(
        &mut self,
        recorder: BorrowedFd<'_>,
    ) -> Result<(), InjectError> {
        let deadline = Instant::now() + EXEC_MAX;
        loop {
            match self.wait(deadline, recorder)? {
                TraceeEvent::Exec => {
                    self.tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
                    self.executed = true;
                    fault::at(FaultPoint::HoldExecuted);
                    self.resume(0)?;
                }
                TraceeEvent::Interrupt | TraceeEvent::Group if self.executed => {
                    fault::at(FaultPoint::HoldStopped);
                    return Ok(());
                }
                TraceeEvent::Interrupt | TraceeEvent::Group | TraceeEvent::Syscall => {
                    self.resume(0)?
                }
                TraceeEvent::Signal(signal) => self.resume(signal)?,
                TraceeEvent::Exited(code) => return Err(InjectError::ExitedBeforeExec { code }),
                TraceeEvent::Timeout => {
                    return Err(InjectError::WouldNotStop { tid: self.pid, state: '?' });
                }
            }
        }
    }

    fn wait(
        &self,
        deadline: Instant,
        recorder: BorrowedFd<'_>,
    ) -> Result<TraceeEvent, InjectError> {
        loop {
            let slice = deadline.min(Instant::now() + SLICE);
            let stop = self.tracee.wait(slice).map_err(|e| system("waitpid", &e))?;
            let recorder_ended = wait_readable(recorder, Instant::now()).is_ok();
            if stop != TraceeEvent::Timeout || recorder_ended || Instant::now() >= deadline {
                return Ok(stop);
            }
        }
    }

    fn resume(&self, signal: i32) -> Result<(), InjectError> {
        self.tracee.resume(Resume::Run, signal).map_err(|e| system("PTRACE_CONT", &e))
    }

    /// Converts the held program to a stopped thread, ready for the attach, with its watchdog.
    pub(in crate::inject) fn into_stopped(
        self,
        pid: i32,
    ) -> Result<(Stopped, Watchdog), InjectError> {
        if !self.executed || pid != self.pid {
            return Err(InjectError::BadPlan {
                reason: "the plan is for another process than the held program".to_owned(),
            });
        }
        let Self { tracee, watchdog, .. } = self;
        Stopped::adopt(tracee).map(|stopped| (stopped, watchdog)).map_err(NotStopped::into)
    }
}

fn system(call: &str, error: &std::io::Error) -> InjectError {
    InjectError::system(call, error)
}
