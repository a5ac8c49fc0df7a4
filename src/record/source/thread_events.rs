//! Perf events for single threads, where timers sample the others.
//!
//! A thread that cannot have a timer gets events of its own. The threads that it starts do not
//! inherit the events, since these threads should have timers. The events signal SIGTRAP, so the
//! recorder closes them as soon as our handler may have been replaced.
//!
//! # Invariants
//! - A thread with a timer has no event: both would count its time in kernel mode.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use traceprof_abi::event::EventWord;
use traceprof_abi::layout::EVENTS_MAX;
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::ThreadSlot;

use crate::proc;
use crate::record::contract::sampling::Setup;
use crate::record::source::kernel::KernelEvents;
use crate::record::source::perf::{self, Scope};
use crate::record::source::timer_failures::{SlotLife, is_alive};
use crate::record::target::signals::SIGTRAP;

/// Periods of CPU time without a sample after which the handler may have been replaced.
const SILENT_PERIODS: u64 = 100;
/// The minimum of that CPU time in nanoseconds.
const SILENT_NS: u64 = 500_000_000;
/// The maximum number of threads whose CPU time is read for this check.
const CHECKED_MAX: usize = 64;

struct EventsOfThread {
    tid: i32,
    events: Vec<OwnedFd>,
    is_enabled: bool,
}

/// The events of threads that cannot have a timer.
pub(crate) struct ThreadEvents {
    pid: i32,
    setup: Setup,
    next: u32,
    open: BTreeMap<SlotLife, EventsOfThread>,
    /// The number of samples of all threads, and their CPU time in nanoseconds at the last sample.
    last_progress: (u64, u64),
    /// The number of threads that ever had events.
    pub(crate) count: u64,
    /// Whether some of them have no samples of kernel mode.
    pub(crate) is_user_only: bool,
}

impl ThreadEvents {
    /// Makes an empty set for a process whose agent handles SIGTRAP.
    pub(crate) fn new(pid: i32, setup: Setup) -> Self {
        let open = BTreeMap::new();
        Self { pid, setup, next: 0, open, last_progress: (0, 0), count: 0, is_user_only: false }
    }

    /// Opens events on a thread, including kernel-mode ones if there are buffers for them.
    ///
    /// The events start disabled: the process may execute another program meanwhile, which has no
    /// handler for their signal.
    pub(crate) fn add(
        &mut self,
        life: SlotLife,
        tid: i32,
        kernel: Option<&KernelEvents>,
    ) -> io::Result<()> {
        if proc::task_status(self.pid, tid)?.blocks(SIGTRAP) {
            return Err(io::Error::other("the thread blocks SIGTRAP"));
        }
        if self.next as usize >= EVENTS_MAX {
            return Err(io::Error::other("more threads than events can distinguish"));
        }
        let mut events =
            vec![perf::open(Scope::Alone, tid, self.setup, EventWord::new(self.next, 0, 0))?];
        match kernel.and_then(|kernel| kernel.add(tid, self.setup).ok()) {
            Some(others) => events.extend(others),
            None => self.is_user_only = true,
        }
        self.next += 1;
        self.count += 1;
        self.open.insert(life, EventsOfThread { tid, events, is_enabled: false });
        Ok(())
    }

    /// Enables the open events; the caller has checked, after they were opened, that the agent is
    /// still in the process.
    pub(crate) fn enable(&mut self) {
        for of_thread in self.open.values_mut().filter(|of_thread| !of_thread.is_enabled) {
            of_thread.events.iter().for_each(perf::enable);
            of_thread.is_enabled = true;
        }
    }

    /// Closes the events of threads that have exited or have a timer by now.
    pub(crate) fn sweep(&mut self, slots: &[ThreadSlot]) {
        let is_over = |life: &SlotLife| {
            // Relaxed: the handler ignores the event's expiries as soon as there is a timer.
            let has_timer = slots.get(life.0).map(|slot| slot.timer.load(Ordering::Relaxed));
            has_timer != Some(0) || !is_alive(slots, *life)
        };
        let over: Vec<SlotLife> = self.open.keys().copied().filter(is_over).collect();
        let gone = over.iter().filter_map(|life| self.open.remove(life));
        perf::close_all(gone.flat_map(|of_thread| of_thread.events).collect());
    }

    /// Returns the threads that have events.
    pub(crate) fn lives(&self) -> impl Iterator<Item = SlotLife> {
        self.open.keys().copied()
    }

    /// Closes all events.
    pub(crate) fn close(&mut self) {
        let all = std::mem::take(&mut self.open);
        perf::close_all(all.into_values().flat_map(|of_thread| of_thread.events).collect());
    }

    /// Returns whether the threads used much CPU time since the last sample of any of them.
    ///
    /// After a result of true, the measurement starts again.
    pub(crate) fn is_silent(&mut self, slots: &[ThreadSlot]) -> bool {
        let (mut total, mut used_ns) = (0u64, 0u64);
        for ((index, _), of_thread) in self.open.iter().take(CHECKED_MAX) {
            // Relaxed: a count.
            let samples = slots.get(*index).map_or(0, |slot| slot.samples.load(Ordering::Relaxed));
            total = total.wrapping_add(samples);
            used_ns += proc::task_cpu_or_ticks_ns(self.pid, of_thread.tid).unwrap_or(0);
        }
        let limit_ns = self.setup.period_ns.saturating_mul(SILENT_PERIODS).max(SILENT_NS);
        let is_silent = total == self.last_progress.0
            && used_ns.saturating_sub(self.last_progress.1) >= limit_ns;
        if total != self.last_progress.0 || is_silent || used_ns < self.last_progress.1 {
            self.last_progress = (total, used_ns);
        }
        is_silent
    }
}

impl Drop for ThreadEvents {
    fn drop(&mut self) {
        self.close();
    }
}
