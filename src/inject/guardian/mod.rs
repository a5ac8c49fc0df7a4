//! The guardian: a process that does all the tracing and outlives the recorder.
//!
//! The recorder forks it before it starts threads. The guardian leaves the recorder's terminal
//! session and blocks every signal, so that no key at the terminal stops a tracer in the middle of
//! its work. It waits for commands and for the recorder's exit. Then it restores the target and
//! exits, too.
//!
//! # Does not
//! - open perf events, or keep any descriptor open but its socket and the recorder's pidfd.

mod command;
mod descriptors;
pub(super) mod fork;
pub(super) mod fork_server;
mod message;
mod server;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, shutdown, socketpair};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use traceprof_abi::layout::Operation;

use self::command::Command;
use self::fork::SingleThreaded;
use self::message::{read_message, write_message};
use super::data_segment::AttachedData;
use super::error::InjectError;
use super::plan::AttachPlan;
use super::preflight::ProcessFacts;
use super::report::{AttachReport, DetachReport, EntryReport};
use super::restore;
use super::seccomp::{self, Permits, SeccompReport};
use super::target::claim::Claim;
use crate::fault::{self, FaultPoint, Party};
use crate::proc::{
    self, UnservedThreads, continue_stopped, open_pidfd, send_signal, wait_readable,
};

/// Longest wait for an answer. A guardian whose target gets no CPU time removes the residue of an
/// earlier recording, attaches, and restores again, at more than half a minute each (70 s seen).
const ANSWER_MAX: Duration = Duration::from_secs(180);
/// Longest wait for the guardian's exit.
const END_MAX: Duration = Duration::from_secs(10);
/// Pause between two checks whether the guardian can run.
const RUNNING_CHECK: Duration = Duration::from_millis(200);
/// How long the control group of a guardian may be frozen while the recorder waits for it.
const FROZEN_MAX: Duration = Duration::from_secs(5);
/// How long to wait for a thread that a killed guardian had launched.
const LATE_MAX: Duration = Duration::from_secs(1);
/// How long to wait for such a thread if some thread has had no processor.
const LATE_STARVED_MAX: Duration = Duration::from_secs(30);
/// Pause between two attempts to restore after such a thread.
const LATE_RETRY: Duration = Duration::from_millis(20);

/// The recorder's handle of the guardian. Dropping it detaches from the target and ends the
/// guardian. Close perf events before that.
#[derive(Debug)]
pub struct Guardian {
    socket: OwnedFd,
    pidfd: OwnedFd,
    pid: i32,
    attached: Option<AttachPlan>,
    /// The number of answers that are not read yet.
    unread: u32,
}

impl Guardian {
    /// Forks the guardian.
    ///
    /// # Errors
    /// Returns an error of the kernel, or if this process has more than one thread.
    pub fn start() -> io::Result<Guardian> {
        Self::fork(SingleThreaded::check()?)
    }

    pub(super) fn fork(alone: SingleThreaded) -> io::Result<Guardian> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let recorder_pid = std::process::id() as i32;
        let recorder = open_pidfd(recorder_pid)?;
        fault::set_party(Party::Recorder, recorder_pid);
        let pid = alone.fork(|| server::run(&theirs, &recorder, recorder_pid))?;
        Ok(Self::adopt(pid, ours, open_pidfd(pid)?))
    }

    /// Creates the handle of a guardian that another process has forked.
    pub(super) fn adopt(pid: i32, socket: OwnedFd, pidfd: OwnedFd) -> Guardian {
        fault::set_party(Party::Guardian, pid);
        Guardian { socket, pidfd, pid, attached: None, unread: 0 }
    }

    /// Returns the guardian's pid. A held program names it with PR_SET_PTRACER under Yama.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Seizes a child of the recorder that waits before its execve. The recorder then lets the
    /// child continue and calls [`Self::wait_exec`].
    pub fn hold_at_exec(&mut self, pid: i32) -> Result<(), InjectError> {
        self.request(&Command::Hold(pid))
    }

    /// Waits until the held child has executed its program. The child stays stopped before the
    /// program's first instruction, for [`Self::attach`].
    pub fn wait_exec(&mut self) -> Result<(), InjectError> {
        self.request(&Command::WaitExec)
    }

    /// Checks whether the seccomp filters of all threads permit the injection, and refuses
    /// otherwise. The guardian may stop threads with filters for this.
    pub fn check_seccomp(
        &mut self,
        facts: &ProcessFacts,
        permits: Permits,
    ) -> Result<SeccompReport, InjectError> {
        if !seccomp::is_filtered(facts.pid)? {
            return Ok(SeccompReport::of_none());
        }
        self.request(&Command::CheckSeccomp(Box::new(facts.clone()), permits))
    }

    /// Maps the segments and starts the agent. After an error the target is restored, or the error
    /// names the residue.
    pub fn attach(&mut self, plan: &AttachPlan) -> Result<AttachReport, InjectError> {
        match self.request(&Command::Attach(Box::new(plan.clone()))) {
            Ok(report) => {
                self.attached = Some(plan.clone());
                Ok(report)
            }
            Err(InjectError::Guardian { reason }) if self.has_ended() => {
                // The guardian was killed during the attach, so the recorder restores the target.
                let restored = restore_after_killed_guardian(plan);
                Err(match restored {
                    Ok(DetachReport { residue: None, .. }) | Err(InjectError::Gone) => {
                        InjectError::GuardianKilled
                    }
                    _ => InjectError::Guardian { reason },
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the residue of a recording whose recorder and guardian were both killed. Returns a
    /// report for each agent that was found.
    pub fn remove_residue(
        &mut self,
        pid: i32,
        start_time: u64,
    ) -> Result<Vec<DetachReport>, InjectError> {
        self.request(&Command::Remove { pid, start_time })
    }

    /// Makes a thread of the target run the agent's entry: to install the handler of a later
    /// signal, to arm timers, or to delete them. Changes nothing if the target has exited or
    /// executed another program.
    pub fn run_entry(&mut self, operation: Operation) -> Result<EntryReport, InjectError> {
        self.request(&Command::Enter(operation as u64))
    }

    /// Starts [`Self::run_entry`] without waiting for it: a target with thousands of threads that
    /// all want a processor takes seconds. [`Self::entered`] returns the outcome.
    pub fn start_entry(&mut self, operation: Operation) -> Result<(), InjectError> {
        let command = Command::Enter(operation as u64);
        write_message(self.socket.as_fd(), &command).map_err(lost)?;
        self.unread += 1;
        Ok(())
    }

    /// Returns the outcome of the started entry, if it has arrived. Any other request drops the
    /// answer.
    pub fn entered(&mut self) -> Option<Result<EntryReport, InjectError>> {
        if self.unread == 0 {
            return None;
        }
        if wait_readable(self.socket.as_fd(), Instant::now()).is_err() {
            continue_stopped(self.pid, self.pidfd.as_fd());
            return None;
        }
        Some(self.answer())
    }

    /// Whether an answer is still outstanding.
    pub fn is_busy(&self) -> bool {
        self.unread > 0
    }

    /// Restores the target. Before that, the recorder must close its perf events and release a held
    /// program.
    pub fn detach(&mut self) -> Result<DetachReport, InjectError> {
        let plan = self.attached.take();
        match (self.request(&Command::Detach), plan) {
            (Err(InjectError::Guardian { .. }), Some(plan)) if self.has_ended() => {
                // The guardian was killed, so the recorder restores the target itself, once.
                restore_from_recorder(&plan)
            }
            (answer, _) => answer,
        }
    }

    /// Gives up the target, whose agent has vanished with its program.
    pub fn forget(&mut self) -> Result<(), InjectError> {
        self.attached = None;
        self.request(&Command::Forget)
    }

    fn has_ended(&self) -> bool {
        let deadline = Instant::now() + END_MAX;
        self.await_running(deadline, |until| wait_readable(self.pidfd.as_fd(), until)).is_ok()
    }

    /// Waits in slices. Between them, this continues a guardian that SIGSTOP has stopped, and kills
    /// one whose control group is frozen for long: the recorder then does its work.
    fn await_running(
        &self,
        deadline: Instant,
        wait: impl Fn(Instant) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut frozen_since = None;
        loop {
            let now = Instant::now();
            match wait(deadline.min(now + RUNNING_CHECK)) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut && now < deadline => {}
                outcome => return outcome,
            }
            continue_stopped(self.pid, self.pidfd.as_fd());
            frozen_since = proc::freezer(self.pid).map(|_| frozen_since.unwrap_or(now));
            if frozen_since.is_some_and(|since| since.elapsed() >= FROZEN_MAX) {
                // An error means that the guardian has exited.
                let _ = send_signal(self.pidfd.as_fd(), Signal::SIGKILL);
            }
        }
    }

    fn request<T: DeserializeOwned>(&mut self, command: &Command) -> Result<T, InjectError> {
        write_message(self.socket.as_fd(), command).map_err(lost)?;
        fault::at(FaultPoint::GuardianRequested);
        let deadline = Instant::now() + ANSWER_MAX;
        self.unread += 1;
        while self.unread > 1 {
            self.await_answer(deadline).map_err(lost)?;
            read_message::<serde_json::Value>(self.socket.as_fd()).map_err(lost)?;
            self.unread -= 1;
        }
        self.await_answer(deadline).map_err(lost)?;
        self.answer()
    }

    /// Waits for an answer, and for no guardian that cannot give one.
    fn await_answer(&self, deadline: Instant) -> io::Result<()> {
        self.await_running(deadline, |until| wait_readable(self.socket.as_fd(), until))
    }

    /// Reads an answer that has arrived.
    fn answer<T: DeserializeOwned>(&mut self) -> Result<T, InjectError> {
        self.unread -= 1;
        match read_message::<Result<T, InjectError>>(self.socket.as_fd()).map_err(lost)? {
            Some(answer) => answer,
            None => Err(InjectError::Guardian { reason: "it was killed".to_owned() }),
        }
    }
}

fn lost(error: io::Error) -> InjectError {
    InjectError::Guardian { reason: error.to_string() }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        if self.attached.is_some() {
            // An error means that the guardian is dead, and nothing more can be done here.
            let _ = self.detach();
        }
        // A guardian that has exited needs no message.
        let _ = write_message(self.socket.as_fd(), &Command::Leave);
        let _ = shutdown(self.socket.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        if self.has_ended() {
            // The guardian is not our child if the fork server forked it.
            let _ = nix::sys::wait::waitpid(Pid::from_raw(self.pid), None);
        }
    }
}

/// Restores the target from the recorder's own process.
fn restore_from_recorder(plan: &AttachPlan) -> Result<DetachReport, InjectError> {
    let data = AttachedData::new(plan.data.shm_id)
        .map_err(|error| InjectError::system("shmat", &error))?;
    restore::restore(plan, &data, restore::PATIENCE)
}

/// Restores the target after a guardian was killed during its attach. A thread that the guardian
/// launched may attach the segments only now, once it has a processor.
fn restore_after_killed_guardian(plan: &AttachPlan) -> Result<DetachReport, InjectError> {
    let _claim = Claim::on(plan.pid, plan.start_time)?;
    let since = Instant::now();
    let mut unserved = UnservedThreads::of(plan.pid);
    loop {
        let is_last = since.elapsed() >= LATE_MAX
            && (!unserved.remain() || since.elapsed() >= LATE_STARVED_MAX);
        std::thread::sleep(LATE_RETRY);
        let report = restore_from_recorder(plan)?;
        if is_last {
            return Ok(report);
        }
    }
}
