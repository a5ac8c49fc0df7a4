//! What threads had used when they ended, and no hit stands for.
//!
//! A thread that uses two and a half periods is hit twice. Over many short threads the halves are
//! much of what is used, so the rest of a thread that has ended is given to its last stack. Weights
//! are whole periods: what is less than one is carried on to the next thread that ends. What a
//! parent lacks that is still there (`parents`) goes the same way.
//!
//! # Invariants
//! - Over all threads that have ended, weights differ from what was used by less than a period,
//!   where the kernel tells how much that was.
//! - No more is given than the process has used, by its own clock, and no sample stands for. What
//!   is told of a thread may be too much: of one that never slept it is the time that it did not
//!   wait, whoever had its core then (measured: once in some thirty storms, up to half as much
//!   again).
//!
//! # Does not
//! - look for what threads lack that are still there: theirs is less than a period each, and will
//!   be hit, unless they start others.

use std::collections::HashMap;

use traceprof_abi::storage::DROPPED_TRACE_ID;
use traceprof_abi::storage::log::{Sample, flags};

use crate::record::batch::contexts::ThreadContext;
use crate::record::batch::rotation::Batch;
use crate::record::batch::threads::Key;
use crate::record::store::threads::{Exit, Usage};

/// What the samples of one thread say.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    weight: u64,
    /// Its last stack: trace and how that ended.
    trace: Option<(u64, u16)>,
    /// What it worked on then.
    context: ThreadContext,
    time_ns: u64,
    /// It started during the recording.
    is_fresh: bool,
}

/// What is added for one thread.
#[derive(Debug, Clone, Copy)]
struct Rest {
    key: Key,
    tid: i32,
    time_ns: u64,
    weight: u32,
}

/// The rests of one recording.
#[derive(Debug)]
pub(crate) struct Remainder {
    period_ns: i64,
    /// What a hit stands for.
    hit_ns: i64,
    known: HashMap<Key, Known>,
    /// Time that no sample stands for yet, in nanoseconds; negative if samples stand for more.
    owed_ns: i64,
    /// Periods that all samples stand for.
    weight: u64,
    /// Periods that were given to last stacks.
    pub(crate) given: u64,
}

impl Remainder {
    /// With so many nanoseconds to a period.
    pub(crate) fn new(period_ns: u64) -> Self {
        let period_ns = i64::try_from(period_ns).unwrap_or(i64::MAX).max(1);
        Self {
            period_ns,
            hit_ns: period_ns,
            known: HashMap::new(),
            owed_ns: 0,
            weight: 0,
            given: 0,
        }
    }

    /// From now on a hit stands for 2 to the power of `shift` periods.
    pub(crate) fn slow(&mut self, shift: u32) {
        self.hit_ns = self.period_ns.saturating_mul(1 << shift);
    }

    /// Reads the samples of a batch.
    pub(crate) fn note(&mut self, samples: &[Sample]) {
        for sample in samples {
            let known = self.known.entry((sample.slot, sample.generation)).or_default();
            known.weight += u64::from(sample.weight);
            self.weight += u64::from(sample.weight);
            known.is_fresh |= sample.flags & flags::FIRST != 0;
            known.time_ns = known.time_ns.max(sample.time);
            if sample.flags & flags::KERNEL == 0 {
                known.trace = Some((sample.trace_id, sample.reason));
                known.context = ThreadContext::of(sample);
            }
        }
    }

    /// Adds to the batch, which is in order, samples for the rests of threads that have ended; true
    /// if there are any. `sampled` is the part of the time that can be sampled, in thousandths;
    /// `process_ns` is the most that the process can have used by now.
    pub(crate) fn settle(
        &mut self,
        exits: &[Exit],
        sampled: u64,
        process_ns: u64,
        batch: &mut Batch,
    ) -> bool {
        let before = batch.samples.len();
        for exit in exits {
            let known = self.known.remove(&exit.key).unwrap_or_default();
            let most_ns = self.lacking_ns(share_ns(process_ns, sampled));
            let owed_ns = self.owed_ns.saturating_add(self.rest_ns(exit, &known, sampled));
            self.owed_ns = owed_ns.min(i64::try_from(most_ns).unwrap_or(i64::MAX));
            let weight = u32::try_from(self.owed_ns / self.period_ns).unwrap_or(0);
            if weight == 0 {
                continue;
            }
            self.owed_ns %= self.period_ns;
            let rest = Rest { key: exit.key, tid: exit.tid, time_ns: exit.time_ns, weight };
            self.add(&known, rest, batch);
        }
        batch.samples.len() > before
    }

    /// Periods of the samples of a thread that is still there.
    pub(crate) fn weight(&self, key: Key) -> u64 {
        self.known.get(&key).map_or(0, |known| known.weight)
    }

    /// Time of `cpu_ns` that no sample stands for.
    pub(crate) fn lacking_ns(&self, cpu_ns: u64) -> u64 {
        cpu_ns.saturating_sub(self.weight.saturating_mul(self.period_ns as u64))
    }

    /// Adds to the batch a sample of so many periods for a thread that is still there.
    pub(crate) fn give(&mut self, parent: &Usage, weight: u32, time_ns: u64, batch: &mut Batch) {
        let known = self.known.entry(parent.key).or_default();
        known.weight += u64::from(weight);
        let known = *known;
        self.add(&known, Rest { key: parent.key, tid: parent.tid, time_ns, weight }, batch);
    }

    fn add(&mut self, known: &Known, rest: Rest, batch: &mut Batch) {
        let Rest { key, tid, time_ns, weight } = rest;
        self.given += u64::from(weight);
        self.weight += u64::from(weight);
        let is_there = |(id, _): &(u64, u16)| batch.traces.get(*id).is_some();
        let (trace_id, reason) = known.trace.filter(is_there).unwrap_or((DROPPED_TRACE_ID, 0));
        let mut sample = Sample {
            // After the last of its samples, whose clock is not the one that its end is told by.
            time: time_ns.max(known.time_ns),
            trace_id,
            reason,
            slot: key.0,
            generation: key.1,
            tid: tid as u32,
            weight,
            flags: flags::REMAINDER,
            ..Sample::default()
        };
        if known.context != ThreadContext::default() {
            known.context.give(&mut sample);
            sample.flags |= flags::CARRIED;
        }
        batch.samples.push(sample);
    }

    /// What no hit stands for of one thread's time.
    fn rest_ns(&self, exit: &Exit, known: &Known, sampled: u64) -> i64 {
        match exit.cpu_ns {
            Some(cpu_ns) => {
                let used = i128::from(share_ns(cpu_ns, sampled));
                let hit = i128::from(known.weight) * i128::from(self.period_ns);
                i64::try_from(used - hit).unwrap_or(0)
            }
            // An event starts with a whole period, so of a thread that was hit half of what a hit
            // stands for is missing on average.
            None if known.is_fresh => self.hit_ns / 2,
            None => 0,
        }
    }
}

/// So many thousandths of a time.
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

    fn hit(slot: u32, weight: u32, flags: u32) -> Sample {
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
    fn weights_of_ended_threads_add_up_to_what_they_used() {
        let mut remainder = Remainder::new(PERIOD_NS);
        let (mut used_us, mut weights) = (0, 0);
        for slot in 0..1000u32 {
            // From none to seven periods; hits are those that the events of such a thread have.
            let cpu_us = u64::from(slot.wrapping_mul(7919) % 7000);
            let hits = (cpu_us / 1000) as u32;
            remainder.note(&[hit(slot, hits, flags::FIRST)]);
            let given = settled(&mut remainder, &[exit(slot, Some(cpu_us))], 1000);
            assert!(given.iter().all(|(of, weight)| *of == slot && *weight == 1), "{given:?}");
            used_us += cpu_us;
            weights += u64::from(hits) + given.len() as u64;
        }
        assert!(used_us.abs_diff(weights * 1000) < 1000, "{used_us} us, {weights} periods");
        assert!(remainder.known.is_empty(), "threads that have ended are forgotten");
    }

    #[test]
    fn a_thread_that_was_never_hit_counts_and_too_many_hits_are_taken_back() {
        let mut remainder = Remainder::new(PERIOD_NS);
        assert_eq!(settled(&mut remainder, &[exit(1, Some(900))], 1000), []);
        assert_eq!(settled(&mut remainder, &[exit(2, Some(2_200))], 1000), [(2, 3)]);
        remainder.note(&[hit(3, 4, 0)]);
        assert_eq!(settled(&mut remainder, &[exit(3, Some(2_000))], 1000), []);
        assert_eq!(settled(&mut remainder, &[exit(4, Some(2_000))], 1000), []);
        assert_eq!(settled(&mut remainder, &[exit(5, Some(1_000))], 1000), [(5, 1)]);
        assert_eq!(remainder.given, 4);
    }

    #[test]
    fn no_more_is_given_than_the_process_has_used() {
        let mut remainder = Remainder::new(PERIOD_NS);
        remainder.note(&[hit(1, 4, 0)]);
        let mut given = |slot, cpu_us, sampled, process_us: u64| {
            let mut batch = Batch::default();
            let exits = [exit(slot, Some(cpu_us))];
            remainder.settle(&exits, sampled, process_us * 1000, &mut batch);
            batch.samples.iter().map(|sample| sample.weight).sum::<u32>()
        };
        // Told of are ten periods; the process has used seven and a half, four of which were hit.
        assert_eq!(given(2, 10_000, 1000, 7_500), 3);
        assert_eq!(given(3, 1_000, 1000, 7_500), 0, "what was told too much is not carried on");
        assert_eq!(given(4, 1_000, 1000, 9_000), 1);
        assert_eq!(given(5, 10_000, 500, 20_000), 2, "half of it can be sampled");
        assert_eq!(remainder.given, 6);
    }

    #[test]
    fn time_that_cannot_be_sampled_is_left_out() {
        let mut remainder = Remainder::new(PERIOD_NS);
        assert_eq!(settled(&mut remainder, &[exit(1, Some(4_000))], 500), [(1, 2)]);
        assert_eq!(settled(&mut remainder, &[exit(2, Some(4_000))], 0), []);
    }

    #[test]
    fn where_nothing_is_told_threads_that_were_hit_get_half_a_period_each() {
        let mut remainder = Remainder::new(PERIOD_NS);
        for slot in 0..10 {
            remainder.note(&[hit(slot, 1, flags::FIRST)]);
        }
        let exits: Vec<Exit> = (0..12).map(|slot| exit(slot, None)).collect();
        assert_eq!(settled(&mut remainder, &exits, 1000).len(), 5);
        // It was there at attach: its phase is any.
        remainder.note(&[hit(20, 1, 0)]);
        assert_eq!(settled(&mut remainder, &[exit(20, None), exit(21, None)], 1000), []);
    }

    #[test]
    fn the_last_stack_is_that_of_user_mode_and_must_be_there() {
        let mut remainder = Remainder::new(PERIOD_NS);
        let mut batch = Batch::default();
        let entry = TraceEntry::new(5 << 32, 0, 1);
        assert!(batch.traces.push(entry, [0x10].into_iter()));
        batch.sort();
        for slot in [1, 2] {
            let trace_id = if slot == 1 { 5 << 32 } else { 6 << 32 };
            remainder.note(&[
                Sample { trace_id, ..hit(slot, 1, 0) },
                Sample { trace_id: 7 << 32, time: 120, ..hit(slot, 1, flags::KERNEL) },
            ]);
        }
        let exits = [exit(1, Some(3_000)), exit(2, Some(3_000))];
        assert!(remainder.settle(&exits, 1000, u64::MAX, &mut batch));
        let added: Vec<_> = batch.samples.iter().map(|it| (it.trace_id, it.time)).collect();
        assert_eq!(added, [(5 << 32, 120), (DROPPED_TRACE_ID, 120)]);
    }
}
