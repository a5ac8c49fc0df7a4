//! One program's part of a recording: sample, drain, detach.
//!
//! # Invariants
//! - The handler is installed before an event is enabled, and events are closed before it is
//!   removed.
//! - Whatever fails after the attach, the target is cured: on every path out of here, and by the
//!   guardian if this process dies.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use traceprof_abi::layout::{AgentState, Counter};
use traceprof_abi::storage::log::Sample;
use traceprof_abi::sync::Ordering;

use self::program_run::ProgramRun;
use crate::fault::{self, Point};
use crate::proc;
use crate::record::contract::clock::{Clock, monotonic_now_ns};
use crate::record::contract::error::RecordError;
use crate::record::contract::event::{Event, Progress};
use crate::record::contract::observer::Observer;
use crate::record::contract::sampling::Choice;
use crate::record::contract::stop::Stop;
use crate::record::name::contexts::Contexts;
use crate::record::name::jvm::JvmNames;
use crate::record::name::mapping_changes::MappingChanges;
use crate::record::source::kernel::KernelEvents;
use crate::record::source::missing_expiries::MissingExpiries;
use crate::record::source::perf::Events;
use crate::record::source::signal_blocked::Blocked;
use crate::record::source::timer::Timers;
use crate::record::source::wall::Wall;
use crate::record::store::collector::Collector;
use crate::record::store::liveness::{Heavy, heaviest};
use crate::record::store::outside_unwind::Follower;
use crate::record::store::threads::Registry;
use crate::record::target::attach::Attached;
use crate::record::target::counters::Counts;
use crate::record::target::modules::AddressMap;
use crate::record::weigh::balance::Balance;
use crate::record::weigh::cpu_clock::CpuClock;
use crate::record::weigh::overhead::Overhead;
use crate::record::weigh::parents::Parents;
use crate::record::weigh::remainder::Remainder;
use crate::record::write::writer::Writer;

mod drain;
mod mappings;
pub(crate) mod program_run;
mod rate;
mod relief;
mod sampling;
mod saving;
mod sleeping;

use self::relief::Relief;
pub(crate) use self::relief::Relieved;
use self::sampling::Started;
pub(crate) use self::saving::Saving;
pub(crate) use crate::record::contract::every::Every;

/// How long the loop sleeps at most.
const NAP: Duration = Duration::from_millis(10);
/// The same in the first moments: a program that has just been started maps its libraries in its
/// first milliseconds, and samples in them find no table until they are seen.
const START_NAP: Duration = Duration::from_millis(1);
/// The first moments.
const STARTING: Duration = Duration::from_millis(50);
/// As long as this the mappings are read in every turn of the loop.
const SETTLING: Duration = Duration::from_secs(1);
/// Between two rotations, unless a table fills up before.
const ROTATION: Duration = Duration::from_millis(100);
/// Between two looks at whether the application took our signal away.
const SIGNAL_WATCH: Duration = Duration::from_millis(10);
/// Between two looks at whether hits keep up with the time that is used.
const SILENCE_WATCH: Duration = Duration::from_millis(50);
/// Between two readings of the mappings when nothing hints at a change.
const REFRESH: Duration = Duration::from_secs(1);
/// Samples must be readable by others after a second: this, a rotation more, and the time that
/// writing takes.
const FLUSH: Duration = Duration::from_millis(850);
/// Between two reports of the progress.
const TICK: Duration = Duration::from_millis(200);

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The time was up, or a signal or the observer asked for it.
    Asked,
    /// The target is gone.
    Exited,
    /// The target runs another program now: nothing of ours is left in it.
    Executed,
    /// The time was up, or a signal asked for it, between two programs that it executed.
    AskedBetween,
    /// The application took the sampling signal for itself.
    SignalTaken,
    /// The trace could not be written.
    Output,
    /// The files have reached the size that they may have.
    Full,
    /// All call-trace ids have been given.
    OutOfIds,
}

/// A recording while it runs.
pub(crate) struct Session<'a> {
    pid: i32,
    // Before the agent: fields are dropped in this order, and no event may outlive its handler.
    events: Option<Events>,
    kernel: Option<KernelEvents>,
    timers: Option<Timers>,
    relief: Relief,
    attached: Attached<'a>,
    clock: Clock,
    collector: Collector,
    registry: Registry,
    writer: &'a Writer,
    cpu: CpuClock,
    cpu_watch: Every,
    exit: &'a OwnedFd,
    before: Option<&'a ProgramRun>,
    jvm: &'a mut JvmNames,
    contexts: &'a mut Contexts,
    addresses: Arc<AddressMap>,
    started: Instant,
    started_ns: u64,
    duration: Option<Duration>,
    observer: &'a mut dyn Observer,
    refresh: Every,
    flush: Every,
    system_start_ns: u64,
    flushed_unknown: u64,
    missing: MissingExpiries,
    missing_watch: Every,
    blocked: Blocked,
    /// Threads that were told of as blocking the signal.
    blocked_told: usize,
    relieved: Relieved,
    balance: Balance,
    slices: Follower,
    mapping_changes: MappingChanges,
    /// What is mapped in the target is not that of its samples any more.
    has_left: bool,
    remainder: Remainder,
    parents: Parents,
    overhead: Overhead,
    /// Looks at threads that do not run, if that is asked for;
    wall: Option<Wall>,
    /// what it saw, until the other samples of the batch have been put right.
    asleep: Vec<Sample>,
    /// The guardian could not enter the target; said once.
    entry_failed: bool,
    /// What asks for the ring to be saved.
    saving: &'a mut Saving,
}

/// What the session is made of.
pub(crate) struct Parts<'a> {
    /// The target's process id.
    pub(crate) pid: i32,
    /// The injected agent, with its segments and modules.
    pub(crate) attached: Attached<'a>,
    /// The samples' clock.
    pub(crate) clock: Clock,
    /// The storage.
    pub(crate) collector: Collector,
    /// The writer's thread.
    pub(crate) writer: &'a Writer,
    /// Readable when the target is gone.
    pub(crate) exit: &'a OwnedFd,
    /// What the recording came to before.
    pub(crate) before: Option<&'a ProgramRun>,
    /// The Java virtual machines.
    pub(crate) jvm: &'a mut JvmNames,
    /// What threads work on.
    pub(crate) contexts: &'a mut Contexts,
    /// What it costs.
    pub(crate) overhead: Overhead,
    /// What asks for the ring to be saved.
    pub(crate) saving: &'a mut Saving,
    /// Between two looks at threads that do not run, if that is asked for.
    pub(crate) wall_interval: Option<Duration>,
}

impl<'a> Session<'a> {
    /// Opens the events and turns sampling on.
    pub(crate) fn start(
        mut parts: Parts<'a>,
        duration: Option<Duration>,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, RecordError> {
        let pid = parts.pid;
        let Started { registry, events, timers } = sampling::start(&mut parts)?;
        let kernel = sampling::open_kernel(&mut parts, observer);
        fault::at(Point::RecordReady);
        let mapping_changes = mappings::read_again(&mut parts, observer);
        parts.clock.advance();
        parts.attached.check_presence()?;
        let control = parts.attached.data().control();
        let cpu = CpuClock::start(pid);
        let blocked = Blocked::new(pid, parts.attached.data());
        let balance = Balance::new(parts.attached.setup.period_ns);
        let remainder = Remainder::new(parts.attached.setup.period_ns);
        let parents = Parents::new(parts.attached.setup.period_ns);
        parts.overhead.begin(control, monotonic_now_ns());
        // Release: pairs with the Acquire in the handler; all that was set up is visible.
        control.state.store(AgentState::Sampling as u32, Ordering::Release);
        if let Some(events) = &events {
            events.enable();
        }
        if let Some(kernel) = &kernel {
            kernel.enable();
        }
        let addresses = parts.attached.modules().current();
        let wall = sleeping::start(&mut parts)?;
        let mut session = Self {
            pid,
            attached: parts.attached,
            clock: parts.clock,
            collector: parts.collector,
            registry,
            events,
            kernel,
            timers,
            writer: parts.writer,
            cpu,
            cpu_watch: Every::new(Duration::ZERO),
            exit: parts.exit,
            before: parts.before,
            jvm: parts.jvm,
            contexts: parts.contexts,
            addresses,
            started: Instant::now(),
            started_ns: monotonic_now_ns(),
            duration,
            observer,
            refresh: Every::new(REFRESH),
            flush: Every::new(FLUSH),
            system_start_ns: proc::system_time_ns(pid).unwrap_or(0),
            flushed_unknown: 0,
            missing: MissingExpiries::new(pid),
            missing_watch: Every::new(SILENCE_WATCH),
            blocked,
            blocked_told: 0,
            relief: Relief::Unneeded,
            relieved: Relieved::default(),
            balance,
            slices: Follower::default(),
            mapping_changes,
            has_left: false,
            remainder,
            parents,
            overhead: parts.overhead,
            wall,
            asleep: Vec::new(),
            entry_failed: false,
            saving: parts.saving,
        };
        session.follow_rate(session.overhead.family().shift);
        session.meet_sleepers();
        Ok(session)
    }

    /// When sampling began, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) fn started_ns(&self) -> u64 {
        self.started_ns
    }

    /// Tells the observer that sampling is on, of which program if it was executed meanwhile.
    pub(crate) fn announce(&mut self, command_pid: Option<i32>, executed: Option<String>) {
        let Choice { engine, why, .. } = self.attached.choice.clone();
        let engine = engine.name().to_string();
        let threads = self.events.as_ref().map_or_else(|| self.registry.count(), Events::len);
        let stops_ns = self.attached.stops_ns.clone();
        let attached = Event::Attached { engine, why, threads, stops_ns, command_pid, executed };
        self.observer.event(attached);
        self.tell_of_waiting();
        self.tell_notices();
    }

    /// A program that was parked has been let go.
    pub(crate) fn note_release(&mut self) {
        self.attached.is_parked = false;
    }

    /// Samples until the end.
    pub(crate) fn run(&mut self, stop: &Stop) -> End {
        let mut rotation = Every::new(ROTATION);
        let mut watch = Every::new(SIGNAL_WATCH);
        let mut tick = Every::new(TICK);
        self.send_addresses();
        // A program that has just been started maps its libraries now.
        let settling = Instant::now() + SETTLING;
        let starting = Instant::now() + STARTING;
        loop {
            if self.nap(if Instant::now() < starting { START_NAP } else { NAP }) {
                return End::Exited;
            }
            fault::at(Point::RecordLooped);
            // First: what is looked at below must be the program that has the agent.
            if self.registry.is_program_gone() && !self.look_at_mappings() {
                return End::Executed;
            }
            self.read_cpu_clock();
            self.watch_overhead();
            if !self.registry.turn(Instant::now()).new.is_empty() {
                self.cover();
            }
            self.grow();
            self.turn_timers();
            self.look_at_sleepers();
            if !self.writer.is_busy() {
                self.drain_kernel();
            }
            // Before: all of several processes end for it, whichever hears of it first.
            if let Some(end) = self.end_of_output() {
                return end;
            }
            if stop.is_due() {
                return End::Asked;
            }
            let are_signal_blocked = self.look_for_blocked(false);
            if !self.watch_waiters(are_signal_blocked) {
                return End::SignalTaken;
            }
            if watch.is_due() && !self.watch_signals() {
                let is_there = self.look_at_mappings();
                return if is_there { End::SignalTaken } else { End::Executed };
            }
            if !self.writer.is_busy() && (rotation.is_due() || self.collector.is_wanted()) {
                self.rotate();
            }
            self.hear_of_code();
            if self.mapping_changes.is_pending() || Instant::now() < settling {
                self.refresh.hasten();
            }
            if self.refresh.is_due() && !self.look_at_mappings() {
                return End::Executed;
            }
            self.look_for_saves(stop);
            if tick.is_due() {
                self.tick();
                if self.observer.wants_end() {
                    return End::Asked;
                }
            }
        }
    }

    /// Sleeps a little; true when the target is gone.
    fn nap(&self, length: Duration) -> bool {
        // Not for a moment once more: each turn costs what a hundred looks do.
        let until_look = self.until_next_look().filter(|wait| *wait < length * 3 / 2);
        let length = until_look.unwrap_or(length);
        let mut wait = [PollFd::new(self.exit.as_fd(), PollFlags::POLLIN)];
        // An interruption is a signal that asks for the end; the loop sees it.
        let timeout = TimeSpec::from_duration(length);
        ppoll(&mut wait, Some(timeout), None).is_ok_and(|ready| ready > 0)
    }

    fn tick(&mut self) {
        let mut counts = Counts::read(self.attached.data().control());
        let mut elapsed = self.started.elapsed();
        if let Some(before) = self.before {
            counts.add(&before.counts);
            let began_ns = before.times_ns.0;
            elapsed = Duration::from_nanos(monotonic_now_ns().saturating_sub(began_ns));
        }
        let progress = Progress {
            elapsed,
            duration: self.duration,
            samples: counts.of(Counter::Samples),
            lost: counts.lost(),
            threads: self.registry.count(),
            bytes: self.writer.bytes(),
        };
        self.observer.tick(&progress);
    }

    fn tell_notices(&mut self) {
        let notices = std::mem::take(&mut self.attached.modules().notices);
        let notices = notices.into_iter().chain(self.contexts.notices());
        let news = [self.jvm.check(&self.addresses), self.jvm.news()];
        for text in notices.chain(news.into_iter().flatten()) {
            self.observer.event(Event::Notice(text));
        }
    }

    /// Turns sampling off, cures the target, collects what is left. `preserve` is the number of the
    /// heaviest traces that are to be kept.
    pub(crate) fn finish(mut self, end: End, preserve: usize) -> ProgramRun {
        fault::at(Point::RecordEnding);
        let is_executed = end == End::Executed;
        let ended_ns = self.end_threads(is_executed);
        let timers = self.timers.as_mut();
        let primed = timers.as_ref().map_or(0, |timers| timers.signals);
        let unsampled = timers.map_or_else(Default::default, |it| it.failures.unsampled());
        let system_now_ns = proc::system_time_ns(self.pid).ok();
        if let Some(events) = &self.events {
            events.disable();
        }
        if let Some(kernel) = &mut self.kernel {
            kernel.disable();
            kernel.drain();
        }
        if !is_executed {
            // Again: sampling ends here, and on a busy machine the lines above take their time.
            self.cpu.advance();
            // The last chance: afterwards the agent is not there, or the program is not.
            self.hear_of_code();
            self.look_at_mappings();
        }
        self.has_left = true;
        self.end_sleepers();
        let had_events = self.events.take().is_some();
        fault::at(Point::RecordEventsClosed);
        let relieved = self.end_relief();
        let detached = match is_executed {
            true => self.attached.give_up(),
            false => self.attached.detach(end == End::Exited),
        };
        fault::at(Point::RecordDetached);
        let heaviest = self.collect_rest(had_events, preserve);
        let spent = self.end_overhead();
        let setup = self.attached.setup;
        ProgramRun {
            times_ns: (self.started_ns, ended_ns),
            setup,
            choice: self.attached.choice.clone(),
            signals: self.attached.signals().to_vec(),
            attach_stops_ns: std::mem::take(&mut self.attached.stops_ns),
            later_stops_ns: (0, 0),
            entries_ns: self.attached.entries_ns,
            detached,
            counts: Counts::read(self.attached.data().control()),
            cpu: self.cpu,
            spent,
            between_ns: 0,
            system_ns: system_now_ns
                .filter(|_| !setup.kernel)
                .map(|now| now.saturating_sub(self.system_start_ns)),
            blocked_ns: self.blocked.cpu_ns(),
            blocked: self.blocked.list(),
            unsampled,
            relieved,
            primed,
            given: self.remainder.given,
            balanced: self.balance.sum,
            followed: self.slices.followed,
            corrected: self.mapping_changes.corrected,
            threads: self.registry.metrics(),
            storage: self.collector.stats,
            kernel_lost: self.kernel.as_ref().map_or(0, |kernel| kernel.lost),
            wall: self.wall.as_ref().map(Wall::stats),
            contexts: self.contexts.end(),
            heaviest,
            next_thread: self.registry.next(),
        }
    }

    /// Sees for the last time who is there; when that was.
    fn end_threads(&mut self, is_executed: bool) -> u64 {
        if is_executed {
            // Nothing is left to be read of the program: what is there now is another one.
            return self.registry.end_all();
        }
        self.observer.event(Event::Detaching);
        self.cpu.advance();
        self.registry.scan(true);
        self.look_for_blocked(true);
        monotonic_now_ns()
    }

    /// Hands over all that is left in the storage; the heaviest traces of the recording.
    fn collect_rest(&mut self, had_events: bool, preserve: usize) -> Vec<Heavy> {
        let mut shared = self.writer.blank();
        let batch = Arc::make_mut(&mut shared);
        batch.flush = true;
        batch.threads.extend(self.registry.news());
        self.collector.finish(batch);
        self.finish_batch(batch, u64::MAX);
        // All samples have been read: threads that ended meanwhile are settled and told of.
        if had_events {
            self.settle(true, batch);
        }
        self.add_sleepers(batch, true);
        self.registry.retire(true, &mut batch.threads);
        self.contexts.name(batch);
        let before = self.before.map_or(&[][..], |before| &before.heaviest);
        let heaviest = heaviest(before, self.collector.heaviest(), preserve);
        batch.keep = Some(heaviest.iter().map(|it| it.id).collect());
        self.writer.send(shared);
        heaviest
    }
}
