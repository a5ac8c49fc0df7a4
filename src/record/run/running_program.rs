//! The program that the recorder started, after the recording.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use nix::poll::{PollFd, PollFlags, poll};

use crate::proc;
use crate::record::contract::error::RecordError;
use crate::record::contract::stop::InterruptibleWait;
use crate::record::contract::summary::Summary;
use crate::record::run::ended_process::EndedProcess;
use crate::record::run::opened::exit_descriptor;
use crate::record::target::spawn::StartedProgram;

/// How long a program that got the same signal may take to exit.
const END: Duration = Duration::from_millis(500);
/// How long a signal may go unnoticed that arrives just before a wait.
const PATIENCE_MS: u16 = 100;

/// A finished recording.
pub struct Recorded {
    /// The result.
    pub summary: Summary,
    /// The program that the recorder started, if it has not exited.
    pub running: Option<RunningProgram>,
}

/// A program that the recorder started, and that runs on after the recording.
pub struct RunningProgram {
    /// The process id.
    pub pid: i32,
    /// The name of the process.
    pub name: String,
    program: StartedProgram,
    /// From the end of the recording on, so that no signal is lost before the wait.
    wait: InterruptibleWait,
    /// Readable once the process has exited.
    exit: OwnedFd,
}

/// Returns the status of the program that the recorder started if it has exited, and the program
/// itself if it runs on.
pub(crate) fn command(
    ended: Vec<EndedProcess>,
) -> Result<(Option<ExitStatus>, Option<RunningProgram>), RecordError> {
    let mut all = ended.into_iter().map(|it| it.opened);
    let started = all.find_map(|it| Some((it.pid, it.name, it.command?)));
    let Some((pid, name, mut program)) = started else { return Ok((None, None)) };
    if let Some(status) = program.exit_status().map_err(no_wait)? {
        return Ok((Some(status), None));
    }
    // The process exists at least until this process has waited for it.
    let exit = exit_descriptor(pid)?;
    // It may have executed another program since the last look.
    let name = proc::status(pid).map_or(name, |status| status.name);
    let wait = InterruptibleWait::begin().map_err(no_wait)?;
    Ok((None, Some(RunningProgram { pid, name, program, wait, exit })))
}

impl RunningProgram {
    /// Waits until the program exits. Returns `None` if a signal to this process ended the wait.
    ///
    /// # Errors
    /// Returns an error if the system refuses the wait.
    pub fn wait(&mut self) -> Result<Option<ExitStatus>, RecordError> {
        let mut deadline: Option<Instant> = None;
        loop {
            if let Some(status) = self.program.exit_status().map_err(no_wait)? {
                return Ok(Some(status));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(None);
            }
            if self.wait.is_over() {
                // Ctrl-C at a terminal goes to the program, too, and may end it.
                deadline.get_or_insert_with(|| Instant::now() + END);
            }
            // Also returns at a signal.
            let _ = poll(&mut [PollFd::new(self.exit.as_fd(), PollFlags::POLLIN)], PATIENCE_MS);
        }
    }
}

fn no_wait(error: io::Error) -> RecordError {
    RecordError::Other(anyhow!("waiting for the program: {error}"))
}
