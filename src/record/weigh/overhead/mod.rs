//! Measures the cost of profiling, and chooses the rate that keeps the cost within a budget.
//!
//! In the target, the cost is the CPU time of the handlers and of the delivery of their signals. In
//! the recorder, it is the CPU time of all threads and of the guardian, from the start of sampling
//! to its end. Each of several processes is charged its own part of the recorder's time (`ledger`),
//! so the charges of all processes add up to what the recorder has used. One handler in sixteen is
//! timed. The kernel's time for one signal is measured once, in the recorder (`delivery`). An
//! expiry in the kernel sends no signal, but is assumed to cost as much as an expiry that sends
//! one. The cost does not include the stops at attach and detach, which the closing report shows,
//! and the work before and after sampling: reading symbols and closing the trace.
//!
//! # Invariants
//! - A change of the rate changes no weight: each sample carries the number of periods that its
//!   expiry stands for.

mod delivery;
mod ledger;
mod rate_controller;
mod report;

use std::time::{Duration, Instant};

use traceprof_abi::event::FAMILIES_MAX;
use traceprof_abi::layout::{ClockMode, ControlBlock};
use traceprof_abi::sync::Ordering;

use self::delivery::{Delivery, delivery};
use self::rate_controller::{LEAST_USED_NS, Measured, RateController};
use crate::record::contract::clock::Clock;
use crate::record::contract::sampling::{Engine, Setup};
use crate::record::source::missing_expiries;
use crate::record::source::perf::EventFamily;

pub(crate) use self::ledger::{Charge, Ledger};

/// The interval between two checks of the cost.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The delay before the first check: an unexpected cost shows soon.
const FIRST_CHECK_DELAY: Duration = Duration::from_millis(100);
/// The time in nanoseconds that longer runs of a handler count as: most of those were interrupted.
const TIMED_MAX_NS: u64 = 200_000;
/// The least CPU time between two expiries of a timer, in nanoseconds: a tick of most kernels.
const TICK_NS: u64 = 4_000_000;
/// The largest number of rate changes that are kept one by one.
const CHANGES_MAX: usize = 1000;

/// The cost so far of sampling one program, or several programs one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// The CPU time of the target, in nanoseconds. It includes the next two.
    pub(crate) used_ns: u64,
    /// The CPU time in handlers, in nanoseconds.
    pub(crate) handlers_ns: u64,
    /// The CPU time of the delivery of signals and of expiries in the kernel, in nanoseconds.
    pub(crate) delivery_ns: u64,
    /// The CPU time of the recorder that is charged to the target, in nanoseconds.
    pub(crate) recorder_ns: u64,
    /// The number of expiries.
    pub(crate) expiries: u64,
    /// The number of handlers that were timed.
    pub(crate) timed: u64,
}

impl Cost {
    /// Returns the CPU time of the target for signals, in nanoseconds.
    pub(crate) fn signals_ns(&self) -> u64 {
        self.handlers_ns.saturating_add(self.delivery_ns)
    }
}

/// The cost of a recording, and the rate changes that kept it within the budget.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OverheadSummary {
    /// The cost.
    pub(crate) cost: Cost,
    /// The budget as a share of the target's CPU time, if the user set one.
    pub(crate) budget: Option<f64>,
    /// The changes of the rate: the time in CLOCK_MONOTONIC nanoseconds, and the divisor of the
    /// rate from then on.
    pub(crate) changes: Vec<(u64, u64)>,
    /// The total number of changes.
    pub(crate) changed: u64,
    /// The largest divisor of the rate.
    pub(crate) slowest: u64,
    /// The reason why the rate could not be changed, if so.
    pub(crate) refused: Option<String>,
    /// Whether the rate was at its lowest at the end.
    pub(crate) is_at_slowest_rate: bool,
    /// Whether this is the sum over several processes.
    pub(crate) is_combined: bool,
}

impl OverheadSummary {
    /// Adds the cost of sampling a later program.
    pub(crate) fn add(&mut self, later: Self) {
        let (cost, more) = (&mut self.cost, later.cost);
        // The target may have written anything to the counters that these come from.
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut cost.used_ns, more.used_ns);
        add(&mut cost.handlers_ns, more.handlers_ns);
        add(&mut cost.delivery_ns, more.delivery_ns);
        add(&mut cost.recorder_ns, more.recorder_ns);
        add(&mut cost.expiries, more.expiries);
        add(&mut cost.timed, more.timed);
        self.changes.extend(later.changes);
        self.changes.truncate(CHANGES_MAX);
        self.changed += later.changed;
        self.slowest = self.slowest.max(later.slowest);
        self.refused = self.refused.take().or(later.refused);
        self.is_at_slowest_rate |= later.is_at_slowest_rate;
    }

    /// Adds the cost of sampling another process at the same time.
    pub(crate) fn join(&mut self, other: &Self) {
        self.add(other.clone());
        self.is_combined = true;
        self.changes.sort_unstable();
    }
}

/// Measures the cost of sampling one program, and controls its rate.
#[derive(Debug)]
pub(crate) struct Overhead {
    rate_controller: Option<RateController>,
    delivery: Option<Delivery>,
    engine: Engine,
    family: EventFamily,
    charge: Charge,
    due: Instant,
    /// The cost at the last check.
    checked: Cost,
    summary: OverheadSummary,
}

/// The counts and clocks that the cost is computed from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CostInputs<'a> {
    /// The control block, with the agent's counters.
    pub(crate) control: &'a ControlBlock,
    /// The clock of the samples.
    pub(crate) clock: &'a Clock,
    /// The CPU time of the target, in nanoseconds.
    pub(crate) used_ns: u64,
    /// The number of expiries in the kernel.
    pub(crate) in_kernel: u64,
}

impl Overhead {
    /// Prepares the measurement, before anything is sampled.
    ///
    /// `budget` is in percent. With a budget this takes some milliseconds.
    pub(crate) fn new(budget: Option<f64>, setup: Setup, engine: Engine, charge: Charge) -> Self {
        let budget = budget.map(|percent| percent / 100.0);
        let delivery = budget.map(|_| delivery(engine));
        let rate_controller = budget.zip(delivery).map(|(budget, delivery)| {
            // Timers expire only at a tick, however short their period is.
            let least_ns = if engine.has_events() { 0 } else { TICK_NS };
            RateController::new(budget, setup.period_ns, delivery.ns, least_ns)
        });
        let shift = rate_controller.as_ref().map_or(0, RateController::shift);
        Self {
            rate_controller,
            delivery,
            engine,
            family: EventFamily { number: 0, shift },
            charge,
            due: Instant::now() + FIRST_CHECK_DELAY,
            checked: Cost::default(),
            summary: OverheadSummary { budget, slowest: 1, ..OverheadSummary::default() },
        }
    }

    /// Returns the event family that is enabled, or is to be opened first.
    pub(crate) fn family(&self) -> EventFamily {
        self.family
    }

    /// Starts to charge the cost, to time handlers and to run timers at the first rate: sampling
    /// begins.
    pub(crate) fn begin(&mut self, control: &ControlBlock, now_ns: u64) {
        self.due = Instant::now() + FIRST_CHECK_DELAY;
        self.charge.begin();
        // Relaxed: written by the recorder.
        let is_tsc = control.clock_mode.load(Ordering::Relaxed) == ClockMode::Tsc as u32;
        // The limit is in units of the clock; no time stamp counter runs faster than 5 GHz.
        let most = if is_tsc { TIMED_MAX_NS * 5 } else { TIMED_MAX_NS };
        // Relaxed, all: published to the handlers by the Release with which sampling is turned on.
        // A timer that was armed before follows at its next expiry.
        control.timed_max.store(most, Ordering::Relaxed);
        control.rate_shift.store(self.family.shift, Ordering::Relaxed);
        control.event_family.store(self.family.number, Ordering::Relaxed);
        if self.family.shift > 0 {
            self.note(now_ns);
        }
    }

    /// Returns whether a check of the cost is due and could change the rate.
    pub(crate) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due =
            self.rate_controller.is_some() && self.summary.refused.is_none() && now >= self.due;
        if is_due {
            self.due = now + CHECK_INTERVAL;
        }
        is_due
    }

    /// Checks the cost, and returns the new rate if it must change.
    pub(crate) fn check(&mut self, inputs: CostInputs<'_>) -> Option<EventFamily> {
        let cost = self.cost(inputs, false);
        let before = &self.checked;
        let measured = Measured {
            used_ns: cost.used_ns.saturating_sub(before.used_ns),
            signals_ns: cost.signals_ns().saturating_sub(before.signals_ns()),
            recorder_ns: cost.recorder_ns.saturating_sub(before.recorder_ns),
            expiries: cost.expiries.saturating_sub(before.expiries),
        };
        if measured.used_ns < LEAST_USED_NS {
            // The next check includes this time.
            return None;
        }
        self.checked = cost;
        let rate_controller = self.rate_controller.as_mut()?;
        rate_controller.check(&measured);
        let next = EventFamily { number: self.family.number + 1, shift: rate_controller.shift() };
        if next.shift == self.family.shift {
            return None;
        }
        if next.number >= FAMILIES_MAX {
            self.refuse("it has been changed too often");
            return None;
        }
        Some(next)
    }

    /// Notes that the rate has changed.
    pub(crate) fn change(&mut self, family: EventFamily, now_ns: u64) {
        self.family = family;
        self.note(now_ns);
    }

    /// Notes that the rate cannot be changed, and keeps it from now on.
    pub(crate) fn refuse(&mut self, why: &str) {
        self.summary.refused = Some(why.to_owned());
    }

    fn note(&mut self, now_ns: u64) {
        let divisor = 1 << self.family.shift;
        self.summary.changed += 1;
        self.summary.slowest = self.summary.slowest.max(divisor);
        if self.summary.changes.len() < CHANGES_MAX {
            self.summary.changes.push((now_ns, divisor));
        }
    }

    /// Returns the summary at the end of sampling. Without a budget this takes some milliseconds.
    pub(crate) fn end(&mut self, inputs: CostInputs<'_>) -> OverheadSummary {
        self.delivery = Some(self.delivery.unwrap_or_else(|| {
            // This measurement is no cost of sampling.
            self.charge.uncharged(|| delivery(self.engine))
        }));
        let mut summary = std::mem::take(&mut self.summary);
        summary.cost = self.cost(inputs, true);
        summary.is_at_slowest_rate =
            self.rate_controller.as_ref().is_some_and(RateController::is_at_slowest_rate);
        summary
    }

    fn cost(&self, inputs: CostInputs<'_>, is_exact: bool) -> Cost {
        let CostInputs { control, clock, used_ns, in_kernel } = inputs;
        // Relaxed, both: measurements.
        let timed = control.timed.load(Ordering::Relaxed);
        let sum_ns = clock.length_ns(control.timed_sum.load(Ordering::Relaxed));
        let expiries = missing_expiries::all_expiries(control);
        // The target may have written anything to these words.
        let handlers_ns = u128::from(sum_ns) * u128::from(expiries) / u128::from(timed.max(1));
        let delivery_ns = self.delivery.map_or(0, |delivery| delivery.ns);
        Cost {
            used_ns,
            handlers_ns: u64::try_from(handlers_ns).unwrap_or(u64::MAX),
            delivery_ns: expiries.saturating_add(in_kernel).saturating_mul(delivery_ns),
            recorder_ns: self.charge.charged_ns(is_exact),
            expiries: expiries.saturating_add(in_kernel),
            timed,
        }
    }
}

#[cfg(test)]
mod tests;
