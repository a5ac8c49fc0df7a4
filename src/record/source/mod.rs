//! The sources of samples: perf events, CPU timers, the wall clock, and task records.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use std::{io, mem};

use traceprof_abi::event::EventWord;
use traceprof_abi::layout::Operation;
use traceprof_abi::sync::Ordering;

use self::inherited_events::InheritedEvents;
use self::kernel::{KernelEvents, SlowerFamily};
use self::narrow_threads::NarrowThreads;
use self::perf::{EventFamily, Modes, event_error};
use self::program::{Program, TargetThreads};
use self::signal_blocked::Blocked;
use self::signal_events::SignalEvents;
use self::signal_watch::SignalWatch;
use self::timer::Timers;
use self::timer_failures::Unsampled;
use self::timerless::{TimerlessThreads, TimerlessTotals};
use self::wall::Wall;
use crate::fault::{self, FaultPoint};
use crate::proc;
use crate::record::contract::error::{RecordError, target_error};
use crate::record::contract::sampling::Engine;
use crate::record::target::attach::Attached;

pub(crate) mod engine;
pub(crate) mod exit_times;
pub(crate) mod inherited_events;
pub(crate) mod kernel;
pub(crate) mod machine_tasks;
pub(crate) mod missing_expiries;
pub(crate) mod narrow_threads;
pub(crate) mod perf;
pub(crate) mod program;
pub(crate) mod ring_buffer;
pub(crate) mod signal_blocked;
pub(crate) mod signal_events;
pub(crate) mod signal_watch;
pub(crate) mod task_events;
pub(crate) mod task_record;
pub(crate) mod task_rings;
pub(crate) mod task_scan;
pub(crate) mod thread_events;
pub(crate) mod timer;
pub(crate) mod timer_failures;
pub(crate) mod timerless;
pub(crate) mod totals;
pub(crate) mod wall;

/// The maximum number of threads that are reported for blocking the signal while recording.
const BLOCKED_REPORTED_MAX: usize = 8;

/// All sources of samples of one program.
///
/// # Invariants
/// - Only one family of events is enabled at a time: the earlier one is disabled before the next is
///   enabled, and is closed after that.
/// - An event is enabled only in the program that contains the agent.
pub(crate) struct SampleSource {
    events: Option<InheritedEvents>,
    signal_events: Option<SignalEvents>,
    /// The events that sample without a signal.
    pub(crate) kernel: Option<KernelEvents>,
    timers: Option<Timers>,
    timerless: TimerlessThreads,
    /// The scan of threads that do not run, if requested.
    pub(crate) wall: Option<Wall>,
    /// Threads that block the sampling signal.
    pub(crate) blocked: Blocked,
    blocked_reported: usize,
    /// Threads that get no signal, since their stack has no room for it.
    pub(crate) narrow: NarrowThreads,
    watch: SignalWatch,
    /// Whether a failed entry into the target has been reported.
    is_entry_failure_reported: bool,
}

impl SampleSource {
    /// Opens the events. If that fails and the user left the choice open, switches to timers.
    pub(crate) fn open(
        attached: &mut Attached<'_>,
        family: EventFamily,
    ) -> Result<Self, RecordError> {
        let pid = attached.pid();
        let mut events = match attached.choice.engine {
            Engine::Perf => {
                Some(InheritedEvents::open(pid, attached.setup, family, &attached.narrow))
            }
            Engine::Signal | Engine::Timer => None,
        };
        if let Some(Err(error)) = &events
            && attached.choice.is_free
            && !matches!(error.raw_os_error(), Some(libc::ESRCH))
        {
            let why = format!("opening the events failed ({error})");
            attached.switch_to_timers(&why)?;
            attached.setup.use_timers();
            events = None;
        }
        Ok(Self {
            events: events.transpose().map_err(|error| event_error(pid, error))?,
            signal_events: (attached.choice.engine == Engine::Signal).then(|| {
                let (parts, left_out) = ((pid, attached.data()), attached.without_signal());
                SignalEvents::start(parts, (attached.setup, family), attached.signal(), left_out)
            }),
            kernel: None,
            timers: None,
            timerless: TimerlessThreads::new(),
            wall: None,
            blocked: Blocked::new(pid, attached.data()),
            blocked_reported: 0,
            narrow: NarrowThreads::new(pid, &attached.narrow),
            watch: SignalWatch::new(pid),
            is_entry_failure_reported: false,
        })
    }

    /// Starts the timers, opens the kernel's events, and prepares the wall-clock scan, as the setup
    /// requests.
    ///
    /// Nothing samples before [`Self::enable`].
    pub(crate) fn complete(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        shift: u32,
        wall_interval: Option<Duration>,
    ) -> Result<(), RecordError> {
        let attached = &mut *program.attached;
        let (pid, data) = (attached.pid(), attached.data());
        let timer_signal = attached.timer_signal().filter(|_| self.signal_events.is_none());
        let left_out = attached.without_signal();
        self.timers = timer_signal.map(|signal| Timers::start(pid, data, signal, left_out));
        // With events, only threads that block the signal need timers; these are not known yet.
        if let (Some(timers), None) = (&mut self.timers, &self.events) {
            timers.cover(program.threads.alive());
        }
        if let Some(modes) = unsignalled_modes(attached) {
            let (rate, tables) = ((attached.setup, shift), attached.tables());
            match KernelEvents::open(pid, rate, tables, (modes, &attached.narrow)) {
                Ok(mut kernel) => {
                    kernel.set_agent_range(attached.span());
                    self.kernel = Some(kernel);
                    self.narrow.set_sampled(true);
                }
                Err(error) => {
                    attached.setup.leave_out_kernel();
                    program.notice(match modes {
                        Modes::User => format!("new threads are sampled late: {error}"),
                        Modes::All => format!(
                            "time in the kernel is not sampled, and new threads are sampled late: \
                             {error}"
                        ),
                        Modes::Kernel => format!("time in the kernel is not sampled: {error}"),
                    });
                }
            }
        }
        if let Some(interval) = wall_interval {
            let attached = &*program.attached;
            let with = (attached.tables(), attached.setup.frames);
            let wall = Wall::new(pid, interval, with);
            self.wall = Some(wall.map_err(|error| target_error(pid, error))?);
        }
        Ok(())
    }

    /// Enables the events.
    pub(crate) fn enable(&mut self) {
        if let Some(events) = &self.events {
            events.enable();
        }
        if let Some(events) = &mut self.signal_events {
            events.enable();
        }
        self.divide_user_mode();
        if let Some(kernel) = &self.kernel {
            kernel.enable();
        }
    }

    /// Makes the events without a signal leave the user mode of threads to the events with one.
    fn divide_user_mode(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            kernel.signalled =
                self.signal_events.as_ref().map(SignalEvents::sampled).unwrap_or_default();
        }
    }

    /// Opens the threads' own events, if the engine has such events.
    pub(crate) fn open_own(&mut self, threads: &impl TargetThreads, is_parked: bool) {
        if let Some(events) = &mut self.signal_events {
            events.open_all(threads, is_parked);
        }
    }

    /// Returns the threads that have an event of their own, each with its event's word.
    pub(crate) fn threads_with_events(&self) -> Vec<(i32, EventWord)> {
        let events = self.events.iter().flat_map(InheritedEvents::threads);
        let signal_events = self.signal_events.iter().flat_map(SignalEvents::threads);
        events.chain(signal_events).collect()
    }

    /// Returns the number of events with a signal, if events are the engine.
    pub(crate) fn count_events(&self) -> Option<usize> {
        let events = self.events.as_ref().map(InheritedEvents::len);
        events.or(self.signal_events.as_ref().map(SignalEvents::len))
    }

    /// Opens events for new threads that have not exited soon, and extends the timers to new
    /// threads; the caller has scanned the threads before.
    pub(crate) fn cover_lasting(&mut self, threads: &impl TargetThreads) {
        if self.signal_events.as_mut().is_some_and(|events| events.cover(threads)) {
            self.divide_user_mode();
        }
        self.cover(threads);
    }

    /// Extends the timers to new threads; the caller has scanned the threads before.
    pub(crate) fn cover(&mut self, threads: &impl TargetThreads) {
        let Some(timers) = &mut self.timers else { return };
        match self.events {
            None => timers.cover(threads.alive()),
            Some(_) => {
                let blocked = &self.blocked;
                timers.cover(threads.alive().filter(|(tid, _)| blocked.holds(*tid)));
            }
        }
        timers.sweep();
    }

    /// Scans for threads that block the signal, if a scan is due or the recording ends.
    ///
    /// Returns whether there are new ones.
    pub(crate) fn scan_blocked(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        is_end: bool,
    ) -> bool {
        let is_due = if is_end { self.blocked.may_scan_again() } else { self.blocked.is_due() };
        // A parked program blocks all signals.
        if program.attached.is_parked || !is_due {
            return false;
        }
        self.narrow.read();
        let new = self.blocked.scan(program.attached.signal(), program.threads.named());
        self.cover(program.threads);
        if let Some(events) = &mut self.signal_events {
            let blocked = &self.blocked;
            events.follow_blocked(|tid| blocked.holds(tid));
            self.divide_user_mode();
        }
        if self.samples_blocked() {
            return !new.is_empty();
        }
        for tid in &new {
            self.blocked_reported += 1;
            if self.blocked_reported <= BLOCKED_REPORTED_MAX {
                let name = self.blocked.name(*tid);
                program.notice(format!(
                    "thread {tid} ({name}) blocks the sampling signal: it is not sampled while it \
                     does"
                ));
            }
        }
        !new.is_empty()
    }

    /// Returns whether events without a signal sample the threads that block the signal.
    pub(crate) fn samples_blocked(&self) -> bool {
        self.kernel.as_ref().is_some_and(KernelEvents::has_user_mode)
    }

    /// Returns whether no thread waits for its timer.
    pub(crate) fn has_all_timers(&self) -> bool {
        self.timers.as_ref().is_none_or(Timers::is_complete)
    }

    /// Reports the threads that get no signal since their stack has no room for it, and those that
    /// get no timer since they wait for signals.
    pub(crate) fn report_left_out(&self, program: &mut Program<'_, '_, impl TargetThreads>) {
        self.narrow.notices().for_each(|text| program.notice(text));
        if self.timers.is_none() {
            return;
        }
        for thread in program.attached.waiting.clone() {
            let tid = thread.tid;
            let stat = proc::task_stat(program.attached.pid(), tid);
            let name = stat.map(|stat| stat.name).unwrap_or_default();
            program.notice(format!(
                "thread {tid} ({name}) is not sampled: it waits for signals, and would mistake a \
                 sampling signal for one of the program's"
            ));
        }
    }

    /// Arms timers or opens events for threads that have neither.
    pub(crate) fn turn(&mut self, program: &mut Program<'_, '_, impl TargetThreads>) {
        if let Some(entered) = program.attached.entered() {
            if let Some(timers) = &mut self.timers {
                timers.note_entry();
            }
            if let Err(error) = entered {
                self.report_late_timers(program, &error);
            }
        }
        let refused = self.signal_events.as_mut().and_then(SignalEvents::take_refused);
        if let Some(error) = refused {
            let how =
                if self.samples_blocked() { "sampled without a signal" } else { "not sampled" };
            program
                .notice(format!("a thread cannot have an event of its own ({error}): it is {how}"));
        }
        let Some(timers) = &mut self.timers else { return };
        let is_due = timers.turn();
        self.timerless.turn(program, (timers, &mut self.kernel), self.events.is_some());
        if is_due {
            self.enter_to_arm(program);
        }
    }

    /// Makes a thread of the target arm the waiting timers, without waiting for it.
    fn enter_to_arm(&mut self, program: &mut Program<'_, '_, impl TargetThreads>) {
        if let Err(error) = program.attached.start_entry(Operation::Arm) {
            self.report_late_timers(program, &error);
        }
    }

    fn report_late_timers(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        error: &RecordError,
    ) {
        let is_gone = program.threads.is_program_gone();
        if !is_gone && !mem::replace(&mut self.is_entry_failure_reported, true) {
            program.notice(format!("the timers of new threads start late: {}", error.text()));
        }
    }

    /// Returns the time until the next wall-clock scan, if there are any.
    pub(crate) fn until_wall_scan(&self, attached: &Attached<'_>) -> Option<Duration> {
        // A parked program has not started.
        let wall = self.wall.as_ref().filter(|_| !attached.is_parked)?;
        Some(wall.due().saturating_duration_since(Instant::now()))
    }

    /// Passes the current set of threads to the wall-clock scan.
    pub(crate) fn update_wall(&mut self, pid: i32, threads: &impl TargetThreads) {
        if let Some(wall) = &mut self.wall {
            wall.update_threads(pid, threads.version(), threads.lives(), |life| {
                threads.end_of(life)
            });
        }
    }

    /// Closes events by their indices, each the younger of two on one thread.
    pub(crate) fn close_events(
        &mut self,
        attached: &Attached<'_>,
        younger: impl IntoIterator<Item = u32>,
    ) {
        let Some(events) = &mut self.events else { return };
        for index in younger {
            if events.close(index) {
                let word = &attached.data().events_retired()[index as usize / 64];
                // Relaxed: a handler that reads it late counts one more duplicate.
                word.fetch_or(1 << (index % 64), Ordering::Relaxed);
            }
        }
    }

    /// Changes the sampling rate.
    ///
    /// Timers follow the new rate by themselves; for events a new family is opened. Returns false
    /// if the program on which the family was opened no longer exists.
    pub(crate) fn change_rate(
        &mut self,
        program: &mut Program<'_, '_, impl TargetThreads>,
        family: EventFamily,
    ) -> io::Result<bool> {
        let attached = &*program.attached;
        let (pid, setup, control) = (attached.pid(), attached.setup, attached.data().control());
        let Some(before) = &self.events else {
            self.change_own_rate(program, family)?;
            // Relaxed, both: a handler that reads the old value changes its timer one expiry later,
            // or gives one sample another weight.
            control.event_family.store(family.number, Ordering::Relaxed);
            control.rate_shift.store(family.shift, Ordering::Relaxed);
            return Ok(true);
        };
        let events = InheritedEvents::open(pid, setup, family, &attached.narrow)?;
        let kernel = self.kernel.as_ref();
        let slower = kernel.map(|it| it.open_slower(pid, setup, family.shift)).transpose()?;
        fault::at(FaultPoint::RateOpened);
        // An event that was opened in another program would kill that program.
        if program.threads.is_program_gone() {
            return Ok(false);
        }
        before.disable();
        fault::at(FaultPoint::RateOff);
        let old = self.change_kernel(slower);
        // Relaxed, all: system calls enable the events below, and their handlers run after those.
        for word in attached.data().events_retired() {
            word.store(0, Ordering::Relaxed);
        }
        control.event_family.store(family.number, Ordering::Relaxed);
        control.rate_shift.store(family.shift, Ordering::Relaxed);
        events.enable();
        if let Some(kernel) = &self.kernel {
            kernel.enable();
        }
        self.events = Some(events);
        perf::close_all(old);
        Ok(true)
    }

    /// Changes the rate of the threads' own events, if the engine has such events.
    fn change_own_rate(
        &mut self,
        program: &Program<'_, '_, impl TargetThreads>,
        family: EventFamily,
    ) -> io::Result<()> {
        let Some(events) = &mut self.signal_events else { return Ok(()) };
        let (pid, setup) = (program.attached.pid(), program.attached.setup);
        let kernel = self.kernel.as_ref();
        let slower = kernel.map(|it| it.open_slower(pid, setup, family.shift)).transpose()?;
        events.set_rate(family, program.threads)?;
        let old = self.change_kernel(slower);
        if let Some(kernel) = &self.kernel {
            kernel.enable();
        }
        perf::close_all(old);
        Ok(())
    }

    /// Changes the family of kernel events, and returns the events of the earlier one for closing.
    ///
    /// The samples in the buffers are the last ones of the earlier family.
    fn change_kernel(&mut self, slower: Option<SlowerFamily>) -> Vec<OwnedFd> {
        let (Some(kernel), Some(slower)) = (&mut self.kernel, slower) else { return Vec::new() };
        kernel.disable();
        kernel.change(slower)
    }

    /// Returns the number of priming signals, and the threads that nothing sampled.
    ///
    /// The caller reads them before it deletes the timers.
    pub(crate) fn timer_totals(&mut self) -> (u64, Unsampled) {
        let Some(timers) = &mut self.timers else { return Default::default() };
        (timers.signals, timers.failures.unsampled())
    }

    /// Disables the events, and reads the kernel's last samples.
    pub(crate) fn disable(&mut self) {
        if let Some(events) = &self.events {
            events.disable();
        }
        if let Some(events) = &self.signal_events {
            events.disable();
        }
        if let Some(kernel) = &mut self.kernel {
            kernel.disable();
            kernel.drain();
        }
    }

    /// Ends the wall-clock scan and closes the events.
    pub(crate) fn close(&mut self) {
        if let Some(wall) = &mut self.wall {
            wall.end();
        }
        (self.events, self.signal_events) = (None, None);
    }

    /// Closes the events of threads without a timer, and returns their totals.
    pub(crate) fn end_timerless(&mut self) -> TimerlessTotals {
        self.timerless.end()
    }
}

/// Returns the modes of threads that are sampled without a signal, if there are any.
///
/// A thread that is new has no signal yet, if it cannot inherit one.
fn unsignalled_modes(attached: &Attached<'_>) -> Option<Modes> {
    match (attached.choice.engine, attached.setup.kernel) {
        (Engine::Perf, true) => Some(Modes::Kernel),
        (Engine::Signal, true) => Some(Modes::All),
        (Engine::Signal, false) => Some(Modes::User),
        (Engine::Perf, false) | (Engine::Timer, _) => None,
    }
}
