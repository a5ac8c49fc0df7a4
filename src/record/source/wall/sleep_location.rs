//! The location of a sleeping thread: its stack, its system call and what the call waits on.
//!
//! There are three methods, tried from the least to the most intrusive. First, a thread at the same
//! stack pointer and pc as before has a known stack if its memory still contains the words from
//! which that stack was unwound. Otherwise the recorder reads the stack while the thread sleeps,
//! and unwinds it without the registers that only a stop would show. The result counts if nothing
//! depends on them. The recorder stops the remaining threads for a moment
//! ([`inject::capture_threads()`]), and repairs calls that would notice the stop.
//!
//! Two functions of a language runtime can sleep through the very same native frames. A location is
//! therefore known again only if the words are the same from which its managed frames were read.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use traceprof_abi::unwind::{EndReason, Snapshot, Tables, trace_epoch, trace_flags};

use crate::inject::{self, Capture, CaptureSelection, NotCaptured};
use crate::proc::{self, Mapping, TaskActivity};
use crate::record::batch::contexts::{ReadContext, ThreadContext};
use crate::record::source::wall::awaited::{AwaitedNames, Called};
use crate::record::source::wall::kernel_frames::KernelFrameReader;
use crate::record::source::wall::sleeper_frames::{
    FrameSearch, KnownFrames, SeenSleeper, SleeperView,
};
use crate::record::source::wall::{UnlocatedThread, WallStats};
use crate::runtime::ManagedThread;
use crate::trace::RunState;
use crate::unwind::{RemoteUnwinder, StackCopy, StackFingerprint};

/// The maximum number of locations to remember for a thread.
const LOCATIONS_MAX: usize = 8;
/// The approximate maximum number of frames of a thread's remembered locations together.
const FRAMES_MAX: usize = 2048;
/// The timeout for stopping threads.
const STOPPING_MAX: Duration = Duration::from_millis(5);

/// The location of a thread, and the context that it works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ThreadLocation {
    /// The run state.
    pub(super) state: RunState,
    /// The number of the system call, if the thread is in one.
    pub(super) syscall: Option<u32>,
    /// What the call waits on.
    pub(super) waits_on: Option<Arc<str>>,
    /// Frame words, leaf first; empty if the stack could not be read.
    pub(super) frames: Arc<[u64]>,
    /// The flags of a call trace with these frames.
    pub(super) flags: u32,
    /// The context that the thread works on.
    pub(super) context: ThreadContext,
    /// Whether the thread holds the lock of a language's runtime.
    pub(super) holds_lock: bool,
}

impl ThreadLocation {
    /// Makes a location without a stack.
    pub(super) fn without_stack(
        state: RunState,
        (syscall, waits_on): Called,
        context: ThreadContext,
    ) -> Self {
        let (frames, flags, holds_lock) = (Arc::new([]), 0, false);
        Self { state, syscall, waits_on, frames, flags, context, holds_lock }
    }

    /// Makes the location of a thread that ran.
    pub(super) fn of_runner(frames: Arc<[u64]>, flags: u32, holds_lock: bool) -> Self {
        let (state, context) = (RunState::Running, ThreadContext::default());
        let (syscall, waits_on) = (None, None);
        Self { state, syscall, waits_on, frames, flags, context, holds_lock }
    }
}

/// What is read of a thread that waits for a processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WaitingThread {
    /// The context that it works on.
    pub(super) context: ThreadContext,
    /// Whether it holds the lock of a language's runtime, if it could be read.
    pub(super) holds_lock: Option<bool>,
}

/// The sources for a thread's location.
pub(super) struct LocationSources<'a> {
    /// The locations that the thread has slept at.
    pub(super) history: &'a mut LocationHistory,
    /// The reader of its context.
    pub(super) contexts: &'a dyn ReadContext,
}

/// A location that a thread has slept at, and how to recognise it.
pub(super) struct KnownLocation {
    location: Arc<ThreadLocation>,
    /// Stack pointer and pc.
    at: (u64, u64),
    /// The words to compare, or `None` if some word of the stack was missing.
    ///
    /// In the latter case the recorder has stopped the thread, and assumes that it still sleeps at
    /// this location: another stop of the same sleep would restart its timeout over and over.
    fingerprint: Option<StackFingerprint>,
    managed: KnownFrames,
    /// The thread's block, if it was found.
    block: Option<ManagedThread>,
}

/// The locations at which a thread has slept, latest first.
#[derive(Default)]
pub(super) struct LocationHistory {
    locations: VecDeque<KnownLocation>,
    /// The thread's block, once it was found.
    block: Option<ManagedThread>,
}

impl LocationHistory {
    /// Finds a location and moves it to the front.
    fn find(&mut self, is_it: impl FnMut(&KnownLocation) -> bool) -> Option<&mut KnownLocation> {
        let found = self.locations.iter().position(is_it)?;
        let known = self.locations.remove(found)?;
        self.locations.push_front(known);
        self.locations.front_mut()
    }

    /// Remembers the kernel's frames of the location that was found last.
    fn renew(&mut self, found: &Arc<ThreadLocation>) {
        if let Some(known) = self.locations.front_mut() {
            known.location = Arc::clone(found);
        }
    }

    /// Adds a location, and drops the least recently seen ones if there are too many. A location
    /// without a stack pointer is never found again, and so takes no other's place.
    pub(super) fn add(&mut self, known: KnownLocation) -> Arc<ThreadLocation> {
        let location = Arc::clone(&known.location);
        if known.at == (0, 0) {
            return location;
        }
        // Deep stacks are expensive to keep.
        let mut room = FRAMES_MAX;
        let mut fits = |known: &KnownLocation| {
            room = room.saturating_sub(known.location.frames.len());
            room > 0
        };
        let kept = self.locations.iter().take(LOCATIONS_MAX - 1);
        let kept = kept.take_while(|known| fits(known)).count();
        self.locations.truncate(kept);
        self.block = known.block.or(self.block);
        self.locations.push_front(known);
        location
    }
}

/// The result of reading a thread without a stop.
pub(super) enum LocationRead {
    /// A known location, possibly with another system call.
    Known(Arc<ThreadLocation>),
    /// A new location.
    New(KnownLocation),
    /// The thread ran during the reading.
    Moved,
    /// The stack requires a stop; the location contains everything else.
    NeedsStop(Arc<ThreadLocation>),
}

/// The reader of sleeping threads of one process.
pub(super) struct LocationReader {
    pid: i32,
    start_time: u64,
    tables: Tables,
    unwinder: RemoteUnwinder,
    search: FrameSearch,
    /// The kernel's frames.
    pub(super) kernel: KernelFrameReader,
    /// What calls wait on.
    pub(super) waits: AwaitedNames,
    /// The mappings when they were last read.
    pub(super) mappings: Vec<Mapping>,
}

impl LocationReader {
    /// Makes a reader for a process that has these unwind tables, with frames of the kernel if they
    /// are wanted and readable.
    pub(super) fn new(pid: i32, tables: Tables, wants_kernel: bool) -> io::Result<Self> {
        Ok(Self {
            pid,
            start_time: proc::start_time(pid)?,
            tables,
            unwinder: RemoteUnwinder::with_objects(),
            search: FrameSearch::new(pid),
            kernel: KernelFrameReader::new(pid, wants_kernel),
            waits: AwaitedNames::new(pid),
            mappings: proc::mappings(pid)?,
        })
    }

    /// Reads a thread that waits for a processor. If it ran meanwhile, the result is wrong.
    pub(super) fn read_waiting(
        &mut self,
        tid: i32,
        LocationSources { history, contexts }: LocationSources<'_>,
    ) -> WaitingThread {
        let context = if contexts.is_empty() { Default::default() } else { contexts.read(tid) };
        let snapshot = self.tables.snapshot();
        let runtimes = snapshot.as_ref().map_or(&[][..], |snapshot| snapshot.runtimes());
        if runtimes.is_empty() {
            return WaitingThread { context, holds_lock: None };
        }
        let block = self.search.block_of(tid, &mut history.block);
        let holds_lock = block.map(|block| self.search.holds_lock(runtimes, Some(block)));
        WaitingThread { context, holds_lock }
    }

    /// Reads a thread in this state without stopping it.
    ///
    /// `unmoved` returns whether the thread has not run since the caller's check.
    pub(super) fn read(
        &mut self,
        (tid, state): (i32, RunState),
        LocationSources { history, contexts }: LocationSources<'_>,
        unmoved: impl Fn() -> bool,
        stats: &mut WallStats,
    ) -> LocationRead {
        let Ok(activity) = proc::task_activity(self.pid, tid) else { return LocationRead::Moved };
        let Some(at) = stack_point(activity) else { return LocationRead::Moved };
        let (mut again, new) = self.look_up((tid, state), at, history);
        if let Some(known) = &mut again
            && let Some(frames) = self.kernel.read_again(tid, &known.frames)
        {
            *known = Arc::new(ThreadLocation { frames, ..(**known).clone() });
        }
        let kernel_words = new.as_ref().map(|_| self.kernel.read(tid)).unwrap_or_default();
        let (mut syscall, mut waits_on) = self.waits.of(|| self.search.inner_tid(tid), activity);
        let context = contexts.read(tid);
        let snapshot = self.tables.snapshot();
        let runtimes = snapshot.as_ref().map_or(&[][..], |snapshot| snapshot.runtimes());
        let holds_lock = self.search.holds_lock(runtimes, history.block);
        if !unmoved() {
            return LocationRead::Moved;
        }
        if let Some(location) = again {
            stats.known += 1;
            history.renew(&location);
            if syscall == Some(libc::SYS_restart_syscall as u32) {
                // The kernel restarts some interrupted calls this way.
                syscall = location.syscall;
                waits_on = waits_on.or_else(|| location.waits_on.clone());
            }
            let (frames, flags) = (Arc::clone(&location.frames), location.flags);
            return LocationRead::Known(Arc::new(ThreadLocation {
                state,
                syscall,
                waits_on,
                frames,
                flags,
                context,
                holds_lock,
            }));
        }
        let Some(NewStack { frames, flags, fingerprint, managed }) = new else {
            let location = ThreadLocation::without_stack(state, (syscall, waits_on), context);
            return LocationRead::NeedsStop(Arc::new(ThreadLocation { holds_lock, ..location }));
        };
        stats.read += 1;
        stats.unsearched += u64::from(!managed.is_searched);
        let location = Arc::new(ThreadLocation {
            state,
            syscall,
            waits_on,
            frames: [kernel_words, frames].concat().into(),
            flags,
            context,
            holds_lock,
        });
        let (fingerprint, block) = (Some(fingerprint), history.block);
        LocationRead::New(KnownLocation { location, at, fingerprint, managed, block })
    }

    /// Returns the location of a thread that sleeps with this stack pointer and pc, if it has slept
    /// there before; otherwise its stack, if it can be unwound.
    fn look_up(
        &mut self,
        (tid, state): (i32, RunState),
        at: (u64, u64),
        history: &mut LocationHistory,
    ) -> (Option<Arc<ThreadLocation>>, Option<NewStack>) {
        let Some(snapshot) = self.tables.snapshot() else { return (None, None) };
        let (runtimes, search) = (snapshot.runtimes(), &mut self.search);
        let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
        let mut is_native_same = |known: &KnownLocation| {
            let is_still = |fingerprint: &StackFingerprint| fingerprint.matches(at, &mut read);
            known.at == at
                && trace_epoch(known.location.flags) == snapshot.epoch()
                && known.fingerprint.as_ref().map_or(known.location.state == state, is_still)
        };
        let has_both =
            |known: &KnownLocation| is_native_same(known) && search.has(runtimes, &known.managed);
        if let Some(known) = history.find(has_both) {
            return (Some(Arc::clone(&known.location)), None);
        }
        let managed = search.find(runtimes, (tid, at.0), &mut history.block);
        let is_same =
            |known: &KnownLocation| known.managed.is_same(&managed) && is_native_same(known);
        if let Some(known) = history.find(is_same) {
            // Words beside those that matter have changed, such as counters.
            known.managed = managed;
            return (Some(Arc::clone(&known.location)), None);
        }
        (None, unwind_sleeping(&mut self.unwinder, &snapshot, tid, at, managed))
    }

    /// Stops threads and returns their locations in the same order, `None` for a thread that ran
    /// meanwhile.
    pub(super) fn stop(
        &mut self,
        unknown: &[UnlocatedThread],
        contexts: &dyn ReadContext,
        stats: &mut WallStats,
    ) -> Vec<Option<KnownLocation>> {
        let Some(snapshot) = self.tables.snapshot() else {
            return unknown.iter().map(|_| None).collect();
        };
        let tids: Vec<i32> = unknown.iter().map(|it| it.tid).collect();
        let chosen = CaptureSelection { tids: &tids, time_max: STOPPING_MAX };
        let (unwinder, search, kernel) = (&mut self.unwinder, &mut self.search, &mut self.kernel);
        let view = SleeperView { contexts, snapshot: &snapshot, unwinder, search, kernel };
        let (pid, mappings) = (self.pid, &self.mappings);
        let captured = inject::capture_threads(pid, self.start_time, mappings, chosen, view);
        // On an error the program has exited; the session detects that.
        let mut captures = captured.map(|captured| captured.threads).unwrap_or_default();
        let mut locations = Vec::with_capacity(unknown.len());
        for it in unknown {
            let capture = captures.iter().position(|capture| capture.tid == it.tid);
            let capture = capture.map(|at| captures.swap_remove(at));
            locations.push(capture.and_then(|capture| self.location(it, capture, stats)));
        }
        locations
    }

    fn location(
        &mut self,
        unknown: &UnlocatedThread,
        capture: Capture<SeenSleeper>,
        stats: &mut WallStats,
    ) -> Option<KnownLocation> {
        let SeenSleeper { activity, context, frames: managed, block, holds_lock, .. } =
            capture.seen;
        let (stack, mut frames) = (capture.seen.stack, capture.seen.kernel_words);
        let state = unknown.state;
        if capture.outcome == Err(NotCaptured::Gone) {
            return None;
        }
        // The thread runs again, so its memory does not say what it waited for in Java.
        let called = activity.map_or((None, None), |activity| self.waits.of(|| None, activity));
        let Ok(portrait) = &capture.outcome else {
            stats.missed += 1;
            let location = ThreadLocation::without_stack(state, called, context);
            // The location is remembered only for an uninterruptible sleep: a thread that waits for
            // a processor may stop next time.
            let at = activity.and_then(stack_point).filter(|_| state == RunState::Disk);
            let at = at.unwrap_or_default();
            let location = Arc::new(location);
            return Some(KnownLocation { location, at, fingerprint: None, managed, block });
        };
        stats.stopped += 1;
        stats.stop_ns_max = stats.stop_ns_max.max(portrait.stopped_ns);
        let at = (portrait.registers.sp, portrait.registers.pc);
        if activity.and_then(stack_point) != Some(at) {
            // The thread ran between the check and the stop, and may run now.
            stats.moved += 1;
            return None;
        }
        let snapshot = self.tables.snapshot()?;
        let copy = StackCopy { avma: portrait.stack_avma, bytes: &portrait.stack };
        let mut read = |avma, into: &mut [u8]| inject::read_part(unknown.tid, avma, into);
        stats.unsearched += u64::from(!managed.is_searched);
        let (mut stack, fingerprint) = stack.unwrap_or_else(|| {
            let registers = &portrait.registers;
            self.unwinder.unwind_with_fingerprint(&snapshot, registers, copy, &mut read)
        });
        stack.frames.extend(&managed.words);
        frames.extend(stack.frames);
        let (frames, flags) = (frames.into(), trace_flags(stack.end, snapshot.epoch()));
        let (syscall, waits_on) = called;
        let location = Arc::new(ThreadLocation {
            state,
            syscall,
            waits_on,
            frames,
            flags,
            context,
            holds_lock,
        });
        let fingerprint = fingerprint.is_complete().then_some(fingerprint);
        Some(KnownLocation { location, at, fingerprint, managed, block })
    }
}

/// A stack that was unwound without a stop.
struct NewStack {
    frames: Vec<u64>,
    flags: u32,
    fingerprint: StackFingerprint,
    managed: KnownFrames,
}

/// Unwinds a sleeping thread from its stack pointer and pc, and adds its managed frames; returns
/// `None` if these do not suffice.
fn unwind_sleeping(
    unwinder: &mut RemoteUnwinder,
    snapshot: &Snapshot<'_>,
    tid: i32,
    at: (u64, u64),
    managed: KnownFrames,
) -> Option<NewStack> {
    let (avma, stack) = inject::copy_stack(tid, at.0);
    let copy = StackCopy { avma, bytes: &stack };
    let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
    let (mut frames, fingerprint) = unwinder.unwind_sleeping(snapshot, at, copy, &mut read)?;
    frames.extend(&managed.words);
    let flags = trace_flags(EndReason::Root, snapshot.epoch());
    Some(NewStack { frames, flags, fingerprint, managed })
}

/// Returns the stack pointer and pc of a thread that does not run.
fn stack_point(activity: TaskActivity) -> Option<(u64, u64)> {
    match activity {
        TaskActivity::Syscall { sp, pc, .. } | TaskActivity::Blocked { sp, pc } => Some((sp, pc)),
        TaskActivity::Running => None,
    }
}
