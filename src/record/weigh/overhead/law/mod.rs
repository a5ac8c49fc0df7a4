//! From what profiling costs to the rate at which it samples: a pure function of measurements.
//!
//! A part of the cost comes with each hit and falls with the rate; the rest, what the recorder does
//! whether there are hits or not, does not. Rates are lowered by powers of two, at once by as much
//! as the cost calls for, and raised by one step after several looks that had room for it.
//!
//! # Invariants
//! - A rate that was lowered is not raised again by the same costs, nor the other way round: the
//!   next higher rate must fit into less than what the rate was lowered for.
//! - The rate is not lowered for a cost that no rate changes: half of what is allowed is always
//!   left to the hits.

use traceprof_abi::event::SHIFT_MAX;

/// Between two looks, a second of the clock on the wall, the target uses this at least, or nothing
/// is concluded.
pub(super) const LEAST_USED_NS: u64 = 20_000_000;
/// Looks that must have room before the rate is raised.
const CALM_LOOKS: u32 = 4;
/// Looks of which the least fixed cost counts: what is done once, as the reading of symbols is,
/// does not.
const FIXED_LOOKS: usize = 3;
/// What the recorder does for a hit, at most (measured: 5.5 us at 10 kHz, all included); the rest
/// is fixed.
const RECORDER_HIT_NS: u64 = 8_000;
/// Part of the budget that is aimed at, and that a raised rate must fit into.
const AIM: f64 = 0.9;
const ROOM: f64 = 0.75;
/// Part of the budget that is left to the hits, whatever the recorder takes besides.
const HITS_PART: f64 = 0.5;
/// What a handler takes, before one is measured (0.8 us at 10 kHz, 8 us at 199 Hz, where it finds
/// nothing in the caches).
const FIRST_HANDLER_NS: u64 = 4_000;

/// What was measured between two looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Measured {
    /// CPU time of the target.
    pub(super) used_ns: u64,
    /// Of it, time in handlers and in the delivery of their signals.
    pub(super) signals_ns: u64,
    /// CPU time of the recorder.
    pub(super) recorder_ns: u64,
    /// Hits.
    pub(super) hits: u64,
}

/// The rate of one recording that has a budget.
#[derive(Debug, Clone)]
pub(super) struct Law {
    /// Share of the target's CPU time.
    budget: f64,
    /// The rate is divided by 2 to the power of this, and of this at most.
    shift: u32,
    shift_max: u32,
    calm: u32,
    /// Fixed costs of the last looks, as shares.
    fixed: [f64; FIXED_LOOKS],
}

impl Law {
    /// For hits that come once in `period_ns` of CPU time, and no more often than once in
    /// `least_ns`, and cost `delivery_ns` without their handler. The first rate is the one that is
    /// likely to fit.
    pub(super) fn new(budget: f64, period_ns: u64, delivery_ns: u64, least_ns: u64) -> Self {
        const SLOWEST_NS: u64 = 1_000_000_000;
        let period_ns = period_ns.max(1);
        let shift_max = (SLOWEST_NS / period_ns).checked_ilog2().unwrap_or(0).min(SHIFT_MAX);
        let hit_ns = delivery_ns + FIRST_HANDLER_NS + RECORDER_HIT_NS;
        let share = |shift: u32| hit_ns as f64 / (period_ns << shift).max(least_ns) as f64;
        let mut law = Self { budget, shift: 0, shift_max, calm: 0, fixed: [0.0; FIXED_LOOKS] };
        while share(law.shift) > AIM * budget && law.shift < law.shift_max {
            law.shift += 1;
        }
        law
    }

    /// The exponent of the rate's divisor.
    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    /// The rate cannot be lowered any more.
    pub(super) fn is_at_its_end(&self) -> bool {
        self.shift == self.shift_max
    }

    /// Decides, after another look.
    pub(super) fn look(&mut self, measured: &Measured) {
        if measured.used_ns < LEAST_USED_NS {
            return;
        }
        let share = |ns: u64| ns as f64 / measured.used_ns as f64;
        let most_ns = measured.hits.saturating_mul(RECORDER_HIT_NS);
        let with_hits_ns = measured.recorder_ns.min(most_ns);
        let scaling = share(measured.signals_ns.saturating_add(with_hits_ns));
        self.fixed.rotate_left(1);
        self.fixed[FIXED_LOOKS - 1] = share(measured.recorder_ns - with_hits_ns);
        let fixed = self.fixed.iter().copied().fold(f64::INFINITY, f64::min);
        let room = |part: f64| (part * self.budget - fixed).max(HITS_PART * part * self.budget);
        if scaling + fixed > self.budget && scaling > room(AIM) {
            self.lower(scaling, room(AIM));
        } else if self.shift > 0 && 2.0 * scaling <= room(ROOM) {
            self.calm += 1;
            if self.calm == CALM_LOOKS {
                self.shift -= 1;
                self.calm = 0;
            }
        } else {
            self.calm = 0;
        }
    }

    /// By as many steps as it takes.
    fn lower(&mut self, mut scaling: f64, room: f64) {
        self.calm = 0;
        while scaling > room && self.shift < self.shift_max {
            self.shift += 1;
            scaling /= 2.0;
        }
    }
}

#[cfg(test)]
mod tests;
