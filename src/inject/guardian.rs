//! The guardian: a process of its own that does all the tracing and outlives the recorder.
//!
//! It is forked before the recorder has threads, leaves its session and blocks every signal, so
//! that nothing typed at the terminal stops a tracer in the middle. It waits for commands, and for
//! the recorder's end, upon which it cures the target and ends too.
//!
//! # Safety
//! The child of the fork runs only this module and what it calls, on the one thread that forked.
//!
//! # Does not
//! - open perf events, or hold any file but its socket and the recorder's pidfd.
#![allow(unsafe_code, reason = "forks")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, shutdown, socketpair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use traceprof_abi::layout::Operation;

use super::apart::{hurry, keep_only, pidfd_open};
use super::claim::Claim;
use super::enter::{self, Room};
use super::error::InjectError;
use super::hearing::Hearing;
use super::jail::{self, Judgement, Permits};
use super::message::{read_message, wait_readable, write_message};
use super::plan::{AttachPlan, AttachReport, DetachReport, Entered};
use super::preflight::Facts;
use super::segment::{self, Attached};
use super::{attach, cure, held, identity, residue};
use crate::fault::{self, Party, Point};

/// Its name as a process: 15 bytes, the most that there is room for.
pub(super) const GUARDIAN: &str = "traceprof-guard";
/// Longest wait for an answer: that of a guardian that is in trouble itself. One whose target gets
/// no processor answers after the cure of what was left there, an attach and another cure, of more
/// than half a minute each (70 s seen).
const ANSWER_MAX: Duration = Duration::from_secs(180);
/// Longest wait for the guardian's own end.
const END_MAX: Duration = Duration::from_secs(10);
/// Longest wait for a recorder whose socket is closed to be gone with its perf events.
const RECORDER_END_MAX: Duration = Duration::from_secs(5);
/// How long a thread that a killed guardian has set going is waited for.
const LATE_MAX: Duration = Duration::from_secs(1);
/// Between two looks for it.
const LATE_LOOK: Duration = Duration::from_millis(20);
/// How long an orphaned guardian tries to cure.
const ORPHAN_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Serialize, Deserialize)]
enum Command {
    Hold(i32),
    WaitExec,
    Judge(Box<Facts>, Permits),
    Attach(Box<AttachPlan>),
    /// An [`Operation`] as its number.
    Enter(u64),
    Detach,
    Forget,
    Remove {
        pid: i32,
        start_time: u64,
    },
    /// The recorder goes on without it; there is no answer.
    Leave,
}

/// The recorder's handle. Dropping it detaches, if a target is attached, and ends the guardian;
/// perf events must be closed before.
#[derive(Debug)]
pub struct Guardian {
    socket: OwnedFd,
    pidfd: OwnedFd,
    pid: i32,
    attached: Option<AttachPlan>,
    /// Answers that were not waited for to the end.
    unread: u32,
}

impl Guardian {
    /// Forks the guardian. The caller has no other threads yet.
    pub fn start() -> io::Result<Guardian> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        let recorder_pid = std::process::id() as i32;
        let recorder = pidfd_open(recorder_pid)?;
        fault::is(Party::Recorder, recorder_pid);
        // SAFETY: the child runs `serve` and leaves by `_exit`; the caller has no other threads
        // that could hold a lock.
        match unsafe { nix::unistd::fork() }? {
            nix::unistd::ForkResult::Child => {
                let outcome = std::panic::catch_unwind(|| enter(&theirs, &recorder, recorder_pid));
                // SAFETY: ends the process without the recorder's exit handlers.
                unsafe { libc::_exit(i32::from(outcome.is_err())) }
            }
            nix::unistd::ForkResult::Parent { child } => {
                let pid = child.as_raw();
                Ok(Self::adopt(pid, ours, pidfd_open(pid)?))
            }
        }
    }

    /// One that somebody else has forked.
    pub(super) fn adopt(pid: i32, socket: OwnedFd, pidfd: OwnedFd) -> Guardian {
        fault::is(Party::Guardian, pid);
        Guardian { socket, pidfd, pid, attached: None, unread: 0 }
    }

    /// The guardian's pid: with Yama, a program to be held names it by PR_SET_PTRACER.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Seizes a child of the recorder that waits before its execve. Returns when it is seized; the
    /// recorder then lets the child go on and calls [`Self::wait_exec`].
    pub fn hold_at_exec(&mut self, pid: i32) -> Result<(), InjectError> {
        self.ask(&Command::Hold(pid))
    }

    /// Waits until the held child has executed its program, and leaves it stopped before the
    /// program's first instruction, for [`Self::attach`].
    pub fn wait_exec(&mut self) -> Result<(), InjectError> {
        self.ask(&Command::WaitExec)
    }

    /// Judges the seccomp filters of all threads, for which those that have any may be stopped;
    /// refused unless they permit what will be done.
    pub fn judge(&mut self, facts: &Facts, permits: Permits) -> Result<Judgement, InjectError> {
        if !jail::is_filtered(facts.pid) {
            return Ok(Judgement::of_none());
        }
        self.ask(&Command::Judge(Box::new(facts.clone()), permits))
    }

    /// Maps the segments and starts the agent. After an error the target is as it was, or the
    /// error names what is left.
    pub fn attach(&mut self, plan: &AttachPlan) -> Result<AttachReport, InjectError> {
        match self.ask(&Command::Attach(Box::new(plan.clone()))) {
            Ok(report) => {
                self.attached = Some(plan.clone());
                Ok(report)
            }
            Err(InjectError::Guardian { reason }) if self.has_ended() => {
                // Killed by somebody in the middle of it: the recorder takes back what was done.
                let cured = take_back_late(plan);
                Err(match cured {
                    Ok(DetachReport { residue: None, .. }) | Err(InjectError::Gone) => {
                        InjectError::GuardianKilled
                    }
                    _ => InjectError::Guardian { reason },
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Removes what a recording left whose recorder and guardian were both killed; a report for each
    /// agent that was found.
    pub fn remove_rest(
        &mut self,
        pid: i32,
        start_time: u64,
    ) -> Result<Vec<DetachReport>, InjectError> {
        self.ask(&Command::Remove { pid, start_time })
    }

    /// Has a thread of the target run the agent's entry: to install the handler of a signal that was
    /// named after the attach, to arm timers, to delete them. The target is as it was if it has
    /// ended or executed another program meanwhile.
    pub fn enter(&mut self, operation: Operation) -> Result<Entered, InjectError> {
        self.ask(&Command::Enter(operation as u64))
    }

    /// As [`Self::enter`], but does not wait: a target of thousands of threads that all want a
    /// processor takes seconds. [`Self::entered`] tells what came of it.
    pub fn begin_enter(&mut self, operation: Operation) -> Result<(), InjectError> {
        let command = Command::Enter(operation as u64);
        write_message(self.socket.as_fd(), &command).map_err(lost)?;
        self.unread += 1;
        Ok(())
    }

    /// What came of the entry that was begun, once that is known. Any other request drops the answer.
    pub fn entered(&mut self) -> Option<Result<Entered, InjectError>> {
        if self.unread == 0 || wait_readable(self.socket.as_fd(), Instant::now()).is_err() {
            return None;
        }
        Some(self.answer())
    }

    /// An answer is still to come.
    pub fn is_busy(&self) -> bool {
        self.unread > 0
    }

    /// Takes everything back. The recorder has closed its perf events, and let a held program go.
    pub fn detach(&mut self) -> Result<DetachReport, InjectError> {
        let plan = self.attached.take();
        match (self.ask(&Command::Detach), plan) {
            (Err(InjectError::Guardian { .. }), Some(plan)) if self.has_ended() => {
                // Killed by somebody: the recorder does the work itself, once.
                take_back(&plan)
            }
            (answer, _) => answer,
        }
    }

    /// Gives the target up, whose agent is gone with the program that it was in.
    pub fn forget(&mut self) -> Result<(), InjectError> {
        self.attached = None;
        self.ask(&Command::Forget)
    }

    fn has_ended(&self) -> bool {
        wait_readable(self.pidfd.as_fd(), Instant::now() + END_MAX).is_ok()
    }

    fn ask<T: DeserializeOwned>(&mut self, command: &Command) -> Result<T, InjectError> {
        write_message(self.socket.as_fd(), command).map_err(lost)?;
        fault::at(Point::GuardianAsked);
        let deadline = Instant::now() + ANSWER_MAX;
        self.unread += 1;
        while self.unread > 1 {
            wait_readable(self.socket.as_fd(), deadline).map_err(lost)?;
            read_message::<serde_json::Value>(self.socket.as_fd()).map_err(lost)?;
            self.unread -= 1;
        }
        wait_readable(self.socket.as_fd(), deadline).map_err(lost)?;
        self.answer()
    }

    /// Reads the one answer that is there.
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
            // An error is the guardian's death, upon which nothing can be done here.
            let _ = self.detach();
        }
        // One that is gone needs no word.
        let _ = write_message(self.socket.as_fd(), &Command::Leave);
        let _ = shutdown(self.socket.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        if self.has_ended() {
            // Not ours if the nursery forked it.
            let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(self.pid), None);
        }
    }
}

/// The child's side: becomes independent of all that the recorder is bound to.
pub(super) fn enter(socket: &OwnedFd, recorder: &OwnedFd, recorder_pid: i32) -> io::Result<()> {
    let started = segment::now();
    let _ = nix::unistd::setsid();
    nix::sys::signal::SigSet::all().thread_block()?;
    let _hearing = Hearing::begin()?;
    let (socket, recorder) = keep_only(socket.as_raw_fd(), recorder.as_raw_fd())?;
    hurry();
    let name = std::ffi::CString::new(GUARDIAN)?;
    // SAFETY: reads the string.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    fault::is(Party::Guardian, std::process::id() as i32);
    fault::at(Point::GuardianBorn);
    let mut server = Server { recorder, session: None, held: None, is_dismissed: false };
    server.serve(&socket);
    // Its memory was detached before its socket was closed. One that goes on may be about to make
    // segments for another target.
    let is_gone = || wait_readable(server.recorder.as_fd(), Instant::now() + RECORDER_END_MAX);
    if !server.is_dismissed && is_gone().is_ok() {
        segment::remove_orphans(recorder_pid, started);
    }
    Ok(())
}

/// A target with the agent in it.
struct Session {
    plan: AttachPlan,
    data: Attached,
    /// Given back after the cure.
    _claim: Claim,
}

struct Server {
    recorder: OwnedFd,
    session: Option<Session>,
    held: Option<held::Held>,
    /// The recorder has said that it goes on alone.
    is_dismissed: bool,
}

impl Server {
    fn serve(&mut self, socket: &OwnedFd) {
        while let Some(command) = self.next(socket) {
            let answered = match command {
                Command::Hold(pid) => write_message(socket.as_fd(), &self.hold(pid)),
                Command::WaitExec => write_message(socket.as_fd(), &self.wait_exec()),
                Command::Judge(facts, permits) => {
                    write_message(socket.as_fd(), &jail::judge(&facts, permits))
                }
                Command::Attach(plan) => write_message(socket.as_fd(), &self.attach(*plan)),
                Command::Enter(operation) => write_message(socket.as_fd(), &self.enter(operation)),
                Command::Detach => write_message(socket.as_fd(), &self.detach(cure::PATIENCE)),
                Command::Forget => {
                    self.session = None;
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
        if self.session.is_some() {
            fault::at(Point::OrphanNoticed);
            // Its perf events must be closed before the signal's old action comes back.
            let _ = wait_readable(self.recorder.as_fd(), Instant::now() + RECORDER_END_MAX);
            let _ = self.detach(ORPHAN_PATIENCE);
            fault::at(Point::OrphanCured);
        }
    }

    /// The next command; `None` when the recorder is gone.
    fn next(&self, socket: &OwnedFd) -> Option<Command> {
        let mut fds = [
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.recorder.as_fd(), PollFlags::POLLIN),
        ];
        loop {
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) => break,
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => return None,
            }
        }
        // A command that came before the recorder ended is not started.
        if fds[1].any() == Some(true) {
            return None;
        }
        read_message(socket.as_fd()).ok().flatten()
    }

    fn hold(&mut self, pid: i32) -> Result<(), InjectError> {
        fault::is(Party::Target, pid);
        self.held = Some(held::Held::seize(pid)?);
        fault::at(Point::HoldSeized);
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
        fault::is(Party::Target, plan.pid);
        fault::at(Point::AttachAsked);
        let held = match self.held.take() {
            Some(held) => Some(held.into_stopped(plan.pid)?),
            None => None,
        };
        // A program that is held goes on when `held` is dropped.
        let (data, claim) = self.prepare(&plan, held.is_some())?;
        fault::at(Point::AttachReady);
        let outcome = attach::attach(&plan, &data, held);
        fault::at(Point::AttachDone);
        if outcome.is_ok() {
            self.session = Some(Session { plan, data, _claim: claim });
        }
        outcome
    }

    fn prepare(&self, plan: &AttachPlan, held: bool) -> Result<(Attached, Claim), InjectError> {
        let reason = if self.session.is_some() {
            "a target is attached already"
        } else if plan.hold_fd.is_some() && !held {
            "the plan holds a program that was not held at its start"
        } else {
            plan.check()?;
            let claim = Claim::on(plan.pid, plan.start_time)?;
            fault::at(Point::AttachClaimed);
            // On top of one that is still installed, ours would save its action as the
            // application's and put that back in the end. What a finished cure leaves behind (an
            // agent that the application chains to) is not installed any more.
            residue::remove(plan.pid, plan.start_time)?;
            let data = Attached::new(plan.data.shm_id);
            return Ok((data.map_err(|error| InjectError::system("shmat", &error))?, claim));
        };
        Err(InjectError::BadPlan { reason: reason.to_owned() })
    }

    fn enter(&self, number: u64) -> Result<Entered, InjectError> {
        fault::at(Point::EnterAsked);
        let bad = |reason: &str| InjectError::BadPlan { reason: reason.to_owned() };
        let operation = Operation::ALL.into_iter().find(|known| *known as u64 == number);
        let operation = operation.ok_or_else(|| bad("the agent has no such operation"))?;
        let session = self.session.as_ref().ok_or_else(|| bad("no target is attached"))?;
        identity::check(session.plan.pid, session.plan.start_time)?;
        let stopped = enter::enter(&session.plan, &session.data, operation, Room::Shared)?;
        fault::at(Point::EnterDone);
        Ok(Entered { stopped_ns: stopped.as_nanos() as u64 })
    }

    fn detach(&mut self, patience: Duration) -> Result<DetachReport, InjectError> {
        let Some(Session { plan, data, _claim }) = self.session.take() else {
            return Err(InjectError::BadPlan { reason: "no target is attached".to_owned() });
        };
        fault::at(Point::DetachAsked);
        let cured = cure::cure(&plan, &data, patience);
        fault::at(Point::DetachDone);
        cured
    }
}

/// The cure in the recorder's own process.
fn take_back(plan: &AttachPlan) -> Result<DetachReport, InjectError> {
    let data =
        Attached::new(plan.data.shm_id).map_err(|error| InjectError::system("shmat", &error))?;
    cure::cure(plan, &data, cure::PATIENCE)
}

/// The same after a guardian that was killed during its attach: a thread that it had set going may
/// attach the segments only now.
fn take_back_late(plan: &AttachPlan) -> Result<DetachReport, InjectError> {
    let _claim = Claim::on(plan.pid, plan.start_time)?;
    let deadline = Instant::now() + LATE_MAX;
    loop {
        let report = take_back(plan)?;
        if Instant::now() >= deadline {
            return Ok(report);
        }
        std::thread::sleep(LATE_LOOK);
    }
}

fn remove(pid: i32, start_time: u64) -> Result<Vec<DetachReport>, InjectError> {
    fault::is(Party::Target, pid);
    let _claim = Claim::on(pid, start_time)?;
    residue::remove(pid, start_time)
}
