//! What profiling costs, and the rate that keeps it within a budget.
//!
//! Counted are the handlers and the delivery of their signals, in the target, and the CPU time of
//! the recorder: all its threads and the guardian, from the begin of the sampling to its end. Of
//! several processes each is charged its own part of that (`ledger`), so that what is told of all
//! of them is what the recorder has used. One handler in sixteen is timed; what the kernel takes
//! for a signal is measured once, in the recorder (`delivery`). A hit in the kernel, which needs no
//! signal, is taken for as dear as one that does. Not counted are the stops at attach and detach,
//! which the closing report tells, and what is done before and after: reading symbols and closing
//! the trace.
//!
//! # Invariants
//! - A change of the rate changes no weight: hits say what they stand for.

mod delivery;
mod law;
mod ledger;
mod report;

use std::time::{Duration, Instant};

use traceprof_abi::event::FAMILIES_MAX;
use traceprof_abi::layout::{ClockMode, ControlBlock};
use traceprof_abi::sync::Ordering;

use self::delivery::{Delivery, delivery};
use self::law::{LEAST_USED_NS, Law, Measured};
use crate::record::contract::clock::Clock;
use crate::record::contract::sampling::{Engine, Setup};
use crate::record::source::missing_expiries;
use crate::record::source::perf::EventFamily;

pub(crate) use self::ledger::{Charge, Ledger};

/// Between two looks at the costs.
const LOOK: Duration = Duration::from_secs(1);
/// Before the first one: what was not foreseen shows soon.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// A handler that took longer was interrupted.
const TIMED_MAX_NS: u64 = 200_000;
/// CPU time between two hits of a timer, at least: a tick of most kernels.
const TICK_NS: u64 = 4_000_000;
/// Changes that are told of one by one.
const CHANGES_MAX: usize = 1000;

/// What the sampling of one program has cost up to now, or of several one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// CPU time of the target, in nanoseconds, as are the others.
    pub(crate) used_ns: u64,
    /// Of it, time in handlers,
    pub(crate) handlers_ns: u64,
    /// and in the delivery of signals, and of hits in the kernel.
    pub(crate) delivery_ns: u64,
    /// CPU time of the recorder, as far as it is charged to the target.
    pub(crate) recorder_ns: u64,
    /// Hits.
    pub(crate) hits: u64,
    /// Handlers that were timed.
    pub(crate) timed: u64,
}

/// A recording's cost, and what was done about it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Spent {
    /// What it was.
    pub(crate) cost: Cost,
    /// The budget, as a share of the target's CPU time, if there was one.
    pub(crate) budget: Option<f64>,
    /// Changes of the rate: when, in CLOCK_MONOTONIC nanoseconds, and the divisor from then on.
    pub(crate) changes: Vec<(u64, u64)>,
    /// Changes in all.
    pub(crate) changed: u64,
    /// The largest divisor.
    pub(crate) slowest: u64,
    /// Why the rate could not be lowered, if so.
    pub(crate) refused: Option<String>,
    /// The rate could not be lowered any further.
    pub(crate) is_at_its_end: bool,
    /// It is that of several processes.
    pub(crate) is_of_several: bool,
}

impl Spent {
    /// Adds what the sampling of a later program came to.
    pub(crate) fn add(&mut self, later: Self) {
        let (cost, more) = (&mut self.cost, later.cost);
        cost.used_ns += more.used_ns;
        cost.handlers_ns += more.handlers_ns;
        cost.delivery_ns += more.delivery_ns;
        cost.recorder_ns += more.recorder_ns;
        cost.hits += more.hits;
        cost.timed += more.timed;
        self.changes.extend(later.changes);
        self.changes.truncate(CHANGES_MAX);
        self.changed += later.changed;
        self.slowest = self.slowest.max(later.slowest);
        self.refused = self.refused.take().or(later.refused);
        self.is_at_its_end |= later.is_at_its_end;
    }

    /// Adds what that of another process came to, which went on at the same time.
    pub(crate) fn join(&mut self, other: &Self) {
        self.add(other.clone());
        self.is_of_several = true;
        self.changes.sort_unstable();
    }
}

/// The costs of one program's sampling while it goes on.
#[derive(Debug)]
pub(crate) struct Overhead {
    law: Option<Law>,
    delivery: Option<Delivery>,
    is_of_events: bool,
    family: EventFamily,
    charge: Charge,
    due: Instant,
    /// What it was at the last look.
    looked: Cost,
    spent: Spent,
}

/// What the handlers and the buffers have counted, and the clocks that go with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted<'a> {
    /// The agent's.
    pub(crate) control: &'a ControlBlock,
    /// The samples' clock.
    pub(crate) clock: &'a Clock,
    /// CPU time of the target.
    pub(crate) used_ns: u64,
    /// Hits in the kernel.
    pub(crate) in_kernel: u64,
}

impl Overhead {
    /// Before anything is sampled. With a budget, in percent, this takes some milliseconds.
    pub(crate) fn new(budget: Option<f64>, setup: Setup, engine: Engine, charge: Charge) -> Self {
        let is_of_events = engine == Engine::Perf;
        let budget = budget.map(|percent| percent / 100.0);
        let delivery = budget.map(|_| delivery(is_of_events));
        let law = budget.zip(delivery).map(|(budget, delivery)| {
            // Timers fire with the tick, however short their period.
            let least_ns = if is_of_events { 0 } else { TICK_NS };
            Law::new(budget, setup.period_ns, delivery.ns, least_ns)
        });
        let shift = law.as_ref().map_or(0, Law::shift);
        Self {
            law,
            delivery,
            is_of_events,
            family: EventFamily { number: 0, shift },
            charge,
            due: Instant::now() + FIRST_LOOK,
            looked: Cost::default(),
            spent: Spent { budget, slowest: 1, ..Spent::default() },
        }
    }

    /// The family of events that is on, or is to be opened first.
    pub(crate) fn family(&self) -> EventFamily {
        self.family
    }

    /// Sampling begins: handlers are timed from now on, and timers have the first rate.
    pub(crate) fn begin(&mut self, control: &ControlBlock, now_ns: u64) {
        self.due = Instant::now() + FIRST_LOOK;
        self.charge.begin();
        // Relaxed: this side has set it.
        let is_tsc = control.clock_mode.load(Ordering::Relaxed) == ClockMode::Tsc as u32;
        // No counter is faster than this many a nanosecond.
        let most = if is_tsc { TIMED_MAX_NS * 5 } else { TIMED_MAX_NS };
        // Relaxed, all: published to the handlers by the Release with which sampling is turned on,
        // and a timer that was armed before follows at its next hit.
        control.timed_max.store(most, Ordering::Relaxed);
        control.rate_shift.store(self.family.shift, Ordering::Relaxed);
        control.event_family.store(self.family.number, Ordering::Relaxed);
        if self.family.shift > 0 {
            self.note(now_ns);
        }
    }

    /// It is time for a look at the costs, and something could follow from it.
    pub(crate) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.law.is_some() && self.spent.refused.is_none() && now >= self.due;
        if is_due {
            self.due = now + LOOK;
        }
        is_due
    }

    /// Looks at the costs; the rate that is to be had from now on, if it is another one.
    pub(crate) fn look(&mut self, counted: Counted<'_>) -> Option<EventFamily> {
        let cost = self.cost(counted, false);
        let before = &self.looked;
        let measured = Measured {
            used_ns: cost.used_ns.saturating_sub(before.used_ns),
            signals_ns: (cost.handlers_ns + cost.delivery_ns)
                .saturating_sub(before.handlers_ns + before.delivery_ns),
            recorder_ns: cost.recorder_ns.saturating_sub(before.recorder_ns),
            hits: cost.hits.saturating_sub(before.hits),
        };
        if measured.used_ns < LEAST_USED_NS {
            // What it does in that time is seen with what comes next.
            return None;
        }
        self.looked = cost;
        let law = self.law.as_mut()?;
        law.look(&measured);
        let next = EventFamily { number: self.family.number + 1, shift: law.shift() };
        if next.shift == self.family.shift {
            return None;
        }
        if next.number >= FAMILIES_MAX {
            self.refuse("it has been changed too often");
            return None;
        }
        Some(next)
    }

    /// The rate is changed.
    pub(crate) fn change(&mut self, family: EventFamily, now_ns: u64) {
        self.family = family;
        self.note(now_ns);
    }

    /// It cannot be, and stays as it is from now on.
    pub(crate) fn refuse(&mut self, why: &str) {
        self.spent.refused = Some(why.to_owned());
    }

    fn note(&mut self, now_ns: u64) {
        let divisor = 1 << self.family.shift;
        self.spent.changed += 1;
        self.spent.slowest = self.spent.slowest.max(divisor);
        if self.spent.changes.len() < CHANGES_MAX {
            self.spent.changes.push((now_ns, divisor));
        }
    }

    /// What all of it came to. Without a budget this takes some milliseconds.
    pub(crate) fn end(&mut self, counted: Counted<'_>) -> Spent {
        self.delivery = Some(self.delivery.unwrap_or_else(|| {
            // That is not the sampling's.
            self.charge.without(|| delivery(self.is_of_events))
        }));
        let mut spent = std::mem::take(&mut self.spent);
        spent.cost = self.cost(counted, true);
        spent.is_at_its_end = self.law.as_ref().is_some_and(Law::is_at_its_end);
        spent
    }

    fn cost(&self, counted: Counted<'_>, is_exact: bool) -> Cost {
        let Counted { control, clock, used_ns, in_kernel } = counted;
        // Relaxed, both: measurements.
        let timed = control.timed.load(Ordering::Relaxed);
        let sum_ns = clock.length_ns(control.timed_sum.load(Ordering::Relaxed));
        let hits = missing_expiries::all_expiries(control);
        // The words lie where the target may write anything.
        let handlers_ns = u128::from(sum_ns) * u128::from(hits) / u128::from(timed.max(1));
        let delivery_ns = self.delivery.map_or(0, |delivery| delivery.ns);
        Cost {
            used_ns,
            handlers_ns: u64::try_from(handlers_ns).unwrap_or(u64::MAX),
            delivery_ns: hits.saturating_add(in_kernel).saturating_mul(delivery_ns),
            recorder_ns: self.charge.ns(is_exact),
            hits: hits.saturating_add(in_kernel),
            timed,
        }
    }
}

#[cfg(test)]
mod tests;
