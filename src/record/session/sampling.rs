//! What samples, while it does: its turn in the loop, its dangers, and going on with timers.

use std::time::Instant;

use traceprof_abi::layout::{Operation, PRIMING, SAMPLING};

use crate::proc::{self, Status};
use crate::record::contract::error::RecordError;
use crate::record::contract::sampling::Engine;
use crate::record::session::{Event, Observer, Parts, Session};
use crate::record::source::kernel::KernelEvents;
use crate::record::source::missing_expiries::{self, MissingExpiries};
use crate::record::source::perf::{Events, event_error};
use crate::record::source::timer::Timers;
use crate::record::store::threads::Registry;
use crate::record::target::signals;

/// A signal of ours that the application took.
struct Loss {
    signal: i32,
    /// Its action is the default one, or to ignore it; else another handler's.
    is_reset: bool,
}

impl Loss {
    fn text(&self) -> String {
        let name = crate::proc::signal_name(self.signal);
        match self.is_reset {
            true => format!("the application reset {name}"),
            false => format!("the application installed its own handler for {name}"),
        }
    }
}

/// What samples, once it is set up.
pub(super) struct Started {
    pub(super) registry: Registry,
    pub(super) events: Option<Events>,
    pub(super) timers: Option<Timers>,
}

/// Opens the events, or has the timers armed.
pub(super) fn start(parts: &mut Parts<'_>) -> Result<Started, RecordError> {
    let (pid, data) = (parts.pid, parts.attached.data());
    let gone = |error| event_error(pid, error);
    let first = parts.before.map_or(0, |before| before.next_thread);
    let mut registry = Registry::new(pid, data, first).map_err(gone)?;
    let mut events = match parts.attached.choice.engine {
        Engine::Perf => Some(Events::open(pid, parts.attached.setup, parts.overhead.family())),
        Engine::Timer => None,
    };
    if let Some(Err(error)) = &events
        && parts.attached.choice.is_free
        && !matches!(error.raw_os_error(), Some(libc::ESRCH))
    {
        let why = format!("opening the events failed ({error})");
        parts.attached.switch_to_timers(&why)?;
        parts.attached.setup.kernel = true;
        events = None;
    }
    let events = events.transpose().map_err(gone)?;
    registry.scan(true);
    if let Some(events) = &events {
        registry.prime(events.threads());
    }
    let left_out = parts.attached.waiting.clone();
    let timers =
        parts.attached.timer_signal().map(|signal| Timers::start(pid, data, signal, left_out));
    let mut started = Started { registry, events, timers };
    started.cover();
    Ok(started)
}

/// The kernel's time, if it was asked for and may be had; without it the rest goes on.
pub(super) fn open_kernel(
    parts: &mut Parts<'_>,
    observer: &mut dyn Observer,
) -> Option<KernelEvents> {
    if !parts.attached.setup.kernel || parts.attached.choice.engine != Engine::Perf {
        return None;
    }
    let (setup, shift) = (parts.attached.setup, parts.overhead.family().shift);
    match KernelEvents::open(parts.pid, setup, shift, parts.attached.tables()) {
        Ok(mut kernel) => {
            kernel.set_agent_range(parts.attached.span());
            Some(kernel)
        }
        Err(error) => {
            parts.attached.setup.kernel = false;
            let text = format!("time in the kernel is not sampled: {error}");
            observer.event(Event::Notice(text));
            None
        }
    }
}

impl Started {
    fn cover(&mut self) {
        let Some(timers) = &mut self.timers else { return };
        // Where there are events, those that block their signal are not known yet.
        if self.events.is_none() {
            timers.cover(self.registry.alive());
        }
    }
}

impl Session<'_> {
    /// After a scan of the threads.
    pub(super) fn cover(&mut self) {
        let Some(timers) = &mut self.timers else { return };
        match self.events {
            None => timers.cover(self.registry.alive()),
            Some(_) => {
                let blocked = &self.blocked;
                timers.cover(self.registry.alive().filter(|(tid, _)| blocked.holds(*tid)));
            }
        }
        timers.sweep();
    }

    /// Looks for threads that block the signal when it is time, or now; true if there are new ones.
    pub(super) fn look_for_blocked(&mut self, is_end: bool) -> bool {
        const TOLD: usize = 8;
        // A program that is parked blocks all signals as long.
        let is_due = if is_end { self.blocked.may_scan_again() } else { self.blocked.is_due() };
        if self.attached.is_parked || !is_due {
            return false;
        }
        let news = self.blocked.scan(self.attached.signal(), self.registry.named());
        self.cover();
        let are_new = !news.is_empty();
        for tid in news {
            self.blocked_told += 1;
            if self.blocked_told <= TOLD {
                let text = format!(
                    "thread {tid} ({}) blocks the sampling signal: it is not sampled while it does",
                    self.blocked.name(tid)
                );
                self.observer.event(Event::Notice(text));
            }
        }
        are_new
    }

    /// Names the threads that are left out.
    pub(super) fn tell_of_waiting(&mut self) {
        if self.timers.is_none() {
            return;
        }
        for thread in &self.attached.waiting {
            let tid = thread.tid;
            let name = proc::task_stat(self.pid, tid).map(|stat| stat.name).unwrap_or_default();
            let text = format!(
                "thread {tid} ({name}) is not sampled: it waits for signals, and would take a hit \
                 for \
                 one of the program's"
            );
            self.observer.event(Event::Notice(text));
        }
    }

    /// Who blocks SIGTRAP from now on may wait for it, too. False if sampling cannot go on.
    pub(super) fn watch_waiters(&mut self, are_new: bool) -> bool {
        if !are_new || self.events.is_none() {
            return true;
        }
        let waiter = signals::SignalUse::of(self.pid).ok().and_then(|used| used.trap_waiter);
        waiter.is_none_or(|waiter| self.fall_back(&waiter.to_string()))
    }

    /// The timers' turn of the loop.
    pub(super) fn turn_timers(&mut self) {
        if let Some(entered) = self.attached.entered() {
            if let Some(timers) = &mut self.timers {
                timers.note_entry();
            }
            if let Err(error) = entered {
                self.tell_of_late_timers(&error);
            }
        }
        let is_due = self.timers.as_mut().is_some_and(Timers::turn);
        self.relieve();
        if is_due {
            self.enter_to_arm();
        }
    }

    /// Has a thread arm what waits. The loop goes on meanwhile.
    fn enter_to_arm(&mut self) {
        if let Err(error) = self.attached.start_entry(Operation::Arm) {
            self.tell_of_late_timers(&error);
        }
    }

    fn tell_of_late_timers(&mut self, error: &RecordError) {
        if !self.registry.is_program_gone() && !std::mem::replace(&mut self.entry_failed, true) {
            let text = format!("threads are armed late: {}", error.text());
            self.observer.event(Event::Notice(text));
        }
    }

    /// The signals do not reach our handler any more: the next hit would end the target, or run
    /// somebody else's handler. False if sampling cannot go on.
    pub(super) fn watch_signals(&mut self) -> bool {
        let Ok(status) = proc::status(self.pid) else { return true };
        // In this order: of a program that is still there now it was its status.
        if !status.has_memory || self.registry.is_program_gone() {
            return true;
        }
        let is_look_due = self.missing_watch.is_due();
        let start = Instant::now();
        self.watch_relief(&status, is_look_due);
        let is_silent = is_look_due && self.is_silent();
        if is_look_due {
            // It may have read the masks of thousands of threads.
            self.missing_watch.spare(start.elapsed());
        }
        if self.events.is_some()
            && let Some(why) = self.loss_of(SAMPLING, &status, is_silent)
            && !self.fall_back(&why.text())
        {
            return false;
        }
        match self.timers {
            Some(_) => match self.loss_of(PRIMING, &status, is_silent) {
                Some(why) => self.switch_signal(&why),
                None => true,
            },
            None => true,
        }
    }

    /// What became of the signal in this place, if it is not ours any more. Asked of the target
    /// itself, which a thread is stopped for, only if no hit came in spite of the time that was
    /// used.
    fn loss_of(&mut self, place: usize, status: &Status, is_silent: bool) -> Option<Loss> {
        let signal = self.attached.signal_in(place);
        if !status.catches(signal) {
            return Some(Loss { signal, is_reset: true });
        }
        (is_silent && self.is_replaced(place)).then_some(Loss { signal, is_reset: false })
    }

    fn is_silent(&mut self) -> bool {
        let period_ns = self.attached.setup.period_ns << self.overhead.family().shift;
        let pid = self.pid;
        let hits =
            missing_expiries::expiries(self.attached.data().control(), self.attached.choice.engine);
        let signal_blocked_ns = || {
            let timers = self.timers.as_ref().filter(|_| self.events.is_none());
            let is_without = |tid: i32| timers.is_some_and(|it| it.failures.holds(tid));
            missing_expiries::signal_blocked_threads_ns(pid, self.attached.signal(), is_without)
        };
        let is_silent = self.missing.is_broken(pid, hits, period_ns, signal_blocked_ns);
        if is_silent {
            // Short threads may use much time without a hit: the next question comes after as much
            // again.
            self.missing = MissingExpiries::new(pid);
        }
        is_silent
    }

    /// Goes on with timers that use another signal.
    fn switch_signal(&mut self, loss: &Loss) -> bool {
        let why = loss.text();
        match self.attached.replace_timer_signal(loss.is_reset) {
            Ok(signal) => {
                if let Some(timers) = &mut self.timers {
                    timers.restart(signal, self.attached.waiting.clone());
                }
                self.cover();
                self.enter_to_arm();
                self.missing = MissingExpiries::new(self.pid);
                let name = crate::proc::signal_name(signal);
                let text = format!("going on with timers that use {name} after {why}");
                self.observer.event(Event::Notice(text));
                true
            }
            Err(error) => {
                // The cure deletes the timers now.
                let text = format!("{why}, and sampling cannot go on: {}", error.text());
                self.observer.event(Event::Notice(text));
                false
            }
        }
    }

    /// Goes on with timers. The events go first, whatever comes then.
    fn fall_back(&mut self, why: &str) -> bool {
        self.events = None;
        if let Some(kernel) = &mut self.kernel {
            // Timers count this time.
            kernel.disable();
            kernel.drain();
        }
        // The same signal, which is not ours any more.
        self.deny_relief(why);
        let after = self.started.elapsed();
        let why = format!("{:.1} s, when {why}", after.as_secs_f64());
        let signal = match self.attached.switch_to_timers(&why) {
            Ok(signal) => signal,
            Err(error) => {
                let text = format!("sampling cannot go on with timers: {}", error.text());
                self.observer.event(Event::Notice(text));
                return false;
            }
        };
        if !std::mem::replace(&mut self.attached.setup.kernel, true) {
            let text = "time in the kernel counts from now on, as timers make no difference";
            self.observer.event(Event::Notice(text.to_owned()));
        }
        let left_out = self.attached.waiting.clone();
        let mut timers = Timers::start(self.pid, self.attached.data(), signal, left_out);
        timers.cover(self.registry.alive());
        self.timers = Some(timers);
        self.enter_to_arm();
        let text = format!("going on with the {} engine after {why}", Engine::Timer.name());
        self.observer.event(Event::Notice(text));
        true
    }
}
