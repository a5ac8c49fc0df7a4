//! The conversion of observed thread time to samples of the trace.
//!
//! # Invariants
//! - A stack that is used again within [`KEPT_BATCHES`] keeps its id. Its trace is in every batch
//!   with a sample that refers to it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use traceprof_abi::storage::log::{Sample, flags};
use traceprof_abi::unwind::trace_end;

use crate::record::batch::Batch;
use crate::record::batch::contexts::ThreadContext;
use crate::record::batch::threads::{ThreadChange, ThreadKey};
use crate::record::batch::traces::TraceEntry;
use crate::record::contract::clock::monotonic_now_ns;
use crate::record::source::wall::running_time::{RunPiece, RunningTime};
use crate::record::source::wall::sleep_location::ThreadLocation;
use crate::record::source::wall::thread_time::StateSpan;
use crate::trace::RunState;

/// The number of batches for which a stack is kept after its last use.
const KEPT_BATCHES: u32 = 50;
/// The number of ids with the same upper half.
const NUMBERS_MAX: u32 = u32::MAX - 1;

/// Time of a thread that is not yet a sample.
#[derive(Debug, Clone)]
struct ObservedSpan {
    life: u32,
    tid: i32,
    time_ns: u64,
    span: StateSpan,
}

/// A stack with an id.
#[derive(Debug)]
struct NumberedStack {
    id: u64,
    /// The number of batches since its last use.
    unused: u32,
}

/// Observed time since the last batch, and the known stacks.
#[derive(Debug, Default)]
pub(super) struct WallSamples {
    observed: Vec<ObservedSpan>,
    /// Stacks by their frames and flags.
    stacks: HashMap<(Arc<[u64]>, u32), NumberedStack>,
    /// The upper half of the next stack's id, and its number.
    next: Option<(u32, u32)>,
    /// The remainders below a microsecond, in nanoseconds by state.
    remainders_ns: [u64; RunState::ALL.len()],
    /// Where threads ran at their last CPU sample, by life.
    run_locations: HashMap<u32, Arc<ThreadLocation>>,
    /// Threads that have exited, and when in nanoseconds.
    gone: BTreeMap<u32, u64>,
    running: RunningTime,
    /// Microseconds of all samples, by state.
    pub(super) reported_us: [u64; RunState::ALL.len()],
    /// Microseconds of all samples without a stack.
    pub(super) stackless_us: u64,
}

impl WallSamples {
    /// Adds the observed time of a thread up to `time_ns`.
    pub(super) fn add_spans(
        &mut self,
        (life, tid): (u32, i32),
        time_ns: u64,
        spans: &mut Vec<StateSpan>,
    ) {
        self.observed.extend(spans.drain(..).map(|span| ObservedSpan { life, tid, time_ns, span }));
    }

    /// Adds a thread that is watched from now on.
    pub(super) fn add_thread(&mut self, life: u32, tid: i32) {
        self.running.note((life, tid), 0);
    }

    /// Notes that a thread has exited and that none of its time follows.
    pub(super) fn remove_thread(&mut self, life: u32, end_ns: u64) {
        self.gone.insert(life, end_ns);
    }

    /// Returns the off-CPU samples of a batch, and adds their stacks to it.
    ///
    /// A thread that waited for a processor at an unknown location gets the location of its last
    /// CPU sample. `instance` returns an upper half for ids, and `announce` announces a thread to
    /// the batch.
    pub(super) fn off_cpu(
        &mut self,
        batch: &mut Batch,
        mut instance: impl FnMut() -> Option<u32>,
        mut announce: impl FnMut(ThreadKey, &mut Vec<ThreadChange>),
    ) -> Vec<Sample> {
        let mut samples = Vec::with_capacity(self.observed.len());
        self.note_run_locations(batch);
        for ObservedSpan { life, tid, time_ns, span } in std::mem::take(&mut self.observed) {
            if span.state == RunState::Running {
                self.running.note((life, tid), span.ns);
                continue;
            }
            let weight = self.weight(&span);
            if weight == 0 {
                continue;
            }
            announce((life, 0), &mut batch.threads);
            let location = span.location.as_deref();
            let run_locations = self
                .run_locations
                .get(&life)
                .filter(|_| span.has_run || location.is_none())
                .cloned();
            let at = run_locations.as_deref().or(location);
            let holds_lock = match span.state {
                // Where nobody looked, it may have waited for the lock as well.
                RunState::Runnable => span.waiting.holds_lock == Some(true),
                // Most threads release it before they sleep: where it ran says nothing.
                _ => location.is_some_and(|at| at.holds_lock),
            };
            let at = at.filter(|at| !at.frames.is_empty());
            let id = at.and_then(|at| self.id(at, batch, &mut instance));
            let stack = id.zip(at.map(|at| trace_end(at.flags)));
            let call = location.filter(|_| span.state != RunState::Runnable);
            let mut sample = Sample {
                time: time_ns,
                syscall: call.and_then(|at| at.syscall).map_or(0, |number| u64::from(number) + 1),
                event: call.and_then(|at| at.waits_on.as_ref()).map_or(0, |text| batch.text(text)),
                ..self.sample((life, tid), (span.state, weight), stack)
            };
            let context = match span.state {
                RunState::Runnable => span.waiting.context,
                _ => location.map(|at| at.context).unwrap_or_default(),
            };
            context.give(&mut sample);
            sample.flags |= if holds_lock { flags::HOLDS_LOCK } else { 0 };
            samples.push(sample);
        }
        self.age();
        samples
    }

    /// Sets the sampling rate; see [`RunningTime::slow`].
    pub(super) fn slow(&mut self, shift: u32) {
        self.running.slow(shift);
    }

    /// Returns the samples of running time; the CPU samples of the batch have been weighed.
    ///
    /// For exited threads this is the last batch, and with `is_last` for all threads.
    pub(super) fn running(
        &mut self,
        batch: &mut Batch,
        (period_ns, is_last): (u64, bool),
        mut instance: impl FnMut() -> Option<u32>,
        mut announce: impl FnMut(ThreadKey, &mut Vec<ThreadChange>),
    ) -> Vec<Sample> {
        let gone = std::mem::take(&mut self.gone);
        let has_ended = |life: u32| is_last || gone.contains_key(&life);
        let runs = self.running.spread(&batch.samples, period_ns, has_ended);
        let mut samples = Vec::with_capacity(runs.len());
        for RunPiece { life, tid, us, cpu_sample } in runs {
            let cpu_sample = cpu_sample.and_then(|location| batch.samples.get(location));
            // Nothing is known about time without a CPU sample.
            let context = cpu_sample.map(ThreadContext::of).unwrap_or_default();
            let (time, stack, carried) = match cpu_sample {
                Some(cpu_sample) => {
                    let carried = cpu_sample.flags & (flags::CARRIED | flags::HOLDS_LOCK);
                    (cpu_sample.time, Some((cpu_sample.trace_id, cpu_sample.reason)), carried)
                }
                None => {
                    let run_locations = self.run_locations.get(&life).cloned();
                    let id =
                        run_locations.as_ref().and_then(|at| self.id(at, batch, &mut instance));
                    let time_ns = gone.get(&life).copied();
                    let holds_lock = run_locations.as_ref().is_some_and(|at| at.holds_lock);
                    (
                        time_ns.unwrap_or_else(monotonic_now_ns),
                        id.zip(run_locations.map(|at| trace_end(at.flags))),
                        if holds_lock { flags::HOLDS_LOCK } else { 0 },
                    )
                }
            };
            announce((life, 0), &mut batch.threads);
            let mut sample = self.sample((life, tid), (RunState::Running, us), stack);
            (sample.time, sample.flags) = (time, sample.flags | carried);
            context.give(&mut sample);
            samples.push(sample);
        }
        for life in gone.into_keys() {
            self.run_locations.remove(&life);
            self.running.note_end(life);
        }
        samples
    }

    /// Makes a sample of `weight` microseconds and counts it.
    ///
    /// `stack` is the id of its trace and the reason why unwinding ended, if known.
    fn sample(
        &mut self,
        (life, tid): (u32, i32),
        (state, weight): (RunState, u32),
        stack: Option<(u64, u16)>,
    ) -> Sample {
        self.reported_us[state as usize] += u64::from(weight);
        self.stackless_us += if stack.is_none() { u64::from(weight) } else { 0 };
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
    fn note_run_locations(&mut self, batch: &mut Batch) {
        batch.traces.seal();
        let mut last_samples: HashMap<u32, (u64, u64, u32)> = HashMap::new();
        for cpu_sample in &batch.samples {
            let last = last_samples.entry(cpu_sample.slot).or_default();
            *last = (*last).max((cpu_sample.time, cpu_sample.trace_id, cpu_sample.flags));
        }
        // Unwatched threads have CPU samples only, so they need no location.
        for (life, (_, id, flags)) in
            last_samples.into_iter().filter(|(life, _)| self.running.is_watched(*life))
        {
            let Some(entry) = batch.traces.get(id) else { continue };
            let frames = batch.traces.frames_of(entry).into();
            let holds_lock = flags & self::flags::HOLDS_LOCK != 0;
            let location = ThreadLocation::of_runner(frames, entry.flags, holds_lock);
            self.run_locations.insert(life, Arc::new(location));
        }
    }

    /// Returns the microseconds of a span, and keeps the remainder for the next call.
    fn weight(&mut self, span: &StateSpan) -> u32 {
        let remainder = &mut self.remainders_ns[span.state as usize];
        let all_ns = span.ns + *remainder;
        let weight = u32::try_from(all_ns / 1000).unwrap_or(u32::MAX);
        *remainder = all_ns - u64::from(weight) * 1000;
        weight
    }

    /// Returns the id of a location's stack, and makes sure that the batch contains the stack.
    fn id(
        &mut self,
        location: &ThreadLocation,
        batch: &mut Batch,
        instance: &mut impl FnMut() -> Option<u32>,
    ) -> Option<u64> {
        let key = (Arc::clone(&location.frames), location.flags);
        if !self.stacks.contains_key(&key) {
            let id = self.next_id(instance)?;
            self.stacks.insert(key.clone(), NumberedStack { id, unused: 1 });
        }
        let stack = self.stacks.get_mut(&key)?;
        if std::mem::take(&mut stack.unused) > 0 {
            let frames = location.frames.iter().copied();
            batch.traces.push(TraceEntry::new(stack.id, location.flags, 0), frames);
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

    /// Ages the stacks by one batch.
    fn age(&mut self) {
        self.stacks.retain(|_, stack| {
            stack.unused += 1;
            stack.unused <= KEPT_BATCHES
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::source::wall::sleep_location::WaitingThread;

    /// Returns whether the sample of a span says that the thread held the lock. The thread held it
    /// when it last ran.
    fn holds_lock(state: RunState, asleep: Option<bool>, waiting: Option<bool>) -> bool {
        let mut samples = WallSamples::default();
        samples.add_thread(3, 30);
        let ran = ThreadLocation::of_runner(Arc::new([7]), 0, true);
        samples.run_locations.insert(3, Arc::new(ran));
        let context = ThreadContext::default();
        let location = asleep.map(|holds_lock| {
            let location = ThreadLocation::without_stack(state, (None, None), context);
            Arc::new(ThreadLocation { holds_lock, ..location })
        });
        let waiting = WaitingThread { context, holds_lock: waiting };
        let has_run = state == RunState::Runnable;
        let span = StateSpan { state, location, has_run, waiting, ns: 5_000_000 };
        samples.add_spans((3, 30), 9, &mut vec![span]);
        let found = samples.off_cpu(&mut Batch::default(), || Some(1), |_, _| {});
        let [sample] = found[..] else { panic!("{found:?}") };
        assert_eq!((sample.state, sample.weight), (state as u16, 5000));
        sample.flags & flags::HOLDS_LOCK != 0
    }

    #[test]
    fn where_a_thread_ran_does_not_say_that_it_sleeps_with_the_lock() {
        for asleep in [None, Some(false), Some(true)] {
            let expected = asleep == Some(true);
            assert_eq!(holds_lock(RunState::Sleeping, asleep, None), expected, "{asleep:?}");
        }
        for waiting in [None, Some(false), Some(true)] {
            let expected = waiting == Some(true);
            assert_eq!(holds_lock(RunState::Runnable, None, waiting), expected, "{waiting:?}");
        }
    }
}
