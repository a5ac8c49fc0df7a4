//! Threads that cannot have a timer: perf events sample them where that is safe.

use std::io;

use traceprof_abi::layout::SAMPLING;

use crate::proc::Status;
use crate::record::contract::sampling::{KernelFrames, Setup};
use crate::record::source::engine::{self, EngineFacts};
use crate::record::source::kernel::{self, KernelEvents};
use crate::record::source::program::{Program, TargetThreads};
use crate::record::source::thread_events::ThreadEvents;
use crate::record::source::timer::Timers;
use crate::record::source::timer_failures::{Fallback, SlotLife};
use crate::record::target::signals::SIGTRAP;

/// The maximum number of threads that get events in one turn of the loop.
const AT_ONCE: usize = 64;

/// The state of the events for threads without a timer.
enum TimerlessState {
    /// No thread has needed an event yet.
    Unneeded,
    /// The threads have events.
    Open(ThreadEvents),
    /// The threads have no events, for this reason.
    Denied(String),
}

/// The events of threads that cannot have a timer.
pub(crate) struct TimerlessThreads {
    state: TimerlessState,
    totals: TimerlessTotals,
}

/// Totals of the threads that could not have a timer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TimerlessTotals {
    /// The number of threads that had events.
    pub(crate) threads: u64,
    /// Whether their time in the kernel is not sampled.
    pub(crate) is_user_only: bool,
    /// The reason why the others had no events: a reason common to all, or the first one's.
    pub(crate) denied: Option<String>,
}

impl TimerlessTotals {
    /// Adds the totals of a later program.
    pub(crate) fn add(&mut self, later: Self) {
        self.threads += later.threads;
        self.is_user_only |= later.is_user_only;
        self.denied = self.denied.take().or(later.denied);
    }
}

impl TimerlessThreads {
    /// Makes the initial state, without events.
    pub(crate) fn new() -> Self {
        Self { state: TimerlessState::Unneeded, totals: TimerlessTotals::default() }
    }

    /// Opens events for threads without a timer, and closes those of threads that have exited.
    ///
    /// With `has_events`, perf events sample the other threads. Then only a thread that blocks
    /// their signal needs a timer, and such a thread gets no event.
    pub(crate) fn turn(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        (timers, kernel): (&mut Timers, &mut Option<KernelEvents>),
        has_events: bool,
    ) {
        let wanted: Vec<(SlotLife, i32)> = timers.failures.wanted().take(AT_ONCE).collect();
        if let TimerlessState::Open(events) = &mut self.state {
            events.sweep(program.attached.data().threads().slots);
        }
        if wanted.is_empty() || has_events {
            return;
        }
        if matches!(self.state, TimerlessState::Unneeded) {
            self.state = match open(program, kernel) {
                Ok(events) => TimerlessState::Open(events),
                Err(why) => {
                    program.notice(format!(
                        "threads that cannot have a timer are not sampled by perf events either: \
                         {why}"
                    ));
                    TimerlessState::Denied(why)
                }
            };
        }
        for (life, tid) in wanted {
            let fallback = self.add(life, tid, kernel.as_ref());
            timers.failures.set(life, fallback);
        }
        if let TimerlessState::Open(events) = &mut self.state {
            // Checked between opening and enabling: an event that was opened in another program
            // would kill that program.
            if program.threads.is_program_gone() { events.close() } else { events.enable() }
        }
    }

    fn add(&mut self, life: SlotLife, tid: i32, kernel: Option<&KernelEvents>) -> Fallback {
        let TimerlessState::Open(events) = &mut self.state else { return Fallback::Impossible };
        let Err(error) = events.add(life, tid, kernel) else { return Fallback::Event };
        let is_gone =
            error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH);
        if !is_gone {
            self.totals.denied.get_or_insert(error.to_string());
        }
        Fallback::Impossible
    }

    /// Closes the events if SIGTRAP does not reach our handler any more.
    ///
    /// The next expiry would kill the target or run another handler.
    pub(crate) fn check_signal(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        timers: Option<&mut Timers>,
        (status, is_check_due): (&Status, bool),
    ) {
        let slots = program.attached.data().threads().slots;
        let TimerlessState::Open(events) = &mut self.state else { return };
        let why = if !status.catches(SIGTRAP) {
            "the application reset SIGTRAP"
        } else if is_check_due && events.is_silent(slots) && program.is_handler_replaced(SAMPLING) {
            "the application installed its own handler for SIGTRAP"
        } else {
            return;
        };
        self.deny(program, timers, why);
    }

    /// Closes the events, if there are any, and opens no more.
    pub(crate) fn deny(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        timers: Option<&mut Timers>,
        why: &str,
    ) {
        let before = std::mem::replace(&mut self.state, TimerlessState::Denied(why.to_owned()));
        let TimerlessState::Open(mut events) = before else { return };
        let lives: Vec<SlotLife> = events.lives().collect();
        events.close();
        self.count(&events);
        if let Some(timers) = timers {
            lives.into_iter().for_each(|life| timers.failures.set(life, Fallback::Impossible));
        }
        program.notice(format!("threads that cannot have a timer are no longer sampled: {why}"));
    }

    /// Closes the events and returns the totals.
    pub(crate) fn end(&mut self) -> TimerlessTotals {
        match std::mem::replace(&mut self.state, TimerlessState::Unneeded) {
            TimerlessState::Unneeded => {}
            TimerlessState::Open(mut events) => {
                events.close();
                self.count(&events);
            }
            TimerlessState::Denied(why) => self.totals.denied = Some(why),
        }
        std::mem::take(&mut self.totals)
    }

    fn count(&mut self, events: &ThreadEvents) {
        self.totals.threads += events.count;
        self.totals.is_user_only |= events.is_user_only;
    }
}

/// Prepares the handler of SIGTRAP and the kernel's buffers, if events are safe.
///
/// The check is repeated here, since the target may have loaded a crash reporter after the attach.
fn open(
    program: &mut Program<'_, '_, impl TargetThreads>,
    kernel: &mut Option<KernelEvents>,
) -> Result<ThreadEvents, String> {
    let attached = &mut *program.attached;
    let (pid, setup) = (attached.pid(), attached.setup);
    let facts = EngineFacts::gather(pid, attached.choice.is_started, setup);
    let facts = facts.map_err(|error| error.to_string())?;
    if let Some(why) = engine::why_no_events(&facts) {
        return Err(why);
    }
    attached.add_signal(SAMPLING, SIGTRAP).map_err(|error| error.text())?;
    if kernel.is_none() && kernel::is_permitted(pid, setup) {
        // Without these buffers only time in user mode is sampled, and the report says so.
        let frames = match setup.frames {
            KernelFrames::Unwanted => KernelFrames::Unwanted,
            _ => kernel::shown(pid, setup),
        };
        *kernel = KernelEvents::open_empty(Setup { frames, ..setup }, attached.tables()).ok();
    }
    if let Some(kernel) = kernel {
        kernel.set_agent_range(attached.span());
    }
    Ok(ThreadEvents::new(pid, setup))
}
