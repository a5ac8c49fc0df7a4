//! Perf events for single threads, where timers sample the others.
//!
//! A thread that can have no timer gets events of its own, which the threads that it starts do not
//! inherit: those are to have timers. Their signal is SIGTRAP, so they are closed as soon as it may
//! have been taken from our handler.
//!
//! # Invariants
//! - A thread that has a timer has no event: both would count its time in kernel mode.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use traceprof_abi::event::EventWord;
use traceprof_abi::layout::EVENTS_MAX;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;

use super::attach::SIGTRAP;
use super::failures::{Life, is_alive};
use super::kernel::KernelEvents;
use super::perf::{self, Scope, Setup};
use crate::proc;

/// CPU time without a hit after which the handler may have been replaced: so many periods,
const SILENT_PERIODS: u64 = 100;
/// and so much time.
const SILENT_NS: u64 = 500_000_000;
/// Threads whose time is read for that.
const LISTENED_TO: usize = 64;

struct Rescued {
    tid: i32,
    events: Vec<OwnedFd>,
    is_enabled: bool,
}

/// The events of threads that can have no timer.
pub(super) struct RescueEvents {
    pid: i32,
    setup: Setup,
    next: u32,
    open: BTreeMap<Life, Rescued>,
    /// Hits of all of them, and the CPU time that they had used when there was one last.
    heard: (u64, u64),
    /// Threads that had events.
    pub(super) count: u64,
    /// Of some of them time in the kernel is not sampled.
    pub(super) is_user_only: bool,
}

impl RescueEvents {
    /// For a process whose agent has a handler for SIGTRAP.
    pub(super) fn new(pid: i32, setup: Setup) -> Self {
        let open = BTreeMap::new();
        Self { pid, setup, next: 0, open, heard: (0, 0), count: 0, is_user_only: false }
    }

    /// Opens events on a thread, those of kernel mode where there are buffers for them. They are not
    /// enabled yet: the program may execute another one meanwhile, which has no handler for their hits.
    pub(super) fn add(
        &mut self,
        life: Life,
        tid: i32,
        kernel: Option<&KernelEvents>,
    ) -> io::Result<()> {
        if proc::task_status(self.pid, tid)?.blocks(SIGTRAP) {
            return Err(io::Error::other("it blocks SIGTRAP"));
        }
        if self.next as usize >= EVENTS_MAX {
            return Err(io::Error::other("more threads than events can be told apart"));
        }
        let mut events =
            vec![perf::open(Scope::Alone, tid, self.setup, EventWord::new(self.next, 0, 0))?];
        match kernel.and_then(|kernel| kernel.add(tid, self.setup).ok()) {
            Some(others) => events.extend(others),
            None => self.is_user_only = true,
        }
        self.next += 1;
        self.count += 1;
        self.open.insert(life, Rescued { tid, events, is_enabled: false });
        Ok(())
    }

    /// Enables what was opened. The agent was in the process after that.
    pub(super) fn enable(&mut self) {
        for rescued in self.open.values_mut().filter(|rescued| !rescued.is_enabled) {
            rescued.events.iter().for_each(perf::enable);
            rescued.is_enabled = true;
        }
    }

    /// Closes the events of threads that are gone, or have a timer by now.
    pub(super) fn sweep(&mut self, slots: &[ThreadSlot]) {
        let is_over = |life: &Life| {
            // Relaxed: its handler ignores the event's hits as soon as there is a timer.
            let has_timer = slots.get(life.0).map(|slot| slot.timer.load(Ordering::Relaxed));
            has_timer != Some(0) || !is_alive(slots, *life)
        };
        let over: Vec<Life> = self.open.keys().copied().filter(is_over).collect();
        let gone = over.iter().filter_map(|life| self.open.remove(life));
        perf::close_all(gone.flat_map(|rescued| rescued.events).collect());
    }

    /// Threads that have events.
    pub(super) fn lives(&self) -> impl Iterator<Item = Life> {
        self.open.keys().copied()
    }

    /// Closes all.
    pub(super) fn close(&mut self) {
        let all = std::mem::take(&mut self.open);
        perf::close_all(all.into_values().flat_map(|rescued| rescued.events).collect());
    }

    /// The threads have used much CPU time since the last hit of any of them. Asked again, it answers
    /// after as much time again.
    pub(super) fn is_silent(&mut self, slots: &[ThreadSlot]) -> bool {
        let (mut hits, mut used_ns) = (0u64, 0u64);
        for ((index, _), rescued) in self.open.iter().take(LISTENED_TO) {
            // Relaxed: a count.
            let samples = slots.get(*index).map_or(0, |slot| slot.samples.load(Ordering::Relaxed));
            hits = hits.wrapping_add(samples);
            used_ns += proc::task_cpu_or_ticks_ns(self.pid, rescued.tid).unwrap_or(0);
        }
        let limit_ns = self.setup.period_ns.saturating_mul(SILENT_PERIODS).max(SILENT_NS);
        let is_silent = hits == self.heard.0 && used_ns.saturating_sub(self.heard.1) >= limit_ns;
        if hits != self.heard.0 || is_silent || used_ns < self.heard.1 {
            self.heard = (hits, used_ns);
        }
        is_silent
    }
}

impl Drop for RescueEvents {
    fn drop(&mut self) {
        self.close();
    }
}
