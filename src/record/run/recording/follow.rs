//! Follows a process from one executed program to the next.
//!
//! # Invariants
//! - The recorder attaches to a program after its exec is complete. Before that, the kernel is
//!   still making the first mappings.
//! - A program that executes another one during the attach is skipped, however often that happens.
//!   A program that stays and cannot be attached to ends the recording.

use crate::record::run::exec_in_progress::is_settled;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::proc::{self, Memory};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::error::{RecordError, target_error};
use crate::record::run::opened::wait_for_handlers;
use crate::record::run::plan::{Candidate, Plan};
use crate::record::run::recording::{ExecutionNotes, Fate, Recording, SessionEnd};
use crate::record::target::command;
use crate::record::target::residue::Footprint;

/// Longest wait for the end of an exec: the program may be on a slow disk.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// Interval between checks for the end of an exec.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Pause between two attempts to attach.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// How long the recorder retries an attach. While a thread other than the first one calls exec, no
/// thread has the process's id for a moment. Mappings may also change in the middle of an attach.
const TRIED_MAX: Duration = Duration::from_secs(2);

impl Recording<'_> {
    /// Samples the program that the target has executed, and the programs that it executes later.
    pub(super) fn follow(&mut self) -> Result<SessionEnd, RecordError> {
        let mut time_ns = self.done.as_ref().map_or_else(monotonic_now_ns, |done| done.times_ns.1);
        loop {
            let next =
                NextProgram { pid: self.opened.pid, memory: Memory::of(self.opened.pid).ok() };
            let early = next.name();
            self.wait_for(&next);
            let late = next.name();
            // The later name belongs to this program only if it still runs.
            self.executions.begin(if next.is_gone() { early } else { late }, time_ns);
            let outcome = self.try_to_sample(&next);
            time_ns = match outcome {
                Ok(SessionEnd::Executed) => {
                    self.done.as_ref().map_or(time_ns, |done| done.times_ns.1)
                }
                Ok(end) => return Ok(end),
                Err(error) if !self.is_over() && !next.is_gone() => return self.refuse(error),
                Err(_) => {
                    self.settle(Fate::Missed);
                    monotonic_now_ns()
                }
            };
            if self.has_exited() {
                return Ok(SessionEnd::Exited);
            }
            if self.common.stop.is_due() {
                return Ok(SessionEnd::AskedBetween);
            }
        }
    }

    /// Waits until the recorder may attach to the program, or until the program or the recording
    /// has ended.
    fn wait_for(&self, next: &NextProgram) {
        let deadline = Instant::now() + SETTLED_MAX;
        let is_over = || self.is_over() || next.is_gone();
        while !next.is_settled() && !is_over() && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        if command::takes_all_signals(PathBuf::from(format!("/proc/{}/exe", next.pid)).as_os_str())
        {
            // The attach reports a failure.
            let _ = wait_for_handlers(next.pid, is_over);
        }
    }

    fn try_to_sample(&mut self, next: &NextProgram) -> Result<SessionEnd, RecordError> {
        let deadline = Instant::now() + TRIED_MAX;
        loop {
            let outcome = self.try_once(next);
            let may_differ =
                matches!(outcome, Err(RecordError::Other(_) | RecordError::TargetGone(_)));
            if !may_differ || next.is_gone() || self.is_over() || Instant::now() >= deadline {
                return outcome;
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// Attaches as to any running process, except that the program has just started.
    fn try_once(&mut self, next: &NextProgram) -> Result<SessionEnd, RecordError> {
        let pid = next.pid;
        let running = Candidate::running(pid, self.common.options, &mut self.guardian)?;
        let candidate = Candidate { is_started: true, ..running };
        let plan = Plan::new(&candidate, self.common.options)?;
        if self.common.options.verify_detach {
            let footprint = Footprint::of(pid).map_err(|error| target_error(pid, error))?;
            self.footprint = Some(footprint);
        }
        self.sample(plan, Some(next))
    }

    /// Ends the recording with what it has, because the program runs and cannot be sampled.
    fn refuse(&mut self, error: RecordError) -> Result<SessionEnd, RecordError> {
        if self.writer.is_none() {
            return Err(error);
        }
        self.settle(Fate::Refused(error.text()));
        Ok(SessionEnd::Executed)
    }

    fn settle(&mut self, fate: Fate) {
        let entry = self.executions.settle(fate);
        if let Some(writer) = &self.writer {
            ExecutionNotes::new(writer, self.common, self.number).note(entry);
        }
    }

    /// Whether the target has exited or the recording should end.
    fn is_over(&self) -> bool {
        self.has_exited() || self.common.stop.is_due()
    }

    fn has_exited(&self) -> bool {
        let mut wait = [PollFd::new(self.exit.as_fd(), PollFlags::POLLIN)];
        poll(&mut wait, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

/// A program that was executed.
pub(super) struct NextProgram {
    pid: i32,
    /// Its memory, if the recorder may open it.
    memory: Option<Memory>,
}

impl NextProgram {
    /// Returns the path of its file, or the name of the process if the path is not readable.
    pub(super) fn name(&self) -> String {
        let file = proc::executable(self.pid).map(|path| path.to_string_lossy().into_owned());
        file.or_else(|_| proc::status(self.pid).map(|status| status.name))
            .unwrap_or_else(|_| "[unknown]".to_owned())
    }

    /// Whether the process has executed another program or exited.
    pub(super) fn is_gone(&self) -> bool {
        self.memory.as_ref().is_some_and(Memory::is_gone)
    }

    /// Whether its exec is complete. If the mappings are not readable, the attach finds out.
    fn is_settled(&self) -> bool {
        is_settled(self.pid)
    }
}
