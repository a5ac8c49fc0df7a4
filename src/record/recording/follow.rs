//! From one program to the next that the same process executes.
//!
//! # Invariants
//! - A program is attached to when its exec is over: before, its first mappings are still made.
//! - A program that executes another one while it is being attached to is passed over, however often
//!   that happens; one that is still there and cannot be attached to ends the recording.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::aftermath::Footprint;
use super::super::clock::monotonic_now_ns;
use super::super::prospect::{self, Sampled};
use super::super::{Event, RecordError, program, target_error, wait_for_handlers};
use super::{End, Fate, Recording, Told};
use crate::proc::{self, Mapping, Memory};

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
        if program::takes_all_signals(PathBuf::from(format!("/proc/{}/exe", next.pid)).as_os_str())
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
        let no_timers = prospect::check(pid, self.common.options, &mut self.guardian)?.no_timers;
        let sampled = Sampled { pid, is_started: true, hold_fd: None, no_timers };
        let before = prospect::before(sampled, self.common.options)?;
        if self.common.options.verify_detach {
            let footprint = Footprint::of(pid).map_err(|error| target_error(pid, error))?;
            self.footprint = Some(footprint);
        }
        self.sample(before, Some(next))
    }

    /// The program is still there and cannot be sampled: the recording ends with what it has.
    fn refuse(&mut self, error: RecordError) -> Result<End, RecordError> {
        if self.scribe.is_none() {
            return Err(error);
        }
        self.tell(Fate::Refused(error.text()));
        Ok(End::Executed)
    }

    fn tell(&mut self, fate: Fate) {
        let entry = self.executions.settle(fate);
        if let Some(scribe) = &self.scribe {
            Told::new(scribe, self.common, self.number).note(entry);
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

/// No exec is going on in a process, as far as can be seen.
pub(in crate::record) fn is_settled(pid: i32) -> bool {
    match proc::mappings(pid) {
        Ok(mappings) => is_complete(&mappings),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

/// The kernel has mapped all of a program: its own code, and last the code that is the kernel's.
fn is_complete(mappings: &[Mapping]) -> bool {
    let has_code = mappings.iter().any(|mapping| mapping.exec && mapping.inode != 0);
    has_code && mappings.iter().any(|mapping| mapping.path == "[vdso]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exec_is_over_when_all_is_mapped() {
        let own = proc::mappings(std::process::id() as i32).unwrap();
        assert!(is_complete(&own));
        let without = |path: &str| {
            let rest = own.iter().filter(|mapping| mapping.path != path);
            rest.cloned().collect::<Vec<_>>()
        };
        assert!(!is_complete(&without("[vdso]")));
        // What there is first.
        let stack: Vec<_> = own.iter().filter(|it| it.path == "[stack]").cloned().collect();
        assert!(stack.len() == 1 && !is_complete(&stack));
    }
}
