//! The injected agent, on its ground, with the guardian that injected it.
//!
//! # Invariants
//! - Everything slow (modules, tables, populated pages) is done before the first stop.
//! - Dropped without [`Attached::detach`], it cures the target all the same.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use traceprof_abi::context::ContextSources;
use traceprof_abi::layout::{self, ClockMode, EngineMode, MAGIC, Operation};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::storage::{rotation::Rotation, slice, table};
use traceprof_abi::sync::{AtomicU32, Ordering};
use traceprof_abi::unwind::Tables;

use super::clock::monotonic_now_ns;
use super::engine::{Choice, Engine};
use super::ground::Ground;
use super::modules::{AddressMap, Modules};
use super::perf::Setup;
use super::shm::Shared;
use super::signals::Waiting;
use super::{RecordError, inject_error, signals};
use crate::inject::{self, Access, AttachPlan, Entered, Guardian, InjectError, Segment, image};
use crate::proc::{self, Mapping};

/// The signal of the `perf` engine.
pub(super) const SIGTRAP: i32 = 5;
/// How long timers may go on from the attach until the recorder's first turn. Where an attach takes
/// longer they end, and are armed again in that turn.
const FIRST_LEASE_NS: u64 = 2_000_000_000;
/// Thread slots that are kept ready beyond those in use.
const SPARE_SLOTS: u32 = layout::SLOTS_AT_FIRST;

/// What is known of the target before anything is changed.
#[derive(Debug, Clone)]
pub(super) struct Before {
    /// Its process id.
    pub(super) pid: i32,
    /// The descriptor that a started program is parked on.
    pub(super) hold_fd: Option<i32>,
    /// How it will be sampled.
    pub(super) setup: Setup,
    /// By what, and why.
    pub(super) choice: Choice,
    /// The agent's signals: of perf events, of timers; 0 for one that is not used.
    pub(super) signals: [i32; layout::SIGNALS],
    /// Threads that can have no timer, as they would take its signal for one that they wait for.
    pub(super) waiting: Vec<Waiting>,
    /// How the handler reads the time.
    pub(super) clock_mode: ClockMode,
    /// Samples a second and thread.
    pub(super) freq_hz: u32,
}

/// What the cure came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Detached {
    /// How long the target was stopped, if it was still there.
    pub(super) stopped_ns: Option<u64>,
    /// What stays behind, and why.
    pub(super) residue: Option<String>,
    /// It should not have stayed, and can be taken away later.
    pub(super) is_unfinished: bool,
}

impl Detached {
    /// What stays behind and should not.
    pub(super) fn unfinished(&self) -> Option<&str> {
        self.residue.as_deref().filter(|_| self.is_unfinished)
    }
}

/// An injected agent.
pub(super) struct Attached<'a> {
    /// Until it is detached.
    guardian: Option<&'a mut Guardian>,
    ground: &'a mut Ground,
    /// How long each stop at attach took, in nanoseconds.
    pub(super) stops_ns: Vec<u64>,
    /// How it is sampled.
    pub(super) setup: Setup,
    /// By what, and why.
    pub(super) choice: Choice,
    /// Stops of a thread while recording, in nanoseconds: of how many, the longest.
    pub(super) entries_ns: (u64, u64),
    /// The program is parked until it is released: all signals are blocked as long.
    pub(super) is_parked: bool,
    /// Threads that can have no timer, as they would take its signal for one that they wait for.
    pub(super) waiting: Vec<Waiting>,
    pid: i32,
    signals: [i32; layout::SIGNALS],
    /// Samples that a table has room for.
    records: u64,
    base: u64,
    entries: image::Entries,
}

impl<'a> Attached<'a> {
    /// Prepares everything, then injects the agent.
    pub(super) fn attach(
        guardian: &'a mut Guardian,
        ground: &'a mut Ground,
        before: Before,
    ) -> Result<Self, RecordError> {
        let mut attached = Self::prepare(ground, &before)?;
        let plan = attached.plan(&before)?;
        if attached.choice.engine == Engine::Timer {
            attached.want_timers();
        }
        let report = guardian.attach(&plan).map_err(|error| {
            attached.ground.may_be_late =
                matches!(error, InjectError::Guardian { .. } | InjectError::GuardianKilled);
            inject_error(error)
        })?;
        attached.stops_ns = report.stops_ns;
        attached.guardian = Some(guardian);
        Ok(attached)
    }

    fn prepare(ground: &'a mut Ground, before: &Before) -> Result<Self, RecordError> {
        let gone = |error: io::Error| super::target_error(before.pid, error);
        let status = proc::status(before.pid).map_err(gone)?;
        let mappings = proc::mappings(before.pid).map_err(gone)?;
        let base = inject::find_hole(&mappings, layout::SPAN)
            .context(super::NO_HOLE)
            .map_err(RecordError::Other)?;
        let owner = (status.euid, status.egid);
        ground.prepare(owner, base..base + layout::SPAN).map_err(other)?;
        let room = ground.code.exclusive(layout::CODE_LEN as usize).map_err(other)?;
        let entries = image::lay_out(room, base).map_err(other)?;
        ground.modules.refresh(&mappings).map_err(other)?;
        let mut attached = Self {
            guardian: None,
            ground,
            stops_ns: Vec::new(),
            setup: before.setup,
            choice: before.choice.clone(),
            entries_ns: (0, 0),
            is_parked: before.hold_fd.is_some(),
            waiting: before.waiting.clone(),
            pid: before.pid,
            signals: before.signals,
            records: 0,
            base,
            entries,
        };
        attached.populate(before.freq_hz, status.threads).map_err(other)?;
        attached.initialise(before, status.inner_tgid);
        Ok(attached)
    }

    fn plan(&self, before: &Before) -> Result<AttachPlan, RecordError> {
        let segment = |shared: &Shared, distance: u64, access: Access| Segment {
            shm_id: shared.id(),
            avma: self.base + distance,
            len: shared.len(),
            access,
        };
        let entries = self.entries;
        let gone = |error: io::Error| super::target_error(before.pid, error);
        Ok(AttachPlan {
            pid: before.pid,
            start_time: proc::start_time(before.pid).map_err(gone)?,
            code: segment(&self.ground.code, 0, Access::ReadExecute),
            tables: segment(&self.ground.tables, layout::TABLES_DISTANCE, Access::Read),
            data: segment(&self.ground.data, layout::DATA_DISTANCE, Access::ReadWrite),
            entry_avma: entries.entry,
            restorer_avma: entries.restorer,
            signals: self.signals,
            hold_fd: before.hold_fd,
        })
    }

    /// Makes present what the handlers will touch, and says so in the limits.
    fn populate(&mut self, freq_hz: u32, threads: u32) -> io::Result<()> {
        const RECORDS_MIN: u64 = 4096;
        let sources_end = layout::CONTEXT_SOURCES_OFFSET + size_of::<ContextSources>() as u64;
        self.ground.data.populate(0, sources_end)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        // Half a second of samples on all cores: five rotations.
        let records =
            (u64::from(freq_hz) * cores / 2).clamp(RECORDS_MIN, table::LOG_RECORDS as u64);
        self.records = records;
        for index in 0..Rotation::ROLES {
            self.populate_table(index)?;
        }
        self.populate_slots(threads.saturating_add(SPARE_SLOTS))
    }

    /// Makes a table present, if it is not.
    pub(super) fn populate_table(&self, index: usize) -> io::Result<()> {
        const WORDS_PER_RECORD: u64 = 32;
        let Some(table) = self.data().table(index) else { return Ok(()) };
        // Relaxed: only the recorder writes it.
        if table.header.log_limit.load(Ordering::Relaxed) == self.records {
            return Ok(());
        }
        let words = (self.records * WORDS_PER_RECORD).min(table::ARENA_WORDS as u64);
        let start = layout::TRACE_TABLES_OFFSET + index as u64 * layout::TRACE_TABLE_STRIDE;
        self.ground.data.populate(start, table::SLOTS_OFFSET + table::SLOTS as u64 * 8)?;
        self.ground.data.populate(start + table::ARENA_OFFSET, words * 8)?;
        self.ground.data.populate(start + table::LOG_OFFSET, self.records * 128)?;
        let slices =
            table::SLICES_HEADER + (slice::SLICES * size_of::<slice::SliceRecord>()) as u64;
        self.ground.data.populate(start + table::SLICES_OFFSET, slices)?;
        // Relaxed: published with the agent's installation, or with the rotation that makes the
        // table ACTIVE.
        table.header.arena_limit.store(words, Ordering::Relaxed);
        table.header.log_limit.store(self.records, Ordering::Relaxed);
        if let Some(slices) = self.data().slices(index) {
            slices.header.limit.store(slice::SLICES as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn populate_slots(&self, wanted: u32) -> io::Result<()> {
        let control = self.data().control();
        let wanted = wanted.min(layout::THREAD_SLOTS as u32);
        // Relaxed: only the recorder writes it.
        let present = u64::from(control.slots_limit.load(Ordering::Relaxed));
        let more = u64::from(wanted).saturating_sub(present);
        let slots = layout::THREAD_SLOTS_OFFSET + present * layout::THREAD_SLOT_BYTES;
        self.ground.data.populate(slots, more * layout::THREAD_SLOT_BYTES)?;
        // The first slots have their previous stacks instead.
        let unkept = present.max(layout::PREVIOUS_SLOTS as u64);
        let len = (present + more).saturating_sub(unkept) * layout::SCRATCH_STRIDE;
        self.ground.data.populate(layout::SCRATCH_OFFSET + unkept * layout::SCRATCH_STRIDE, len)?;
        let [known, all] = [present, present + more].map(layout::previous_len);
        self.ground.data.populate(layout::PREVIOUS_OFFSET + known, all - known)?;
        // Relaxed: the pages are present before this is stored, and present for both processes.
        control.slots_limit.fetch_max(wanted, Ordering::Relaxed);
        Ok(())
    }

    fn initialise(&self, before: &Before, inner_pid: i32) {
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

    /// The data segment.
    pub(super) fn data(&self) -> DataSegment {
        self.ground.data.as_data()
    }

    /// The agent's addresses in the target.
    pub(super) fn span(&self) -> Range<u64> {
        self.base..self.base + layout::SPAN
    }

    /// The tables segment, as the handlers see it.
    pub(super) fn tables(&self) -> Tables {
        self.ground.tables.as_tables()
    }

    /// The sampling signal.
    pub(super) fn signal(&self) -> i32 {
        match self.choice.engine {
            Engine::Perf => self.signals[layout::SAMPLING],
            Engine::Timer => self.signals[layout::PRIMING],
        }
    }

    /// The signal in a place of [`layout::ControlBlock::signals`].
    pub(super) fn signal_in(&self, place: usize) -> i32 {
        self.signals[place]
    }

    /// The signal of timers, if the agent has a handler for it.
    pub(super) fn timer_signal(&self) -> Option<i32> {
        Some(self.signals[layout::PRIMING]).filter(|signal| *signal != 0)
    }

    /// Asks for the timers of all threads, before there is a handler: the agent's first run arms
    /// them. Those that cannot be read now are found when sampling starts.
    fn want_timers(&self) {
        let tids = proc::tasks(self.pid).unwrap_or_default().into_iter();
        let tids = tids.filter(|tid| self.waiting.iter().all(|it| it.tid != *tid));
        let mut threads: Vec<_> =
            tids.filter_map(|tid| proc::task_status(self.pid, tid).ok()).collect();
        // The first run may arm a few only, and the hits of those arm the others.
        threads.sort_by_key(|thread| thread.state != 'R');
        for status in threads {
            if let Some(index) = self.data().threads().claim(status.inner_pid as u32).index() {
                self.data().want_timer(index);
            }
        }
    }

    /// Goes on with timers: installs the handler for their signal and lets them be armed.
    pub(super) fn switch_to_timers(&mut self, why: &str) -> Result<i32, RecordError> {
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
        let gone = |error: io::Error| super::target_error(self.pid, error);
        let used = signals::Use::of(self.pid).map_err(gone)?;
        let signal = used
            .choose()
            .context("every signal for timers is blocked or waited for: use --engine perf")
            .map_err(RecordError::Other)?;
        self.waiting = used.waiting;
        self.add_signal(layout::PRIMING, signal)?;
        Ok(signal)
    }

    /// Installs the handler for one signal more.
    pub(super) fn add_signal(&mut self, place: usize, signal: i32) -> Result<(), RecordError> {
        let action = &self.data().control().signals[place];
        // Relaxed: published to the target by the system calls of the injection.
        action.signal.store(signal as u32, Ordering::Relaxed);
        self.enter(Operation::Install)?;
        self.signals[place] = signal;
        Ok(())
    }

    /// The application took the timers' signal: deletes the timers, and installs the handler for
    /// another signal. After a reset, `is_reset`, what would end the program by its default action is
    /// not taken: it may be reset as well.
    pub(super) fn replace_timer_signal(&mut self, is_reset: bool) -> Result<i32, RecordError> {
        let gone = |error: io::Error| super::target_error(self.pid, error);
        let mut others = signals::Use::of(self.pid).map_err(gone)?;
        let places = &self.data().control().signals;
        // Relaxed, all: written by this side; a handler looks at them when it runs next.
        let named = |place: usize| places[place].signal.load(Ordering::Relaxed) as i32;
        (0..layout::SIGNALS).map(named).for_each(|signal| others.leave_out(signal));
        let signal = if is_reset { others.choose_harmless() } else { others.choose() };
        let place = layout::FORMER.clone().find(|&place| named(place) == 0);
        let (Some(signal), Some(place)) = (signal, place) else {
            return Err(RecordError::Other(anyhow::anyhow!("no other signal is free")));
        };
        let (old, former) = (&places[layout::PRIMING], &places[place]);
        let pairs = old.old_action.iter().chain(&old.our_action);
        for (from, to) in pairs.zip(former.old_action.iter().chain(&former.our_action)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        former.installed.store(old.installed.load(Ordering::Relaxed), Ordering::Relaxed);
        former.signal.store(old.signal.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release: whoever sees that the place has no handler arms nothing; the words above are for
        // handlers that are called by what was put in our place.
        old.installed.store(0, Ordering::Release);
        self.enter(Operation::Disarm)?;
        self.add_signal(layout::PRIMING, signal)?;
        self.waiting = others.waiting;
        Ok(signal)
    }

    /// Has the agent do something, in a thread that is stopped for it.
    pub(super) fn enter(&mut self, operation: Operation) -> Result<(), RecordError> {
        let entered = self.guardian()?.enter(operation).map_err(inject_error)?;
        self.note(entered);
        Ok(())
    }

    fn guardian(&mut self) -> Result<&mut Guardian, RecordError> {
        let gone = || RecordError::Other(anyhow::anyhow!("the guardian is gone: try again"));
        self.guardian.as_deref_mut().ok_or_else(gone)
    }

    /// As [`Self::enter`], without waiting: in a target of thousands of threads that want a processor
    /// it takes seconds, and timers whose lease is not renewed meanwhile expire.
    pub(super) fn begin_enter(&mut self, operation: Operation) -> Result<(), RecordError> {
        match self.guardian()? {
            guardian if guardian.is_busy() => Ok(()),
            guardian => guardian.begin_enter(operation).map_err(inject_error),
        }
    }

    /// What came of an entry that was begun, when that is known.
    pub(super) fn entered(&mut self) -> Option<Result<(), RecordError>> {
        let entered = self.guardian.as_mut()?.entered()?.map_err(inject_error);
        Some(entered.map(|entered| self.note(entered)))
    }

    fn note(&mut self, entered: Entered) {
        let (count, longest) = self.entries_ns;
        self.entries_ns = (count + 1, longest.max(entered.stopped_ns));
    }

    /// Keeps thread slots ready ahead of their use.
    pub(super) fn grow(&self) -> io::Result<()> {
        let control = self.data().control();
        // Relaxed: counts.
        let used = control.slots_next.load(Ordering::Relaxed);
        let limit = control.slots_limit.load(Ordering::Relaxed);
        // As many as two cores can ask for until the next turn, at the highest rates.
        if used.saturating_add(SPARE_SLOTS * 3 / 4) > limit {
            self.populate_slots(limit.saturating_mul(2))?;
        }
        Ok(())
    }

    /// Whether the agent's mappings are among these.
    pub(super) fn is_in(&self, mappings: &[Mapping]) -> bool {
        let id = self.ground.code.id() as u64;
        mappings.iter().any(|it| it.start == self.base && it.shared && it.inode == id)
    }

    /// Asked between the opening of events and their start: those that are open when the target executes
    /// another program go with the old one, and one that is opened in the new one would kill it.
    pub(super) fn check_presence(&self) -> Result<(), RecordError> {
        let mappings = proc::mappings(self.pid);
        let mappings = mappings.map_err(|error| super::target_error(self.pid, error))?;
        // A target that is about to end has none any more.
        if mappings.is_empty() || self.is_in(&mappings) {
            return Ok(());
        }
        Err(inject_error(InjectError::Executed))
    }

    /// Publishes changed mappings.
    pub(super) fn refresh(&mut self, mappings: &[Mapping]) -> io::Result<Option<Arc<AddressMap>>> {
        self.ground.modules.refresh(mappings)
    }

    /// The target's modules and their tables.
    pub(super) fn modules(&mut self) -> &mut Modules<'static> {
        &mut self.ground.modules
    }

    /// The agent's signals, by their places.
    pub(super) fn signals(&self) -> [i32; layout::SIGNALS] {
        let places = &self.data().control().signals;
        // Relaxed: written by this side.
        places.each_ref().map(|it| it.signal.load(Ordering::Relaxed) as i32)
    }

    /// The target has executed another program: nothing is left to be cured, and that program is
    /// nobody's business here.
    pub(super) fn forget(&mut self) -> Detached {
        if let Some(guardian) = self.guardian.take() {
            // One that is gone shows when it is to attach to the next program.
            let _ = guardian.forget();
        }
        Detached::default()
    }

    /// Cures the target. Its events have been closed before.
    pub(super) fn detach(&mut self, is_gone: bool) -> Detached {
        let Some(guardian) = self.guardian.take() else { return Detached::default() };
        match guardian.detach() {
            Ok(report) => Detached {
                stopped_ns: (!is_gone).then_some(report.stopped_ns),
                residue: report.residue,
                is_unfinished: report.unfinished,
            },
            Err(_) if is_gone => Detached::default(),
            Err(error) => {
                Detached { residue: Some(error.to_string()), is_unfinished: true, stopped_ns: None }
            }
        }
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        if self.is_parked {
            // A program of ours that has not run its first instruction: there is nothing to cure.
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
        self.detach(self.is_parked);
        self.ground.release();
    }
}

fn other<E: std::error::Error + Send + Sync + 'static>(error: E) -> RecordError {
    RecordError::Other(anyhow::Error::new(error))
}
