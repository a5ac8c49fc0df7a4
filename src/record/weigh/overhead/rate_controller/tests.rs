//! The controller in a loop with a model of a target and a recorder.

use super::*;

/// A model of a target and of the cost of profiling it.
#[derive(Clone, Copy)]
struct Plant {
    /// The number of cores that the target keeps busy.
    busy: f64,
    hz: f64,
    /// The cost of an expiry for the target, in nanoseconds.
    expiry_ns: f64,
    /// The cost of an expiry for the recorder, in nanoseconds.
    recorder_expiry_ns: f64,
    /// The fixed cost of the recorder in each second, in nanoseconds.
    fixed_ns: f64,
    /// The largest relative error of a measurement.
    noise: f64,
}

const PLANT: Plant = Plant {
    busy: 2.0,
    hz: 10_000.0,
    expiry_ns: 17_000.0,
    recorder_expiry_ns: 6_000.0,
    fixed_ns: 1_000_000.0,
    noise: 0.0,
};

impl Plant {
    fn measured(self, shift: u32, number: u32) -> Measured {
        let expiries = self.busy * self.hz / f64::from(1 << shift);
        // A value between the two extremes.
        let off =
            1.0 + self.noise * (f64::from(number.wrapping_mul(2_654_435_761) % 2001) / 1e3 - 1.0);
        let recorder = (expiries * self.recorder_expiry_ns).mul_add(off, self.fixed_ns * off);
        Measured {
            used_ns: (self.busy * 1e9) as u64,
            signals_ns: (expiries * self.expiry_ns * off) as u64,
            recorder_ns: recorder as u64,
            expiries: expiries as u64,
        }
    }

    /// Returns the total cost at a rate as a share of the target's CPU time.
    fn share(self, shift: u32) -> f64 {
        let measured = Self { noise: 0.0, ..self }.measured(shift, 0);
        (measured.signals_ns + measured.recorder_ns) as f64 / measured.used_ns as f64
    }

    fn controller(self, budget: f64) -> RateController {
        RateController::new(budget, (1e9 / self.hz) as u64, 16_000, 0)
    }
}

/// Returns the rates after each of this many checks.
fn shifts(controller: &mut RateController, plant: Plant, checks: u32) -> Vec<u32> {
    let check = |number| {
        controller.check(&plant.measured(controller.shift(), number));
        controller.shift()
    };
    (0..checks).map(check).collect()
}

fn changes(shifts: &[u32]) -> usize {
    shifts.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

#[test]
fn the_first_rate_fits_and_stays() {
    for budget in [0.002, 0.005, 0.01, 0.02, 0.1, 0.5] {
        let mut controller = PLANT.controller(budget);
        let first = controller.shift();
        assert!(PLANT.share(first) <= budget, "{budget}: {first}");
        // It is at most one step lower than necessary.
        assert!(first < 2 || PLANT.share(first - 2) > 0.75 * budget, "{budget}: {first}");
        assert!(changes(&shifts(&mut controller, PLANT, 200)) <= 1, "{budget}");
    }
}

#[test]
fn a_huge_budget_lowers_nothing() {
    let mut controller = PLANT.controller(50.0);
    assert_eq!(shifts(&mut controller, PLANT, 50), [0; 50]);
}

#[test]
fn an_unexpected_cost_lowers_the_rate_in_one_check_and_its_end_raises_it_again() {
    let dear = Plant { expiry_ns: 200_000.0, ..PLANT };
    let mut controller = PLANT.controller(0.02);
    let first = controller.shift();
    let met = shifts(&mut controller, dear, 30);
    assert!(dear.share(met[0]) <= 0.02 && met[0] > first + 1, "{met:?}");
    assert_eq!(changes(&met), 0, "{met:?}");
    let back = shifts(&mut controller, PLANT, 60);
    assert!(back[2] == met[0] && *back.last().unwrap() <= first + 1, "not at once: {back:?}");
    assert_eq!(changes(&back) as u32, met[0] - controller.shift(), "one step at a time: {back:?}");
}

#[test]
fn noisy_costs_do_not_swing_the_rate() {
    for budget in [0.005, 0.01, 0.013, 0.017, 0.02, 0.03] {
        let noisy = Plant { noise: 0.08, ..PLANT };
        let mut controller = noisy.controller(budget);
        let shifts = shifts(&mut controller, noisy, 500);
        assert!(changes(&shifts) <= 2, "{budget}: {} changes", changes(&shifts));
    }
}

#[test]
fn a_fixed_cost_lowers_no_rate_and_leaves_the_expiries_a_part() {
    // The recorder alone takes five times the budget.
    let heavy = Plant { fixed_ns: 100_000_000.0, ..PLANT };
    let mut controller = heavy.controller(0.01);
    let shifts = shifts(&mut controller, heavy, 100);
    let last = *shifts.last().unwrap();
    let expiries = heavy.hz / f64::from(1 << last) * 25_000.0 / 1e9;
    assert!((0.001..0.0046).contains(&expiries), "{last}: {expiries}");
    assert!(changes(&shifts) <= 3, "{shifts:?}");
    // It does not count if it occurs once, as the reading of symbols does.
    let mut controller = PLANT.controller(0.05);
    let before = controller.shift();
    controller.check(&heavy.measured(before, 0));
    controller.check(&heavy.measured(before, 0));
    assert_eq!(controller.shift(), before);
}

#[test]
fn a_sleeping_target_changes_nothing_and_the_slowest_rate_is_one_per_second() {
    let mut controller = PLANT.controller(0.01);
    let before = controller.shift();
    let asleep =
        Measured { used_ns: LEAST_USED_NS - 1, recorder_ns: 1 << 40, ..Measured::default() };
    (0..20).for_each(|_| controller.check(&asleep));
    assert_eq!(controller.shift(), before);
    let slowest = |hz: f64| Plant { hz, expiry_ns: 1e9, ..PLANT }.controller(0.000_001).shift_max;
    assert_eq!([1.0, 199.0, 999.0, 50_000.0].map(slowest), [0, 7, 9, SHIFT_MAX]);
}

#[test]
fn a_rate_above_the_tick_counts_as_the_rate_of_the_tick() {
    // 4 ms between two expiries: 0.6 % at most, whatever the user requested.
    let controller = |budget| RateController::new(budget, 100_000, 16_000, 4_000_000).shift();
    assert_eq!(
        (controller(0.01), controller(0.003)),
        (0, 7),
        "it must be slower than the tick to save anything"
    );
}

#[test]
fn no_cost_makes_it_slower_than_the_slowest_rate() {
    let mut controller = PLANT.controller(0.5);
    assert!(!controller.is_at_slowest_rate());
    let most = controller.shift_max;
    // The signals take a thousand times the target's CPU time.
    controller.check(&Measured {
        used_ns: 1 << 30,
        signals_ns: 1 << 40,
        recorder_ns: 0,
        expiries: 10_000,
    });
    assert_eq!((controller.shift(), controller.is_at_slowest_rate()), (most, true));
}
