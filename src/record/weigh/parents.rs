//! Parents: threads that start other threads, and whether expiries keep up with their CPU time.
//!
//! At a switch between a thread and a thread that it started, the kernel swaps their event contexts
//! instead of stopping and starting the events. The part of a period that the parent has used so
//! far goes with its context, and is lost when the thread that holds it then exits. A parent that
//! starts a thread every few hundred microseconds therefore gets next to no expiries (measured: for
//! 1 % of its CPU time). A thread keeps its own context if it has an event that is not
//! inherited. Such an event is called an *anchor*: it counts nothing and is never enabled.
//!
//! Anchors have a price, so only parents that need an anchor get one. The swap also lets threads
//! that use a little less than a period finish the period of their parent, and get the expiry.
//! (Measured with a parent that uses 5 % of the time and starts threads of 1.0 ms each: four of
//! five of these threads get an expiry. With an anchor, one of ten does.)
//!
//! # Invariants
//! - The CPU time that a parent's samples miss is credited to its last stack, in complete periods,
//!   and never more than the samples of the complete process miss.
//! - An anchored thread costs one descriptor while it exists.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use crate::record::batch::threads::ThreadKey;
use crate::record::store::threads::Usage;

/// The largest number of parents that are checked in one turn, the oldest first.
pub(crate) const PARENTS_MAX: usize = 256;
/// CPU time that the process uses between two checks of a parent, in units of the time that one
/// expiry stands for.
const CHECK_EXPIRIES: u64 = 100;
/// The least CPU time between two checks, in nanoseconds: the scheduler's count for a thread may be
/// a tick late.
const CHECK_MIN_NS: u64 = 100_000_000;
/// A parent is anchored if the time that its samples miss has grown by more than one part in this
/// many of the CPU time that its process used since the last check.
const ANCHOR_SHARE: u64 = 10;
/// The least missing time that is credited to a parent, in units of the time that one expiry stands
/// for: less is chance. Samples of an anchored parent miss some time, too: the cost of the switches
/// from its events to others, 3 to 5 % of the time of a busy thread-creation storm.
const CREDIT_EXPIRIES: u64 = 16;
/// The lower bound of that time, in nanoseconds.
const CREDIT_MIN_NS: u64 = 10_000_000;

/// The state of one parent.
#[derive(Debug, Default)]
struct ParentState {
    /// The CPU time that its samples missed after the last check.
    missing_before_ns: u64,
    /// The CPU time that the process had used at the last check.
    process_ns: u64,
    anchor: Option<OwnedFd>,
    /// The number of consecutive checks that found the signal blocked.
    signal_blocked: u32,
    /// Missing time that is not credited, since the thread blocked the signal meanwhile: no expiry
    /// was due.
    excused_ns: u64,
    /// The last turn that found the parent alive.
    turn: u64,
}

/// The number of consecutive checks after which a parent counts as one that blocks the signal.
///
/// A parent blocks all signals for a moment while it starts a thread. A parent that blocks them at
/// every check does so for a reason of its own.
const BLOCKED_CHECKS: u32 = 4;

/// What a check recommends for a parent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    /// Whether it needs an anchor.
    pub(crate) anchor: bool,
    /// The number of periods to credit to its last stack.
    pub(crate) weight: u32,
}

/// The parents of one recording.
#[derive(Debug)]
pub(crate) struct Parents {
    period_ns: u64,
    /// The CPU time that one expiry stands for.
    expiry_ns: u64,
    states: HashMap<ThreadKey, ParentState>,
    turn: u64,
}

impl Parents {
    /// Makes the state of a recording with this period, in nanoseconds; no parents are known yet.
    pub(crate) fn new(period_ns: u64) -> Self {
        let period_ns = period_ns.max(1);
        Self { period_ns, expiry_ns: period_ns, states: HashMap::new(), turn: 0 }
    }

    /// Makes each expiry stand for 2 to the power of `shift` periods from now on; errors by chance
    /// grow with it.
    pub(crate) fn set_rate_shift(&mut self, shift: u32) {
        self.expiry_ns = self.period_ns << shift;
    }

    /// Begins a turn, and drops parents that the last turn did not find, with their anchors: these
    /// threads have exited.
    pub(crate) fn begin_turn(&mut self) {
        self.states.retain(|_, state| state.turn == self.turn);
        self.turn += 1;
    }

    /// Notes that a parent is alive, and returns whether its process has used enough CPU time since
    /// its last check for another check.
    pub(crate) fn is_due(&mut self, key: ThreadKey, process_ns: u64) -> bool {
        let state = self.states.entry(key).or_default();
        state.turn = self.turn;
        let passed_ns = process_ns.saturating_sub(state.process_ns);
        passed_ns >= CHECK_MIN_NS.max(self.expiry_ns.saturating_mul(CHECK_EXPIRIES))
    }

    /// Checks a parent that is due, and returns what to do about it.
    ///
    /// `weight` is the weight of its samples, in periods. The process has used `process_ns`, of
    /// which its samples miss `process_missing_ns`.
    pub(crate) fn check(
        &mut self,
        parent: &Usage,
        weight: u64,
        (process_ns, process_missing_ns): (u64, u64),
        is_signal_blocked: impl FnOnce() -> bool,
    ) -> Advice {
        let (period_ns, expiry_ns) = (self.period_ns, self.expiry_ns);
        let state = self.states.entry(parent.key).or_default();
        let passed_ns = process_ns.saturating_sub(state.process_ns);
        let missing_ns = parent.cpu_ns.saturating_sub(weight.saturating_mul(period_ns));
        let missing_ns = missing_ns.saturating_sub(state.excused_ns);
        let grown_ns = missing_ns.saturating_sub(state.missing_before_ns);
        let anchor = state.anchor.is_none() && grown_ns > passed_ns / ANCHOR_SHARE;
        let least_ns = CREDIT_MIN_NS.max(expiry_ns.saturating_mul(CREDIT_EXPIRIES));
        let credit_ns = Some(missing_ns.min(process_missing_ns)).filter(|ns| *ns >= least_ns);
        let credited = u32::try_from(credit_ns.unwrap_or(0) / period_ns).unwrap_or(u32::MAX);
        if (anchor || credited > 0) && is_signal_blocked() {
            state.signal_blocked += 1;
            if state.signal_blocked >= BLOCKED_CHECKS {
                state.excused_ns = state.excused_ns.saturating_add(missing_ns);
                state.process_ns = process_ns;
                state.missing_before_ns = 0;
            }
            return Advice::default();
        }
        state.signal_blocked = 0;
        state.process_ns = process_ns;
        let credited_ns = u64::from(credited).saturating_mul(period_ns);
        state.missing_before_ns = missing_ns.saturating_sub(credited_ns);
        Advice { anchor, weight: credited }
    }

    /// Keeps the anchor of a parent. A parent that has exited meanwhile needs none. If the event
    /// could not be opened, nothing changes and a later check tries again.
    pub(crate) fn keep(&mut self, parent: &Usage, anchor: io::Result<OwnedFd>) {
        if let (Some(state), Ok(anchor)) = (self.states.get_mut(&parent.key), anchor) {
            state.anchor = Some(anchor);
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

    fn check(parents: &mut Parents, cpu_ms: u64, weight: u64, process_ms: u64) -> (bool, u32) {
        parents.begin_turn();
        let process = (process_ms * MS, u64::MAX);
        if !parents.is_due(parent(cpu_ms).key, process.0) {
            return (false, 0);
        }
        let advice = parents.check(&parent(cpu_ms), weight, process, || false);
        (advice.anchor, advice.weight)
    }

    #[test]
    fn a_parent_whose_expiries_keep_up_is_left_alone() {
        let mut parents = Parents::new(MS);
        for turn in 1..50 {
            assert_eq!(check(&mut parents, 100 * turn, 100 * turn - 9, 200 * turn), (false, 0));
        }
    }

    #[test]
    fn a_parent_without_expiries_is_anchored_and_credited_with_its_missing_time() {
        let mut parents = Parents::new(MS);
        assert_eq!(check(&mut parents, 40, 0, 90), (false, 0), "too little to tell");
        assert_eq!(check(&mut parents, 60, 0, 120), (true, 60));
        assert_eq!(check(&mut parents, 120, 60, 240), (true, 60), "there was no descriptor");
        parents.keep(&parent(0), std::fs::File::open("/dev/null").map(OwnedFd::from));
        assert_eq!(check(&mut parents, 200, 120, 360), (false, 80));
        assert_eq!(check(&mut parents, 260, 260, 480), (false, 0));
        parents.begin_turn();
        parents.begin_turn();
        assert!(parents.states.is_empty(), "an anchor is closed with its thread");
    }

    #[test]
    fn a_small_part_of_the_process_is_credited_without_an_anchor() {
        let mut parents = Parents::new(MS);
        assert_eq!(check(&mut parents, 15, 0, 1000), (false, 0));
        assert_eq!(check(&mut parents, 30, 0, 2000), (false, 30));
        assert_eq!(check(&mut parents, 45, 30, 3000), (false, 0));
    }

    #[test]
    fn no_more_is_credited_than_the_samples_of_the_process_miss() {
        let mut parents = Parents::new(MS);
        let advice = parents.check(&parent(500), 0, (1000 * MS, 70 * MS), || false);
        assert_eq!(advice, Advice { anchor: true, weight: 70 });
        let advice = parents.check(&parent(500), 0, (2000 * MS, 0), || false);
        assert_eq!(advice.weight, 0);
    }

    #[test]
    fn time_with_the_signal_blocked_is_not_missing() {
        let mut parents = Parents::new(MS);
        let mut blocked_scan = |cpu_ms: u64, is_signal_blocked: bool| {
            let process = (cpu_ms * MS, u64::MAX);
            parents.check(&parent(cpu_ms), 0, process, || is_signal_blocked).weight
        };
        assert_eq!([200, 300].map(|ms| blocked_scan(ms, true)), [0; 2]);
        assert_eq!(blocked_scan(400, false), 400, "for a moment only");
        // The weight stays 0 here: the test does not count what was credited.
        assert_eq!([1400, 1500, 1600, 2000].map(|ms| blocked_scan(ms, true)), [0; 4]);
        assert_eq!(blocked_scan(2200, false), 200);
    }

    #[test]
    fn at_high_rates_the_scheduler_may_be_a_tick_late() {
        let mut parents = Parents::new(MS / 10);
        assert_eq!(check(&mut parents, 100, 910, 200), (false, 0));
    }
}
