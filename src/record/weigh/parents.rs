//! Threads that start others, and whether hits keep up with the time they use.
//!
//! At a switch from a thread to one that it has started the kernel exchanges their events instead
//! of stopping and starting them, and what a thread has begun of a period dies with whoever has it
//! then. A thread that starts another one every few hundred microseconds is so never hit (measured:
//! for 1 % of its time). One that has an event which is not inherited keeps its own: an *anchor*,
//! which counts nothing and is never on.
//!
//! Anchors have their price, so only those get one who need it: the exchange also lets threads of
//! little less than a period finish what their parent has begun, and be hit (measured: four of five
//! threads of 1.0 ms that a parent starts which uses 5 % of the time; with an anchor one of ten).
//!
//! # Invariants
//! - What a parent lacks is given to its last stack, in whole periods, and never more than the
//!   whole process lacks.
//! - One descriptor for each anchored thread that is there.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use crate::record::batch::threads::Key;
use crate::record::store::threads::Usage;

/// Parents that are looked at in one turn, the oldest first.
pub(crate) const PARENTS_MAX: usize = 256;
/// Time of the process between two looks at a parent, in what a hit stands for, and at least in
/// nanoseconds: the scheduler's count of a thread may be a tick late.
const LOOK_PERIODS: u64 = 100;
const LOOK_MIN_NS: u64 = 100_000_000;
/// A parent that lacks one part of so many of what its process has used is anchored.
const ANCHOR_SHARE: u64 = 10;
/// What a parent lacks before it is given that, in the same units: less is chance. Anchored ones
/// lack something, too: what the switches from their events to others cost, 3 to 5 % of a busy
/// storm's.
const GIVEN_PERIODS: u64 = 16;
const GIVEN_MIN_NS: u64 = 10_000_000;

/// What is known of one parent.
#[derive(Debug, Default)]
struct Known {
    /// What it lacked, and what the process had used, at the look before.
    lacked_ns: u64,
    process_ns: u64,
    anchor: Option<OwnedFd>,
    /// Looks one after the other that found the signal blocked, and what was lacked by then: no
    /// hits were due.
    signal_blocked: u32,
    excused_ns: u64,
    /// The turn that last met it.
    turn: u64,
}

/// While a thread is started its parent has all signals blocked, which does not last. One that is
/// found so again and again blocks them for reasons of its own.
const DEAF_LOOKS: u32 = 4;

/// What is to be done about a parent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    /// It needs an anchor.
    pub(crate) anchor: bool,
    /// Periods to be given to its last stack.
    pub(crate) weight: u32,
}

/// The parents of one recording.
#[derive(Debug)]
pub(crate) struct Parents {
    period_ns: u64,
    /// What a hit stands for.
    hit_ns: u64,
    known: HashMap<Key, Known>,
    turn: u64,
}

impl Parents {
    /// With so many nanoseconds to a period.
    pub(crate) fn new(period_ns: u64) -> Self {
        let period_ns = period_ns.max(1);
        Self { period_ns, hit_ns: period_ns, known: HashMap::new(), turn: 0 }
    }

    /// From now on a hit stands for 2 to the power of `shift` periods: chance plays in larger
    /// steps.
    pub(crate) fn slow(&mut self, shift: u32) {
        self.hit_ns = self.period_ns << shift;
    }

    /// A turn begins: those that the last one did not meet are gone, and their anchors with them.
    pub(crate) fn begin_turn(&mut self) {
        self.known.retain(|_, known| known.turn == self.turn);
        self.turn += 1;
    }

    /// A parent is there, and the process has used enough since the last look at it for another
    /// one.
    pub(crate) fn is_due(&mut self, key: Key, process_ns: u64) -> bool {
        let known = self.known.entry(key).or_default();
        known.turn = self.turn;
        let passed_ns = process_ns.saturating_sub(known.process_ns);
        passed_ns >= LOOK_MIN_NS.max(self.hit_ns.saturating_mul(LOOK_PERIODS))
    }

    /// What to do about a parent that is due, whose samples weigh so many periods, in a process
    /// that has used `process_ns` and lacks samples for `process_lacks_ns` of it.
    pub(crate) fn look(
        &mut self,
        parent: &Usage,
        weight: u64,
        (process_ns, process_lacks_ns): (u64, u64),
        is_signal_blocked: impl FnOnce() -> bool,
    ) -> Advice {
        let (period_ns, hit_ns) = (self.period_ns, self.hit_ns);
        let known = self.known.entry(parent.key).or_default();
        let passed_ns = process_ns.saturating_sub(known.process_ns);
        let lacks_ns = parent.cpu_ns.saturating_sub(weight.saturating_mul(period_ns));
        let lacks_ns = lacks_ns.saturating_sub(known.excused_ns);
        let grown_ns = lacks_ns.saturating_sub(known.lacked_ns);
        let anchor = known.anchor.is_none() && grown_ns > passed_ns / ANCHOR_SHARE;
        let least_ns = GIVEN_MIN_NS.max(hit_ns.saturating_mul(GIVEN_PERIODS));
        let given_ns = Some(lacks_ns.min(process_lacks_ns)).filter(|ns| *ns >= least_ns);
        let given = u32::try_from(given_ns.unwrap_or(0) / period_ns).unwrap_or(u32::MAX);
        if (anchor || given > 0) && is_signal_blocked() {
            known.signal_blocked += 1;
            if known.signal_blocked >= DEAF_LOOKS {
                known.excused_ns = known.excused_ns.saturating_add(lacks_ns);
                known.process_ns = process_ns;
                known.lacked_ns = 0;
            }
            return Advice::default();
        }
        known.signal_blocked = 0;
        known.process_ns = process_ns;
        known.lacked_ns = lacks_ns.saturating_sub(u64::from(given).saturating_mul(period_ns));
        Advice { anchor, weight: given }
    }

    /// Keeps what anchors a parent. One that ended meanwhile needs none; without a descriptor it
    /// goes on as before, and is tried again.
    pub(crate) fn keep(&mut self, parent: &Usage, anchor: io::Result<OwnedFd>) {
        if let (Some(known), Ok(anchor)) = (self.known.get_mut(&parent.key), anchor) {
            known.anchor = Some(anchor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn parent(cpu_ms: u64) -> Usage {
        Usage { key: (3, 0), tid: 7, cpu_ns: cpu_ms * MS }
    }

    fn look(parents: &mut Parents, cpu_ms: u64, weight: u64, process_ms: u64) -> (bool, u32) {
        parents.begin_turn();
        let process = (process_ms * MS, u64::MAX);
        if !parents.is_due(parent(cpu_ms).key, process.0) {
            return (false, 0);
        }
        let advice = parents.look(&parent(cpu_ms), weight, process, || false);
        (advice.anchor, advice.weight)
    }

    #[test]
    fn who_is_hit_is_left_alone() {
        let mut parents = Parents::new(MS);
        for turn in 1..50 {
            assert_eq!(look(&mut parents, 100 * turn, 100 * turn - 9, 200 * turn), (false, 0));
        }
    }

    #[test]
    fn who_is_never_hit_is_anchored_and_given_what_it_lacks() {
        let mut parents = Parents::new(MS);
        assert_eq!(look(&mut parents, 40, 0, 90), (false, 0), "too little to tell");
        assert_eq!(look(&mut parents, 60, 0, 120), (true, 60));
        assert_eq!(look(&mut parents, 120, 60, 240), (true, 60), "there was no descriptor");
        parents.keep(&parent(0), std::fs::File::open("/dev/null").map(OwnedFd::from));
        assert_eq!(look(&mut parents, 200, 120, 360), (false, 80));
        assert_eq!(look(&mut parents, 260, 260, 480), (false, 0));
        parents.begin_turn();
        parents.begin_turn();
        assert!(parents.known.is_empty(), "an anchor goes with its thread");
    }

    #[test]
    fn a_small_part_of_the_process_is_given_without_an_anchor() {
        let mut parents = Parents::new(MS);
        assert_eq!(look(&mut parents, 15, 0, 1000), (false, 0));
        assert_eq!(look(&mut parents, 30, 0, 2000), (false, 30));
        assert_eq!(look(&mut parents, 45, 30, 3000), (false, 0));
    }

    #[test]
    fn no_more_is_given_than_the_process_lacks() {
        let mut parents = Parents::new(MS);
        let advice = parents.look(&parent(500), 0, (1000 * MS, 70 * MS), || false);
        assert_eq!(advice, Advice { anchor: true, weight: 70 });
        let advice = parents.look(&parent(500), 0, (2000 * MS, 0), || false);
        assert_eq!(advice.weight, 0);
    }

    #[test]
    fn time_with_the_signal_blocked_is_not_lacked() {
        let mut parents = Parents::new(MS);
        let mut blocked_scan = |cpu_ms: u64, is_signal_blocked: bool| {
            let process = (cpu_ms * MS, u64::MAX);
            parents.look(&parent(cpu_ms), 0, process, || is_signal_blocked).weight
        };
        assert_eq!([200, 300].map(|ms| blocked_scan(ms, true)), [0; 2]);
        assert_eq!(blocked_scan(400, false), 400, "for a moment only");
        // The hits that were given are not counted here.
        assert_eq!([1400, 1500, 1600, 2000].map(|ms| blocked_scan(ms, true)), [0; 4]);
        assert_eq!(blocked_scan(2200, false), 200);
    }

    #[test]
    fn at_high_rates_the_scheduler_may_be_a_tick_late() {
        let mut parents = Parents::new(MS / 10);
        assert_eq!(look(&mut parents, 100, 910, 200), (false, 0));
    }
}
