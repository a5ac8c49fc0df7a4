//! The cost of several programs and processes, and how the accounts divide it.

use traceprof_abi::layout::Counter;

use super::*;
use crate::record::target::shm::own_data;

const MS: u64 = 1_000_000;
const PERIOD_NS: u64 = 100_000;
/// The cost of a delivery in these tests.
const DELIVERY: Delivery = Delivery { ns: 20_000, includes_interrupt: true };

/// An id that no process has.
const NOBODY: i32 = 99_999_999;

fn overhead(budget: f64) -> Overhead {
    let setup = Setup { period_ns: PERIOD_NS, ..Setup::default() };
    let charge = std::sync::Arc::new(Ledger::default()).account(1, NOBODY);
    let mut overhead = Overhead::new(None, setup, Engine::Perf, charge);
    overhead.delivery = Some(DELIVERY);
    overhead.rate_controller = Some(RateController::new(budget, PERIOD_NS, DELIVERY.ns, 0));
    overhead.summary.budget = Some(budget);
    overhead
}

#[test]
fn a_check_covers_the_time_since_the_last_and_timed_handlers_stand_for_all() {
    let (data, clock) = (own_data(), Clock::start(ClockMode::Monotonic));
    let control = data.control();
    let inputs = |used_ns| CostInputs { control, clock: &clock, used_ns, in_kernel: 0 };
    let mut overhead = overhead(0.5);
    let add = |expiries: u64, timed: u64, each_ns: u64| {
        control.count_by(Counter::Samples, expiries);
        control.timed.fetch_add(timed, Ordering::Relaxed);
        control.timed_sum.fetch_add(timed * each_ns, Ordering::Relaxed);
    };
    let sampled = 1000;
    add(sampled, 10, 5_000);
    let cost = overhead.cost(inputs(1000 * MS), false);
    assert_eq!(cost.handlers_ns, sampled * 5_000, "ten of them were timed");
    assert_eq!((cost.delivery_ns, cost.timed), (sampled * DELIVERY.ns, 10));
    // 2.5 % of the time: nothing to do, and the next check does not count it again.
    assert_eq!(overhead.check(inputs(1000 * MS)), None);
    assert_eq!(overhead.checked.expiries, sampled);
    // Three times the expiries in a tenth of the time: three quarters of it are signals.
    add(3 * sampled, 30, 5_000);
    let next = overhead.check(inputs(1100 * MS)).expect("a slower rate");
    assert!(next.shift > 0 && next.number == 1, "{next:?}");
}

#[test]
fn a_rate_that_was_changed_too_often_stays() {
    let (data, clock) = (own_data(), Clock::start(ClockMode::Monotonic));
    let mut overhead = overhead(0.5);
    overhead.family.number = FAMILIES_MAX - 1;
    data.control().count_by(Counter::Samples, 100_000);
    let inputs =
        CostInputs { control: data.control(), clock: &clock, used_ns: 1000 * MS, in_kernel: 0 };
    assert_eq!(overhead.check(inputs), None);
    assert!(overhead.summary.refused.is_some_and(|why| why.contains("too often")));
}

#[test]
fn the_slowest_rate_stays_known_after_a_faster_one() {
    let mut overhead = overhead(0.01);
    overhead.change(EventFamily { number: 1, shift: 6 }, 10);
    overhead.change(EventFamily { number: 2, shift: 2 }, 20);
    assert_eq!((overhead.summary.slowest, overhead.summary.changed), (64, 2));
    assert_eq!(overhead.summary.changes, [(10, 64), (20, 4)]);
    assert_eq!(overhead.family(), EventFamily { number: 2, shift: 2 });
}

fn summary(recorder_ns: u64, changes: &[(u64, u64)]) -> OverheadSummary {
    let cost =
        Cost { used_ns: 7, handlers_ns: 5, delivery_ns: 3, recorder_ns, expiries: 2, timed: 1 };
    let changes = changes.to_vec();
    OverheadSummary {
        cost,
        changed: changes.len() as u64,
        slowest: 2,
        changes,
        ..OverheadSummary::default()
    }
}

#[test]
fn costs_of_several_processes_add_up_and_changes_are_in_order_of_time() {
    let mut all = summary(50, &[(10, 2), (30, 4)]);
    all.join(&summary(60, &[(20, 8)]));
    let cost = Cost {
        used_ns: 14,
        handlers_ns: 10,
        delivery_ns: 6,
        recorder_ns: 110,
        expiries: 4,
        timed: 2,
    };
    assert_eq!(all.cost, cost);
    assert_eq!((all.changes, all.changed), (vec![(10, 2), (20, 8), (30, 4)], 3));
    assert!(all.is_combined);
}

#[test]
fn costs_of_several_programs_add_up_and_the_first_refusal_is_reported() {
    let many: Vec<(u64, u64)> = (0..CHANGES_MAX as u64 - 1).map(|time| (time, 2)).collect();
    let mut all = summary(50, &many);
    let refused = |why: &str| Some(why.to_owned());
    all.add(OverheadSummary {
        refused: refused("first"),
        slowest: 8,
        ..summary(60, &[(7, 8), (8, 4)])
    });
    all.add(OverheadSummary {
        refused: refused("second"),
        is_at_slowest_rate: true,
        ..summary(1, &[])
    });
    assert_eq!((all.cost.recorder_ns, all.slowest, all.is_at_slowest_rate), (111, 8, true));
    assert_eq!(all.refused.as_deref(), Some("first"));
    assert_eq!((all.changes.len(), all.changed), (CHANGES_MAX, CHANGES_MAX as u64 + 1));
}

/// Regression test of issue 21: the report said "cost 350774 %".
#[test]
fn the_cost_of_an_idle_target_is_a_time() {
    let mut idle = summary(3_500_000, &[]);
    idle.cost.used_ns = 1000;
    assert_eq!(idle.short().as_deref(), Some("cost 0.004 s"));
    let line = idle.line().unwrap();
    assert!(line.starts_with("0.80 % of the target's") && line.ends_with("used 0.004 s"), "{line}");
}
