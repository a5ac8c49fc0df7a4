//! From what threads were seen to do to samples of the trace.
//!
//! # Invariants
//! - A stack that is told of again within some batches keeps its id; the trace is in every batch with a
//!   sample that names it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use traceprof_abi::storage::log::{Sample, flags};
use traceprof_abi::unwind::trace_end;

use super::super::batch::{Batch, ThreadNews};
use super::super::clock::monotonic_now_ns;
use super::super::collections::TraceEntry;
use super::super::contexts::ThreadContext;
use super::super::threads::Key;
use super::running::{Run, Running};
use super::sleeper::Place;
use super::task::Span;
use crate::trace::RunState;

/// Batches that a stack is kept for after the last one that had it.
const KEPT_BATCHES: u32 = 50;
/// Numbers within one upper half of the ids.
const NUMBERS_MAX: u32 = u32::MAX - 1;

/// Time of a thread that is to be told of.
#[derive(Debug, Clone)]
struct Told {
    life: u32,
    tid: i32,
    time_ns: u64,
    span: Span,
}

/// A stack with an id.
#[derive(Debug)]
struct Stack {
    id: u64,
    /// Batches since one had it.
    unused: u32,
}

/// What has been seen since the last batch, and the stacks.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    told: Vec<Told>,
    /// By their frames and flags.
    stacks: HashMap<(Arc<[u64]>, u32), Stack>,
    /// The upper half of the next stack's id, and its number.
    next: Option<(u32, u32)>,
    /// What is left of a microsecond, by state.
    rests_ns: [u64; RunState::ALL.len()],
    /// Where threads ran when a hit was last read, by their lives.
    ran: HashMap<u32, Arc<Place>>,
    /// Threads that are gone, and when they ended.
    gone: BTreeMap<u32, u64>,
    running: Running,
    /// Microseconds of all samples, by state, and of those without a stack.
    pub(super) told_us: [u64; RunState::ALL.len()],
    pub(super) unplaced_us: u64,
}

impl Gathered {
    /// Takes what was seen of a thread up to this time.
    pub(super) fn take_in(&mut self, (life, tid): (u32, i32), time_ns: u64, spans: &mut Vec<Span>) {
        self.told.extend(spans.drain(..).map(|span| Told { life, tid, time_ns, span }));
    }

    /// A thread is watched from now on.
    pub(super) fn begin(&mut self, life: u32, tid: i32) {
        self.running.note((life, tid), 0);
    }

    /// A thread is gone: nothing more comes of it.
    pub(super) fn forget(&mut self, life: u32, end_ns: u64) {
        self.gone.insert(life, end_ns);
    }

    /// The samples of a batch, whose stacks it gets. A thread that waited for a processor where nobody
    /// saw it was where it was last hit. `instance` gives an upper half for ids, `tell` has
    /// a thread told of.
    pub(super) fn samples(
        &mut self,
        batch: &mut Batch,
        mut instance: impl FnMut() -> Option<u32>,
        mut tell: impl FnMut(Key, &mut Vec<ThreadNews>),
    ) -> Vec<Sample> {
        let mut samples = Vec::with_capacity(self.told.len());
        self.note_hits(batch);
        for Told { life, tid, time_ns, span } in std::mem::take(&mut self.told) {
            if span.state == RunState::Running {
                self.running.note((life, tid), span.ns);
                continue;
            }
            let weight = self.weight(&span);
            if weight == 0 {
                continue;
            }
            tell((life, 0), &mut batch.threads);
            let place = span.place.as_deref();
            let ran = self.ran.get(&life).filter(|_| span.has_run || place.is_none()).cloned();
            let at = ran.as_deref().or(place).filter(|at| !at.frames.is_empty());
            let id = at.and_then(|at| self.id(at, batch, &mut instance));
            let stack = id.zip(at.map(|at| trace_end(at.flags)));
            let call = place.filter(|_| span.state != RunState::Runnable);
            let mut sample = Sample {
                time: time_ns,
                syscall: call.and_then(|at| at.syscall).map_or(0, |number| u64::from(number) + 1),
                event: call.and_then(|at| at.waits_on.as_ref()).map_or(0, |text| batch.text(text)),
                ..self.sample((life, tid), (span.state, weight), stack)
            };
            let context = match span.state {
                RunState::Runnable => span.context,
                _ => place.map(|at| at.context).unwrap_or_default(),
            };
            context.give(&mut sample);
            samples.push(sample);
        }
        self.age();
        samples
    }

    /// See [`Running::slow`].
    pub(super) fn slow(&mut self, shift: u32) {
        self.running.slow(shift);
    }

    /// Samples of the time that threads ran. The hits of the batch have been put right; it is the last one
    /// of threads that are gone, and of all if it is the last.
    pub(super) fn running(
        &mut self,
        batch: &mut Batch,
        (period_ns, is_last): (u64, bool),
        mut instance: impl FnMut() -> Option<u32>,
        mut tell: impl FnMut(Key, &mut Vec<ThreadNews>),
    ) -> Vec<Sample> {
        let gone = std::mem::take(&mut self.gone);
        let has_ended = |life: u32| is_last || gone.contains_key(&life);
        let runs = self.running.spread(&batch.samples, period_ns, has_ended);
        let mut samples = Vec::with_capacity(runs.len());
        for Run { life, tid, us, hit } in runs {
            let hit = hit.and_then(|place| batch.samples.get(place));
            // Of time without a hit nothing is known.
            let context = hit.map(ThreadContext::of).unwrap_or_default();
            let carried = hit.map_or(0, |hit| hit.flags & flags::CARRIED);
            let (time, stack) = match hit {
                Some(hit) => (hit.time, Some((hit.trace_id, hit.reason))),
                None => {
                    let ran = self.ran.get(&life).cloned();
                    let id = ran.as_ref().and_then(|at| self.id(at, batch, &mut instance));
                    let time_ns = gone.get(&life).copied();
                    (
                        time_ns.unwrap_or_else(monotonic_now_ns),
                        id.zip(ran.map(|at| trace_end(at.flags))),
                    )
                }
            };
            tell((life, 0), &mut batch.threads);
            let mut sample = self.sample((life, tid), (RunState::Running, us), stack);
            (sample.time, sample.flags) = (time, sample.flags | carried);
            context.give(&mut sample);
            samples.push(sample);
        }
        for life in gone.into_keys() {
            self.ran.remove(&life);
            self.running.forget(life);
        }
        samples
    }

    /// A sample of so many microseconds of a thread, which are counted; the trace and its end, if known.
    fn sample(
        &mut self,
        (life, tid): (u32, i32),
        (state, weight): (RunState, u32),
        stack: Option<(u64, u16)>,
    ) -> Sample {
        self.told_us[state as usize] += u64::from(weight);
        self.unplaced_us += if stack.is_none() { u64::from(weight) } else { 0 };
        let (trace_id, reason) = stack.unwrap_or_default();
        Sample {
            trace_id,
            reason,
            slot: life,
            tid: tid as u32,
            weight,
            flags: flags::WALL,
            state: state as u16,
            ..Sample::default()
        }
    }

    /// Remembers where threads ran.
    fn note_hits(&mut self, batch: &mut Batch) {
        batch.traces.seal();
        let mut hits: HashMap<u32, (u64, u64)> = HashMap::new();
        for hit in &batch.samples {
            let last = hits.entry(hit.slot).or_default();
            *last = (*last).max((hit.time, hit.trace_id));
        }
        // Of others nothing is told but their hits.
        for (life, (_, id)) in hits.into_iter().filter(|(life, _)| self.running.knows(*life)) {
            let Some(entry) = batch.traces.get(id) else { continue };
            let frames = batch.traces.frames_of(entry).into();
            self.ran.insert(life, Arc::new(Place::of_runner(frames, entry.flags)));
        }
    }

    /// Microseconds; the rest is kept for the next time.
    fn weight(&mut self, span: &Span) -> u32 {
        let rest = &mut self.rests_ns[span.state as usize];
        let all_ns = span.ns + *rest;
        let weight = u32::try_from(all_ns / 1000).unwrap_or(u32::MAX);
        *rest = all_ns - u64::from(weight) * 1000;
        weight
    }

    /// The id of a place's stack, which is in the batch then.
    fn id(
        &mut self,
        place: &Place,
        batch: &mut Batch,
        instance: &mut impl FnMut() -> Option<u32>,
    ) -> Option<u64> {
        let key = (Arc::clone(&place.frames), place.flags);
        if !self.stacks.contains_key(&key) {
            let id = self.next_id(instance)?;
            self.stacks.insert(key.clone(), Stack { id, unused: 1 });
        }
        let stack = self.stacks.get_mut(&key)?;
        if std::mem::take(&mut stack.unused) > 0 {
            let frames = place.frames.iter().copied();
            batch.traces.push(TraceEntry::new(stack.id, place.flags, 0), frames);
        }
        Some(stack.id)
    }

    fn next_id(&mut self, instance: &mut impl FnMut() -> Option<u32>) -> Option<u64> {
        let (upper, number) = match self.next {
            Some((upper, number)) if number < NUMBERS_MAX => (upper, number),
            _ => (instance()?, 0),
        };
        self.next = Some((upper, number + 1));
        Some(u64::from(upper) << 32 | u64::from(number))
    }

    /// A batch is over.
    fn age(&mut self) {
        self.stacks.retain(|_, stack| {
            stack.unused += 1;
            stack.unused <= KEPT_BATCHES
        });
    }
}
