//! The `perf` engine: a signalling event for each thread, which new threads inherit.
//!
//! # Invariants
//! - Each event has its own `sig_data`; for a thread with two events, only one counts.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use traceprof_abi::event::EventWord;
use traceprof_abi::layout::EVENTS_MAX;

use crate::proc::{self, DescriptorUse};
use crate::record::contract::sampling::Setup;
use crate::record::source::perf::{self, EventFamily, Scope};
use crate::record::target::narrow_stacks::{self, NarrowThread};

/// The open events of one family, by index.
#[derive(Debug)]
pub(crate) struct InheritedEvents {
    setup: Setup,
    family: EventFamily,
    open: BTreeMap<u32, (i32, OwnedFd)>,
    next: u32,
}

impl InheritedEvents {
    /// Opens a disabled event on every thread of the process but those whose stack has no room for
    /// its signal.
    pub(crate) fn open(
        pid: i32,
        setup: Setup,
        family: EventFamily,
        narrow: &[NarrowThread],
    ) -> io::Result<Self> {
        DescriptorUse::Events.check(proc::tasks(pid)?.len() as u64)?;
        let mut events = Self { setup, family, open: BTreeMap::new(), next: 0 };
        perf::each_thread(pid, |tid| {
            if narrow_stacks::holds(narrow, pid, tid) { Ok(true) } else { events.add(tid) }
        })?;
        Ok(events)
    }

    /// Opens an event on a thread; returns false if the thread has exited.
    fn add(&mut self, tid: i32) -> io::Result<bool> {
        if self.next as usize >= EVENTS_MAX {
            return Err(io::Error::other("more threads than events can distinguish"));
        }
        match perf::open(Scope::Family, tid, self.setup, self.family.event(self.next)) {
            Ok(descriptor) => {
                self.open.insert(self.next, (tid, descriptor));
                self.next += 1;
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the threads that have an event of their own, each with its event.
    pub(crate) fn threads(&self) -> impl Iterator<Item = (i32, EventWord)> {
        self.open.iter().map(|(index, (tid, _))| (*tid, self.family.event(*index)))
    }

    /// Returns the number of open events.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Starts all events, including inherited ones.
    pub(crate) fn enable(&self) {
        self.open.values().for_each(|(_, event)| perf::enable(event));
    }

    /// Stops all events, including inherited ones.
    pub(crate) fn disable(&self) {
        self.open.values().for_each(|(_, event)| perf::disable(event));
    }

    /// Closes one event and all events inherited from it; returns false if it is not open.
    pub(crate) fn close(&mut self, index: u32) -> bool {
        let event = self.open.remove(&index);
        let is_open = event.is_some();
        perf::close_all(event.map(|(_, descriptor)| descriptor).into_iter().collect());
        is_open
    }
}

impl Drop for InheritedEvents {
    fn drop(&mut self) {
        let events = std::mem::take(&mut self.open);
        perf::close_all(events.into_values().map(|(_, descriptor)| descriptor).collect());
    }
}
