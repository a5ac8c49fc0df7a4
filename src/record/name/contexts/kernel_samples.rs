//! Infers the contexts of kernel samples, which no handler takes.
//!
//! The context of a thread is known at the samples that handlers took, and at readings from the
//! recorder, some milliseconds after each kernel sample. The same context before and after says
//! little about the time between. For example, a tracer that opens a span around each system call
//! has closed the span whenever a handler samples the thread. So a kernel sample gets a context
//! only if all samples and readings of its thread have shown this context for long, and the next
//! one still does. Many readings must be among them, since these come at any moment. All other
//! kernel samples have no context, and are counted. (A timer expires as a thread leaves the kernel,
//! so nothing is inferred for its samples.)

use std::collections::HashMap;

use traceprof_abi::storage::log::{Sample, flags};

use crate::record::batch::contexts::ThreadContext;
use crate::record::batch::threads::ThreadKey;

/// How long a thread must have had no other context for the context to count as lasting, in
/// nanoseconds.
const LASTING_NS: u64 = 500_000_000;
/// The number of the recorder's readings that must agree.
///
/// If a thread spends a tenth of its time in short spans, this many readings miss the spans one
/// time in eight.
const READINGS_MIN: u32 = 20;

/// A part of a context that may change while the other one lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContextPart {
    /// The span and the application's tags.
    Work,
    /// The task.
    Task,
}

impl ContextPart {
    const ALL: [Self; 2] = [Self::Work, Self::Task];

    /// Returns this part of a context.
    fn of(self, context: ThreadContext) -> ThreadContext {
        let task = context.task;
        match self {
            Self::Work => ThreadContext { task: 0, ..context },
            Self::Task => ThreadContext { task, ..ThreadContext::default() },
        }
    }

    /// Sets this part of a sample's context.
    fn give(self, part: ThreadContext, sample: &mut Sample) {
        let now = ThreadContext::of(sample);
        match self {
            Self::Work => ThreadContext { task: now.task, ..part }.give(sample),
            Self::Task => ThreadContext { task: part.task, ..now }.give(sample),
        }
    }
}

/// The last context of a thread, and how well it is confirmed.
#[derive(Debug, Clone, Copy, Default)]
struct LastingContext {
    context: ThreadContext,
    /// The time since which no other context was seen, in CLOCK_MONOTONIC nanoseconds.
    since_ns: u64,
    /// The number of readings since then.
    readings: u32,
}

impl LastingContext {
    /// Notes a context that a sample or a reading showed at a time.
    fn note(&mut self, time_ns: u64, context: ThreadContext, is_reading: bool) {
        if self.context != context || self.since_ns == 0 {
            *self = Self { context, since_ns: time_ns, readings: 0 };
        }
        self.readings = self.readings.saturating_add(u32::from(is_reading));
    }

    fn lasts_at(&self, time_ns: u64) -> bool {
        self.readings >= READINGS_MIN && time_ns.saturating_sub(self.since_ns) >= LASTING_NS
    }
}

/// The contexts of threads, for their kernel samples.
#[derive(Debug, Default)]
pub(super) struct KernelContexts {
    /// The parts of the contexts at the end of the last batch.
    seen: HashMap<ThreadKey, [LastingContext; 2]>,
    /// The readings since then by outer thread id, in order of time.
    observed: HashMap<u32, Vec<(u64, ThreadContext)>>,
}

impl KernelContexts {
    /// Notes a reading of a thread that was sampled in the kernel before this time.
    pub(super) fn observe(&mut self, tid: u32, time_ns: u64, context: ThreadContext) {
        self.observed.entry(tid).or_default().push((time_ns, context));
    }

    /// Drops a thread that has exited.
    pub(super) fn forget(&mut self, key: ThreadKey) {
        self.seen.remove(&key);
    }

    /// Gives the kernel samples of a batch their contexts.
    ///
    /// Returns the number of samples whose span stays unknown. The samples must be sorted by
    /// thread and time.
    pub(super) fn carry(&mut self, samples: &mut [Sample]) -> u64 {
        let mut unknown = 0;
        for thread in samples.chunk_by_mut(|one, other| key(one) == key(other)) {
            let tid = thread.iter().find(is_kernel).map(|sample| sample.tid);
            let observed = tid.and_then(|tid| self.observed.remove(&tid)).unwrap_or_default();
            let seen = self.seen.entry(key(&thread[0])).or_default();
            for (part, seen) in ContextPart::ALL.into_iter().zip(seen) {
                let left = settle(part, thread, &observed, seen);
                // A task that lasts is rare, and no loss of a span.
                unknown += if part == ContextPart::Work { left } else { 0 };
            }
        }
        self.observed.clear();
        unknown
    }
}

fn key(sample: &Sample) -> ThreadKey {
    (sample.slot, sample.generation)
}

fn is_kernel(sample: &&Sample) -> bool {
    sample.flags & flags::KERNEL != 0
}

/// Gives the kernel samples of one thread a part of their contexts, and returns the number of
/// samples whose part stays unknown.
///
/// `seen` is the part before the samples, and is updated to the one after them.
fn settle(
    part: ContextPart,
    samples: &mut [Sample],
    observed: &[(u64, ThreadContext)],
    seen: &mut LastingContext,
) -> u64 {
    let mut unknown = 0;
    let mut observed = observed.iter().copied().peekable();
    // The kernel samples since the last known context.
    let mut first = 0;
    for index in 0..=samples.len() {
        let until_ns = samples.get(index).map_or(u64::MAX, |sample| sample.time);
        while let Some((time_ns, now)) = observed.next_if(|(time_ns, _)| *time_ns < until_ns) {
            let now = part.of(now);
            unknown += give(part, &mut samples[first..index], seen, now);
            seen.note(time_ns, now, true);
            first = index;
        }
        let handled = samples.get(index).filter(|sample| !is_kernel(sample));
        if let Some(now) = handled.map(|sample| part.of(ThreadContext::of(sample))) {
            unknown += give(part, &mut samples[first..index], seen, now);
            seen.note(until_ns, now, false);
            first = index + 1;
        }
    }
    // For the last samples, the context after them is unknown.
    unknown + give(part, &mut samples[first..], &LastingContext::default(), seen.context)
}

/// Gives the samples a part of a context that lasted before them and is the same after them, and
/// returns the number of samples that got none.
fn give(
    part: ContextPart,
    samples: &mut [Sample],
    before: &LastingContext,
    after: ThreadContext,
) -> u64 {
    let nothing = ThreadContext::default();
    if before.context == nothing && after == nothing {
        return 0;
    }
    let mut unknown = 0;
    for sample in samples {
        if before.context == after && after != nothing && before.lasts_at(sample.time) {
            part.give(after, sample);
            sample.flags |= flags::CARRIED;
        } else {
            unknown += 1;
        }
    }
    unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: u32 = flags::KERNEL;
    const MS: u64 = 1_000_000;

    fn sample(time_ms: u64, flags: u32, span: u64) -> Sample {
        let source = u32::from(span != 0);
        Sample { slot: 1, tid: 1, time: time_ms * MS, flags, span, source, ..Sample::default() }
    }

    fn works_on(span: u64) -> ThreadContext {
        ThreadContext::of(&sample(0, 0, span))
    }

    /// Notes readings at these times, which all find this span.
    fn observe_at(
        kernel_contexts: &mut KernelContexts,
        times_ms: impl Iterator<Item = u64>,
        span: u64,
    ) {
        times_ms.for_each(|ms| kernel_contexts.observe(1, ms * MS, works_on(span)));
    }

    #[test]
    fn kernel_samples_get_the_context_that_lasts() {
        let mut kernel_contexts = KernelContexts::default();
        observe_at(&mut kernel_contexts, (1..=30).map(|n| n * 20), 7);
        let mut samples = [300, 505, 540, 595].map(|ms| sample(ms, KERNEL, 0));
        assert_eq!(kernel_contexts.carry(&mut samples), 2, "the context does not last yet");
        assert_eq!(samples.map(|it| it.span), [0, 0, 7, 7]);
        assert_eq!(samples[3].flags, KERNEL | flags::CARRIED);
    }

    #[test]
    fn a_context_that_was_seen_to_change_is_not_carried_for_long() {
        let mut kernel_contexts = KernelContexts::default();
        observe_at(&mut kernel_contexts, (1..=40).map(|n| n * 20), 7);
        // One reading of many finds the thread in another span.
        kernel_contexts.observe(1, 810 * MS, works_on(8));
        observe_at(&mut kernel_contexts, (42..=80).map(|n| n * 20), 7);
        let mut samples = [790, 805, 1000, 1300, 1400].map(|ms| sample(ms, KERNEL, 0));
        assert_eq!(kernel_contexts.carry(&mut samples), 3);
        assert_eq!(samples.map(|it| it.span), [7, 0, 0, 0, 7]);
    }

    /// The usual tracer: handlers sample the parent's own code, and never the spans around system
    /// calls.
    #[test]
    fn spans_around_system_calls_are_not_taken_for_their_parents() {
        let mut kernel_contexts = KernelContexts::default();
        let mut samples = Vec::new();
        for cycle in 0..1000 {
            samples.push(sample(cycle * 3 + 1, 0, 7));
            samples.push(sample(cycle * 3 + 3, KERNEL, 0));
        }
        for reading in 0..300u64 {
            let is_within = reading * 10 % 3 == 2;
            kernel_contexts.observe(
                1,
                reading * 10 * MS + 1,
                works_on(if is_within { 8 } else { 7 }),
            );
        }
        assert_eq!(kernel_contexts.carry(&mut samples), 1000);
        assert!(samples.iter().all(|it| it.flags & KERNEL == 0 || it.span == 0));
        // Handlers alone are no evidence, however many of them agree.
        assert_eq!(KernelContexts::default().carry(&mut samples), 1000);
    }

    #[test]
    fn a_span_lasts_while_tasks_change_and_a_task_while_spans_change() {
        let context = |span, task| ThreadContext { task, ..works_on(span) };
        let told = |context: &dyn Fn(u64) -> ThreadContext| {
            let mut kernel_contexts = KernelContexts::default();
            for n in 1..=80 {
                kernel_contexts.observe(1, n * 20 * MS, context(n));
            }
            let mut samples = [1005, 1505].map(|ms| sample(ms, KERNEL, 0));
            let unknown = kernel_contexts.carry(&mut samples);
            (unknown, samples.map(|it| (it.source, it.span, it.task)))
        };
        assert_eq!(told(&|n| context(7, n as u32)), (0, [(1, 7, 0); 2]));
        assert_eq!(told(&|n| context(n, 9)), (2, [(0, 0, 9); 2]));
        assert_eq!(told(&|_| context(7, 9)), (0, [(1, 7, 9); 2]));
        assert_eq!(told(&|n| context(0, n as u32)), (0, [(0, 0, 0); 2]), "no span is lost");
    }

    #[test]
    fn samples_of_threads_without_contexts_are_not_counted_as_unknown() {
        let mut kernel_contexts = KernelContexts::default();
        observe_at(&mut kernel_contexts, (1..=80).map(|n| n * 20), 0);
        let mut samples = [100, 900].map(|ms| sample(ms, KERNEL, 0));
        assert_eq!(kernel_contexts.carry(&mut samples), 0);
        assert_eq!(samples.map(|it| it.flags), [KERNEL; 2]);
        // The end of one batch is the start of the next.
        observe_at(&mut kernel_contexts, (81..=85).map(|n| n * 20), 7);
        let mut samples = [1610, 1690].map(|ms| sample(ms, KERNEL, 0));
        assert_eq!(kernel_contexts.carry(&mut samples), 2);
    }
}
