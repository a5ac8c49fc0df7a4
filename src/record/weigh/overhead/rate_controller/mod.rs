//! Chooses the sampling rate from the measured cost of profiling, as a pure function.
//!
//! A part of the cost comes with each expiry and falls with the rate. The other part is fixed: what
//! the recorder does whether there are expiries or not. The rate is changed by powers of two. It is
//! lowered at once by as many steps as the cost calls for, and raised by one step after several
//! checks that had room for it.
//!
//! # Invariants
//! - The same cost never lowers a rate and then raises it again, nor the reverse: the next higher
//!   rate must fit into a smaller part of the budget than the part that the rate was lowered to.
//! - The rate is not lowered for a fixed cost: half of the budget is always left to the expiries.

use traceprof_abi::event::SHIFT_MAX;

/// The least CPU time of the target between two checks, in nanoseconds: with less, a check decides
/// nothing. Checks are a second of wall clock time apart.
pub(super) const LEAST_USED_NS: u64 = 20_000_000;
/// The number of consecutive checks with room after which the rate is raised.
const CALM_CHECKS: u32 = 4;
/// The number of last checks from which the lowest fixed cost counts: work that is done once, as
/// the reading of symbols, does not count.
const FIXED_CHECKS: usize = 3;
/// The most CPU time that the recorder uses for an expiry, in nanoseconds (measured: 5.5 us at
/// 10 kHz, all included); anything above is fixed cost.
const RECORDER_EXPIRY_NS: u64 = 8_000;
/// The part of the budget that a lowered rate must fit into.
const AIM_PART: f64 = 0.9;
/// The part of the budget that a raised rate must fit into.
const RAISE_PART: f64 = 0.75;
/// The part of the budget that is left to the expiries, whatever the fixed cost is.
const EXPIRIES_PART: f64 = 0.5;
/// The assumed time of a handler before one is measured, in nanoseconds (measured: 0.8 us at
/// 10 kHz, 8 us at 199 Hz, where its caches are cold).
const FIRST_HANDLER_NS: u64 = 4_000;

/// The measurements between two checks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Measured {
    /// The CPU time of the target, in nanoseconds.
    pub(super) used_ns: u64,
    /// The part of it in handlers and in the delivery of their signals, in nanoseconds.
    pub(super) signals_ns: u64,
    /// The CPU time of the recorder, in nanoseconds.
    pub(super) recorder_ns: u64,
    /// The number of expiries.
    pub(super) expiries: u64,
}

/// Controls the rate of one recording that has a budget.
#[derive(Debug, Clone)]
pub(super) struct RateController {
    /// The budget, as a share of the target's CPU time.
    budget: f64,
    /// The base-2 logarithm of the rate's divisor.
    shift: u32,
    /// The largest value of `shift`.
    shift_max: u32,
    calm_checks: u32,
    /// The fixed costs at the last checks, as shares of the target's CPU time.
    fixed: [f64; FIXED_CHECKS],
}

impl RateController {
    /// Starts at the rate that is likely to fit the budget.
    ///
    /// An expiry comes once in `period_ns` of CPU time, but no more often than once in `least_ns`.
    /// It costs `delivery_ns` without its handler.
    pub(super) fn new(budget: f64, period_ns: u64, delivery_ns: u64, least_ns: u64) -> Self {
        const SLOWEST_NS: u64 = 1_000_000_000;
        let period_ns = period_ns.max(1);
        let shift_max = (SLOWEST_NS / period_ns).checked_ilog2().unwrap_or(0).min(SHIFT_MAX);
        let expiry_ns = delivery_ns + FIRST_HANDLER_NS + RECORDER_EXPIRY_NS;
        let share = |shift: u32| expiry_ns as f64 / (period_ns << shift).max(least_ns) as f64;
        let mut controller =
            Self { budget, shift: 0, shift_max, calm_checks: 0, fixed: [0.0; FIXED_CHECKS] };
        while share(controller.shift) > AIM_PART * budget && controller.shift < controller.shift_max
        {
            controller.shift += 1;
        }
        controller
    }

    /// Returns the base-2 logarithm of the rate's divisor.
    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    /// Returns whether the rate cannot be lowered any further.
    pub(super) fn is_at_slowest_rate(&self) -> bool {
        self.shift == self.shift_max
    }

    /// Decides the rate after new measurements.
    pub(super) fn check(&mut self, measured: &Measured) {
        if measured.used_ns < LEAST_USED_NS {
            return;
        }
        let share = |ns: u64| ns as f64 / measured.used_ns as f64;
        let most_ns = measured.expiries.saturating_mul(RECORDER_EXPIRY_NS);
        let per_expiry_ns = measured.recorder_ns.min(most_ns);
        let scaling = share(measured.signals_ns.saturating_add(per_expiry_ns));
        self.fixed.rotate_left(1);
        self.fixed[FIXED_CHECKS - 1] = share(measured.recorder_ns - per_expiry_ns);
        let fixed = self.fixed.iter().copied().fold(f64::INFINITY, f64::min);
        let room = |part: f64| (part * self.budget - fixed).max(EXPIRIES_PART * part * self.budget);
        if scaling + fixed > self.budget && scaling > room(AIM_PART) {
            self.lower(scaling, room(AIM_PART));
        } else if self.shift > 0 && 2.0 * scaling <= room(RAISE_PART) {
            self.calm_checks += 1;
            if self.calm_checks == CALM_CHECKS {
                self.shift -= 1;
                self.calm_checks = 0;
            }
        } else {
            self.calm_checks = 0;
        }
    }

    /// Lowers the rate by as many steps as the cost calls for.
    fn lower(&mut self, mut scaling: f64, room: f64) {
        self.calm_checks = 0;
        while scaling > room && self.shift < self.shift_max {
            self.shift += 1;
            scaling /= 2.0;
        }
    }
}

#[cfg(test)]
mod tests;
