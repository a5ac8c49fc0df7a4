//! The guardian's main loop: it waits for commands and for the recorder's exit.
//!
//! # Safety
//! One system call, which sets the process name.
#![allow(unsafe_code, reason = "prctl")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use traceprof_abi::layout::Operation;

use super::command::Command;
use super::descriptors::keep_only;
use super::message::{read_message, write_message};
use crate::fault::{self, FaultPoint, Party};
use crate::inject::agent_entry::{self, FrameArea};
use crate::inject::attach::{self, held_program};
use crate::inject::data_segment::AttachedData;
use crate::inject::error::InjectError;
use crate::inject::plan::AttachPlan;
use crate::inject::ptrace::priority::raise_priority;
use crate::inject::ptrace::sigchld::DefaultSigchld;
use crate::inject::ptrace::watchdog;
use crate::inject::report::{AttachReport, DetachReport, EntryReport};
use crate::inject::restore::{self, residue};
use crate::inject::target::claim::Claim;
use crate::inject::target::identity;
use crate::inject::target::tracer::GUARDIAN;
use crate::inject::{abandoned_segments, seccomp};
use crate::proc::wait_readable;

/// Longest wait for the exit of a recorder that closed its socket. Its perf events are closed with
/// it.
const RECORDER_END_MAX: Duration = Duration::from_secs(5);
/// How long a guardian with a held program waits for a command before it shows that it runs.
const HELD_SLICE_MS: u8 = 50;
/// How long an orphaned guardian tries to restore the target.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(60);

/// Runs the guardian: makes it independent of the recorder's terminal and descriptors, and serves
/// commands.
pub(super) fn run(socket: &OwnedFd, recorder: &OwnedFd, recorder_pid: i32) -> io::Result<()> {
    let started = abandoned_segments::now();
    let _ = nix::unistd::setsid();
    nix::sys::signal::SigSet::all().thread_block()?;
    let _sigchld = DefaultSigchld::install()?;
    let (socket, recorder) = keep_only(socket.as_raw_fd(), recorder.as_raw_fd())?;
    raise_priority();
    let name = std::ffi::CString::new(GUARDIAN)?;
    // SAFETY: reads the string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    fault::set_party(Party::Guardian, std::process::id() as i32);
    fault::at(FaultPoint::GuardianStarted);
    let mut server = GuardianServer { recorder, attached: None, held: None, is_dismissed: false };
    server.serve(&socket);
    // The guardian detached the data segment before the socket was closed. A recorder that still
    // runs may be about to create segments for another target.
    let is_gone = || wait_readable(server.recorder.as_fd(), Instant::now() + RECORDER_END_MAX);
    if !server.is_dismissed && is_gone().is_ok() {
        abandoned_segments::remove_orphans(recorder_pid, started);
    }
    Ok(())
}

/// A target that the agent is attached to.
struct AttachedTarget {
    plan: AttachPlan,
    data: AttachedData,
    /// Released after the restore.
    _claim: Claim,
}

struct GuardianServer {
    recorder: OwnedFd,
    attached: Option<AttachedTarget>,
    held: Option<held_program::HeldProgram>,
    /// Whether the recorder has announced that it continues alone.
    is_dismissed: bool,
}

impl GuardianServer {
    fn serve(&mut self, socket: &OwnedFd) {
        while let Some(command) = self.next(socket) {
            let answered = match command {
                Command::Hold(pid) => write_message(socket.as_fd(), &self.hold(pid)),
                Command::WaitExec => write_message(socket.as_fd(), &self.wait_exec()),
                Command::CheckSeccomp(facts, permits) => {
                    write_message(socket.as_fd(), &seccomp::check(&facts, permits))
                }
                Command::Attach(plan) => write_message(socket.as_fd(), &self.attach(*plan)),
                Command::Enter(operation) => write_message(socket.as_fd(), &self.enter(operation)),
                Command::Detach => write_message(socket.as_fd(), &self.detach(restore::PATIENCE)),
                Command::Forget => {
                    self.attached = None;
                    write_message(socket.as_fd(), &Ok::<(), InjectError>(()))
                }
                Command::Remove { pid, start_time } => {
                    write_message(socket.as_fd(), &remove(pid, start_time))
                }
                Command::Leave => {
                    self.is_dismissed = true;
                    break;
                }
            };
            if answered.is_err() {
                break;
            }
        }
        if self.attached.is_some() {
            fault::at(FaultPoint::OrphanNoticed);
            // The recorder's perf events must be closed before the application's action of the
            // signal is restored.
            let _ = wait_readable(self.recorder.as_fd(), Instant::now() + RECORDER_END_MAX);
            let _ = self.detach(ORPHAN_PATIENCE);
            fault::at(FaultPoint::OrphanRestored);
        }
    }

    /// Returns the next command, or `None` when the recorder has exited.
    fn next(&self, socket: &OwnedFd) -> Option<Command> {
        let mut fds = [
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.recorder.as_fd(), PollFlags::POLLIN),
        ];
        // A held program depends on this process, whose watchdog expects it to run.
        let timeout = if self.held.is_some() { HELD_SLICE_MS.into() } else { PollTimeout::NONE };
        loop {
            watchdog::feed();
            match poll(&mut fds, timeout) {
                Ok(0) => {}
                Ok(_) => break,
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return None,
            }
        }
        // A command that came before the recorder's exit is not started.
        if fds[1].any() == Some(true) {
            return None;
        }
        read_message(socket.as_fd()).ok().flatten()
    }

    fn hold(&mut self, pid: i32) -> Result<(), InjectError> {
        fault::set_party(Party::Target, pid);
        self.held = Some(held_program::HeldProgram::seize(pid)?);
        fault::at(FaultPoint::HoldSeized);
        Ok(())
    }

    fn wait_exec(&mut self) -> Result<(), InjectError> {
        let Some(held) = self.held.as_mut() else {
            return Err(InjectError::BadPlan { reason: "no program is held".to_owned() });
        };
        let outcome = held.wait_exec(self.recorder.as_fd());
        if outcome.is_err() {
            self.held = None;
        }
        outcome
    }

    fn attach(&mut self, plan: AttachPlan) -> Result<AttachReport, InjectError> {
        fault::set_party(Party::Target, plan.pid);
        fault::at(FaultPoint::AttachRequested);
        let held = match self.held.take() {
            Some(held) => Some(held.into_stopped(plan.pid)?),
            None => None,
        };
        // A held program continues when `held` is dropped.
        let (data, claim) = self.prepare(&plan, held.is_some())?;
        fault::at(FaultPoint::AttachReady);
        let outcome = attach::attach(&plan, &data, held);
        fault::at(FaultPoint::AttachDone);
        if outcome.is_ok() {
            self.attached = Some(AttachedTarget { plan, data, _claim: claim });
        }
        outcome
    }

    fn prepare(&self, plan: &AttachPlan, held: bool) -> Result<(AttachedData, Claim), InjectError> {
        let reason = if self.attached.is_some() {
            "a target is already attached"
        } else if plan.hold_fd.is_some() && !held {
            "the plan is for a held program, and no program is held"
        } else {
            plan.check()?;
            let claim = Claim::on(plan.pid, plan.start_time)?;
            fault::at(FaultPoint::AttachClaimed);
            // If another agent were still installed, this one would save that agent's action as the
            // application's and restore it at the end. A finished restore may leave an agent that
            // the application chains to, but no installed one.
            residue::remove(plan.pid, plan.start_time)?;
            let data = AttachedData::new(plan.data.shm_id);
            return Ok((data.map_err(|error| InjectError::system("shmat", &error))?, claim));
        };
        Err(InjectError::BadPlan { reason: reason.to_owned() })
    }

    fn enter(&self, number: u64) -> Result<EntryReport, InjectError> {
        fault::at(FaultPoint::EntryRequested);
        let bad = |reason: &str| InjectError::BadPlan { reason: reason.to_owned() };
        let operation = Operation::ALL.into_iter().find(|known| *known as u64 == number);
        let operation = operation.ok_or_else(|| bad("the agent has no such operation"))?;
        let attached = self.attached.as_ref().ok_or_else(|| bad("no target is attached"))?;
        identity::check(attached.plan.pid, attached.plan.start_time)?;
        let stopped =
            agent_entry::run(&attached.plan, &attached.data, operation, FrameArea::Shared)?;
        fault::at(FaultPoint::EntryDone);
        Ok(EntryReport { stopped_ns: stopped.as_nanos() as u64 })
    }

    fn detach(&mut self, patience: Duration) -> Result<DetachReport, InjectError> {
        let Some(AttachedTarget { plan, data, _claim }) = self.attached.take() else {
            return Err(InjectError::BadPlan { reason: "no target is attached".to_owned() });
        };
        fault::at(FaultPoint::DetachRequested);
        let restored = restore::restore(&plan, &data, patience);
        fault::at(FaultPoint::DetachDone);
        restored
    }
}

fn remove(pid: i32, start_time: u64) -> Result<Vec<DetachReport>, InjectError> {
    fault::set_party(Party::Target, pid);
    let _claim = Claim::on(pid, start_time)?;
    residue::remove(pid, start_time)
}
