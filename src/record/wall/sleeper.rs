//! Where a thread sleeps: its stack, its system call and what that waits on.
//!
//! Three ways, the one that disturbs least first. A thread at the same place in the kernel as before,
//! whose stack holds the very words that its known stack was unwound from, is at that stack. Otherwise
//! its stack is read while it sleeps, and unwound without the registers that only a stop would show; if
//! nothing depends on them, that is its stack. What is left is stopped for a moment
//! ([`inject::capture_threads()`]), with the repair of calls that would notice.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use traceprof_abi::unwind::{EndReason, Snapshot, Tables, trace_epoch, trace_flags};

use super::super::contexts::{Outside, ThreadContext};
use super::{Unknown, WallStats};
use crate::inject::{self, Capture, Chosen, Missed};
use crate::proc::{self, Activity, DescriptorNames, Mapping};
use crate::trace::RunState;
use crate::unwind::{Evidence, OutsideUnwinder, StackCopy};

/// Places of a thread that are recognised.
const PLACES_MAX: usize = 8;
/// Frames of them together, about.
const FRAMES_MAX: usize = 2048;
/// How long threads are asked to stop.
const STOPPING_MAX: Duration = Duration::from_millis(5);

/// The number of a system call, and what it waits on.
type Called = (Option<u32>, Option<Arc<str>>);

/// Where a thread is that does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Why it does not run.
    pub(super) state: RunState,
    /// The number of its system call, if it is in one.
    pub(super) syscall: Option<u32>,
    /// What the call waits on.
    pub(super) waits_on: Option<Arc<str>>,
    /// Frame words, leaf first; none if the stack could not be had.
    pub(super) frames: Arc<[u64]>,
    /// The flags of a call trace with these frames.
    pub(super) flags: u32,
    /// What the thread works on.
    pub(super) context: ThreadContext,
}

impl Place {
    /// One whose stack is not known.
    pub(super) fn without_stack(
        state: RunState,
        (syscall, waits_on): Called,
        context: ThreadContext,
    ) -> Self {
        Self { state, syscall, waits_on, frames: Arc::new([]), flags: 0, context }
    }

    /// Where a thread ran.
    pub(super) fn of_runner(frames: Arc<[u64]>, flags: u32) -> Self {
        let (state, context) = (RunState::Running, ThreadContext::default());
        Self { state, syscall: None, waits_on: None, frames, flags, context }
    }
}

/// By what a thread's place is known.
pub(super) struct Sight<'a> {
    /// The places that it has slept at.
    pub(super) history: &'a mut History,
    /// What it works on.
    pub(super) contexts: &'a Outside,
}

/// A place that a thread has slept at, and by what that is recognised.
pub(super) struct Known {
    place: Arc<Place>,
    /// Stack pointer and pc.
    at: (u64, u64),
    /// None of a stack that some word was missing for. Its thread was stopped for it, and another stop of the
    /// same sleep would let a time limit begin anew over and over: it is taken to be there still.
    evidence: Option<Evidence>,
}

/// The places that a thread has slept at, the last one first.
#[derive(Default)]
pub(super) struct History(VecDeque<Known>);

impl History {
    /// A thread that sleeps there now is at this one, which becomes the first.
    fn find(&mut self, is_it: impl FnMut(&Known) -> bool) -> Option<&Known> {
        let found = self.0.iter().position(is_it)?;
        let known = self.0.remove(found)?;
        self.0.push_front(known);
        self.0.front()
    }

    /// Adds one, and forgets the one that was not seen for longest if there are many.
    pub(super) fn add(&mut self, known: Known) -> Arc<Place> {
        let place = Arc::clone(&known.place);
        // Deep ones are expensive to keep.
        let mut room = FRAMES_MAX;
        let mut fits = |known: &Known| {
            room = room.saturating_sub(known.place.frames.len());
            room > 0
        };
        let kept = self.0.iter().take(PLACES_MAX - 1).take_while(|known| fits(known)).count();
        self.0.truncate(kept);
        self.0.push_front(known);
        place
    }
}

/// What a look without a stop gave.
pub(super) enum Read {
    /// One of those that are known, or that only differs in its call from that.
    Again(Arc<Place>),
    /// Another one.
    New(Known),
    /// The thread has run meanwhile.
    Moved,
    /// It takes a stop; what is known without its stack.
    Unknown(Arc<Place>),
}

/// Finds out where threads of a process sleep.
pub(super) struct Sleepers {
    pid: i32,
    start_time: u64,
    tables: Tables,
    unwinder: OutsideUnwinder,
    descriptors: DescriptorNames,
    /// What was mapped when that was last looked at.
    pub(super) mappings: Vec<Mapping>,
}

impl Sleepers {
    /// Of a process whose unwind tables these are.
    pub(super) fn new(pid: i32, tables: Tables) -> io::Result<Self> {
        Ok(Self {
            pid,
            start_time: proc::start_time(pid)?,
            tables,
            unwinder: OutsideUnwinder::default(),
            descriptors: DescriptorNames::new(pid),
            mappings: proc::mappings(pid)?,
        })
    }

    /// Looks at a thread that does not run, for this reason, without stopping it. `unmoved` tells
    /// whether it has run since the look before.
    pub(super) fn read(
        &mut self,
        (tid, state): (i32, RunState),
        Sight { history, contexts }: Sight<'_>,
        unmoved: impl Fn() -> bool,
        stats: &mut WallStats,
    ) -> Read {
        let Ok(activity) = proc::task_activity(self.pid, tid) else { return Read::Moved };
        let Some(at) = place_of(activity) else { return Read::Moved };
        let Some(snapshot) = self.tables.snapshot() else { return Read::Moved };
        let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
        let again = history.find(|known| {
            let is_still = |evidence: &Evidence| evidence.is_still(at, &mut read);
            known.at == at
                && trace_epoch(known.place.flags) == snapshot.epoch()
                && known.evidence.as_ref().map_or(known.place.state == state, is_still)
        });
        let new = match again {
            Some(_) => None,
            None => unwind_asleep(&mut self.unwinder, &snapshot, tid, at),
        };
        let (mut syscall, mut waits_on) = self.call_of(activity);
        let context = contexts.read(tid);
        if !unmoved() {
            return Read::Moved;
        }
        if let Some(Known { place, .. }) = again {
            stats.known += 1;
            if syscall == Some(libc::SYS_restart_syscall as u32) {
                // So the kernel goes on with some calls that were interrupted.
                (syscall, waits_on) = (place.syscall, place.waits_on.clone());
            }
            let (frames, flags) = (Arc::clone(&place.frames), place.flags);
            return Read::Again(Arc::new(Place {
                state,
                syscall,
                waits_on,
                frames,
                flags,
                context,
            }));
        }
        let Some((frames, flags, evidence)) = new else {
            let place = Place::without_stack(state, (syscall, waits_on), context);
            return Read::Unknown(Arc::new(place));
        };
        stats.read += 1;
        let place = Arc::new(Place { state, syscall, waits_on, frames, flags, context });
        Read::New(Known { place, at, evidence: Some(evidence) })
    }

    /// Stops threads, and gives their places in the same order; `None` for one that runs meanwhile.
    pub(super) fn stop(
        &mut self,
        unknown: &[Unknown],
        contexts: &Outside,
        stats: &mut WallStats,
    ) -> Vec<Option<Known>> {
        let pid = self.pid;
        let tids: Vec<i32> = unknown.iter().map(|it| it.tid).collect();
        let chosen = Chosen { tids: &tids, time_max: STOPPING_MAX };
        let see = |tid| (proc::task_activity(pid, tid).ok(), contexts.read(tid));
        let captured = inject::capture_threads(pid, self.start_time, &self.mappings, chosen, see);
        // The program is gone: the session finds that out.
        let captures = captured.map(|captured| captured.threads).unwrap_or_default();
        let mut places = Vec::with_capacity(unknown.len());
        for it in unknown {
            let capture = captures.iter().find(|capture| capture.tid == it.tid);
            places.push(capture.and_then(|capture| self.place(it, capture, stats)));
        }
        places
    }

    /// The number of the call that a thread is in, and what it waits on.
    fn call_of(&mut self, activity: Activity) -> Called {
        let Activity::Syscall { number, args, .. } = activity else { return (None, None) };
        let descriptor = proc::waited_descriptor(number, &args);
        let waits_on = descriptor.and_then(|number| self.descriptors.name(number));
        (u32::try_from(number).ok(), waits_on)
    }

    fn place(
        &mut self,
        unknown: &Unknown,
        capture: &Capture<(Option<Activity>, ThreadContext)>,
        stats: &mut WallStats,
    ) -> Option<Known> {
        let ((activity, context), state) = (capture.seen, unknown.state);
        if capture.outcome == Err(Missed::Gone) {
            return None;
        }
        let called = activity.map_or((None, None), |activity| self.call_of(activity));
        let Ok(portrait) = &capture.outcome else {
            stats.missed += 1;
            let place = Place::without_stack(state, called, context);
            // One that waits for a processor may stop the next time; where it is not known then.
            let at = activity.and_then(place_of).filter(|_| state == RunState::Disk);
            let at = at.unwrap_or_default();
            return Some(Known { place: Arc::new(place), at, evidence: None });
        };
        stats.stopped += 1;
        stats.stop_ns_max = stats.stop_ns_max.max(portrait.stopped_ns);
        let at = (portrait.registers.sp, portrait.registers.pc);
        if activity.and_then(place_of) != Some(at) {
            // It went on between the look and the stop: it may run now.
            stats.moved += 1;
            return None;
        }
        let snapshot = self.tables.snapshot()?;
        let copy = StackCopy { avma: portrait.stack_avma, bytes: &portrait.stack };
        let mut read = |avma, into: &mut [u8]| inject::read_part(unknown.tid, avma, into);
        let (stack, evidence) =
            self.unwinder.unwind_with_evidence(&snapshot, &portrait.registers, copy, &mut read);
        let (frames, flags) = (stack.frames.into(), trace_flags(stack.end, snapshot.epoch()));
        let (syscall, waits_on) = called;
        let place = Arc::new(Place { state, syscall, waits_on, frames, flags, context });
        Some(Known { place, at, evidence: evidence.is_whole().then_some(evidence) })
    }
}

/// The stack of a thread that sleeps at this stack pointer and pc, if these are enough to tell.
fn unwind_asleep(
    unwinder: &mut OutsideUnwinder,
    snapshot: &Snapshot<'_>,
    tid: i32,
    at: (u64, u64),
) -> Option<(Arc<[u64]>, u32, Evidence)> {
    let (avma, stack) = inject::copy_stack(tid, at.0);
    let copy = StackCopy { avma, bytes: &stack };
    let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
    let (frames, evidence) = unwinder.unwind_asleep(snapshot, at, copy, &mut read)?;
    Some((frames.into(), trace_flags(EndReason::Root, snapshot.epoch()), evidence))
}

/// Stack pointer and pc of a thread that does not run.
fn place_of(activity: Activity) -> Option<(u64, u64)> {
    match activity {
        Activity::Syscall { sp, pc, .. } | Activity::Blocked { sp, pc } => Some((sp, pc)),
        Activity::Running => None,
    }
}
