//! Where the time goes that threads run: what the scheduler's account says it is, at the stacks of the hits
//! of the same time.
//!
//! Hits say where a thread ran, and how its time was spread. How much it was the scheduler knows better: a hit
//! stands for a period whose begin and end lie somewhere, and where time in the kernel is not sampled, or
//! hits come too late, no hit stands for it.
//!
//! # Invariants
//! - What is told of a thread is what it ran, to the nanosecond, once it has ended.

use std::collections::HashMap;

use traceprof_abi::storage::log::{Sample, flags};

/// A thread's running time that is not told of.
#[derive(Debug, Default)]
struct Ran {
    tid: i32,
    ns: u64,
    /// The thread is gone, and this is known for so many batches more: hits may come late.
    ended_for: Option<u32>,
}

/// Batches that a thread is known for after its end.
const KEPT_BATCHES: u32 = 20;

/// Time of a thread that is to be told of.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The thread.
    pub(super) life: u32,
    /// Its id.
    pub(super) tid: i32,
    /// How long it ran.
    pub(super) us: u32,
    /// The place in the batch of the hit that says where; `None` if there is no hit.
    pub(super) hit: Option<usize>,
}

fn unwatched(hit: &Sample, place: usize, period_ns: u64) -> Run {
    let us = u64::from(hit.weight).saturating_mul(period_ns) / 1000;
    let us = u32::try_from(us).unwrap_or(u32::MAX);
    Run { life: hit.slot, tid: hit.tid as i32, us, hit: Some(place) }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Running {
    threads: HashMap<u32, Ran>,
    /// A hit stands for 2 to the power of this many periods.
    shift: u32,
}

impl Running {
    /// From now on a hit stands for 2 to the power of `shift` periods.
    pub(super) fn slow(&mut self, shift: u32) {
        self.shift = shift;
    }

    /// A thread is watched, and ran for so long.
    pub(super) fn note(&mut self, (life, tid): (u32, i32), ns: u64) {
        let ran = self.threads.entry(life).or_default();
        ran.tid = tid;
        ran.ns += ns;
    }

    /// Whether a thread is watched.
    pub(super) fn knows(&self, life: u32) -> bool {
        self.threads.contains_key(&life)
    }

    /// Spreads it over the hits of a batch. Without a hit a thread waits for one, unless it has ended or
    /// waits with more than two hits stand for. Of a thread that is not watched nothing but its hits is known.
    pub(super) fn spread(
        &mut self,
        samples: &[Sample],
        period_ns: u64,
        has_ended: impl Fn(u32) -> bool,
    ) -> Vec<Run> {
        let is_hit = |hit: &Sample| hit.flags & flags::WALL == 0 && hit.weight > 0;
        let mut weights: HashMap<u32, u64> = HashMap::new();
        for hit in samples.iter().filter(|hit| is_hit(hit)) {
            *weights.entry(hit.slot).or_default() += u64::from(hit.weight);
        }
        let mut runs = Vec::new();
        for (place, hit) in samples.iter().enumerate().filter(|(_, hit)| is_hit(hit)) {
            let Some(ran) = self.threads.get_mut(&hit.slot) else {
                runs.push(unwatched(hit, place, period_ns));
                continue;
            };
            let Some(weight) = weights.get_mut(&hit.slot) else { continue };
            // Of what is left its share of what is left.
            let part = u128::from(ran.ns) * u128::from(hit.weight) / u128::from(*weight).max(1);
            *weight -= u64::from(hit.weight);
            runs.extend(ran.take(hit.slot, part as u64, Some(place)));
        }
        self.threads.retain(|_, ran| ran.is_kept());
        for (&life, ran) in &mut self.threads {
            if ran.ns > (2 * period_ns) << self.shift || has_ended(life) {
                runs.extend(ran.take(life, ran.ns, None));
            }
        }
        runs
    }

    /// A thread is gone.
    pub(super) fn forget(&mut self, life: u32) {
        if let Some(ran) = self.threads.get_mut(&life) {
            ran.ended_for = Some(0);
        }
    }
}

impl Ran {
    /// Another batch has come.
    fn is_kept(&mut self) -> bool {
        self.ended_for = self.ended_for.map(|batches| batches + 1);
        self.ended_for.is_none_or(|batches| batches <= KEPT_BATCHES)
    }

    /// Whole microseconds of so much time.
    fn take(&mut self, life: u32, ns: u64, hit: Option<usize>) -> Option<Run> {
        let us = u32::try_from(ns / 1000).unwrap_or(u32::MAX);
        self.ns -= u64::from(us) * 1000;
        (us > 0).then_some(Run { life, tid: self.tid, us, hit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn hit(slot: u32, weight: u32) -> Sample {
        Sample { slot, weight, ..Sample::default() }
    }

    fn run(us: u32, hit: Option<usize>) -> Run {
        Run { life: 7, tid: 70, us, hit }
    }

    #[test]
    fn hits_share_the_time_by_their_weights() {
        let mut running = Running::default();
        let asleep = Sample { flags: flags::WALL, ..hit(7, 500_000) };
        let batch = [hit(7, 1), hit(8, 5), asleep, hit(7, 3)];
        running.note((7, 70), 10 * MS + 900);
        assert_eq!(
            running.spread(&batch, 10 * MS, |_| false),
            [
                run(2500, Some(0)),
                Run { life: 8, tid: 0, us: 50_000, hit: Some(1) },
                run(7500, Some(3))
            ]
        );
        let unwatched = Run { life: 8, tid: 0, us: 50_000, hit: Some(1) };
        assert_eq!(running.spread(&batch, 10 * MS, |_| false), [unwatched]);
        running.note((7, 70), 100);
        assert_eq!(running.spread(&[], 0, |_| true), [run(1, None)], "nothing is lost");
    }

    #[test]
    fn a_thread_waits_for_its_hits_but_not_for_ever() {
        let mut running = Running::default();
        running.note((7, 70), 20 * MS);
        assert_eq!(running.spread(&[hit(7, 0)], 10 * MS, |_| false), []);
        running.note((7, 70), MS);
        assert_eq!(running.spread(&[], 10 * MS, |_| false), [run(21_000, None)]);
        running.note((7, 70), MS);
        assert_eq!(running.spread(&[], 10 * MS, |life| life == 7), [run(1000, None)]);
        running.forget(7);
        assert_eq!(
            running.spread(&[hit(7, 1)], 10 * MS, |_| true),
            [],
            "it was told of at its end"
        );
        for _ in 0..KEPT_BATCHES {
            running.spread(&[], 0, |_| false);
        }
        assert!(!running.knows(7));
    }
}
