//! From one program to the next that the same process executes.
//!
//! # Invariants
//! - A program is attached to when its exec is over: before, its first mappings are still made.
//! - A program that executes another one while it is being attached to is passed over, however
//!   often that happens; one that is still there and cannot be attached to ends the recording.

use crate::record::run::settled::is_settled;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::proc::{self, Memory};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::error::{RecordError, target_error};
use crate::record::contract::event::Event;
use crate::record::run::opened::wait_for_handlers;
use crate::record::run::plan::{Candidate, Plan};
use crate::record::run::recording::{End, Fate, Recording, Told};
use crate::record::target::command;
use crate::record::target::residue::Footprint;

/// Longest wait for an exec to be over: the program may lie on a slow disk.
const SETTLED_MAX: Duration = Duration::from_secs(5);
/// Between two looks at it.
const LOOK: Duration = Duration::from_micros(200);
/// Between two attempts to attach to it.
const PAUSE: Duration = Duration::from_millis(1);
/// How long an attach is tried: while another thread than the first one executes a program there is
/// nobody with the process's id for a moment, and mappings may change at the wrong one.
const TRIED_MAX: Duration = Duration::from_secs(2);

impl Recording<'_> {
    /// The target has executed another program: samples that one, and those that come after it.
    pub(super) fn follow(&mut self) -> Result<End, RecordError> {
        let mut time_ns = self.done.as_ref().map_or_else(monotonic_now_ns, |done| done.times_ns.1);
        loop {
            if let Some(text) = self.jvm.end() {
                self.observer.event(Event::Notice(text));
            }
            let next = Next { pid: self.opened.pid, memory: Memory::of(self.opened.pid).ok() };
            let early = next.name();
            self.wait_for(&next);
            let late = next.name();
            // Only of a program that is still there it is its name.
            self.executions.begin(if next.is_gone() { early } else { late }, time_ns);
            let outcome = self.try_to_sample(&next);
            time_ns = match outcome {
                Ok(End::Executed) => self.done.as_ref().map_or(time_ns, |done| done.times_ns.1),
                Ok(end) => return Ok(end),
                Err(error) if !self.is_over() && !next.is_gone() => return self.refuse(error),
                Err(_) => {
                    self.tell(Fate::Missed);
                    monotonic_now_ns()
                }
            };
            if self.has_exited() {
                return Ok(End::Exited);
            }
            if self.common.stop.is_due() {
                return Ok(End::AskedBetween);
            }
        }
    }

    /// Waits until the program may be attached to, is gone, or need not be sampled any more.
    fn wait_for(&self, next: &Next) {
        let deadline = Instant::now() + SETTLED_MAX;
        let is_over = || self.is_over() || next.is_gone();
        while !next.is_settled() && !is_over() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        if command::takes_all_signals(PathBuf::from(format!("/proc/{}/exe", next.pid)).as_os_str())
        {
            // What became of it shows when it is attached to.
            let _ = wait_for_handlers(next.pid, is_over);
        }
    }

    fn try_to_sample(&mut self, next: &Next) -> Result<End, RecordError> {
        let deadline = Instant::now() + TRIED_MAX;
        loop {
            let outcome = self.try_once(next);
            let may_differ =
                matches!(outcome, Err(RecordError::Other(_) | RecordError::TargetGone(_)));
            if !may_differ || next.is_gone() || self.is_over() || Instant::now() >= deadline {
                return outcome;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// As with any running process, but that it has just been started.
    fn try_once(&mut self, next: &Next) -> Result<End, RecordError> {
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

    /// The program is still there and cannot be sampled: the recording ends with what it has.
    fn refuse(&mut self, error: RecordError) -> Result<End, RecordError> {
        if self.writer.is_none() {
            return Err(error);
        }
        self.tell(Fate::Refused(error.text()));
        Ok(End::Executed)
    }

    fn tell(&mut self, fate: Fate) {
        let entry = self.executions.settle(fate);
        if let Some(writer) = &self.writer {
            Told::new(writer, self.common, self.number).note(entry);
        }
    }

    /// Nothing is to be sampled any more, whatever the target does.
    fn is_over(&self) -> bool {
        self.has_exited() || self.common.stop.is_due()
    }

    fn has_exited(&self) -> bool {
        let mut wait = [PollFd::new(self.exit.as_fd(), PollFlags::POLLIN)];
        poll(&mut wait, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

/// A program that was executed.
pub(super) struct Next {
    pid: i32,
    /// What it has, if that may be asked.
    memory: Option<Memory>,
}

impl Next {
    /// What it is called: its file, or where that may not be seen its process.
    pub(super) fn name(&self) -> String {
        let file = proc::executable(self.pid).map(|path| path.to_string_lossy().into_owned());
        file.or_else(|_| proc::status(self.pid).map(|status| status.name))
            .unwrap_or_else(|_| "[unknown]".to_owned())
    }

    /// It has executed another one.
    pub(super) fn is_gone(&self) -> bool {
        self.memory.as_ref().is_some_and(Memory::is_gone)
    }

    /// Its exec is over. What may not be looked into is found out by the attach.
    fn is_settled(&self) -> bool {
        is_settled(self.pid)
    }
}
