//! The location of a sleeping thread: its stack, its system call and what the call waits on.
//!
//! There are three methods, tried from the least to the most intrusive. First, a thread at the same
//! stack pointer and pc as before has a known stack if its memory still contains the words from
//! which that stack was unwound. Otherwise the recorder reads the stack while the thread sleeps,
//! and unwinds it without the registers that only a stop would show. The result counts if nothing
//! depends on them. The recorder stops the remaining threads for a moment
//! ([`inject::capture_threads()`]), and repairs calls that would notice the stop.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use traceprof_abi::runtime::word::split;
use traceprof_abi::unwind::{EndReason, Snapshot, Tables, trace_epoch, trace_flags};

use crate::inject::{self, Capture, CaptureSelection, NotCaptured};
use crate::proc::{self, DescriptorNames, Mapping, ProcessMemory, TaskActivity};
use crate::record::batch::contexts::{ReadContext, ThreadContext};
use crate::record::source::wall::{UnlocatedThread, WallStats};
use crate::runtime::managed_frames;
use crate::trace::RunState;
use crate::unwind::{RemoteUnwinder, StackCopy, StackFingerprint};

/// The maximum number of locations to remember for a thread.
const LOCATIONS_MAX: usize = 8;
/// The approximate maximum number of frames of a thread's remembered locations together.
const FRAMES_MAX: usize = 2048;
/// The timeout for stopping threads.
const STOPPING_MAX: Duration = Duration::from_millis(5);

/// The number of a system call, and the name of what it waits on.
type Called = (Option<u32>, Option<Arc<str>>);

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
}

impl ThreadLocation {
    /// Makes a location without a stack.
    pub(super) fn without_stack(
        state: RunState,
        (syscall, waits_on): Called,
        context: ThreadContext,
    ) -> Self {
        Self { state, syscall, waits_on, frames: Arc::new([]), flags: 0, context }
    }

    /// Makes the location of a thread that ran.
    pub(super) fn of_runner(frames: Arc<[u64]>, flags: u32) -> Self {
        let (state, context) = (RunState::Running, ThreadContext::default());
        Self { state, syscall: None, waits_on: None, frames, flags, context }
    }
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
}

/// The locations at which a thread has slept, latest first.
#[derive(Default)]
pub(super) struct LocationHistory(VecDeque<KnownLocation>);

impl LocationHistory {
    /// Finds a location and moves it to the front.
    fn find(&mut self, is_it: impl FnMut(&KnownLocation) -> bool) -> Option<&KnownLocation> {
        let found = self.0.iter().position(is_it)?;
        let known = self.0.remove(found)?;
        self.0.push_front(known);
        self.0.front()
    }

    /// Adds a location, and drops the least recently seen ones if there are too many.
    pub(super) fn add(&mut self, known: KnownLocation) -> Arc<ThreadLocation> {
        let location = Arc::clone(&known.location);
        // Deep stacks are expensive to keep.
        let mut room = FRAMES_MAX;
        let mut fits = |known: &KnownLocation| {
            room = room.saturating_sub(known.location.frames.len());
            room > 0
        };
        let kept = self.0.iter().take(LOCATIONS_MAX - 1).take_while(|known| fits(known)).count();
        self.0.truncate(kept);
        self.0.push_front(known);
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
    descriptors: DescriptorNames,
    /// The mappings when they were last read.
    pub(super) mappings: Vec<Mapping>,
}

impl LocationReader {
    /// Makes a reader for a process that has these unwind tables.
    pub(super) fn new(pid: i32, tables: Tables) -> io::Result<Self> {
        Ok(Self {
            pid,
            start_time: proc::start_time(pid)?,
            tables,
            unwinder: RemoteUnwinder::default(),
            descriptors: DescriptorNames::new(pid),
            mappings: proc::mappings(pid)?,
        })
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
        let Some(snapshot) = self.tables.snapshot() else { return LocationRead::Moved };
        let managed = self.managed_frames(&snapshot, tid);
        let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
        let again = history.find(|known| {
            let is_still = |fingerprint: &StackFingerprint| fingerprint.matches(at, &mut read);
            known.at == at
                && trace_epoch(known.location.flags) == snapshot.epoch()
                && split(&known.location.frames).1 == managed
                && known.fingerprint.as_ref().map_or(known.location.state == state, is_still)
        });
        let new = match again {
            Some(_) => None,
            None => unwind_sleeping(&mut self.unwinder, &snapshot, tid, at, &managed),
        };
        let (mut syscall, mut waits_on) = self.call_of(activity);
        let context = contexts.read(tid);
        if !unmoved() {
            return LocationRead::Moved;
        }
        if let Some(KnownLocation { location, .. }) = again {
            stats.known += 1;
            if syscall == Some(libc::SYS_restart_syscall as u32) {
                // The kernel restarts some interrupted calls this way.
                (syscall, waits_on) = (location.syscall, location.waits_on.clone());
            }
            let (frames, flags) = (Arc::clone(&location.frames), location.flags);
            return LocationRead::Known(Arc::new(ThreadLocation {
                state,
                syscall,
                waits_on,
                frames,
                flags,
                context,
            }));
        }
        let Some((frames, flags, fingerprint)) = new else {
            let location = ThreadLocation::without_stack(state, (syscall, waits_on), context);
            return LocationRead::NeedsStop(Arc::new(location));
        };
        stats.read += 1;
        let location =
            Arc::new(ThreadLocation { state, syscall, waits_on, frames, flags, context });
        LocationRead::New(KnownLocation { location, at, fingerprint: Some(fingerprint) })
    }

    /// Stops threads and returns their locations in the same order, `None` for a thread that ran
    /// meanwhile.
    pub(super) fn stop(
        &mut self,
        unknown: &[UnlocatedThread],
        contexts: &dyn ReadContext,
        stats: &mut WallStats,
    ) -> Vec<Option<KnownLocation>> {
        let pid = self.pid;
        let tids: Vec<i32> = unknown.iter().map(|it| it.tid).collect();
        let chosen = CaptureSelection { tids: &tids, time_max: STOPPING_MAX };
        let see = |tid| (proc::task_activity(pid, tid).ok(), contexts.read(tid));
        let captured = inject::capture_threads(pid, self.start_time, &self.mappings, chosen, see);
        // On an error the program has exited; the session detects that.
        let captures = captured.map(|captured| captured.threads).unwrap_or_default();
        let mut locations = Vec::with_capacity(unknown.len());
        for it in unknown {
            let capture = captures.iter().find(|capture| capture.tid == it.tid);
            locations.push(capture.and_then(|capture| self.location(it, capture, stats)));
        }
        locations
    }

    /// Returns the frame words of a thread's managed frames.
    fn managed_frames(&self, snapshot: &Snapshot<'_>, tid: i32) -> Vec<u64> {
        let (blocks, memory) = (snapshot.runtimes(), ProcessMemory::of(self.pid));
        if blocks.is_empty() {
            return Vec::new();
        }
        let pointer = proc::thread_pointer(tid, |avma, into| memory.read(avma, into));
        pointer.map_or(Vec::new(), |pointer| managed_frames(blocks, pointer, &memory))
    }

    /// Returns the number of the call that a thread is in, and what it waits on.
    fn call_of(&mut self, activity: TaskActivity) -> Called {
        let TaskActivity::Syscall { number, args, .. } = activity else { return (None, None) };
        let descriptor = proc::waited_descriptor(number, &args);
        let waits_on = descriptor.and_then(|number| self.descriptors.name(number));
        (u32::try_from(number).ok(), waits_on)
    }

    fn location(
        &mut self,
        unknown: &UnlocatedThread,
        capture: &Capture<(Option<TaskActivity>, ThreadContext)>,
        stats: &mut WallStats,
    ) -> Option<KnownLocation> {
        let ((activity, context), state) = (capture.seen, unknown.state);
        if capture.outcome == Err(NotCaptured::Gone) {
            return None;
        }
        let called = activity.map_or((None, None), |activity| self.call_of(activity));
        let Ok(portrait) = &capture.outcome else {
            stats.missed += 1;
            let location = ThreadLocation::without_stack(state, called, context);
            // The location is remembered only for an uninterruptible sleep: a thread that waits for
            // a processor may stop next time.
            let at = activity.and_then(stack_point).filter(|_| state == RunState::Disk);
            let at = at.unwrap_or_default();
            return Some(KnownLocation { location: Arc::new(location), at, fingerprint: None });
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
        let managed = self.managed_frames(&snapshot, unknown.tid);
        let (mut stack, fingerprint) =
            self.unwinder.unwind_with_fingerprint(&snapshot, &portrait.registers, copy, &mut read);
        stack.frames.extend(managed);
        let (frames, flags) = (stack.frames.into(), trace_flags(stack.end, snapshot.epoch()));
        let (syscall, waits_on) = called;
        let location =
            Arc::new(ThreadLocation { state, syscall, waits_on, frames, flags, context });
        Some(KnownLocation {
            location,
            at,
            fingerprint: fingerprint.is_complete().then_some(fingerprint),
        })
    }
}

/// Unwinds a sleeping thread from its stack pointer and pc, and adds its managed frames; returns
/// `None` if these do not suffice.
fn unwind_sleeping(
    unwinder: &mut RemoteUnwinder,
    snapshot: &Snapshot<'_>,
    tid: i32,
    at: (u64, u64),
    managed: &[u64],
) -> Option<(Arc<[u64]>, u32, StackFingerprint)> {
    let (avma, stack) = inject::copy_stack(tid, at.0);
    let copy = StackCopy { avma, bytes: &stack };
    let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
    let (mut frames, fingerprint) = unwinder.unwind_sleeping(snapshot, at, copy, &mut read)?;
    frames.extend(managed);
    Some((frames.into(), trace_flags(EndReason::Root, snapshot.epoch()), fingerprint))
}

/// Returns the stack pointer and pc of a thread that does not run.
fn stack_point(activity: TaskActivity) -> Option<(u64, u64)> {
    match activity {
        TaskActivity::Syscall { sp, pc, .. } | TaskActivity::Blocked { sp, pc } => Some((sp, pc)),
        TaskActivity::Running => None,
    }
}
