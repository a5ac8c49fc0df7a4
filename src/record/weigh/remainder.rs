//! CPU time that threads used before they exited and that no sample covers.
//!
//! A thread that uses two and a half periods gets two expiries. With many short threads, the halves
//! are a large part of the CPU time. So the remainder of an exited thread is credited to its last
//! stack. Weights are complete periods: a remainder of less than one period is carried over to the
//! next thread that exits. Missing time of a parent that is still alive (`parents`) is credited in
//! the same way.
//!
//! # Invariants
//! - Over all exited threads, the weights differ from the CPU time by less than one period, if the
//!   kernel reports how much each thread used.
//! - No more is credited than the process has used by its own clock and no sample covers. The
//!   kernel's report for a thread may be too high: for a thread that never slept, it is the time
//!   during which the thread did not wait, whichever thread had the core then. (Measured: in one of
//!   about thirty thread-creation storms, by up to half of the true value.)
//!
//! # Does not
//! - credit time to threads that are alive and start no others, before the recording ends. Each
//!   misses less than one period, which the next expiry covers.

use std::collections::HashMap;

use traceprof_abi::storage::DROPPED_TRACE_ID;
use traceprof_abi::storage::log::{Sample, flags};

use crate::record::batch::Batch;
use crate::record::batch::contexts::ThreadContext;
use crate::record::batch::threads::ThreadKey;
use crate::record::store::threads::{Exit, Usage};

/// What is known about one thread from its samples.
#[derive(Debug, Clone, Copy, Default)]
struct SampledThread {
    /// The sum of the samples' weights, in periods.
    weight: u64,
    /// The last stack in user mode: the id of its trace, and the reason why its unwind ended.
    trace: Option<(u64, u16)>,
    /// The context of that sample.
    context: ThreadContext,
    /// The time of the last sample, in nanoseconds.
    time_ns: u64,
    /// Whether the thread started during the recording.
    is_fresh: bool,
}

/// The weight that is added to the last stack of one thread.
#[derive(Debug, Clone, Copy)]
struct ThreadRemainder {
    key: ThreadKey,
    tid: i32,
    time_ns: u64,
    weight: u32,
}

/// Settles the CPU time of one recording's threads that their samples miss.
#[derive(Debug)]
pub(crate) struct Remainder {
    period_ns: i64,
    /// The CPU time that one expiry stands for.
    expiry_ns: i64,
    threads: HashMap<ThreadKey, SampledThread>,
    /// CPU time of exited threads that no sample covers yet, in nanoseconds; negative if samples
    /// cover more.
    owed_ns: i64,
    /// The weight of all samples, in periods.
    weight: u64,
    /// The number of periods that were credited to last stacks.
    pub(crate) credited: u64,
}

impl Remainder {
    /// Makes the state of a recording with this period, in nanoseconds.
    pub(crate) fn new(period_ns: u64) -> Self {
        let period_ns = i64::try_from(period_ns).unwrap_or(i64::MAX).max(1);
        Self {
            period_ns,
            expiry_ns: period_ns,
            threads: HashMap::new(),
            owed_ns: 0,
            weight: 0,
            credited: 0,
        }
    }

    /// Makes each expiry stand for 2 to the power of `shift` periods from now on.
    pub(crate) fn set_rate_shift(&mut self, shift: u32) {
        self.expiry_ns = self.period_ns.saturating_mul(1 << shift);
    }

    /// Notes the samples of a batch: their weights, and the last stack of each thread.
    pub(crate) fn note(&mut self, samples: &[Sample]) {
        for sample in samples {
            let thread = self.threads.entry((sample.slot, sample.generation)).or_default();
            thread.weight += u64::from(sample.weight);
            self.weight += u64::from(sample.weight);
            thread.is_fresh |= sample.flags & flags::FIRST != 0;
            thread.time_ns = thread.time_ns.max(sample.time);
            if sample.flags & flags::KERNEL == 0 {
                thread.trace = Some((sample.trace_id, sample.reason));
                thread.context = ThreadContext::of(sample);
            }
        }
    }

    /// Adds samples for the remainders of exited threads to the batch, which is sorted, and returns
    /// whether it added any.
    ///
    /// `sampled` is the share of the CPU time that can be sampled, in thousandths. `process_ns` is
    /// an upper bound of the CPU time that the process has used by now.
    pub(crate) fn settle(
        &mut self,
        exits: &[Exit],
        sampled: u64,
        process_ns: u64,
        batch: &mut Batch,
    ) -> bool {
        let before = batch.samples.len();
        for exit in exits {
            let thread = self.threads.remove(&exit.key).unwrap_or_default();
            let most_ns = self.unsampled_ns(share_ns(process_ns, sampled));
            let owed_ns = self.owed_ns.saturating_add(self.remainder_ns(exit, &thread, sampled));
            self.owed_ns = owed_ns.min(i64::try_from(most_ns).unwrap_or(i64::MAX));
            let weight = u32::try_from(self.owed_ns / self.period_ns).unwrap_or(0);
            if weight == 0 {
                continue;
            }
            self.owed_ns %= self.period_ns;
            let Exit { key, tid, time_ns, .. } = *exit;
            self.add(&thread, ThreadRemainder { key, tid, time_ns, weight }, batch);
        }
        batch.samples.len() > before
    }

    /// Returns the weight of the samples of a thread that is alive, in periods.
    pub(crate) fn weight(&self, key: ThreadKey) -> u64 {
        self.threads.get(&key).map_or(0, |thread| thread.weight)
    }

    /// Returns up to `most` threads that are alive and whose last stack is known, those with the
    /// most weight first.
    pub(crate) fn heaviest(&self, most: usize) -> Vec<ThreadKey> {
        let with_stack = self.threads.iter().filter(|(_, thread)| thread.trace.is_some());
        let mut keys: Vec<(u64, ThreadKey)> =
            with_stack.map(|(key, thread)| (thread.weight, *key)).collect();
        keys.sort_unstable_by(|a, b| b.cmp(a));
        keys.into_iter().take(most).map(|(_, key)| key).collect()
    }

    /// Returns the part of the process's CPU time `cpu_ns` that no sample covers, in nanoseconds.
    pub(crate) fn unsampled_ns(&self, cpu_ns: u64) -> u64 {
        cpu_ns.saturating_sub(self.weight.saturating_mul(self.period_ns as u64))
    }

    /// Adds a sample with this weight, in periods, to the batch, for a thread that is alive.
    pub(crate) fn credit(&mut self, parent: &Usage, weight: u32, time_ns: u64, batch: &mut Batch) {
        let thread = self.threads.entry(parent.key).or_default();
        thread.weight += u64::from(weight);
        let thread = *thread;
        let Usage { key, tid, .. } = *parent;
        self.add(&thread, ThreadRemainder { key, tid, time_ns, weight }, batch);
    }

    fn add(&mut self, thread: &SampledThread, remainder: ThreadRemainder, batch: &mut Batch) {
        let ThreadRemainder { key, tid, time_ns, weight } = remainder;
        self.credited += u64::from(weight);
        self.weight += u64::from(weight);
        let is_stored = |(id, _): &(u64, u16)| batch.traces.get(*id).is_some();
        let (trace_id, reason) = thread.trace.filter(is_stored).unwrap_or((DROPPED_TRACE_ID, 0));
        let mut sample = Sample {
            // Not before the thread's last sample: the kernel reports the exit by another clock.
            time: time_ns.max(thread.time_ns),
            trace_id,
            reason,
            slot: key.0,
            generation: key.1,
            tid: tid as u32,
            weight,
            flags: flags::REMAINDER,
            ..Sample::default()
        };
        if thread.context != ThreadContext::default() {
            thread.context.give(&mut sample);
            sample.flags |= flags::CARRIED;
        }
        batch.samples.push(sample);
    }

    /// Returns the CPU time of an exited thread that no sample covers, in nanoseconds; negative if
    /// its samples cover more.
    fn remainder_ns(&self, exit: &Exit, thread: &SampledThread, sampled: u64) -> i64 {
        match exit.cpu_ns {
            Some(cpu_ns) => {
                let used = i128::from(share_ns(cpu_ns, sampled));
                let covered = i128::from(thread.weight) * i128::from(self.period_ns);
                i64::try_from(used - covered).unwrap_or(0)
            }
            // Its CPU time is unknown. The event of a new thread starts with a complete period, so
            // the samples of such a thread miss half of an expiry's time on average.
            None if thread.is_fresh => self.expiry_ns / 2,
            None => 0,
        }
    }
}

/// Returns this many thousandths of a time.
fn share_ns(ns: u64, thousandths: u64) -> u64 {
    let part = u128::from(ns) * u128::from(thousandths.min(1000)) / 1000;
    u64::try_from(part).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::batch::traces::TraceEntry;

    const PERIOD_NS: u64 = 1_000_000;

    fn exit(slot: u32, cpu_us: Option<u64>) -> Exit {
        Exit { key: (slot, 0), tid: 7, time_ns: 100, cpu_ns: cpu_us.map(|us| us * 1000) }
    }

    fn sample(slot: u32, weight: u32, flags: u32) -> Sample {
        Sample { slot, weight, flags, time: 90, trace_id: 1 << 32, ..Sample::default() }
    }

    fn settled(remainder: &mut Remainder, exits: &[Exit], sampled: u64) -> Vec<(u32, u32)> {
        let mut batch = Batch::default();
        let is_any = remainder.settle(exits, sampled, u64::MAX, &mut batch);
        assert_eq!(is_any, !batch.samples.is_empty());
        assert!(batch.samples.iter().all(|sample| sample.flags == flags::REMAINDER));
        batch.samples.iter().map(|sample| (sample.slot, sample.weight)).collect()
    }

    #[test]
    fn weights_of_exited_threads_add_up_to_their_cpu_time() {
        let mut remainder = Remainder::new(PERIOD_NS);
        let (mut used_us, mut weights) = (0, 0);
        for slot in 0..1000u32 {
            // From 0 to 7 periods; the events of such a thread expire once in each complete period.
            let cpu_us = u64::from(slot.wrapping_mul(7919) % 7000);
            let samples = (cpu_us / 1000) as u32;
            remainder.note(&[sample(slot, samples, flags::FIRST)]);
            let credited = settled(&mut remainder, &[exit(slot, Some(cpu_us))], 1000);
            assert!(
                credited.iter().all(|(of, weight)| *of == slot && *weight == 1),
                "{credited:?}"
            );
            used_us += cpu_us;
            weights += u64::from(samples) + credited.len() as u64;
        }
        assert!(used_us.abs_diff(weights * 1000) < 1000, "{used_us} us, {weights} periods");
        assert!(remainder.threads.is_empty(), "exited threads are forgotten");
    }

    #[test]
    fn a_thread_without_samples_counts_and_an_excess_of_samples_is_compensated() {
        let mut remainder = Remainder::new(PERIOD_NS);
        assert_eq!(settled(&mut remainder, &[exit(1, Some(900))], 1000), []);
        assert_eq!(settled(&mut remainder, &[exit(2, Some(2_200))], 1000), [(2, 3)]);
        remainder.note(&[sample(3, 4, 0)]);
        assert_eq!(settled(&mut remainder, &[exit(3, Some(2_000))], 1000), []);
        assert_eq!(settled(&mut remainder, &[exit(4, Some(2_000))], 1000), []);
        assert_eq!(settled(&mut remainder, &[exit(5, Some(1_000))], 1000), [(5, 1)]);
        assert_eq!(remainder.credited, 4);
    }

    #[test]
    fn no_more_is_credited_than_the_process_has_used() {
        let mut remainder = Remainder::new(PERIOD_NS);
        remainder.note(&[sample(1, 4, 0)]);
        let mut credited = |slot, cpu_us, sampled, process_us: u64| {
            let mut batch = Batch::default();
            let exits = [exit(slot, Some(cpu_us))];
            remainder.settle(&exits, sampled, process_us * 1000, &mut batch);
            batch.samples.iter().map(|sample| sample.weight).sum::<u32>()
        };
        // The kernel reports ten periods. The process has used 7.5, of which samples cover four.
        assert_eq!(credited(2, 10_000, 1000, 7_500), 3);
        assert_eq!(
            credited(3, 1_000, 1000, 7_500),
            0,
            "an excess of the report is not carried over"
        );
        assert_eq!(credited(4, 1_000, 1000, 9_000), 1);
        assert_eq!(credited(5, 10_000, 500, 20_000), 2, "half of it can be sampled");
        assert_eq!(remainder.credited, 6);
    }

    #[test]
    fn time_that_cannot_be_sampled_is_left_out() {
        let mut remainder = Remainder::new(PERIOD_NS);
        assert_eq!(settled(&mut remainder, &[exit(1, Some(4_000))], 500), [(1, 2)]);
        assert_eq!(settled(&mut remainder, &[exit(2, Some(4_000))], 0), []);
    }

    #[test]
    fn without_reports_sampled_threads_get_half_a_period_each() {
        let mut remainder = Remainder::new(PERIOD_NS);
        for slot in 0..10 {
            remainder.note(&[sample(slot, 1, flags::FIRST)]);
        }
        let exits: Vec<Exit> = (0..12).map(|slot| exit(slot, None)).collect();
        assert_eq!(settled(&mut remainder, &exits, 1000).len(), 5);
        // It existed at attach, so its phase is random.
        remainder.note(&[sample(20, 1, 0)]);
        assert_eq!(settled(&mut remainder, &[exit(20, None), exit(21, None)], 1000), []);
    }

    #[test]
    fn the_last_stack_is_from_user_mode_and_must_be_stored() {
        let mut remainder = Remainder::new(PERIOD_NS);
        let mut batch = Batch::default();
        let entry = TraceEntry::new(5 << 32, 0, 1);
        assert!(batch.traces.push(entry, [0x10].into_iter()));
        batch.sort();
        for slot in [1, 2] {
            let trace_id = if slot == 1 { 5 << 32 } else { 6 << 32 };
            remainder.note(&[
                Sample { trace_id, ..sample(slot, 1, 0) },
                Sample { trace_id: 7 << 32, time: 120, ..sample(slot, 1, flags::KERNEL) },
            ]);
        }
        let exits = [exit(1, Some(3_000)), exit(2, Some(3_000))];
        assert!(remainder.settle(&exits, 1000, u64::MAX, &mut batch));
        let added: Vec<_> = batch.samples.iter().map(|it| (it.trace_id, it.time)).collect();
        assert_eq!(added, [(5 << 32, 120), (DROPPED_TRACE_ID, 120)]);
    }
}
