//! One program's part of a recording: sample, rotate, detach.
//!
//! # Invariants
//! - The handler is installed before an event is enabled, and events are closed before it is
//!   removed.
//! - Whatever fails after the attach, the target is restored: on every path out of here, and by the
//!   guardian if this process dies.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use traceprof_abi::layout::{AgentState, Counter};
use traceprof_abi::sync::Ordering;

use self::loop_times::LoopTimes;
use self::program_run::ProgramRun;
pub(crate) use self::start_and_end::{SessionEnd, SessionParts};
use crate::fault::{self, FaultPoint};
use crate::proc;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::error::RecordError;
use crate::record::contract::event::{Event, Progress};
use crate::record::contract::observer::Observer;
use crate::record::contract::periodic::Periodic;
use crate::record::contract::sampling::{Choice, Engine};
use crate::record::contract::stop::StopCondition;
use crate::record::name::{MappingsRead, Namer};
use crate::record::source::SampleSource;
use crate::record::source::engine::RARE_NS;
use crate::record::source::perf::event_error;
use crate::record::source::program::{Program, TargetThreads};
use crate::record::source::totals::SourceTotals;
use crate::record::source::wall::Wall;
use crate::record::store::Store;
use crate::record::store::threads::Registry;
use crate::record::target::attach::Attached;
use crate::record::target::counters::HandlerCounts;
use crate::record::weigh::{CostCounts, Weigher};
use crate::record::write::saving::{Saving, TargetLoad};
use crate::record::write::writer::Writer;

mod loop_times;
pub(crate) mod program_run;
mod rotation;
mod start_and_end;

/// Samples must be readable by others after a second: this, one more rotation, and the time for
/// writing.
const FLUSH: Duration = Duration::from_millis(850);

/// A recording while it runs: what makes samples, and the stages through which they go.
pub(crate) struct Session<'a> {
    // Dropped before the agent, as fields drop in order: no event may outlive its handler.
    source: SampleSource,
    attached: Attached<'a>,
    store: Store,
    weigher: Weigher,
    namer: Namer<'a>,
    writer: &'a Writer,
    flush: Periodic,
    /// What requests that the ring be saved.
    saving: &'a mut Saving,
    exit: &'a OwnedFd,
    before: Option<&'a ProgramRun>,
    /// Whether the next program that the target executes is attached to.
    is_followed: bool,
    times: LoopTimes,
    observer: &'a mut dyn Observer,
}

impl<'a> Session<'a> {
    /// Opens the events and turns sampling on.
    pub(crate) fn start(
        parts: SessionParts<'a>,
        duration: Option<Duration>,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, RecordError> {
        let SessionParts { mut attached, mut clock, overhead, before, .. } = parts;
        let (pid, family) = (attached.pid(), overhead.family());
        let first = before.map_or(0, |before| before.next_thread);
        let threads = Registry::new(pid, attached.data(), first, parts.tasks);
        let mut threads = threads.map_err(|error| event_error(pid, error))?;
        let mut source = SampleSource::open(&mut attached, family)?;
        threads.scan(true);
        source.open_own(&threads, attached.is_parked);
        if attached.choice.engine.has_events() {
            threads.start_clocks();
            threads.prime(source.threads_with_events().into_iter());
        }
        let mut program =
            Program { attached: &mut attached, threads: &threads, observer: &mut *observer };
        source.complete(&mut program, family.shift, parts.wall_interval)?;
        fault::at(FaultPoint::RecordReady);
        let namer = Namer::start(parts.contexts, &mut attached, observer);
        clock.advance();
        attached.check_presence()?;
        let control = attached.data().control();
        let mut weigher = Weigher::start(pid, attached.setup.period_ns, overhead);
        weigher.begin(control);
        // Release: pairs with the Acquire in the handler; makes everything set up above visible.
        control.state.store(AgentState::Sampling as u32, Ordering::Release);
        source.enable();
        let is_harmless = attached.choice.engine != Engine::Perf;
        let mut session = Self {
            source,
            attached,
            store: Store::new(clock, parts.collector, threads),
            weigher,
            namer,
            writer: parts.writer,
            flush: Periodic::new(FLUSH),
            saving: parts.saving,
            exit: parts.exit,
            before,
            is_followed: parts.is_followed,
            times: LoopTimes::start(duration, is_harmless),
            observer,
        };
        session.follow_rate(family.shift);
        session.source.update_wall(pid, &session.store.threads);
        Ok(session)
    }

    /// Returns when sampling began, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) fn started_ns(&self) -> u64 {
        self.times.started_ns
    }

    /// Reports to the observer that sampling is on, and the program if it was executed meanwhile.
    pub(crate) fn announce(&mut self, command_pid: Option<i32>, executed: Option<String>) {
        let Choice { engine, why, .. } = self.attached.choice.clone();
        let engine = engine.name().to_string();
        let threads = self.source.count_events().unwrap_or_else(|| self.store.threads.count());
        let stops_ns = self.attached.stops_ns.clone();
        let attached = Event::Attached { engine, why, threads, stops_ns, command_pid, executed };
        self.observer.event(attached);
        let (source, mut program) = self.sampled();
        source.report_left_out(&mut program);
        self.namer.report(&mut self.attached, self.observer);
    }

    /// Notes that a parked program has been released.
    pub(crate) fn note_release(&mut self) {
        self.attached.is_parked = false;
    }

    /// Samples until the end.
    pub(crate) fn run(&mut self, stop: &StopCondition) -> SessionEnd {
        self.writer.send_addresses(Arc::clone(self.namer.addresses()));
        loop {
            if self.nap(stop) {
                return SessionEnd::Exited;
            }
            fault::at(FaultPoint::RecordLooped);
            // First: everything below concerns only the program that has the agent.
            if self.store.threads.is_program_gone() && !self.read_mappings() {
                return SessionEnd::Executed;
            }
            self.check_cost();
            self.turn_sources();
            // Before the other reasons to end: this one ends all processes of the recording,
            // whichever notices it first.
            if let Some(end) = self.end_of_output() {
                return end;
            }
            if stop.is_due() {
                return SessionEnd::Asked;
            }
            if let Some(end) = self.check_signals() {
                return end;
            }
            self.namer.watch_code(self.attached.pid());
            if !self.writer.is_busy() && self.is_rotation_due() {
                let began = Instant::now();
                self.rotate();
                self.times.rotation.spend(began.elapsed());
                if self.namer.takes_lost_functions() {
                    // Functions of this program die young. The next ones are read sooner.
                    self.times.hasten_rotation();
                }
            }
            let is_found = self.attached.modules().follow_code(std::iter::empty());
            self.namer.add_reports(self.store.threads.mapped());
            if (is_found || self.namer.is_reading_due()) && !self.read_mappings() {
                return SessionEnd::Executed;
            }
            self.check_saves(stop);
            if self.times.tick.is_due() {
                self.tick();
                if self.observer.wants_end() {
                    return SessionEnd::Asked;
                }
            }
        }
    }

    /// Sleeps for a moment. Returns true once the target has exited.
    fn nap(&mut self, stop: &StopCondition) -> bool {
        let code_due = self.attached.modules().code_due();
        let due = code_due.into_iter().chain(stop.deadline());
        let length = self.times.nap(self.is_patient(), due);
        // Sleeps until the next scan if that is near, because a separate turn of the loop costs as
        // much as a hundred checks of threads.
        let until_scan = self.source.until_wall_scan(&self.attached);
        let length = until_scan.filter(|wait| *wait < length * 3 / 2).unwrap_or(length);
        let mut wait = [PollFd::new(self.exit.as_fd(), PollFlags::POLLIN)];
        // EINTR means a signal that requests the end; the loop checks for it.
        let timeout = TimeSpec::from_duration(length);
        ppoll(&mut wait, Some(timeout), None).is_ok_and(|ready| ready > 0)
    }

    /// Returns whether nothing has to be noticed within milliseconds: no reset of a signal that
    /// would end the program then, no thread that needs a timer, no exec that is followed.
    fn is_patient(&self) -> bool {
        if self.is_followed {
            return false;
        }
        match self.attached.choice.engine {
            Engine::Perf => false,
            Engine::Signal => self.attached.setup.period_ns >= RARE_NS || self.times.is_quiet(),
            Engine::Timer => !self.times.has_births() && self.source.has_all_timers(),
        }
    }

    fn is_rotation_due(&mut self) -> bool {
        let is_flush = self.flush.is_close(FLUSH / 10);
        self.store.collector.is_wanted()
            || self.times.is_rotation_due(self.source.wall.is_some(), is_flush)
    }

    /// Splits off the sources, and the program for them.
    fn sampled(&mut self) -> (&mut SampleSource, Program<'_, 'a, Registry>) {
        let program = Program {
            attached: &mut self.attached,
            threads: &self.store.threads,
            observer: &mut *self.observer,
        };
        (&mut self.source, program)
    }

    /// Lets the sources keep up with the threads, and empties the kernel's buffers.
    fn turn_sources(&mut self) {
        if !self.store.threads.turn(Instant::now()).new.is_empty() {
            self.source.cover(&self.store.threads);
        }
        self.grow();
        let (source, mut program) = self.sampled();
        source.turn(&mut program);
        if self.source.until_wall_scan(&self.attached).is_some_and(|wait| wait.is_zero()) {
            self.source.update_wall(self.attached.pid(), &self.store.threads);
            if let Some(wall) = &mut self.source.wall {
                wall.turn(self.namer.contexts.outside());
            }
        }
        if !self.writer.is_busy() {
            self.drain_kernel();
        }
    }

    /// Keeps thread slots and tables populated ahead of their use.
    fn grow(&mut self) {
        if let Err(error) = self.attached.grow_slots() {
            let text = format!("no memory for more thread slots: {error}");
            self.observer.event(Event::Notice(text));
        }
        for table in self.store.collector.roles() {
            if let Err(error) = self.attached.populate_table(table) {
                let text = format!("no memory for another table of call traces: {error}");
                self.observer.event(Event::Notice(text));
            }
        }
    }

    /// Checks the cost when it is due, and changes the rate if the cost calls for it.
    fn check_cost(&mut self) {
        let cpu_ns = self.weigher.read_cpu_clock();
        self.times.note_turn(self.store.threads.count_ever(), cpu_ns);
        // A parked program has not run yet.
        if self.attached.is_parked {
            return;
        }
        let counts = cost_counts(&self.attached, &self.store, &self.source);
        let Some(family) = self.weigher.check_overhead(counts) else { return };
        let (source, mut program) = self.sampled();
        match source.change_rate(&mut program, family) {
            Ok(true) => {
                self.weigher.rate_changed(family);
                self.follow_rate(family.shift);
            }
            // The target executed another program; the loop will notice.
            Ok(false) => {}
            Err(error) => {
                let why = error.to_string();
                let text = format!("the rate cannot be changed for --max-overhead: {why}");
                self.weigher.rate_refused(&why);
                self.observer.event(Event::Notice(text));
            }
        }
    }

    /// Passes the new rate to the parts that compare expiries with clocks.
    fn follow_rate(&mut self, shift: u32) {
        self.weigher.set_rate_shift(shift);
        if let Some(wall) = &mut self.source.wall {
            wall.slow(shift);
        }
    }

    /// Checks that the sampling signals still reach the agent's handler.
    fn check_signals(&mut self) -> Option<SessionEnd> {
        let (started, shift) = (self.times.started, self.weigher.family().shift);
        let (source, mut program) = self.sampled();
        if source.scan_blocked(&mut program, false) && !source.check_waiters(&mut program, started)
        {
            return Some(SessionEnd::SignalTaken);
        }
        if !self.times.is_check_due() {
            return None;
        }
        let (source, mut program) = self.sampled();
        if source.check_signals(&mut program, (started, shift)) {
            return None;
        }
        Some(if self.read_mappings() { SessionEnd::SignalTaken } else { SessionEnd::Executed })
    }

    /// Reads the mappings; false if they are another program's.
    fn read_mappings(&mut self) -> bool {
        let threads = &self.store.threads;
        let is_gone = || threads.is_program_gone();
        let read = self.namer.read_mappings(&mut self.attached, is_gone, self.observer);
        let is_same_program = !matches!(read, MappingsRead::OtherProgram);
        if let Some(wall) = &mut self.source.wall {
            wall.note_runtimes(self.namer.addresses());
            if let MappingsRead::Current(mappings) = read {
                wall.note_mappings(mappings);
            }
        }
        is_same_program
    }

    /// Returns why nothing more can be written, if so.
    fn end_of_output(&self) -> Option<SessionEnd> {
        match (self.writer.has_failed(), self.writer.is_full()) {
            (true, _) => Some(SessionEnd::Output),
            (_, true) => Some(SessionEnd::Full),
            _ => self.store.collector.is_ending().then_some(SessionEnd::OutOfIds),
        }
    }

    /// Starts a save of the ring if a signal or a trigger requests it, and reports finished saves.
    fn check_saves(&mut self, stop: &StopCondition) {
        let (cpu_ns, threads) = (self.weigher.cpu.used_ns(), &self.store.threads);
        let load = || TargetLoad { cpu_ns, threads: threads.count() as u64 };
        self.saving.check(stop.takes_save(), load, self.observer);
        // A busy writer delays the save, not the loop, which keeps watching the target.
        if !self.writer.is_busy() && self.saving.take_save() {
            // The save includes the samples that are still in the storage.
            self.rotate();
            self.writer.save();
        }
        self.saving.report(self.writer.saved(), self.observer);
    }

    fn tick(&mut self) {
        let mut counts = HandlerCounts::read(self.attached.data().control());
        let mut elapsed = self.times.started.elapsed();
        if let Some(before) = self.before {
            counts.add(&before.counts);
            let began_ns = before.times_ns.0;
            elapsed = Duration::from_nanos(monotonic_now_ns().saturating_sub(began_ns));
        }
        let progress = Progress {
            elapsed,
            duration: self.times.duration,
            samples: counts.of(Counter::Samples),
            lost: counts.lost(),
            threads: self.store.threads.count(),
            bytes: self.writer.bytes(),
        };
        self.observer.tick(&progress);
    }

    /// Turns sampling off, restores the target, and collects what is left. `preserve` is the number
    /// of the heaviest traces to keep.
    pub(crate) fn finish(mut self, end: SessionEnd, preserve: usize) -> ProgramRun {
        fault::at(FaultPoint::RecordEnding);
        let is_executed = end == SessionEnd::Executed;
        let ended_ns = self.end_threads(is_executed);
        let (primed, unsampled) = self.source.timer_totals();
        let system_now_ns = proc::system_time_ns(self.attached.pid()).ok();
        self.source.disable();
        if !is_executed {
            // Again: sampling ends here, and on a busy machine the lines above take long.
            self.weigher.cpu.advance();
            // The last chance, before the agent is removed or the program exits.
            self.namer.add_reports(self.store.threads.mapped());
            self.read_mappings();
        }
        self.namer.leave(is_executed);
        self.source.close();
        fault::at(FaultPoint::RecordEventsClosed);
        let timerless = self.source.end_timerless();
        let detached = match is_executed {
            true => self.attached.give_up(),
            false => self.attached.detach(end == SessionEnd::Exited),
        };
        fault::at(FaultPoint::RecordDetached);
        let heaviest = self.rotate_last(preserve);
        let counts = cost_counts(&self.attached, &self.store, &self.source);
        let overhead = self.weigher.end_overhead(counts);
        let setup = self.attached.setup;
        let narrow = self.source.narrow.totals();
        let samples_blocked = self.source.samples_blocked();
        let SampleSource { blocked, kernel, wall, .. } = &self.source;
        let paused_ns = self.attached.stops_ns.iter().sum::<u64>()
            + self.attached.entries_sum_ns
            + detached.stopped_ns.unwrap_or(0);
        ProgramRun {
            times_ns: (self.times.started_ns, ended_ns),
            setup,
            choice: self.attached.choice.clone(),
            signals: self.attached.signals().to_vec(),
            attach_stops_ns: std::mem::take(&mut self.attached.stops_ns),
            later_stops_ns: (0, 0),
            entries_ns: self.attached.entries_ns,
            paused_ns,
            detached,
            counts: HandlerCounts::read(self.attached.data().control()),
            overhead,
            between_ns: 0,
            source: SourceTotals {
                blocked_ns: if samples_blocked { 0 } else { blocked.cpu_ns() },
                blocked: if samples_blocked { Vec::new() } else { blocked.list() },
                narrow,
                unsampled,
                timerless,
                primed,
                kernel_lost: kernel.as_ref().map_or(0, |kernel| kernel.lost),
                wall: wall.as_ref().map(Wall::stats),
            },
            store: self.store.totals(),
            weights: self.weigher.totals(self.weigher.unsampled_system_ns(system_now_ns, setup)),
            names: self.namer.end(),
            heaviest,
            next_thread: self.store.threads.next(),
            cpu: self.weigher.cpu,
        }
    }

    /// Scans the threads for the last time, and returns when sampling ended.
    fn end_threads(&mut self, is_executed: bool) -> u64 {
        if is_executed {
            // Nothing can be read of the old program: the process runs another one now.
            return self.store.threads.end_all();
        }
        self.observer.event(Event::Detaching);
        self.weigher.cpu.advance();
        self.store.threads.scan(true);
        let (source, mut program) = self.sampled();
        source.scan_blocked(&mut program, true);
        self.weigher.read_last_clocks(&self.store.threads, &self.source.blocked);
        monotonic_now_ns()
    }
}

fn cost_counts<'a>(
    attached: &Attached<'_>,
    store: &'a Store,
    source: &SampleSource,
) -> CostCounts<'a> {
    CostCounts {
        control: attached.data().control(),
        clock: &store.clock,
        in_kernel: source.kernel.as_ref().map_or(0, |kernel| kernel.samples_seen),
    }
}

#[cfg(test)]
mod tests;
