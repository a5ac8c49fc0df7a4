//! Reported changes of random recordings, and the fraction of them that is false.

use super::*;

const FUNCTIONS: usize = 30;
/// Number of samples: ten minutes of a thread at 99 Hz, or forty seconds at 999.
const SAMPLES: usize = 40_000;
/// Average number of consecutive samples in one function.
const ALIKE: u64 = 5;

/// Pseudo-random numbers that are the same in every run (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns the shares of a process whose first function has `more` than in other processes.
fn shares(more: f64) -> Vec<f64> {
    let weights: Vec<f64> = (0..FUNCTIONS).map(|index| 1.0 / (index + 3) as f64).collect();
    let sum: f64 = weights.iter().sum();
    let mut shares: Vec<f64> = weights.iter().map(|weight| weight / sum).collect();
    let rest = 1.0 - shares[0];
    shares.iter_mut().skip(1).for_each(|share| *share *= (rest - more) / rest);
    shares[0] += more;
    shares
}

/// Returns a recording of a process that stays in a function for a while.
fn recording(random: &mut Random, shares: &[f64]) -> (SideTotal, Vec<BlockWeights>) {
    let (mut whole, mut parts) = (SideTotal::default(), vec![BlockWeights::default(); FUNCTIONS]);
    let mut function = 0;
    for sample in 0..SAMPLES {
        if sample == 0 || random.next().is_multiple_of(ALIKE) {
            let mut left = random.share();
            let over = |share: &f64| {
                left -= share;
                left < 0.0
            };
            function = shares.iter().position(over).unwrap_or(FUNCTIONS - 1);
        }
        let block = sample * BLOCKS / SAMPLES;
        whole.add(block, 1);
        parts[function].0[block] += 1;
    }
    (whole, parts)
}

type Estimate = fn(&SideTotal, &BlockWeights) -> ShareEstimate;

fn changes(seed: u64, more: f64, estimate: Estimate) -> Vec<ShareChange> {
    let mut random = Random(seed);
    let (before, of_before) = recording(&mut random, &shares(0.0));
    let (after, of_after) = recording(&mut random, &shares(more));
    let pairs = of_before.iter().zip(&of_after);
    pairs
        .map(|(old, new)| ShareChange::new(estimate(&before, old), estimate(&after, new)))
        .collect()
}

#[test]
fn intervals_cover_unchanged_shares_as_often_as_stated() {
    let outside = |estimate: Estimate| {
        let all = (0..60).flat_map(|seed| changes(seed, 0.0, estimate));
        let outside = all.filter(|change| !change.noise).count();
        outside as f64 / (60 * FUNCTIONS) as f64
    };
    let found = outside(SideTotal::share);
    assert!((0.02..0.08).contains(&found), "{found}");
    // These samples are not independent: a profiler that assumed so would raise false alarms.
    let naive = outside(SideTotal::independent);
    assert!(naive > 0.4, "{naive}");
}

#[test]
fn two_recordings_of_the_same_process_report_hardly_any_change() {
    let mut reported = 0;
    for seed in 100..160 {
        let mut all = changes(seed, 0.0, SideTotal::share);
        mark_noise(all.iter_mut());
        reported += all.iter().filter(|change| !change.noise).count();
    }
    assert!(reported <= 10, "{reported} of {}", 60 * FUNCTIONS);
}

#[test]
fn a_change_of_five_points_is_reported_with_its_size() {
    let (mut reported, mut held, mut first) = (0, 0, 0);
    for seed in 200..240 {
        let mut all = changes(seed, 0.05, SideTotal::share);
        mark_noise(all.iter_mut());
        let planted = all[0];
        reported += u32::from(!planted.noise);
        held += u32::from((planted.difference() - 0.05).abs() <= planted.margin);
        assert!(planted.margin < 0.03, "{planted:?}");
        let larger = |change: &ShareChange| change.difference().abs() > planted.difference().abs();
        first += u32::from(!all.iter().any(larger));
    }
    assert_eq!(reported, 40);
    assert!(held >= 34, "{held}");
    assert!(first >= 39, "{first}");
}

/// Returns a side whose blocks are all the same.
fn even(samples_a_block: u64) -> SideTotal {
    let mut whole = SideTotal::default();
    for block in 0..BLOCKS {
        (0..samples_a_block).for_each(|_| whole.add(block, 1));
    }
    whole
}

fn part(of: impl Fn(usize) -> u64) -> BlockWeights {
    let mut series = BlockWeights::default();
    series.0.iter_mut().enumerate().for_each(|(block, weight)| *weight = of(block));
    series
}

#[test]
fn no_share_is_surer_than_that_of_independent_samples() {
    let whole = even(50);
    // The weights of every block are equal, as if there were no randomness.
    let share = whole.share(&part(|_| 10));
    assert_eq!(share.value, 0.2);
    let binomial = (0.2f64 * 0.8 / 1000.0).sqrt();
    assert!((share.variance.sqrt() / binomial - 1.0).abs() < 0.01, "{share:?}");
}

#[test]
fn a_phase_of_one_block_makes_a_share_unsure() {
    let whole = even(50);
    let phase = whole.share(&part(|block| if block == 7 { 50 } else { 0 }));
    let spread = whole.share(&part(|block| if block < 10 { 5 } else { 0 }));
    assert!((phase.value - spread.value).abs() < 1e-12);
    assert!(phase.variance > 20.0 * whole.independent(&part(|_| 2)).variance, "{phase:?}");
    let nothing = whole.share(&BlockWeights::default());
    assert!(ShareChange::new(nothing, phase).noise);
    assert!(!ShareChange::new(nothing, whole.share(&part(|_| 2))).noise, "5 % in every block");
}

#[test]
fn a_single_sample_is_no_change() {
    let whole = even(50);
    let once = whole.share(&part(|block| u64::from(block == 0)));
    let never = whole.share(&BlockWeights::default());
    assert!(ShareChange::new(never, once).noise);
    assert!(ShareChange::new(once, never).noise);
    let always = whole.share(&whole.series);
    assert_eq!(ShareChange::new(always, always).chance, 1.0);
}

#[test]
fn heavy_samples_count_as_fewer_than_their_weight() {
    let mut heavy = SideTotal::default();
    (0..BLOCKS).for_each(|block| heavy.add(block, 50));
    let half = part(|block| if block % 2 == 0 { 50 } else { 0 });
    let light = even(50).independent(&part(|_| 25));
    assert!(heavy.independent(&half).variance > 40.0 * light.variance);
}

#[test]
fn too_little_time_for_blocks_leaves_independent_samples() {
    let mut whole = SideTotal::default();
    (0..100).for_each(|_| whole.add(3, 1));
    assert!(whole.blocks() < 2.0);
    let half = part(|block| if block == 3 { 50 } else { 0 });
    assert_eq!(whole.share(&half), whole.independent(&half));
    // An empty side has no share, and causes no division by zero.
    let empty = SideTotal::default();
    let change = ShareChange::new(empty.share(&BlockWeights::default()), whole.share(&half));
    assert!(change.margin.is_finite() && change.chance.is_finite(), "{change:?}");
}

#[test]
fn everything_slower_is_a_change_of_the_rate() {
    let (slow, fast) = (even(100).mean(), even(50).mean());
    assert!(!ShareChange::new(fast, slow).noise);
    assert!(ShareChange::new(fast, fast).noise);
    assert_eq!(ShareChange::new(fast.times(0.01), slow.times(0.01)).difference(), 0.5);
}

#[test]
fn a_mean_is_as_sure_as_its_blocks_are_alike() {
    let turns = part(|block| if block % 2 == 0 { 9 } else { 11 });
    let mean = SideTotal { series: turns, samples: 200, squares: 200.0 }.mean();
    // Each block is off by one, so the mean of 20 blocks has a twentieth of their variance.
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
    near(mean.value, 10.0);
    near(mean.variance, 20.0 / 19.0 / 20.0);
    near(mean.freedom, 19.0);
    // In another unit the error grows by the factor, and the variance by its square.
    let scaled = mean.times(10.0);
    near(scaled.value, 100.0);
    near(scaled.variance, 100.0 * mean.variance);
    near(ShareChange::new(scaled, scaled).margin, 10.0 * ShareChange::new(mean, mean).margin);
}

#[test]
fn many_changes_need_more_evidence_than_one() {
    let change = |chance| ShareChange { before: 0.1, after: 0.2, margin: 0.1, chance, noise: true };
    let reported = |chances: &[f64]| {
        let mut all: Vec<ShareChange> = chances.iter().map(|chance| change(*chance)).collect();
        mark_noise(all.iter_mut());
        all.iter().map(|change| !change.noise).collect::<Vec<_>>()
    };
    assert_eq!(reported(&[0.04]), [true]);
    assert_eq!(reported(&[0.04, 0.5]), [false, false]);
    assert_eq!(reported(&[0.5, 0.02]), [false, true]);
    // The last change within its threshold also includes the ones before it.
    assert_eq!(reported(&[0.04, 0.03, 0.9, 0.035]), [false, false, false, false]);
    assert_eq!(reported(&[0.037, 0.03, 0.9, 0.035]), [true, true, false, true]);
    assert_eq!(reported(&[]), [] as [bool; 0]);
}
