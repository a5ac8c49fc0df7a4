//! The injected agent, its segments, and the guardian that injected it.
//!
//! # Invariants
//! - Everything slow (modules, tables, populated pages) happens before the first stop.
//! - Dropping an [`Attached`] restores the target, even without [`Attached::detach`].

mod agent_memory;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use traceprof_abi::layout::{self, EngineMode, MAGIC, Operation};
use traceprof_abi::segment::DataSegment;

use traceprof_abi::sync::{AtomicU32, Ordering};
use traceprof_abi::unwind::Tables;

use crate::inject::{
    self, Access, AttachPlan, EntryReport, Guardian, InjectError, SharedSegment, image,
};
use crate::proc::{self, Mapping, Memory};
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::contract::error::{NO_HOLE, RecordError, failed, inject_error, target_error};
use crate::record::contract::sampling::{Choice, Engine, Setup};
use crate::record::target::attach_inputs::AttachInputs;
use crate::record::target::leftovers::Detached;
use crate::record::target::modules::{AddressMap, Modules};
use crate::record::target::narrow_stacks::{self, NarrowThread};
use crate::record::target::segments::Segments;
use crate::record::target::shm::SharedMemory;
use crate::record::target::signals::{self, LeftOutThread};
use crate::record::target::stop_turns::{Preparation, StopTurns};

/// How long timers may run from the attach until the recorder's first turn.
///
/// If an attach takes longer, the timers stop, and the first turn arms them again.
const FIRST_LEASE_NS: u64 = 2_000_000_000;

/// An injected agent.
pub(crate) struct Attached<'a> {
    /// The guardian, until the detach.
    guardian: Option<&'a mut Guardian>,
    turns: Arc<StopTurns>,
    segments: &'a mut Segments,
    /// The length of each stop at attach, in nanoseconds.
    pub(crate) stops_ns: Vec<u64>,
    /// The setup of sampling.
    pub(crate) setup: Setup,
    /// The engine, and the reason for it.
    pub(crate) choice: Choice,
    /// The number of stops of a thread while recording, and the longest in nanoseconds.
    pub(crate) entries_ns: (u64, u64),
    /// The sum of these stops, in nanoseconds.
    pub(crate) entries_sum_ns: u64,
    /// Whether the program is parked until its release, with all signals blocked.
    pub(crate) is_parked: bool,
    /// Threads that get no timer, since they would mistake its signal for one that they wait for.
    pub(crate) waiting: Vec<LeftOutThread>,
    /// Threads that get no signal, since their stack has no room for it.
    pub(crate) narrow: Vec<NarrowThread>,
    pid: i32,
    /// The memory of the program, from before anything was changed in it.
    memory: Option<Memory>,
    signals: [i32; layout::SIGNALS],
    /// The number of samples that a table has room for.
    records: u64,
    base: u64,
    entries: image::Entries,
}

impl<'a> Attached<'a> {
    /// Prepares everything, then injects the agent when it is the process's turn.
    pub(crate) fn attach(
        guardian: &'a mut Guardian,
        segments: &'a mut Segments,
        before: AttachInputs,
        (turns, preparation): (&Arc<StopTurns>, Option<Preparation>),
    ) -> Result<Self, RecordError> {
        let mut attached = Self::prepare(segments, &before, Arc::clone(turns))?;
        let plan = attached.plan(&before)?;
        if attached.choice.engine == Engine::Timer {
            attached.want_timers();
        }
        if let Some(preparation) = preparation {
            preparation.end();
        }
        let turn = turns.take();
        let report = guardian.attach(&plan);
        drop(turn);
        let report = report.map_err(|error| {
            attached.segments.may_be_late =
                matches!(error, InjectError::Guardian { .. } | InjectError::GuardianKilled);
            inject_error(error)
        })?;
        attached.stops_ns = report.stops_ns;
        attached.guardian = Some(guardian);
        Ok(attached)
    }

    fn prepare(
        segments: &'a mut Segments,
        before: &AttachInputs,
        turns: Arc<StopTurns>,
    ) -> Result<Self, RecordError> {
        let gone = |error: io::Error| target_error(before.pid, error);
        let status = proc::status(before.pid).map_err(gone)?;
        let mappings = proc::mappings(before.pid).map_err(gone)?;
        let base = inject::find_gap(&mappings, layout::SPAN)
            .context(NO_HOLE)
            .map_err(RecordError::Other)?;
        let owner = (status.euid, status.egid);
        segments.prepare(owner, base..base + layout::SPAN).map_err(other)?;
        let failed = |step| move |error| failed(step, error);
        let room = segments.code.exclusive(layout::CODE_LEN as usize);
        let room = room.map_err(failed("preparing the agent's code"))?;
        let entries = image::lay_out(room, base).map_err(other)?;
        let compiled = segments.modules.refresh(&mappings);
        compiled.map_err(failed("compiling the target's unwind tables"))?;
        let mut attached = Self {
            guardian: None,
            turns,
            segments,
            stops_ns: Vec::new(),
            setup: before.setup,
            choice: before.choice.clone(),
            entries_ns: (0, 0),
            entries_sum_ns: 0,
            is_parked: before.hold_fd.is_some(),
            memory: Memory::of(before.pid).ok(),
            waiting: before.waiting.clone(),
            narrow: narrow_stacks::find(before.pid, &mappings),
            pid: before.pid,
            signals: before.signals,
            records: 0,
            base,
            entries,
        };
        let populated = attached.populate(before.freq_hz, status.threads);
        populated.map_err(failed("allocating the agent's memory"))?;
        attached.initialise(before, status.inner_tgid);
        Ok(attached)
    }

    fn plan(&self, before: &AttachInputs) -> Result<AttachPlan, RecordError> {
        let segment = |shared: &SharedMemory, distance: u64, access: Access| SharedSegment {
            shm_id: shared.id(),
            avma: self.base + distance,
            len: shared.len(),
            access,
        };
        let gone = |error: io::Error| target_error(before.pid, error);
        Ok(AttachPlan {
            pid: before.pid,
            start_time: proc::start_time(before.pid).map_err(gone)?,
            code: segment(&self.segments.code, 0, Access::ReadExecute),
            tables: segment(&self.segments.tables, layout::TABLES_DISTANCE, Access::Read),
            data: segment(&self.segments.data, layout::DATA_DISTANCE, Access::ReadWrite),
            entry_avma: self.entries.entry,
            restorer_avma: self.entries.restorer,
            signals: self.signals,
            hold_fd: before.hold_fd,
        })
    }

    fn initialise(&self, before: &AttachInputs, inner_pid: i32) {
        let control = self.data().control();
        // Relaxed: published to the target by the system calls of the injection.
        let set = |word: &AtomicU32, value: u32| word.store(value, Ordering::Relaxed);
        set(&control.version, traceprof_abi::ABI_VERSION);
        set(&control.cookie, u32::from(before.setup.cookie));
        set(&control.pid, inner_pid as u32);
        for (action, signal) in control.signals.iter().zip(self.signals) {
            set(&action.signal, signal as u32);
        }
        let mode = match self.choice.engine {
            Engine::Perf => EngineMode::Perf,
            Engine::Signal => EngineMode::Signal,
            Engine::Timer => EngineMode::Timer,
        };
        set(&control.engine, mode as u32);
        let lease = monotonic_now_ns().saturating_add(FIRST_LEASE_NS);
        control.lease_until_ns.store(lease, Ordering::Relaxed);
        set(&control.clock_mode, before.clock_mode as u32);
        control.period_ns.store(before.setup.period_ns, Ordering::Relaxed);
        control.window_epoch.store(1, Ordering::Relaxed);
        control.magic.store(MAGIC, Ordering::Relaxed);
    }

    /// Returns the target's process id.
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns the data segment.
    pub(crate) fn data(&self) -> DataSegment {
        self.segments.data.as_data()
    }

    /// Returns the agent's addresses in the target.
    pub(crate) fn span(&self) -> Range<u64> {
        self.base..self.base + layout::SPAN
    }

    /// Returns the tables segment that handlers see.
    pub(crate) fn tables(&self) -> Tables {
        self.segments.tables.as_tables()
    }

    /// Returns the sampling signal.
    pub(crate) fn signal(&self) -> i32 {
        match self.choice.engine {
            Engine::Perf => self.signals[layout::SAMPLING],
            Engine::Signal | Engine::Timer => self.signals[layout::PRIMING],
        }
    }

    /// Returns the signal at an index of [`layout::ControlBlock::signals`].
    pub(crate) fn signal_in(&self, index: usize) -> i32 {
        self.signals[index]
    }

    /// Returns the signal of timers, if the agent handles one.
    pub(crate) fn timer_signal(&self) -> Option<i32> {
        Some(self.signals[layout::PRIMING]).filter(|signal| *signal != 0)
    }

    /// Requests the timers of all threads before there is a handler; the agent's first run arms
    /// them.
    ///
    /// Threads that cannot be read now are found when sampling starts.
    fn want_timers(&self) {
        let tids = proc::tasks(self.pid).unwrap_or_default().into_iter();
        let left_out = self.without_signal();
        let tids = tids.filter(|tid| left_out.iter().all(|it| it.tid != *tid));
        let mut threads: Vec<_> =
            tids.filter_map(|tid| proc::task_status(self.pid, tid).ok()).collect();
        // The first run may arm only a few, whose expiries then arm the others.
        threads.sort_by_key(|thread| thread.state != 'R');
        for status in threads {
            if let Some(index) = self.data().threads().claim(status.inner_pid as u32).index() {
                self.data().want_timer(index);
            }
        }
    }

    /// Returns the threads that get no timer, and no event that sends the timers' signal.
    pub(crate) fn without_signal(&self) -> Vec<LeftOutThread> {
        self.waiting.iter().copied().chain(self.narrow.iter().map(Into::into)).collect()
    }

    /// Switches to timers: installs the handler for their signal and permits arming.
    pub(crate) fn switch_to_timers(&mut self, why: &str) -> Result<i32, RecordError> {
        let signal = match self.timer_signal() {
            Some(signal) => signal,
            None => self.add_timer_signal()?,
        };
        // Relaxed: read by handlers that run later.
        self.data().control().engine.store(EngineMode::Timer as u32, Ordering::Relaxed);
        let before = self.choice.engine.name();
        let why = format!("{before} until {why}");
        self.choice = Choice { engine: Engine::Timer, why, ..self.choice };
        Ok(signal)
    }

    fn add_timer_signal(&mut self) -> Result<i32, RecordError> {
        let gone = |error: io::Error| target_error(self.pid, error);
        let used = signals::SignalUse::of(self.pid).map_err(gone)?;
        let signal = used
            .choose()
            .context("every signal for timers is blocked or waited for: use --engine perf")
            .map_err(RecordError::Other)?;
        self.waiting = used.waiting;
        self.add_signal(layout::PRIMING, signal)?;
        Ok(signal)
    }

    /// Installs the handler for another signal.
    pub(crate) fn add_signal(&mut self, index: usize, signal: i32) -> Result<(), RecordError> {
        let action = &self.data().control().signals[index];
        // Relaxed: published to the target by the system calls of the injection.
        action.signal.store(signal as u32, Ordering::Relaxed);
        self.enter(Operation::Install)?;
        self.signals[index] = signal;
        Ok(())
    }

    /// Deletes the timers and moves to another signal after the application took theirs.
    ///
    /// After a reset (`is_reset`), signals that end the program by default are not chosen, since
    /// they may be reset as well. Events never send such a signal.
    pub(crate) fn replace_timer_signal(&mut self, is_reset: bool) -> Result<i32, RecordError> {
        let gone = |error: io::Error| target_error(self.pid, error);
        let mut others = signals::SignalUse::of(self.pid).map_err(gone)?;
        let actions = &self.data().control().signals;
        // Relaxed, all: written by this side; a handler reads them when it next runs.
        let signal_at = |index: usize| actions[index].signal.load(Ordering::Relaxed) as i32;
        (0..layout::SIGNALS).map(signal_at).for_each(|signal| others.exclude(signal));
        let is_harmless = is_reset || self.choice.engine == Engine::Signal;
        let signal = if is_harmless { others.choose_harmless() } else { others.choose() };
        let index = layout::FORMER.clone().find(|&index| signal_at(index) == 0);
        let (Some(signal), Some(index)) = (signal, index) else {
            return Err(RecordError::Other(anyhow::anyhow!("no other signal is free")));
        };
        let (old, former) = (&actions[layout::PRIMING], &actions[index]);
        let pairs = old.old_action.iter().chain(&old.our_action);
        for (from, to) in pairs.zip(former.old_action.iter().chain(&former.our_action)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        former.installed.store(old.installed.load(Ordering::Relaxed), Ordering::Relaxed);
        former.signal.store(old.signal.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release: whoever sees that the index has no handler arms nothing; the words above serve
        // handlers that our replacement calls.
        old.installed.store(0, Ordering::Release);
        self.enter(Operation::Disarm)?;
        self.add_signal(layout::PRIMING, signal)?;
        self.waiting = others.waiting;
        Ok(signal)
    }

    /// Runs an operation of the agent in a thread that is stopped for it.
    pub(crate) fn enter(&mut self, operation: Operation) -> Result<(), RecordError> {
        let entered = self.guardian()?.run_entry(operation).map_err(inject_error)?;
        self.note(entered);
        Ok(())
    }

    fn guardian(&mut self) -> Result<&mut Guardian, RecordError> {
        let gone = || RecordError::Other(anyhow::anyhow!("the guardian has exited: try again"));
        self.guardian.as_deref_mut().ok_or_else(gone)
    }

    /// Starts [`Self::enter`] without waiting for its end.
    ///
    /// In a target with thousands of runnable threads an entry takes seconds. The loop must renew
    /// the lease meanwhile, or the timers stop.
    pub(crate) fn start_entry(&mut self, operation: Operation) -> Result<(), RecordError> {
        match self.guardian()? {
            guardian if guardian.is_busy() => Ok(()),
            guardian => guardian.start_entry(operation).map_err(inject_error),
        }
    }

    /// Returns the result of a started entry once it is known.
    pub(crate) fn entered(&mut self) -> Option<Result<(), RecordError>> {
        let entered = self.guardian.as_mut()?.entered()?.map_err(inject_error);
        Some(entered.map(|entered| self.note(entered)))
    }

    fn note(&mut self, entered: EntryReport) {
        let (count, longest) = self.entries_ns;
        self.entries_ns = (count + 1, longest.max(entered.stopped_ns));
        self.entries_sum_ns += entered.stopped_ns;
    }

    /// Checks whether the agent's mappings are among these.
    pub(crate) fn is_mapped_in(&self, mappings: &[Mapping]) -> bool {
        let id = self.segments.code.id() as u64;
        mappings.iter().any(|it| it.start == self.base && it.shared && it.inode == id)
    }

    /// Checks, between the opening of events and their start, that the agent is still in the
    /// target.
    ///
    /// When the target executes another program, the kernel removes the open events. An event that
    /// is opened in the new program would kill it.
    pub(crate) fn check_presence(&mut self) -> Result<(), RecordError> {
        let mappings = proc::mappings(self.pid);
        let mappings = mappings.map_err(|error| target_error(self.pid, error))?;
        // An exiting target has no mappings.
        if mappings.is_empty() || self.is_mapped_in(&mappings) {
            return Ok(());
        }
        let is_same = self.memory.take().is_some_and(|memory| !memory.is_gone());
        Err(inject_error(if is_same { InjectError::Unmapped } else { InjectError::Executed }))
    }

    /// Publishes changed mappings.
    pub(crate) fn refresh(&mut self, mappings: &[Mapping]) -> io::Result<Option<Arc<AddressMap>>> {
        self.segments.modules.refresh(mappings)
    }

    /// Returns the target's modules and their tables.
    pub(crate) fn modules(&mut self) -> &mut Modules<'static> {
        &mut self.segments.modules
    }

    /// Returns the agent's signals by index.
    pub(crate) fn signals(&self) -> [i32; layout::SIGNALS] {
        let actions = &self.data().control().signals;
        // Relaxed: written by this side.
        actions.each_ref().map(|it| it.signal.load(Ordering::Relaxed) as i32)
    }

    /// Gives up a target that has executed another program, in which there is nothing to restore.
    pub(crate) fn give_up(&mut self) -> Detached {
        if let Some(guardian) = self.guardian.take() {
            // If the guardian has exited, the next attach reports it.
            let _ = guardian.forget();
        }
        Detached::default()
    }

    /// Restores the target, after its events have been closed.
    pub(crate) fn detach(&mut self, is_gone: bool) -> Detached {
        let Some(guardian) = self.guardian.take() else { return Detached::default() };
        let _turn = self.turns.take();
        match guardian.detach() {
            Ok(report) => Detached {
                stopped_ns: (!is_gone).then_some(report.stopped_ns),
                residue: report.residue,
            },
            Err(_) if is_gone => Detached::default(),
            Err(error) => Detached { residue: Some(error.to_string()), stopped_ns: None },
        }
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if self.is_parked {
            // A program that we started and that has not run its first instruction: there is
            // nothing to restore.
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
        self.detach(self.is_parked);
        self.segments.release();
    }
}

fn other<E: std::error::Error + Send + Sync + 'static>(error: E) -> RecordError {
    RecordError::Other(anyhow::Error::new(error))
}
