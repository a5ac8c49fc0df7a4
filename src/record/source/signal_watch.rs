//! The check that the sampling signals still reach our handler, and the fallback if they do not.

use std::time::{Duration, Instant};

use traceprof_abi::layout::{PRIMING, SAMPLING};

use crate::proc::{self, Status, StatusFile};
use crate::record::contract::periodic::Periodic;
use crate::record::contract::sampling::Engine;
use crate::record::source::SampleSource;
use crate::record::source::missing_expiries::{self, MissingExpiries};
use crate::record::source::program::{Program, TargetThreads};
use crate::record::source::timer::Timers;
use crate::record::target::signals::SignalUse;

/// The interval between two checks that expiries keep up with the CPU time.
const SILENCE_WATCH: Duration = Duration::from_millis(50);

/// The check for expiries that do not arrive.
pub(super) struct SignalWatch {
    status: StatusFile,
    missing: MissingExpiries,
    check: Periodic,
}

/// One of our signals, after the application changed its action.
struct TakenSignal {
    signal: i32,
    /// Whether the signal is reset or ignored; otherwise it has another handler.
    is_reset: bool,
}

impl SignalWatch {
    pub(super) fn new(pid: i32) -> Self {
        let (status, missing) = (StatusFile::of(pid), MissingExpiries::new(pid));
        Self { status, missing, check: Periodic::new(SILENCE_WATCH) }
    }
}

impl TakenSignal {
    fn text(&self) -> String {
        let name = proc::signal_name(self.signal);
        match self.is_reset {
            true => format!("the application reset {name}"),
            false => format!("the application installed its own handler for {name}"),
        }
    }
}

impl SampleSource {
    /// Checks whether a thread that blocks SIGTRAP also waits for it.
    ///
    /// Returns false if sampling cannot continue.
    pub(crate) fn check_waiters(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        started: Instant,
    ) -> bool {
        if self.events.is_none() {
            return true;
        }
        let used = SignalUse::of(program.attached.pid());
        let waiter = used.ok().and_then(|used| used.trap_waiter);
        waiter.is_none_or(|waiter| self.fall_back(program, started, &waiter.to_string()))
    }

    /// Checks that the signals reach our handler.
    ///
    /// Otherwise the next expiry would kill the target or run another handler. `shift` is the
    /// base-2 logarithm of how much slower than requested the sources are. Returns false if
    /// sampling cannot continue.
    pub(crate) fn check_signals(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        (started, shift): (Instant, u32),
    ) -> bool {
        let Ok(status) = self.watch.status.read() else { return true };
        // Checked after the status was read, which therefore belongs to the program with the agent.
        if !status.has_memory || program.threads.is_program_gone() {
            return true;
        }
        let is_check_due = self.watch.check.is_due();
        let start = Instant::now();
        let Self { timerless, timers, .. } = self;
        timerless.check_signal(program, timers.as_mut(), (&status, is_check_due));
        let is_silent = is_check_due && self.is_silent(program, shift);
        if is_check_due {
            // The check may have read the signal masks of thousands of threads.
            self.watch.check.spare(start.elapsed());
        }
        if self.events.is_some()
            && let Some(taken) = taken(program, SAMPLING, &status, is_silent)
            && !self.fall_back(program, started, &taken.text())
        {
            return false;
        }
        if self.timers.is_none() && self.signal_events.is_none() {
            return true;
        }
        match taken(program, PRIMING, &status, is_silent) {
            Some(taken) if self.signal_events.is_some() => self.change_signal(program, &taken),
            Some(taken) => self.switch_signal(program, &taken),
            None => true,
        }
    }

    fn is_silent<T>(&mut self, program: &Program<'_, '_, T>, shift: u32) -> bool {
        let attached = &*program.attached;
        let period_ns = attached.setup.period_ns << shift;
        let pid = attached.pid();
        let expiries =
            missing_expiries::expiries(attached.data().control(), attached.choice.engine);
        let signal_blocked_ns = || {
            if let Some(events) = &self.signal_events {
                let all_ns = proc::mode_times_ns(pid).map_or(0, |(user, system)| user + system);
                return all_ns.saturating_sub(events.cpu_ns());
            }
            let timers = self.timers.as_ref().filter(|_| self.events.is_none());
            let narrow = &self.narrow;
            let is_without =
                |tid: i32| narrow.holds(tid) || timers.is_some_and(|it| it.failures.holds(tid));
            missing_expiries::signal_blocked_threads_ns(pid, attached.signal(), is_without)
        };
        let missing = &mut self.watch.missing;
        let is_silent = missing.is_broken(pid, expiries, period_ns, signal_blocked_ns);
        if is_silent {
            // Short-lived threads may use much time without an expiry. The next check waits for the
            // same amount of time again.
            *missing = MissingExpiries::new(pid);
        }
        is_silent
    }

    /// Continues with timers that use another signal; returns false if that fails.
    fn switch_signal(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        taken: &TakenSignal,
    ) -> bool {
        let why = taken.text();
        let signal = match program.attached.replace_timer_signal(taken.is_reset) {
            Ok(signal) => signal,
            Err(error) => {
                // The restore of the target deletes the timers.
                let error = error.text();
                program.notice(format!("{why}, and sampling cannot continue: {error}"));
                return false;
            }
        };
        if let Some(timers) = &mut self.timers {
            timers.restart(signal, program.attached.without_signal());
        }
        self.cover(program.threads);
        self.enter_to_arm(program);
        self.watch.missing = MissingExpiries::new(program.attached.pid());
        let name = proc::signal_name(signal);
        program.notice(format!("sampling continues with timers that use {name}, since {why}"));
        true
    }

    /// Continues with another signal of the threads' own events, or without a signal; returns
    /// false if neither is possible.
    fn change_signal(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        taken: &TakenSignal,
    ) -> bool {
        let Some(events) = &mut self.signal_events else { return true };
        let why = taken.text();
        events.disable();
        let changed = program.attached.replace_timer_signal(taken.is_reset);
        let changed = changed.map_err(|error| error.text());
        let changed = changed.and_then(|signal| {
            events.set_signal(signal).map(|()| signal).map_err(|error| error.to_string())
        });
        self.watch.missing = MissingExpiries::new(program.attached.pid());
        match changed {
            Ok(signal) => {
                self.enable();
                let name = proc::signal_name(signal);
                program.notice(format!("sampling continues with {name}, since {why}"));
                true
            }
            Err(error) if self.samples_blocked() => {
                self.signal_events = None;
                self.divide_user_mode();
                program.notice(format!(
                    "sampling continues without a signal, since {why}, and no other signal serves: \
                     {error}"
                ));
                true
            }
            Err(error) => {
                program.notice(format!("{why}, and sampling cannot continue: {error}"));
                false
            }
        }
    }

    /// Continues with timers instead of events; returns false if that fails.
    ///
    /// The events are closed first in any case.
    fn fall_back(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        started: Instant,
        why: &str,
    ) -> bool {
        self.events = None;
        if let Some(kernel) = &mut self.kernel {
            // Timers also count time in the kernel.
            kernel.disable();
            kernel.drain();
        }
        self.narrow.set_sampled(false);
        // These events use the same signal, which is not ours any more.
        self.timerless.deny(program, self.timers.as_mut(), why);
        let why = format!("{:.1} s, when {why}", started.elapsed().as_secs_f64());
        let signal = match program.attached.switch_to_timers(&why) {
            Ok(signal) => signal,
            Err(error) => {
                program.notice(format!("sampling cannot continue with timers: {}", error.text()));
                return false;
            }
        };
        let had_kernel = program.attached.setup.kernel;
        program.attached.setup.use_timers();
        if !had_kernel {
            program.notice("time in the kernel is sampled from now on: timers cannot exclude it");
        }
        let (pid, data) = (program.attached.pid(), program.attached.data());
        let mut timers = Timers::start(pid, data, signal, program.attached.without_signal());
        timers.cover(program.threads.alive());
        self.timers = Some(timers);
        self.enter_to_arm(program);
        let engine = Engine::Timer.name();
        program.notice(format!("sampling continues with the {engine} engine after {why}"));
        true
    }
}

/// Returns the signal at this index if the application changed its action.
///
/// The agent checks its handlers only if no expiry arrived although CPU time was used, since that
/// check stops a thread of the target.
fn taken<T>(
    program: &mut Program<'_, '_, T>,
    index: usize,
    status: &Status,
    is_silent: bool,
) -> Option<TakenSignal> {
    let signal = program.attached.signal_in(index);
    if !status.catches(signal) {
        return Some(TakenSignal { signal, is_reset: true });
    }
    let is_replaced = is_silent && program.is_handler_replaced(index);
    is_replaced.then_some(TakenSignal { signal, is_reset: false })
}
