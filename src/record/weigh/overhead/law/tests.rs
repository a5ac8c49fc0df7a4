//! The law in a loop with a target and a recorder that are made up.

use super::*;

/// What is profiled, and what that takes.
#[derive(Clone, Copy)]
struct Plant {
    /// Cores that the target keeps busy.
    busy: f64,
    hz: f64,
    /// What a hit costs the target, and the recorder.
    hit_ns: f64,
    recorder_hit_ns: f64,
    /// What the recorder takes besides, of a second.
    fixed_ns: f64,
    /// Measurements are off by up to this part of them.
    noise: f64,
}

const PLANT: Plant = Plant {
    busy: 2.0,
    hz: 10_000.0,
    hit_ns: 17_000.0,
    recorder_hit_ns: 6_000.0,
    fixed_ns: 1_000_000.0,
    noise: 0.0,
};

impl Plant {
    fn measured(self, shift: u32, number: u32) -> Measured {
        let hits = self.busy * self.hz / f64::from(1 << shift);
        // Anything between the two ends.
        let off =
            1.0 + self.noise * (f64::from(number.wrapping_mul(2_654_435_761) % 2001) / 1e3 - 1.0);
        let recorder = (hits * self.recorder_hit_ns).mul_add(off, self.fixed_ns * off);
        Measured {
            used_ns: (self.busy * 1e9) as u64,
            signals_ns: (hits * self.hit_ns * off) as u64,
            recorder_ns: recorder as u64,
            hits: hits as u64,
        }
    }

    /// The share that all of it has at a rate.
    fn share(self, shift: u32) -> f64 {
        let measured = Self { noise: 0.0, ..self }.measured(shift, 0);
        (measured.signals_ns + measured.recorder_ns) as f64 / measured.used_ns as f64
    }

    fn law(self, budget: f64) -> Law {
        Law::new(budget, (1e9 / self.hz) as u64, 16_000, 0)
    }
}

/// The rates of so many looks.
fn shifts(law: &mut Law, plant: Plant, looks: u32) -> Vec<u32> {
    let look = |number| {
        law.look(&plant.measured(law.shift(), number));
        law.shift()
    };
    (0..looks).map(look).collect()
}

fn changes(shifts: &[u32]) -> usize {
    shifts.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

#[test]
fn the_first_rate_fits_and_stays() {
    for budget in [0.002, 0.005, 0.01, 0.02, 0.1, 0.5] {
        let mut law = PLANT.law(budget);
        let first = law.shift();
        assert!(PLANT.share(first) <= budget, "{budget}: {first}");
        // No lower than it must be, but for one step.
        assert!(first < 2 || PLANT.share(first - 2) > 0.75 * budget, "{budget}: {first}");
        assert!(changes(&shifts(&mut law, PLANT, 200)) <= 1, "{budget}");
    }
}

#[test]
fn a_huge_budget_lowers_nothing() {
    let mut law = PLANT.law(50.0);
    assert_eq!(shifts(&mut law, PLANT, 50), [0; 50]);
}

#[test]
fn a_cost_that_was_not_foreseen_is_met_in_one_look_and_what_goes_is_given_back() {
    let dear = Plant { hit_ns: 200_000.0, ..PLANT };
    let mut law = PLANT.law(0.02);
    let first = law.shift();
    let met = shifts(&mut law, dear, 30);
    assert!(dear.share(met[0]) <= 0.02 && met[0] > first + 1, "{met:?}");
    assert_eq!(changes(&met), 0, "{met:?}");
    let back = shifts(&mut law, PLANT, 60);
    assert!(back[2] == met[0] && *back.last().unwrap() <= first + 1, "not at once: {back:?}");
    assert_eq!(changes(&back) as u32, met[0] - law.shift(), "one step at a time: {back:?}");
}

#[test]
fn noisy_costs_do_not_swing_the_rate() {
    for budget in [0.005, 0.01, 0.013, 0.017, 0.02, 0.03] {
        let noisy = Plant { noise: 0.08, ..PLANT };
        let mut law = noisy.law(budget);
        let shifts = shifts(&mut law, noisy, 500);
        assert!(changes(&shifts) <= 2, "{budget}: {} changes", changes(&shifts));
    }
}

#[test]
fn what_no_rate_changes_lowers_none_but_leaves_the_hits_a_part() {
    // The recorder alone takes five times what is allowed.
    let heavy = Plant { fixed_ns: 100_000_000.0, ..PLANT };
    let mut law = heavy.law(0.01);
    let shifts = shifts(&mut law, heavy, 100);
    let last = *shifts.last().unwrap();
    let hits = heavy.hz / f64::from(1 << last) * 25_000.0 / 1e9;
    assert!((0.001..0.0046).contains(&hits), "{last}: {hits}");
    assert!(changes(&shifts) <= 3, "{shifts:?}");
    // Once, as symbols are read, it counts for nothing.
    let mut law = PLANT.law(0.05);
    let before = law.shift();
    law.look(&heavy.measured(before, 0));
    law.look(&heavy.measured(before, 0));
    assert_eq!(law.shift(), before);
}

#[test]
fn a_target_that_sleeps_tells_nothing_and_the_slowest_rate_is_one_a_second() {
    let mut law = PLANT.law(0.01);
    let before = law.shift();
    let asleep =
        Measured { used_ns: LEAST_USED_NS - 1, recorder_ns: 1 << 40, ..Measured::default() };
    (0..20).for_each(|_| law.look(&asleep));
    assert_eq!(law.shift(), before);
    let slowest = |hz: f64| Plant { hz, hit_ns: 1e9, ..PLANT }.law(0.000_001).shift_max;
    assert_eq!([1.0, 199.0, 999.0, 50_000.0].map(slowest), [0, 7, 9, SHIFT_MAX]);
}

#[test]
fn a_rate_beyond_the_tick_is_as_good_as_the_tick() {
    // 4 ms between two hits: 0.6 % at most, whatever was asked for.
    let law = |budget| Law::new(budget, 100_000, 16_000, 4_000_000).shift();
    assert_eq!((law(0.01), law(0.003)), (0, 7), "it must be slower than the tick to save anything");
}

#[test]
fn no_cost_makes_it_slower_than_the_slowest_rate() {
    let mut law = PLANT.law(0.5);
    assert!(!law.is_at_its_end());
    let most = law.shift_max;
    // A thousand times what was used.
    law.look(&Measured { used_ns: 1 << 30, signals_ns: 1 << 40, recorder_ns: 0, hits: 10_000 });
    assert_eq!((law.shift(), law.is_at_its_end()), (most, true));
}
