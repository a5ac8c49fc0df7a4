//! Looks at threads whose clocks and hits are made up.

use super::*;

const PERIOD_NS: u64 = 1_000_000;
const THREAD: Key = (3, 0);

/// One thread's recording.
struct Made {
    balance: Balance,
    weight: u64,
    cpu_ns: u64,
    is_signal_blocked: bool,
    readings: usize,
}

impl Made {
    fn new() -> Self {
        let balance = Balance::new(PERIOD_NS);
        Self { balance, weight: 0, cpu_ns: 0, is_signal_blocked: false, readings: 0 }
    }

    /// The thread has used so much more and was hit so often; what the hits weigh afterwards.
    fn turn(&mut self, cpu_us: i64, hits: &[u32]) -> Vec<u32> {
        let mut batch = Batch::default();
        let hit = |weight: &u32| Sample { slot: THREAD.0, weight: *weight, ..Sample::default() };
        batch.samples.extend(hits.iter().map(hit));
        self.cpu_ns = self.cpu_ns.saturating_add_signed(cpu_us * 1000);
        let reading = Reading { cpu_ns: self.cpu_ns, is_signal_blocked: self.is_signal_blocked };
        let mut readings = 0;
        let clock = |key| {
            readings += 1;
            (key == THREAD).then_some(reading)
        };
        self.balance.put_right(&mut batch, 0, |_| self.weight, clock);
        self.readings += readings;
        let weights: Vec<u32> = batch.samples.iter().map(|sample| sample.weight).collect();
        self.weight += weights.iter().map(|weight| u64::from(*weight)).sum::<u64>();
        weights
    }

    fn lacks_us(&self) -> i64 {
        (self.cpu_ns / 1000) as i64 - (self.weight * PERIOD_NS / 1000) as i64
    }
}

#[test]
fn what_one_batch_lacks_is_spread_over_its_hits_in_proportion() {
    let mut made = Made::new();
    let hits: Vec<u32> = (0..150).map(|number| if number % 15 == 0 { 3 } else { 1 }).collect();
    let weights = made.turn(200_000, &hits);
    // A period of what is lacking has begun.
    assert_eq!(weights.iter().sum::<u32>(), 199);
    let heavy: u32 = weights.iter().step_by(15).sum();
    assert!((33..=36).contains(&heavy), "{heavy} of 30 for {weights:?}");
    assert_eq!(made.balance.sum, Balanced { more: 29, less: 0 });
}

#[test]
fn what_is_too_much_is_taken_away_with_hits_that_stand_for_nothing() {
    let mut made = Made::new();
    let weights = made.turn(140_000, &[1; 200]);
    assert_eq!(weights, [1; 145], "a tick may be missing from the clock, and a period");
    assert_eq!(made.balance.sum, Balanced { more: 0, less: 55 });
}

#[test]
fn what_the_clock_leaves_open_is_left_alone() {
    for cpu_us in [195_000, 198_000, 200_000, 201_000] {
        assert_eq!(Made::new().turn(cpu_us, &[1; 200]), [1; 200], "{cpu_us} us");
    }
}

#[test]
fn a_clock_that_was_read_late_is_believed_as_far_as_it_is_late() {
    let mut batch = Batch::default();
    batch.samples.resize(200, Sample { weight: 1, ..Sample::default() });
    let clock = |_| Some(Reading { cpu_ns: 230 * PERIOD_NS, is_signal_blocked: false });
    Balance::new(PERIOD_NS).put_right(&mut batch, 20 * PERIOD_NS, |_| 0, clock);
    assert_eq!(batch.samples.iter().map(|sample| sample.weight).sum::<u32>(), 209);
}

/// Two families with independent phases, and one whose hits fall into the other's part for a while.
#[test]
fn over_many_looks_a_thread_has_its_time() {
    let mut made = Made::new();
    let mut seed = 1u64;
    let mut worst = 0;
    for turn in 0..200 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let off = (seed >> 59) as i64 - 16 - if turn % 20 < 4 { 30 } else { 0 };
        made.turn(100_000, &vec![1; (100 + off) as usize]);
        if turn >= 20 && turn % 20 >= 8 {
            worst = worst.max(made.lacks_us().abs());
        }
    }
    assert!(worst <= 60_000, "{worst} us are left");
    assert!(made.lacks_us().abs() <= 60_000 && made.readings <= 200, "{} us", made.lacks_us());
    let Balanced { more, less } = made.balance.sum;
    assert!(more > 100 && less > 100, "nothing was wrong: {more}, {less}");
}

#[test]
fn a_clock_is_read_once_in_so_many_hits() {
    let mut made = Made::new();
    for _ in 0..100 {
        made.turn(10_000, &[1; 10]);
    }
    assert_eq!(made.readings, 1000 / 20);
    // At high rates a tick is many periods.
    let mut balance = Balance::new(PERIOD_NS / 10);
    let mut batch = Batch::default();
    batch.samples.resize(159, Sample { weight: 1, ..Sample::default() });
    balance.put_right(&mut batch, 0, |_| 0, |_| panic!("159 hits are less than 16 ms"));
}

#[test]
fn hits_that_were_not_due_are_not_made_up() {
    let mut made = Made::new();
    made.turn(130_000, &[1; 130]);
    made.is_signal_blocked = true;
    // In the kernel it is hit all the same.
    assert_eq!(made.turn(5_000_000, &[2; 70]), [2; 70]);
    made.is_signal_blocked = false;
    assert_eq!(made.turn(130_000, &[1; 130]), [1; 130]);
    // A time of silence that nobody saw the reason of.
    let more = (0..20).map(|turn| {
        let cpu_us = if turn == 0 { 5_000_000 } else { 100_000 };
        made.turn(cpu_us, &[1; 100]).iter().sum::<u32>() - 100
    });
    assert_eq!(more.sum::<u32>(), 255);
}

#[test]
fn what_is_too_much_for_one_batch_is_left_to_the_next() {
    let mut made = Made::new();
    assert_eq!(made.turn(180_000, &[1; 100]).iter().sum::<u32>(), 150);
    assert_eq!(made.turn(16_000, &[1; 16]).iter().sum::<u32>(), 24);
    assert_eq!(made.turn(100_000, &[1; 100]).iter().sum::<u32>(), 121);
    assert_eq!(made.lacks_us(), 1000);
}

#[test]
fn threads_are_told_apart_and_forgotten() {
    let mut balance = Balance::new(PERIOD_NS);
    let mut batch = Batch::default();
    for slot in [1, 2, 3] {
        let hit = Sample { slot, weight: 1, ..Sample::default() };
        batch.samples.extend([hit; 200]);
    }
    let clock = |key: Key| match key.0 {
        1 => Some(Reading { cpu_ns: 251 * PERIOD_NS, is_signal_blocked: false }),
        2 => Some(Reading { cpu_ns: 145 * PERIOD_NS, is_signal_blocked: false }),
        // It is gone.
        _ => None,
    };
    balance.put_right(&mut batch, 0, |_| 0, clock);
    let of = |slot| -> u32 {
        batch.samples.iter().filter(|it| it.slot == slot).map(|it| it.weight).sum()
    };
    assert_eq!([1, 2, 3].map(of), [250, 150, 200]);
    assert_eq!(balance.looks.len(), 2);
    let exit = Exit { key: (1, 0), tid: 7, time_ns: 0, cpu_ns: None };
    balance.forget(&[exit]);
    assert_eq!(balance.looks.keys().collect::<Vec<_>>(), [&(2, 0)]);
}

#[test]
fn the_first_hit_of_a_thread_stays() {
    let mut batch = Batch::default();
    batch.samples.resize(200, Sample { weight: 1, ..Sample::default() });
    for hit in &mut batch.samples {
        hit.flags = flags::FIRST;
    }
    let clock = |_| Some(Reading { cpu_ns: 0, is_signal_blocked: false });
    Balance::new(PERIOD_NS).put_right(&mut batch, 0, |_| 0, clock);
    assert_eq!(batch.samples.len(), 200);
    assert_eq!(batch.samples.iter().map(|sample| sample.weight).sum::<u32>(), 100);
}

#[test]
fn numbers_that_the_target_made_up_are_only_wrong() {
    let mut balance = Balance::new(PERIOD_NS);
    for cpu_ns in [0, u64::MAX] {
        let mut batch = Batch::default();
        batch.samples.resize(5000, Sample { weight: u32::MAX, ..Sample::default() });
        let clock = |_| Some(Reading { cpu_ns, is_signal_blocked: false });
        balance.put_right(&mut batch, u64::MAX, |_| u64::MAX, clock);
    }
}
