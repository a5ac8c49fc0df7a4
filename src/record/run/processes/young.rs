//! Children that the recorder has found and may attach to.
//!
//! The kernel samples a child from its first program on (`unattached`), so the recorder attaches
//! only to one that lives on. Of a child that goes on with its parent's program, nothing is sampled
//! before the attach.

use std::time::{Duration, Instant};

use super::birth::EXEC_WAIT;
use super::family::Child;
use crate::proc;
use crate::record::run::unattached::Unattached;

/// The age at which the recorder attaches to a child that the kernel samples. An attach costs the
/// recorder some milliseconds of CPU time.
const ATTACHED_AT: Duration = Duration::from_millis(300);
/// The longest wait after the end of a child until it is known whether the kernel has sampled it.
const KNOWN_AFTER: Duration = Duration::from_secs(10);

/// The children that the recorder has not attached to.
#[derive(Default)]
pub(super) struct Young {
    children: Vec<YoungChild>,
}

struct YoungChild {
    child: Child,
    found: Instant,
    start_time: Option<u64>,
    /// When it was seen to be gone.
    ended: Option<Instant>,
}

/// What is to be done with children.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct GrownUp {
    /// Children to attach to.
    pub(super) attach: Vec<Child>,
    /// The number of children that ended before anything was sampled.
    pub(super) missed: u64,
}

impl Young {
    /// Adds a child that has just started.
    pub(super) fn add(&mut self, child: Child) {
        let start_time = proc::start_time(child.pid).ok();
        let ended = start_time.is_none().then(Instant::now);
        self.children.push(YoungChild { child, found: Instant::now(), start_time, ended });
    }

    /// Adds a child that exited before the recorder had attached to it.
    pub(super) fn add_ended(&mut self, pid: i32) {
        let (child, now) = (Child { pid, parent: 0 }, Instant::now());
        let (start_time, ended) = (None, Some(now));
        self.children.push(YoungChild { child, found: now, start_time, ended });
    }

    /// Returns how many of the children that have ended were not sampled, once all records have
    /// been handled.
    pub(super) fn missed_at_end(self, unattached: &Unattached) -> u64 {
        let ended = self.children.iter().filter(|it| it.ended.is_some());
        ended.filter(|it| !unattached.take_seen(it.child.pid)).count() as u64
    }

    /// Returns whether some child is alive.
    pub(super) fn is_any_alive(&self) -> bool {
        self.children.iter().any(|it| it.ended.is_none())
    }

    /// Returns the children whose time has come.
    pub(super) fn turn(&mut self, unattached: &Unattached) -> GrownUp {
        let mut grown_up = GrownUp::default();
        self.children.retain_mut(|it| it.stays(unattached, &mut grown_up));
        grown_up
    }
}

impl YoungChild {
    fn stays(&mut self, unattached: &Unattached, grown_up: &mut GrownUp) -> bool {
        let pid = self.child.pid;
        if let Some(ended) = self.ended {
            if !unattached.has_read_until(ended) && ended.elapsed() < KNOWN_AFTER {
                return true;
            }
            grown_up.missed += u64::from(!unattached.take_seen(pid));
            return false;
        }
        let is_old = self.found.elapsed() >= ATTACHED_AT;
        if self.found.elapsed() < EXEC_WAIT {
            return true;
        }
        // Another process may have the same id by now.
        let is_there = proc::start_time(pid).ok() == self.start_time
            && proc::status(pid).is_ok_and(|it| !proc::has_ended(it.state) || it.threads > 1);
        if !is_there {
            self.ended = Some(Instant::now());
            return true;
        }
        if !is_old && unattached.is_seen(pid) {
            return true;
        }
        if is_old || !self.may_be_sampled() {
            grown_up.attach.push(self.child);
            return false;
        }
        true
    }

    /// Whether the child runs another program than its parent, which the reader of the kernel's
    /// records may not have seen yet.
    fn may_be_sampled(&self) -> bool {
        let Child { pid, parent } = self.child;
        // A process whose parent is gone may run the same program.
        proc::random_bytes(parent).is_ok_and(|its| proc::random_bytes(pid).ok() != Some(its))
    }
}
