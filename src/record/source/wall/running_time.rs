//! The running time of threads: amounts from the scheduler's account, stacks from CPU samples.
//!
//! CPU samples say where a thread ran and how its time was spread. The scheduler's account is more
//! exact about how long it ran. A sample covers a period whose start and end are unknown. No sample
//! covers time in the kernel that is not sampled, or an expiry that comes too late.
//!
//! # Invariants
//! - Once a thread has exited, its reported time is exactly its running time, to the nanosecond.

use std::collections::HashMap;

use traceprof_abi::storage::log::{Sample, flags};

/// A thread's running time that is not yet reported.
#[derive(Debug, Default)]
struct UnreportedTime {
    tid: i32,
    ns: u64,
    /// The number of batches since the thread exited; late samples may still arrive in them.
    ended_for: Option<u32>,
}

/// The number of batches for which a thread stays known after its exit.
const KEPT_BATCHES: u32 = 20;

/// A piece of a thread's running time to report.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RunPiece {
    /// The number of the thread's life.
    pub(super) life: u32,
    /// The outer thread id.
    pub(super) tid: i32,
    /// The length of the piece in microseconds.
    pub(super) us: u32,
    /// The index in the batch of the CPU sample that supplies the stack, if there is one.
    pub(super) cpu_sample: Option<usize>,
}

fn unwatched(cpu_sample: &Sample, index: usize, period_ns: u64) -> RunPiece {
    let us = u64::from(cpu_sample.weight).saturating_mul(period_ns) / 1000;
    let us = u32::try_from(us).unwrap_or(u32::MAX);
    RunPiece { life: cpu_sample.slot, tid: cpu_sample.tid as i32, us, cpu_sample: Some(index) }
}

/// The running time of all threads that is not yet reported; see the module's documentation.
#[derive(Debug, Default)]
pub(super) struct RunningTime {
    threads: HashMap<u32, UnreportedTime>,
    /// The base-2 logarithm of the number of periods between two expiries.
    shift: u32,
}

impl RunningTime {
    /// Sets the base-2 logarithm of the number of periods between two expiries.
    pub(super) fn slow(&mut self, shift: u32) {
        self.shift = shift;
    }

    /// Adds running time of a watched thread.
    pub(super) fn note(&mut self, (life, tid): (u32, i32), ns: u64) {
        let ran = self.threads.entry(life).or_default();
        ran.tid = tid;
        ran.ns += ns;
    }

    /// Returns whether a thread is watched.
    pub(super) fn is_watched(&self, life: u32) -> bool {
        self.threads.contains_key(&life)
    }

    /// Spreads the running time over the CPU samples of a batch.
    ///
    /// Without a sample a thread's time waits for one, unless the thread has exited or the time of
    /// more than two expiries is waiting. For a thread that is not watched, only its samples count.
    pub(super) fn spread(
        &mut self,
        samples: &[Sample],
        period_ns: u64,
        has_ended: impl Fn(u32) -> bool,
    ) -> Vec<RunPiece> {
        let is_cpu_sample =
            |cpu_sample: &Sample| cpu_sample.flags & flags::WALL == 0 && cpu_sample.weight > 0;
        let mut weights: HashMap<u32, u64> = HashMap::new();
        for cpu_sample in samples.iter().filter(|cpu_sample| is_cpu_sample(cpu_sample)) {
            *weights.entry(cpu_sample.slot).or_default() += u64::from(cpu_sample.weight);
        }
        let mut runs = Vec::new();
        for (index, cpu_sample) in
            samples.iter().enumerate().filter(|(_, cpu_sample)| is_cpu_sample(cpu_sample))
        {
            let Some(ran) = self.threads.get_mut(&cpu_sample.slot) else {
                runs.push(unwatched(cpu_sample, index, period_ns));
                continue;
            };
            let Some(weight) = weights.get_mut(&cpu_sample.slot) else { continue };
            // This sample's share of the remaining time, by its share of the remaining weight.
            let part =
                u128::from(ran.ns) * u128::from(cpu_sample.weight) / u128::from(*weight).max(1);
            *weight -= u64::from(cpu_sample.weight);
            runs.extend(ran.take(cpu_sample.slot, part as u64, Some(index)));
        }
        self.threads.retain(|_, ran| ran.is_kept());
        for (&life, ran) in &mut self.threads {
            if ran.ns > (2 * period_ns) << self.shift || has_ended(life) {
                runs.extend(ran.take(life, ran.ns, None));
            }
        }
        runs
    }

    /// Notes that a thread has exited.
    pub(super) fn note_end(&mut self, life: u32) {
        if let Some(ran) = self.threads.get_mut(&life) {
            ran.ended_for = Some(0);
        }
    }
}

impl UnreportedTime {
    /// Counts a batch, and returns whether the thread stays known.
    fn is_kept(&mut self) -> bool {
        self.ended_for = self.ended_for.map(|batches| batches + 1);
        self.ended_for.is_none_or(|batches| batches <= KEPT_BATCHES)
    }

    /// Takes this much time, rounded down to microseconds; returns `None` if that is nothing.
    fn take(&mut self, life: u32, ns: u64, cpu_sample: Option<usize>) -> Option<RunPiece> {
        let us = u32::try_from(ns / 1000).unwrap_or(u32::MAX);
        self.ns -= u64::from(us) * 1000;
        (us > 0).then_some(RunPiece { life, tid: self.tid, us, cpu_sample })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn cpu_sample(slot: u32, weight: u32) -> Sample {
        Sample { slot, weight, ..Sample::default() }
    }

    fn run(us: u32, cpu_sample: Option<usize>) -> RunPiece {
        RunPiece { life: 7, tid: 70, us, cpu_sample }
    }

    #[test]
    fn samples_share_the_time_by_their_weights() {
        let mut running = RunningTime::default();
        let asleep = Sample { flags: flags::WALL, ..cpu_sample(7, 500_000) };
        let batch = [cpu_sample(7, 1), cpu_sample(8, 5), asleep, cpu_sample(7, 3)];
        running.note((7, 70), 10 * MS + 900);
        assert_eq!(
            running.spread(&batch, 10 * MS, |_| false),
            [
                run(2500, Some(0)),
                RunPiece { life: 8, tid: 0, us: 50_000, cpu_sample: Some(1) },
                run(7500, Some(3))
            ]
        );
        let unwatched = RunPiece { life: 8, tid: 0, us: 50_000, cpu_sample: Some(1) };
        assert_eq!(running.spread(&batch, 10 * MS, |_| false), [unwatched]);
        running.note((7, 70), 100);
        assert_eq!(running.spread(&[], 0, |_| true), [run(1, None)], "nothing is lost");
    }

    #[test]
    fn time_waits_for_samples_but_not_for_ever() {
        let mut running = RunningTime::default();
        running.note((7, 70), 20 * MS);
        assert_eq!(running.spread(&[cpu_sample(7, 0)], 10 * MS, |_| false), []);
        running.note((7, 70), MS);
        assert_eq!(running.spread(&[], 10 * MS, |_| false), [run(21_000, None)]);
        running.note((7, 70), MS);
        assert_eq!(running.spread(&[], 10 * MS, |life| life == 7), [run(1000, None)]);
        running.note_end(7);
        assert_eq!(
            running.spread(&[cpu_sample(7, 1)], 10 * MS, |_| true),
            [],
            "reported at the exit"
        );
        for _ in 0..KEPT_BATCHES {
            running.spread(&[], 0, |_| false);
        }
        assert!(!running.is_watched(7));
    }
}
