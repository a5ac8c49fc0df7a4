//! What is counted of several programs and processes, and what becomes of it in the account.

use traceprof_abi::layout::Counter;

use super::*;
use crate::record::target::shm::own_data;

const MS: u64 = 1_000_000;
const PERIOD_NS: u64 = 100_000;
/// What a delivery takes here.
const DELIVERY: Delivery = Delivery { ns: 20_000, is_of_events: true };

/// No process has such an id.
const NOBODY: i32 = 99_999_999;

fn overhead(budget: f64) -> Overhead {
    let setup = Setup { period_ns: PERIOD_NS, kernel: false, cookie: 0 };
    let charge = std::sync::Arc::new(Ledger::default()).account(1, NOBODY);
    let mut overhead = Overhead::new(None, setup, Engine::Perf, charge);
    overhead.delivery = Some(DELIVERY);
    overhead.law = Some(Law::new(budget, PERIOD_NS, DELIVERY.ns, 0));
    overhead.spent.budget = Some(budget);
    overhead
}

#[test]
fn a_look_is_of_the_time_since_the_last_and_handlers_are_as_long_as_those_that_were_timed() {
    let (data, clock) = (own_data(), Clock::start(ClockMode::Monotonic));
    let control = data.control();
    let counted = |used_ns| Counted { control, clock: &clock, used_ns, in_kernel: 0 };
    let mut overhead = overhead(0.5);
    let hits = |hits: u64, timed: u64, each_ns: u64| {
        control.count_by(Counter::Samples, hits);
        control.timed.fetch_add(timed, Ordering::Relaxed);
        control.timed_sum.fetch_add(timed * each_ns, Ordering::Relaxed);
    };
    let of_hits = 1000;
    hits(of_hits, 10, 5_000);
    let cost = overhead.cost(counted(1000 * MS), false);
    assert_eq!(cost.handlers_ns, of_hits * 5_000, "ten of them were timed");
    assert_eq!((cost.delivery_ns, cost.timed), (of_hits * DELIVERY.ns, 10));
    // 2.5 % of the time: nothing to do, and it is not looked at again.
    assert_eq!(overhead.look(counted(1000 * MS)), None);
    assert_eq!(overhead.looked.hits, of_hits);
    // Three times as much in a tenth of the time: three fourths of it are signals.
    hits(3 * of_hits, 30, 5_000);
    let next = overhead.look(counted(1100 * MS)).expect("a slower rate");
    assert!(next.shift > 0 && next.number == 1, "{next:?}");
}

#[test]
fn a_rate_that_cannot_be_changed_any_more_stays() {
    let (data, clock) = (own_data(), Clock::start(ClockMode::Monotonic));
    let mut overhead = overhead(0.5);
    overhead.family.number = FAMILIES_MAX - 1;
    data.control().count_by(Counter::Samples, 100_000);
    let counted =
        Counted { control: data.control(), clock: &clock, used_ns: 1000 * MS, in_kernel: 0 };
    assert_eq!(overhead.look(counted), None);
    assert!(overhead.spent.refused.is_some_and(|why| why.contains("too often")));
}

#[test]
fn the_slowest_rate_is_kept_when_there_is_a_faster_one_again() {
    let mut overhead = overhead(0.01);
    overhead.change(EventFamily { number: 1, shift: 6 }, 10);
    overhead.change(EventFamily { number: 2, shift: 2 }, 20);
    assert_eq!((overhead.spent.slowest, overhead.spent.changed), (64, 2));
    assert_eq!(overhead.spent.changes, [(10, 64), (20, 4)]);
    assert_eq!(overhead.family(), EventFamily { number: 2, shift: 2 });
}

fn spent(recorder_ns: u64, changes: &[(u64, u64)]) -> Spent {
    let cost = Cost { used_ns: 7, handlers_ns: 5, delivery_ns: 3, recorder_ns, hits: 2, timed: 1 };
    let changes = changes.to_vec();
    Spent { cost, changed: changes.len() as u64, slowest: 2, changes, ..Spent::default() }
}

#[test]
fn of_several_processes_all_is_added_up_and_changes_are_in_the_order_of_their_times() {
    let mut all = spent(50, &[(10, 2), (30, 4)]);
    all.join(&spent(60, &[(20, 8)]));
    let cost =
        Cost { used_ns: 14, handlers_ns: 10, delivery_ns: 6, recorder_ns: 110, hits: 4, timed: 2 };
    assert_eq!(all.cost, cost);
    assert_eq!((all.changes, all.changed), (vec![(10, 2), (20, 8), (30, 4)], 3));
    assert!(all.is_of_several);
}

#[test]
fn of_several_programs_all_is_summed_up_and_the_first_refusal_is_told() {
    let many: Vec<(u64, u64)> = (0..CHANGES_MAX as u64 - 1).map(|time| (time, 2)).collect();
    let mut all = spent(50, &many);
    let refused = |why: &str| Some(why.to_owned());
    all.add(Spent { refused: refused("first"), slowest: 8, ..spent(60, &[(7, 8), (8, 4)]) });
    all.add(Spent { refused: refused("second"), is_at_its_end: true, ..spent(1, &[]) });
    assert_eq!((all.cost.recorder_ns, all.slowest, all.is_at_its_end), (111, 8, true));
    assert_eq!(all.refused.as_deref(), Some("first"));
    assert_eq!((all.changes.len(), all.changed), (CHANGES_MAX, CHANGES_MAX as u64 + 1));
}
