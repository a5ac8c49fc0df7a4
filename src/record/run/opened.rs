//! The process to record, before anything is changed in it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

use crate::inject::Guardian;
use crate::proc;
use crate::record::contract::error::{RecordError, inject_error, target_error};
use crate::record::contract::options::{Options, Target};
use crate::record::run::plan::Candidate;
use crate::record::run::priority::Raised;
use crate::record::target::command;
use crate::record::target::privileges;
use crate::record::target::residue::Footprint;
use crate::record::target::signals::SIGTRAP;
use crate::record::target::spawn::{self, HeldChild, StartedProgram};

/// A process to record, before it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetProcess {
    /// A program that the recorder starts.
    Started,
    /// A running process.
    Running {
        pid: i32,
        /// Whether the process has just started.
        is_new: bool,
    },
    /// A child of a recorded process.
    Child {
        pid: i32,
        parent: i32,
        /// Whether the child has just started.
        is_new: bool,
    },
}

impl TargetProcess {
    /// Returns the process id, if the process exists already.
    pub(crate) fn pid(self) -> Option<i32> {
        match self {
            Self::Started => None,
            Self::Running { pid, .. } | Self::Child { pid, .. } => Some(pid),
        }
    }
}

/// The process to record, before anything is changed in it.
pub(crate) struct OpenedProcess {
    pub(crate) pid: i32,
    pub(crate) start_time: u64,
    pub(crate) command: Option<StartedProgram>,
    pub(crate) candidate: Candidate,
    pub(crate) name: String,
    pub(crate) command_line: Vec<OsString>,
    /// Whether programs that it executes are recorded as well.
    pub(crate) is_followed: bool,
}

impl OpenedProcess {
    pub(crate) fn open(
        options: &Options,
        process: TargetProcess,
        guardian: &mut Guardian,
        raised: &Raised,
    ) -> Result<Self, RecordError> {
        let (mut candidate, command) = match (process.pid(), &options.target) {
            (None, Target::Command(command)) => {
                let (pid, hold_fd, started) = start(command, guardian, raised)?;
                (Candidate::started(pid, hold_fd), Some(started))
            }
            (pid, _) => (Candidate::running(pid.unwrap_or(0), options, guardian)?, None),
        };
        let pid = candidate.pid;
        let is_new = match process {
            TargetProcess::Started => true,
            TargetProcess::Running { is_new, .. } | TargetProcess::Child { is_new, .. } => is_new,
        };
        // A process that has just started often executes another program first.
        let is_beginning = matches!(process, TargetProcess::Running { is_new: true, .. });
        candidate.is_started = is_new;
        let gone = |error| target_error(pid, error);
        Ok(Self {
            pid,
            start_time: proc::start_time(pid).map_err(gone)?,
            command,
            candidate,
            name: proc::status(pid).map(|status| status.name).unwrap_or_default(),
            command_line: proc::command_line(pid).unwrap_or_default(),
            // A program that replaces itself goes on with its children.
            is_followed: options.follow_exec || options.children.are_recorded() || is_beginning,
        })
    }

    /// Reads the state of the process before the attach, for `--verify-detach`.
    pub(crate) fn footprint(&self, options: &Options) -> Result<Option<Footprint>, RecordError> {
        let footprint = options.verify_detach.then(|| Footprint::of(self.pid)).transpose();
        footprint.map_err(|error| target_error(self.pid, error))
    }

    /// Reads the name and the command line again, after an exec and at the end.
    pub(crate) fn name_again(&mut self) {
        // A process that has exited keeps its name.
        let words = proc::command_line(self.pid).ok().filter(|words| !words.is_empty());
        if let (Ok(status), Some(words)) = (proc::status(self.pid), words) {
            (self.name, self.command_line) = (status.name, words);
        }
    }

    pub(crate) fn command_pid(&self) -> Option<i32> {
        self.command.as_ref().map(|_| self.pid)
    }

    /// Kills a held program, which has not run its first instruction.
    pub(crate) fn abandon(mut self, guardian: Guardian) {
        if let Some(command) = &mut self.command {
            command.kill();
        }
        // The guardian exits before the wait for the program: a tracer's wait comes first.
        drop(guardian);
    }

    /// Releases a held program.
    pub(crate) fn go_on(&mut self) {
        if let Some(command) = &mut self.command {
            command.release();
        }
    }
}

/// Starts a program. Returns its pid, the descriptor that it is parked on (if it is held at its
/// exec), and the program itself.
pub(crate) fn start(
    command: &[OsString],
    guardian: &mut Guardian,
    raised: &Raised,
) -> Result<(i32, Option<i32>, StartedProgram), RecordError> {
    let name = command.first().map(OsString::as_os_str).unwrap_or_default();
    privileges::check(name)?;
    let late = command::takes_all_signals(name);
    let held = raised
        .as_before(|| HeldChild::start(command, guardian.pid(), !late))
        .with_context(|| format!("starting {}", name.display()))
        .map_err(RecordError::Other)?;
    let (pid, hold_fd) = (held.pid(), held.hold_fd());
    let started = if late {
        held.exec(|| wait_for_handlers(pid, || false))
    } else {
        if let Err(error) = guardian.hold_at_exec(pid) {
            held.kill();
            return Err(inject_error(error));
        }
        held.exec(|| guardian.wait_exec().map_err(inject_error))
    };
    let started = started.map_err(|failure| match failure {
        spawn::ExecError::Spawn(error) => command::not_started(name, &error),
        spawn::ExecError::Wait(error) => error,
    })?;
    Ok((pid, hold_fd, started))
}

/// Waits until a program that handles all signals has installed its handlers. The agent's handler
/// then goes in front of them, as in a program that has run for a while.
pub(crate) fn wait_for_handlers(pid: i32, is_over: impl Fn() -> bool) -> Result<(), RecordError> {
    pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline && !is_over() {
        let status = proc::status(pid).map_err(|error| target_error(pid, error))?;
        if status.state == 'Z' {
            return Err(RecordError::TargetGone(anyhow!(
                "the program exited before it was sampled: run it without `traceprof record` to \
                 see why"
            )));
        }
        if status.catches(SIGTRAP) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

/// The message for a target that exited before the first sample.
pub(crate) const NEVER_SAMPLED: &str = "the target exited before it was sampled: to sample it \
    from its first instruction, start it with `traceprof record -- COMMAND`";

/// Opens a descriptor that becomes readable when the process exits.
pub(crate) fn exit_descriptor(pid: i32) -> Result<OwnedFd, RecordError> {
    proc::open_pidfd(pid).map_err(|error| target_error(pid, error))
}
