//! Programs that measure the time of each of their calls with a CPU clock. The shares of the
//! samples must match, within the standard error of random draws.

mod shares;

use std::io::Write;
use std::time::Duration;

use shares::{DRAWS_MIN, Shares};

use crate::common::{Outcome, Target, alone, is_long_run, needs_recording, record_team};

/// The functions of `ratios`. The last three have a leaf in common.
const KINDS: [&str; 7] =
    ["kernel_1", "kernel_2", "kernel_4", "kernel_8", "parent_50", "parent_30", "parent_20"];
/// The function that can be slowed down.
const SLOWED: usize = 3;
/// The share of each thread in the work of all threads, in percent.
const DUTIES: [u64; 4] = [10, 20, 30, 40];

const PERF: &[&str] = &["--engine", "perf", "--freq", "999"];
const TIMER: &[&str] = &["--engine", "timer", "--freq", "999"];
/// The rate that is needed to see a change of one part in twenty.
const FAST: &[&str] = &["--engine", "perf", "--freq", "9973"];

/// Prints a measurement to stderr, which the harness does not hide for a passing test.
fn report(line: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "measured: {line}");
}

/// Returns the CPU time of a recording, which determines the number of draws.
///
/// Timers expire at the kernel's ticks, so on a busy machine their samples stand for many periods.
fn budget(options: &[&str]) -> Duration {
    let seconds = if is_long_run() { 30 } else { 5 };
    Duration::from_secs(if options == TIMER { 2 * seconds } else { seconds })
}

fn record(program: &str, args: &[&str], options: &[&str], whole: Duration) -> (Target, Outcome) {
    let ms = whole.as_millis().to_string();
    record_team(program, &[&[ms.as_str()], args].concat(), whole, options)
}

/// Checks the shares of functions, at any depth, against the times that the target measured.
fn check_functions(target: &Target, outcome: &Outcome, functions: &[&str], title: &str) -> Shares {
    let shares = Shares::of(&outcome.trace.path(), functions);
    let truth: Vec<u64> = functions.iter().map(|name| target.fact(name)).collect();
    report(&shares.row(title, &truth));
    shares.assert_drawn_from(&truth, 0.0, title);
    shares
}

/// Records for four times as long if the samples were too few: timers that expire late stand for
/// many periods each, and how late they are depends on what else the machine does.
fn record_enough(options: &[&str]) -> (Target, Outcome) {
    let whole = budget(options);
    let (target, outcome) = record("ratios", &[], options, whole);
    if Shares::of(&outcome.trace.path(), &KINDS).draws() > DRAWS_MIN {
        return (target, outcome);
    }
    record("ratios", &[], options, 4 * whole)
}

fn check_ratios(options: &[&str], title: &str) {
    needs_recording!();
    let _machine = alone();
    let (target, outcome) = record_enough(options);
    check_functions(&target, &outcome, &KINDS, title);
    // The leaf has its time from its callers, and nobody else calls it.
    let folded = outcome.trace.folded();
    let leaves = folded.count_of("leaf");
    let by_parents: u64 = KINDS[4..].iter().map(|name| folded.count_of_both("leaf", name)).sum();
    assert_eq!(leaves, by_parents, "{}", outcome.text());
    assert!(leaves > 0);
}

#[test]
fn ratios_are_right_with_perf_events() {
    check_ratios(PERF, "ratios, perf");
}

#[test]
fn ratios_are_right_with_timers() {
    check_ratios(TIMER, "ratios, timer");
}

/// Checks the shares of threads. `unseen_ms` is the time that a thread uses before its first and
/// after its last expiry, which does not depend on its total time.
fn check_duties(options: &[&str], unseen_ms: f64, title: &str) {
    needs_recording!();
    let _machine = alone();
    let (target, outcome) = record("duty", &[], options, budget(options));
    let periods = outcome.trace.periods_by_label();
    for (thread, duty) in DUTIES.iter().enumerate() {
        let own_ns = target.fact(&format!("used_{thread}"));
        let sampled = crate::common::periods_of(&periods, &format!("busy-{thread}"));
        let (own_ms, sampled_ms) = (own_ns as f64 / 1e6, sampled as f64 / 0.999);
        let line = format!("{title}: of a duty of {duty} %, {sampled_ms:.0} ms of {own_ms:.0} ms");
        report(&line);
        let off = (sampled_ms - own_ms).abs();
        assert!(off < 0.01 * own_ms + unseen_ms, "{line}\n{}", outcome.text());
    }
}

#[test]
fn duties_are_right_with_perf_events() {
    check_duties(PERF, 3.0, "duty, perf");
}

#[test]
fn duties_are_right_with_timers() {
    check_duties(TIMER, 16.0, "duty, timer");
}

/// A slowdown of one function is visible in that function with its size, and the other functions
/// keep their proportions.
#[test]
fn a_slowdown_shows_in_its_function_and_nowhere_else() {
    needs_recording!();
    let _machine = alone();
    let run = |percent: u64| {
        let (target, outcome) = record("ratios", &[&percent.to_string()], FAST, budget(FAST));
        let title = format!("slowdown of {percent} %");
        check_functions(&target, &outcome, &KINDS, &title)
    };
    let before = run(0);
    // One part in twenty takes a longer recording.
    let slowdowns = if is_long_run() { &[5, 10, 20][..] } else { &[10, 20] };
    for percent in slowdowns {
        let after = run(*percent);
        let slowdown = after.slowdown_since(&before, SLOWED);
        report(&format!("slowdown of {percent} %: {slowdown}"));
        assert!(slowdown.is(*percent as f64 / 100.0), "{percent} %: {slowdown}");
        // Otherwise the test could not see an existing slowdown.
        assert!(!slowdown.is(0.0), "{percent} %: {slowdown}");
        for other in (0..KINDS.len()).filter(|kind| *kind != SLOWED) {
            let unchanged = after.slowdown_of_other_since(&before, other, SLOWED);
            assert!(unchanged.is(0.0), "{}: {unchanged}", KINDS[other]);
        }
    }
}

/// Rounds are nearly as long as a period, so expiries move through a round slowly and pass it only
/// a few times. The incomplete pass is the error that shares may have besides chance.
fn check_in_step(options: &[&str], (round_ns, passes): (u64, f64), title: &str) {
    needs_recording!();
    let _machine = alone();
    let (target, outcome) = record("in_step", &[&round_ns.to_string()], options, budget(options));
    let title = format!("{title}, rounds of {round_ns} ns");
    let functions = ["first_part", "second_part"];
    let shares = Shares::of(&outcome.trace.path(), &functions);
    let truth = functions.map(|name| target.fact(name));
    report(&shares.row(&title, &truth));
    shares.assert_drawn_from(&truth, 0.3 * 0.7 / passes, &title);
}

/// `off` is the share by which a round is longer than a period.
fn check_in_step_with_events(off: f64) {
    let period_ns = 1e9 / 999.0;
    let passes = budget(PERF).as_nanos() as f64 / period_ns * off;
    check_in_step(PERF, ((period_ns * (1.0 + off)) as u64, passes), "in step, perf");
}

#[test]
fn rounds_near_the_period_are_right_with_perf_events() {
    check_in_step_with_events(0.001);
}

#[test]
fn rounds_off_the_period_are_right_with_perf_events() {
    check_in_step_with_events(0.011);
}

/// Expiries of timers come with the kernel's ticks of 1, 4 or 10 ms. These rounds are nearly in
/// step with each of them.
#[test]
fn rounds_in_step_with_the_sampler_are_right_with_timers() {
    const OFF: f64 = 0.001;
    let round_ns = 1e6 * (1.0 + OFF);
    let passes = budget(TIMER).as_nanos() as f64 / round_ns * OFF;
    check_in_step(TIMER, (round_ns as u64, passes), "in step, timer");
}
