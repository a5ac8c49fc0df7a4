//! Contexts of hits in the kernel, which no handler takes.
//!
//! What a thread worked on is known of the hits that handlers took, and of looks from outside, some
//! milliseconds after each hit in the kernel. That it is the same before and after says little of what was
//! between: a tracer that opens a span around each system call has closed it whenever the thread is hit
//! in its own code. So a hit gets the context that its thread has had for long, in whatever was seen of
//! it, and many looks among that, which come at any moment; and has afterwards. All others are told of as
//! without, and counted. (Timers hit a thread when it leaves the kernel: of them nothing is inferred.)

use std::collections::HashMap;

use traceprof_abi::storage::log::{Sample, flags};

use super::super::threads::Key;
use super::ThreadContext;

/// A context lasts if nothing else was seen of its thread for this time,
const LASTING_NS: u64 = 500_000_000;
/// in so many looks at least. Of a thread that spends a tenth of its time in short spans, that many looks
/// miss them in one of eight times.
const LOOKS: u32 = 20;

/// What a thread works on, as far as was seen.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    context: ThreadContext,
    /// Nothing else was seen since then,
    since_ns: u64,
    /// in so many looks from outside.
    looks: u32,
}

impl Seen {
    /// Takes in what was seen at a time.
    fn note(&mut self, time_ns: u64, context: ThreadContext, is_look: bool) {
        if self.context != context || self.since_ns == 0 {
            *self = Self { context, since_ns: time_ns, looks: 0 };
        }
        self.looks = self.looks.saturating_add(u32::from(is_look));
    }

    fn lasts_at(&self, time_ns: u64) -> bool {
        self.looks >= LOOKS && time_ns.saturating_sub(self.since_ns) >= LASTING_NS
    }
}

/// What threads were seen to work on.
#[derive(Debug, Default)]
pub(super) struct Carried {
    /// At the end of the last batch.
    seen: HashMap<Key, Seen>,
    /// From outside, since then: by the thread's id as the recorder sees it, in the order of time.
    observed: HashMap<u32, Vec<(u64, ThreadContext)>>,
}

impl Carried {
    /// A thread works on this, and was hit in the kernel before this time at the latest.
    pub(super) fn observe(&mut self, tid: u32, time_ns: u64, context: ThreadContext) {
        self.observed.entry(tid).or_default().push((time_ns, context));
    }

    /// A thread is gone.
    pub(super) fn forget(&mut self, key: Key) {
        self.seen.remove(&key);
    }

    /// Gives the hits in the kernel of a batch their contexts; how many got none, of those that may have
    /// had one. The samples are in the order of threads and times.
    pub(super) fn carry(&mut self, samples: &mut [Sample]) -> u64 {
        let mut untold = 0;
        for thread in samples.chunk_by_mut(|one, other| key(one) == key(other)) {
            let tid = thread.iter().find(is_kernel).map(|hit| hit.tid);
            let observed = tid.and_then(|tid| self.observed.remove(&tid)).unwrap_or_default();
            let seen = self.seen.entry(key(&thread[0])).or_default();
            untold += settle(thread, &observed, seen);
        }
        self.observed.clear();
        untold
    }
}

fn key(sample: &Sample) -> Key {
    (sample.slot, sample.generation)
}

fn is_kernel(sample: &&Sample) -> bool {
    sample.flags & flags::KERNEL != 0
}

/// The hits of one thread. `seen` is what it worked on before them, and afterwards.
fn settle(samples: &mut [Sample], observed: &[(u64, ThreadContext)], seen: &mut Seen) -> u64 {
    let mut untold = 0;
    let mut observed = observed.iter().copied().peekable();
    // The hits in the kernel since something was seen.
    let mut first = 0;
    for place in 0..=samples.len() {
        let until_ns = samples.get(place).map_or(u64::MAX, |sample| sample.time);
        while let Some((time_ns, now)) = observed.next_if(|(time_ns, _)| *time_ns < until_ns) {
            untold += give(&mut samples[first..place], seen, now);
            seen.note(time_ns, now, true);
            first = place;
        }
        let handled = samples.get(place).filter(|sample| !is_kernel(sample));
        if let Some(now) = handled.map(ThreadContext::of) {
            untold += give(&mut samples[first..place], seen, now);
            seen.note(until_ns, now, false);
            first = place + 1;
        }
    }
    // Nothing is known of what came after.
    untold + give(&mut samples[first..], &Seen::default(), seen.context)
}

/// Gives the hits the context that lasted before them and is there after them; how many got none.
fn give(hits: &mut [Sample], before: &Seen, after: ThreadContext) -> u64 {
    let nothing = ThreadContext::default();
    if before.context == nothing && after == nothing {
        return 0;
    }
    let mut untold = 0;
    for hit in hits {
        if before.context == after && after != nothing && before.lasts_at(hit.time) {
            after.give(hit);
            hit.flags |= flags::CARRIED;
        } else {
            untold += 1;
        }
    }
    untold
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

    /// Looks at these times, all of which find this span.
    fn look(carried: &mut Carried, times_ms: impl Iterator<Item = u64>, span: u64) {
        times_ms.for_each(|ms| carried.observe(1, ms * MS, works_on(span)));
    }

    #[test]
    fn hits_in_the_kernel_have_the_context_that_lasts() {
        let mut carried = Carried::default();
        look(&mut carried, (1..=30).map(|n| n * 20), 7);
        let mut samples = [300, 505, 540, 595].map(|ms| sample(ms, KERNEL, 0));
        assert_eq!(carried.carry(&mut samples), 2, "it is not known to last yet");
        assert_eq!(samples.map(|it| it.span), [0, 0, 7, 7]);
        assert_eq!(samples[3].flags, KERNEL | flags::CARRIED);
    }

    #[test]
    fn a_context_that_was_seen_to_change_is_not_carried_for_long() {
        let mut carried = Carried::default();
        look(&mut carried, (1..=40).map(|n| n * 20), 7);
        // One look of many finds the thread in another span.
        carried.observe(1, 810 * MS, works_on(8));
        look(&mut carried, (42..=80).map(|n| n * 20), 7);
        let mut samples = [790, 805, 1000, 1300, 1400].map(|ms| sample(ms, KERNEL, 0));
        assert_eq!(carried.carry(&mut samples), 3);
        assert_eq!(samples.map(|it| it.span), [7, 0, 0, 0, 7]);
    }

    /// The usual tracer: a parent whose own code is hit by handlers, and spans around system calls, which
    /// no handler ever sees.
    #[test]
    fn spans_around_system_calls_are_not_taken_for_their_parents() {
        let mut carried = Carried::default();
        let mut samples = Vec::new();
        for cycle in 0..1000 {
            samples.push(sample(cycle * 3 + 1, 0, 7));
            samples.push(sample(cycle * 3 + 3, KERNEL, 0));
        }
        for look in 0..300u64 {
            let is_within = look * 10 % 3 == 2;
            carried.observe(1, look * 10 * MS + 1, works_on(if is_within { 8 } else { 7 }));
        }
        assert_eq!(carried.carry(&mut samples), 1000);
        assert!(samples.iter().all(|it| it.flags & KERNEL == 0 || it.span == 0));
        // Handlers alone are no evidence, however many of them agree.
        assert_eq!(Carried::default().carry(&mut samples), 1000);
    }

    #[test]
    fn threads_that_work_on_nothing_lack_nothing() {
        let mut carried = Carried::default();
        look(&mut carried, (1..=80).map(|n| n * 20), 0);
        let mut samples = [100, 900].map(|ms| sample(ms, KERNEL, 0));
        assert_eq!(carried.carry(&mut samples), 0);
        assert_eq!(samples.map(|it| it.flags), [KERNEL; 2]);
        // What the last batch ended with is what the next one begins with.
        look(&mut carried, (81..=85).map(|n| n * 20), 7);
        let mut samples = [1610, 1690].map(|ms| sample(ms, KERNEL, 0));
        assert_eq!(carried.carry(&mut samples), 2);
    }
}
