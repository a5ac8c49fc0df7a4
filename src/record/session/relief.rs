//! Threads that can have no timer are sampled by perf events of their own, where that is safe.

use std::io;

use traceprof_abi::layout::{Operation, REPLACED, SAMPLING};
use traceprof_abi::sync::Ordering;

use crate::proc::Status;
use crate::record::session::{Event, Session};
use crate::record::source::engine::{self, Facts};
use crate::record::source::kernel::{self, KernelEvents};
use crate::record::source::thread_events::ThreadEvents;
use crate::record::source::timer_failures::{Fallback, SlotLife};
use crate::record::target::signals::SIGTRAP;

/// Threads that get events in one turn of the loop.
const AT_ONCE: usize = 64;

/// Whether such threads have events.
pub(super) enum Relief {
    /// No thread needed any yet.
    Unneeded,
    /// They have.
    Events(ThreadEvents),
    /// They have none, for this reason.
    Denied(String),
}

/// What was done for threads that could have no timer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Relieved {
    /// How many had events.
    pub(crate) threads: u64,
    /// Their time in the kernel is not sampled.
    pub(crate) is_user_only: bool,
    /// Why the others had none: the reason that all of them share, or that of the first.
    pub(crate) denied: Option<String>,
}

impl Relieved {
    /// Adds what was done in a later program.
    pub(crate) fn add(&mut self, later: Self) {
        self.threads += later.threads;
        self.is_user_only |= later.is_user_only;
        self.denied = self.denied.take().or(later.denied);
    }
}

impl Session<'_> {
    /// Looks for threads that can have no timer, and opens events for them.
    pub(super) fn relieve(&mut self) {
        let has_events = self.events.is_some();
        let Some(timers) = &mut self.timers else { return };
        let wanted: Vec<(SlotLife, i32)> = timers.failures.wanted().take(AT_ONCE).collect();
        let slots = self.attached.data().threads().slots;
        if let Relief::Events(events) = &mut self.relief {
            events.sweep(slots);
        }
        // Where events sample the others, a thread that needs a timer blocks their signal.
        if wanted.is_empty() || has_events {
            return;
        }
        if matches!(self.relief, Relief::Unneeded) {
            self.relief = match self.open_relief() {
                Ok(events) => Relief::Events(events),
                Err(why) => {
                    let text = format!(
                        "threads that can have no timer are not sampled by perf events: {why}"
                    );
                    self.observer.event(Event::Notice(text));
                    Relief::Denied(why)
                }
            };
        }
        let (kernel, Some(timers)) = (self.kernel.as_ref(), &mut self.timers) else { return };
        for (life, tid) in wanted {
            let thread_events = match &mut self.relief {
                Relief::Events(events) => match events.add(life, tid, kernel) {
                    Ok(()) => Fallback::Event,
                    Err(error) => {
                        let is_gone = error.kind() == io::ErrorKind::NotFound
                            || error.raw_os_error() == Some(libc::ESRCH);
                        if !is_gone {
                            self.relieved.denied.get_or_insert(error.to_string());
                        }
                        Fallback::Impossible
                    }
                },
                Relief::Unneeded | Relief::Denied(_) => Fallback::Impossible,
            };
            timers.failures.set(life, thread_events);
        }
        if let Relief::Events(events) = &mut self.relief {
            // Asked between their opening and their start; one that was opened in another program
            // would kill it.
            if self.registry.is_program_gone() { events.close() } else { events.enable() }
        }
    }

    /// Asked anew of the target: it may have loaded a crash reporter since the attach.
    fn open_relief(&mut self) -> Result<ThreadEvents, String> {
        let (pid, setup) = (self.pid, self.attached.setup);
        let facts = Facts::gather(pid, self.attached.choice.is_started, setup);
        let facts = facts.map_err(|error| error.to_string())?;
        if let Some(why) = engine::why_no_events(&facts) {
            return Err(why);
        }
        self.attached.add_signal(SAMPLING, SIGTRAP).map_err(|error| error.text())?;
        if self.kernel.is_none() && kernel::is_permitted(pid, setup) {
            // Without its buffers only time in user mode is sampled, and that is told.
            self.kernel = KernelEvents::open_empty(setup, self.attached.tables()).ok();
        }
        if let Some(kernel) = &mut self.kernel {
            kernel.set_agent_range(self.attached.span());
        }
        Ok(ThreadEvents::new(pid, setup))
    }

    /// SIGTRAP does not reach our handler any more: its next hit would end the target, or run
    /// somebody else's handler.
    pub(super) fn watch_relief(&mut self, status: &Status, is_look_due: bool) {
        let slots = self.attached.data().threads().slots;
        let Relief::Events(events) = &mut self.relief else { return };
        let why = if !status.catches(SIGTRAP) {
            "the application reset SIGTRAP"
        } else if is_look_due && events.is_silent(slots) && self.is_replaced(SAMPLING) {
            "the application installed its own handler for SIGTRAP"
        } else {
            return;
        };
        self.deny_relief(why);
    }

    /// Closes the events of such threads, if there are any, and opens none any more.
    pub(super) fn deny_relief(&mut self, why: &str) {
        let before = std::mem::replace(&mut self.relief, Relief::Denied(why.to_owned()));
        let Relief::Events(mut events) = before else { return };
        let lives: Vec<SlotLife> = events.lives().collect();
        events.close();
        self.note_relief(&events);
        if let Some(timers) = &mut self.timers {
            lives.into_iter().for_each(|life| timers.failures.set(life, Fallback::Impossible));
        }
        let text = format!("threads that can have no timer are no longer sampled: {why}");
        self.observer.event(Event::Notice(text));
    }

    /// Has the agent look at its handlers; true if that in this place is not ours any more.
    pub(super) fn is_replaced(&mut self, place: usize) -> bool {
        if self.attached.enter(Operation::Look).is_err() {
            return false;
        }
        let action = &self.attached.data().control().signals[place];
        // Relaxed: the entry has returned.
        action.installed.load(Ordering::Relaxed) == REPLACED
    }

    /// Closes the events, and tells what came of them.
    pub(super) fn end_relief(&mut self) -> Relieved {
        match std::mem::replace(&mut self.relief, Relief::Unneeded) {
            Relief::Unneeded => {}
            Relief::Events(mut events) => {
                events.close();
                self.note_relief(&events);
            }
            Relief::Denied(why) => self.relieved.denied = Some(why),
        }
        std::mem::take(&mut self.relieved)
    }

    fn note_relief(&mut self, events: &ThreadEvents) {
        self.relieved.threads += events.count;
        self.relieved.is_user_only |= events.is_user_only;
    }
}
