//! A program held between its execve and its first instruction.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::error::InjectError;
use super::identity;
use super::message::wait_readable;
use super::ptrace::{Resume, Stop, Tracee};
use super::stop::{NotStopped, Stopped};
use crate::fault::{self, Point};

/// Longest time from the seizure to the exec: the file may lie on a slow disk.
const EXEC_MAX: Duration = Duration::from_secs(30);
/// How often the wait for the exec looks for the recorder's end.
const SLICE: Duration = Duration::from_millis(50);

/// A child of the recorder, seized before its exec.
#[derive(Debug)]
pub(super) struct Held {
    pid: i32,
    tracee: Tracee,
    executed: bool,
}

impl Held {
    /// Seizes it; it goes on waiting for the recorder's word.
    pub(super) fn seize(pid: i32) -> Result<Held, InjectError> {
        let tracee = Tracee::seize(pid).map_err(|error| {
            identity::explain(pid, pid, InjectError::system("PTRACE_SEIZE", &error))
        })?;
        Ok(Held { pid, tracee, executed: false })
    }

    /// Waits for the exec and for the stop after it, before the program's first instruction. The
    /// exec's own stop is inside the system call, whose result would overwrite a register.
    pub(super) fn wait_exec(&mut self, recorder: BorrowedFd<'_>) -> Result<(), InjectError> {
        let deadline = Instant::now() + EXEC_MAX;
        loop {
            match self.wait(deadline, recorder)? {
                Stop::Exec => {
                    self.tracee.interrupt().map_err(|e| system("PTRACE_INTERRUPT", &e))?;
                    self.executed = true;
                    fault::at(Point::HoldExecuted);
                    self.resume(0)?;
                }
                Stop::Interrupt | Stop::Group if self.executed => {
                    fault::at(Point::HoldStopped);
                    return Ok(());
                }
                Stop::Interrupt | Stop::Group | Stop::Syscall => self.resume(0)?,
                Stop::Signal(signal) => self.resume(signal)?,
                Stop::Ended(code) => return Err(InjectError::ExitedBeforeExec { code }),
                Stop::Timeout => {
                    return Err(InjectError::WouldNotStop { tid: self.pid, state: '?' });
                }
            }
        }
    }

    fn wait(&self, deadline: Instant, recorder: BorrowedFd<'_>) -> Result<Stop, InjectError> {
        loop {
            let slice = deadline.min(Instant::now() + SLICE);
            let stop = self.tracee.wait(slice).map_err(|e| system("waitpid", &e))?;
            let recorder_ended = wait_readable(recorder, Instant::now()).is_ok();
            if stop != Stop::Timeout || recorder_ended || Instant::now() >= deadline {
                return Ok(stop);
            }
        }
    }

    fn resume(&self, signal: i32) -> Result<(), InjectError> {
        self.tracee.resume(Resume::Run, signal).map_err(|e| system("PTRACE_CONT", &e))
    }

    /// The held program as a stopped thread, for the attach.
    pub(super) fn into_stopped(self, pid: i32) -> Result<Stopped, InjectError> {
        if !self.executed || pid != self.pid {
            return Err(InjectError::BadPlan {
                reason: "the plan is for another program than the one that is held".to_owned(),
            });
        }
        Stopped::adopt(self.tracee).map_err(NotStopped::into)
    }
}

fn system(call: &str, error: &std::io::Error) -> InjectError {
    InjectError::system(call, error)
}
