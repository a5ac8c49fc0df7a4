//! Checks of threads with invented clocks and samples.

use super::*;

const PERIOD_NS: u64 = 1_000_000;
const THREAD: ThreadKey = (3, 0);

/// The recording of one thread.
struct FakeThread {
    balance: Balance,
    weight: u64,
    cpu_ns: u64,
    is_signal_blocked: bool,
    readings: usize,
}

impl FakeThread {
    fn new() -> Self {
        let balance = Balance::new(PERIOD_NS);
        Self { balance, weight: 0, cpu_ns: 0, is_signal_blocked: false, readings: 0 }
    }

    /// Runs a turn in which the thread uses this much more CPU time and gets these samples, and
    /// returns their weights afterwards.
    fn turn(&mut self, cpu_us: i64, samples: &[u32]) -> Vec<u32> {
        let mut batch = Batch::default();
        let sample = |weight: &u32| Sample { slot: THREAD.0, weight: *weight, ..Sample::default() };
        batch.samples.extend(samples.iter().map(sample));
        self.cpu_ns = self.cpu_ns.saturating_add_signed(cpu_us * 1000);
        let (cpu_ns, is_signal_blocked) = (self.cpu_ns, self.is_signal_blocked);
        let reading = ThreadCpuReading { cpu_ns, is_signal_blocked };
        let mut readings = 0;
        let clock = |key| {
            readings += 1;
            (key == THREAD).then_some(reading)
        };
        self.balance.correct(&mut batch, 0, |_| self.weight, clock);
        self.readings += readings;
        let weights: Vec<u32> = batch.samples.iter().map(|sample| sample.weight).collect();
        self.weight += weights.iter().map(|weight| u64::from(*weight)).sum::<u64>();
        weights
    }

    fn missing_us(&self) -> i64 {
        (self.cpu_ns / 1000) as i64 - (self.weight * PERIOD_NS / 1000) as i64
    }
}

#[test]
fn missing_time_is_spread_over_the_samples_of_the_batch_in_proportion() {
    let mut thread = FakeThread::new();
    let samples: Vec<u32> = (0..150).map(|number| if number % 15 == 0 { 3 } else { 1 }).collect();
    let weights = thread.turn(200_000, &samples);
    // One of the missing periods may still be in progress.
    assert_eq!(weights.iter().sum::<u32>(), 199);
    let heavy: u32 = weights.iter().step_by(15).sum();
    assert!((33..=36).contains(&heavy), "{heavy} of 30 for {weights:?}");
    assert_eq!(thread.balance.sum, Balanced { added: 29, removed: 0 });
}

#[test]
fn excess_weight_is_removed_and_samples_without_weight_are_dropped() {
    let mut thread = FakeThread::new();
    let weights = thread.turn(140_000, &[1; 200]);
    assert_eq!(weights, [1; 145], "a tick may be missing from the clock, and a period");
    assert_eq!(thread.balance.sum, Balanced { added: 0, removed: 55 });
}

#[test]
fn an_error_within_the_uncertainty_of_the_clock_is_left_alone() {
    for cpu_us in [195_000, 198_000, 200_000, 201_000] {
        assert_eq!(FakeThread::new().turn(cpu_us, &[1; 200]), [1; 200], "{cpu_us} us");
    }
}

#[test]
fn a_late_reading_of_the_clock_makes_the_error_uncertain_by_its_lateness() {
    let mut batch = Batch::default();
    batch.samples.resize(200, Sample { weight: 1, ..Sample::default() });
    let clock = |_| Some(ThreadCpuReading { cpu_ns: 230 * PERIOD_NS, is_signal_blocked: false });
    Balance::new(PERIOD_NS).correct(&mut batch, 20 * PERIOD_NS, |_| 0, clock);
    assert_eq!(batch.samples.iter().map(|sample| sample.weight).sum::<u32>(), 209);
}

/// Two families with independent phases, and times in which the expiries of one fall into the
/// other's part.
#[test]
fn over_many_checks_a_thread_gets_its_cpu_time() {
    let mut thread = FakeThread::new();
    let mut seed = 1u64;
    let mut worst = 0;
    for turn in 0..200 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let off = (seed >> 59) as i64 - 16 - if turn % 20 < 4 { 30 } else { 0 };
        thread.turn(100_000, &vec![1; (100 + off) as usize]);
        if turn >= 20 && turn % 20 >= 8 {
            worst = worst.max(thread.missing_us().abs());
        }
    }
    assert!(worst <= 60_000, "{worst} us remain");
    let missing_us = thread.missing_us();
    assert!(missing_us.abs() <= 60_000 && thread.readings <= 200, "{missing_us} us");
    let Balanced { added, removed } = thread.balance.sum;
    assert!(added > 100 && removed > 100, "nothing was wrong: {added}, {removed}");
}

/// The last expiries of both families may all have been missed.
#[test]
fn what_the_last_expiries_missed_is_known_at_the_end() {
    let mut thread = FakeThread::new();
    thread.turn(20_000, &[1; 20]);
    // Too few samples for a check.
    thread.turn(13_500, &[1; 2]);
    assert_eq!(thread.missing_us(), 11_500);
    let reading = |cpu_ns, is_signal_blocked| ThreadCpuReading { cpu_ns, is_signal_blocked };
    let mut missing = |reading| thread.balance.missing_at_end(THREAD, reading, thread.weight);
    // Of one period the expiry may not be due yet.
    assert_eq!(missing(reading(thread.cpu_ns, false)), 10);
    assert_eq!(missing(reading(thread.cpu_ns, true)), 0, "the signal was blocked");
    assert_eq!(missing(reading(23_000_000, false)), 0);
    assert_eq!(missing(reading(10_000_000, false)), 0, "an excess stays");
    assert_eq!(missing(reading(u64::MAX, false)), 255, "no sampling error explains that");
}

#[test]
fn a_clock_is_read_once_in_sixteen_samples_or_more() {
    let mut thread = FakeThread::new();
    for _ in 0..100 {
        thread.turn(10_000, &[1; 10]);
    }
    assert_eq!(thread.readings, 1000 / 20);
    // At high rates a tick is many periods.
    let mut balance = Balance::new(PERIOD_NS / 10);
    let mut batch = Batch::default();
    batch.samples.resize(159, Sample { weight: 1, ..Sample::default() });
    balance.correct(&mut batch, 0, |_| 0, |_| panic!("159 samples are less than 16 ms"));
}

#[test]
fn expiries_that_were_not_due_are_not_made_up_for() {
    let mut thread = FakeThread::new();
    thread.turn(130_000, &[1; 130]);
    thread.is_signal_blocked = true;
    // Expiries in the kernel need no signal.
    assert_eq!(thread.turn(5_000_000, &[2; 70]), [2; 70]);
    thread.is_signal_blocked = false;
    assert_eq!(thread.turn(130_000, &[1; 130]), [1; 130]);
    // A time without samples for an unknown reason.
    let more = (0..20).map(|turn| {
        let cpu_us = if turn == 0 { 5_000_000 } else { 100_000 };
        thread.turn(cpu_us, &[1; 100]).iter().sum::<u32>() - 100
    });
    assert_eq!(more.sum::<u32>(), 255);
}

#[test]
fn an_error_too_large_for_one_batch_is_left_to_the_next() {
    let mut thread = FakeThread::new();
    assert_eq!(thread.turn(180_000, &[1; 100]).iter().sum::<u32>(), 150);
    assert_eq!(thread.turn(16_000, &[1; 16]).iter().sum::<u32>(), 24);
    assert_eq!(thread.turn(100_000, &[1; 100]).iter().sum::<u32>(), 121);
    assert_eq!(thread.missing_us(), 1000);
}

#[test]
fn threads_are_distinguished_and_forgotten() {
    let mut balance = Balance::new(PERIOD_NS);
    let mut batch = Batch::default();
    for slot in [1, 2, 3] {
        let sample = Sample { slot, weight: 1, ..Sample::default() };
        batch.samples.extend([sample; 200]);
    }
    let clock = |key: ThreadKey| match key.0 {
        1 => Some(ThreadCpuReading { cpu_ns: 251 * PERIOD_NS, is_signal_blocked: false }),
        2 => Some(ThreadCpuReading { cpu_ns: 145 * PERIOD_NS, is_signal_blocked: false }),
        // It has exited.
        _ => None,
    };
    balance.correct(&mut batch, 0, |_| 0, clock);
    let of = |slot| -> u32 {
        batch.samples.iter().filter(|it| it.slot == slot).map(|it| it.weight).sum()
    };
    assert_eq!([1, 2, 3].map(of), [250, 150, 200]);
    assert_eq!(balance.checks.len(), 2);
    let exit = Exit { key: (1, 0), tid: 7, time_ns: 0, cpu_ns: None };
    balance.forget(&[exit]);
    assert_eq!(balance.checks.keys().collect::<Vec<_>>(), [&(2, 0)]);
}

#[test]
fn the_first_sample_of_a_thread_stays() {
    let mut batch = Batch::default();
    batch.samples.resize(200, Sample { weight: 1, ..Sample::default() });
    for sample in &mut batch.samples {
        sample.flags = flags::FIRST;
    }
    let clock = |_| Some(ThreadCpuReading { cpu_ns: 0, is_signal_blocked: false });
    Balance::new(PERIOD_NS).correct(&mut batch, 0, |_| 0, clock);
    assert_eq!(batch.samples.len(), 200);
    assert_eq!(batch.samples.iter().map(|sample| sample.weight).sum::<u32>(), 100);
}

#[test]
fn numbers_that_the_target_forged_do_no_harm() {
    let mut balance = Balance::new(PERIOD_NS);
    for cpu_ns in [0, u64::MAX] {
        let mut batch = Batch::default();
        batch.samples.resize(5000, Sample { weight: u32::MAX, ..Sample::default() });
        let clock = |_| Some(ThreadCpuReading { cpu_ns, is_signal_blocked: false });
        balance.correct(&mut batch, u64::MAX, |_| u64::MAX, clock);
    }
}
