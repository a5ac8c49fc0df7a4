//! `--max-overhead`: rates that are lowered during a recording, and weights that stay right.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::wait::{Id, WaitPidFlag, waitid};
use traceprof::trace::{self, Value};
use traceprof_abi::storage::log::flags::REMAINDER;

use crate::common::{
    Outcome, Recorder, Target, alone, cpu_clock, needs_recording, record_cpu, record_cpu_and_end,
    record_team, skip,
};

/// A rate that no budget of a few percent allows.
const FAST: [&str; 2] = ["--freq", "10000"];
const PERIOD_NS: f64 = 1e9 / 10_000.0;

/// Returns the times at which the rate changed and the divisor from then on, from the trace.
fn changes(outcome: &Outcome) -> Vec<(u64, u64)> {
    let Value::List(list) = outcome.trace.metadata("rate_changes") else {
        panic!("rate_changes is no list");
    };
    let change = |change: &Value| match change {
        Value::List(pair) => match pair[..] {
            [Value::Unsigned(time_ns), Value::Unsigned(divisor)] => (time_ns, divisor),
            _ => panic!("{change:?}"),
        },
        _ => panic!("{change:?}"),
    };
    list.iter().map(change).collect()
}

/// Returns the line of the closing report that begins with this label.
fn line(outcome: &Outcome, label: &str) -> String {
    let text = outcome.text();
    let line = text.lines().find(|line| line.starts_with(label));
    line.unwrap_or_else(|| panic!("no line {label}\n{text}")).to_owned()
}

/// The weights of an expiry in user mode and of one in the kernel, which is greater, together, in
/// periods of the rate.
const BOTH_EXPIRIES: f64 = 1.0 + 2.4;

/// Checks that the sum of the weights is the CPU time of the target within two percent, plus an
/// expiry of each kind for each thread.
fn check_sum(outcome: &Outcome, threads: u64) {
    let slowest = changes(outcome).iter().map(|(_, divisor)| *divisor).max().unwrap_or(1);
    let used_ns = outcome.trace.number("cpu_time_ns") as f64;
    let sampled_ns = outcome.trace.number("weight_sum") as f64 * PERIOD_NS;
    let expiries_ns = (threads * slowest) as f64 * BOTH_EXPIRIES * PERIOD_NS;
    let off_ns = (sampled_ns - used_ns).abs();
    assert!(
        off_ns <= 0.02 * used_ns + expiries_ns,
        "{sampled_ns} of {used_ns}\n{}",
        outcome.text()
    );
}

/// Standard deviations by which a number of samples may differ: one test in a million fails by
/// chance.
const CHANCE: f64 = 5.0;

/// Returns the weights of the samples that are expiries. The others are estimates for threads that
/// exited.
fn weights(outcome: &Outcome) -> Vec<f64> {
    let trace = trace::load(&outcome.trace.path()).expect("a trace");
    let mut weights = Vec::new();
    for thread in &trace.threads {
        thread.for_each_sample(&mut |sample, _| {
            let is_expiry = sample.flags & REMAINDER == 0;
            weights.extend(is_expiry.then_some(f64::from(sample.weight)));
        });
    }
    weights
}

/// Returns the greatest number of expiries that the rates allow with this many threads at a time.
/// It assumes that all CPU time is spent while the rate is at its highest.
fn most_expiries(outcome: &Outcome, threads: u64) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let at_once = threads.min(cores) as f64;
    let number = |key: &str| outcome.trace.number(key);
    let (mut from, mut divisor) = (number("start_monotonic_ns"), 1);
    let mut spans = Vec::new();
    let end = (number("end_monotonic_ns"), 1);
    for (time_ns, next) in changes(outcome).into_iter().chain([end]) {
        spans.push((divisor, (time_ns - from) as f64 * at_once));
        (from, divisor) = (time_ns, next);
    }
    spans.sort_by_key(|(divisor, _)| *divisor);
    let mut left_ns = number("cpu_time_ns") as f64;
    let in_span = |(divisor, most_ns): &(u64, f64)| {
        let used_ns = most_ns.min(left_ns);
        left_ns -= used_ns;
        used_ns / PERIOD_NS / *divisor as f64
    };
    spans.iter().map(in_span).sum()
}

/// Checks that changes of the rate are reported and kept, and that the number of samples fits them.
fn check_rate_changes(outcome: &Outcome, threads: u64) {
    let changes = changes(outcome);
    let (begin, end) = ("start_monotonic_ns", "end_monotonic_ns");
    let (begin, end) = (outcome.trace.number(begin), outcome.trace.number(end));
    let mut before = 1;
    for (time_ns, divisor) in &changes {
        assert!((begin..=end).contains(time_ns), "{time_ns} of {begin} to {end}");
        assert!(divisor.is_power_of_two() && *divisor != before, "{changes:?}");
        before = *divisor;
    }
    // On a processor with fast signals the rate is raised again later.
    let is_lowered = changes.iter().any(|(_, divisor)| *divisor > 1);
    assert!(is_lowered, "the rate was not lowered: {changes:?}\n{}", outcome.text());
    assert!(line(outcome, "rate").contains("for --max-overhead"), "{}", outcome.text());
    assert!(line(outcome, "cost").contains(" of --max-overhead"), "{}", outcome.text());
    let printed = outcome.trace.view(&["print", "--tree"]);
    assert!(printed.contains("for --max-overhead"), "{printed}");
    // No thread has more expiries than the rates allow, plus one that had begun before a change.
    let (most, expiries) = (most_expiries(outcome, threads), weights(outcome).len() as f64);
    let begun = (threads * (changes.len() as u64 + 1)) as f64;
    assert!(
        expiries <= most + CHANCE * most.sqrt() + begun,
        "{expiries} of {most}, {changes:?}\n{}",
        outcome.text()
    );
}

fn record_busy(options: &[&str]) -> (Target, Outcome) {
    let each = Duration::from_millis(1300);
    record_team("busy_named", &["3", "1300"], each * 3, &[&FAST[..], options].concat())
}

#[test]
fn events_are_slowed_down_for_a_budget_and_weights_add_up() {
    needs_recording!();
    let _machine = alone();
    let (target, outcome) = record_busy(&["--engine", "perf", "--max-overhead", "5%"]);
    check_rate_changes(&outcome, 3);
    check_sum(&outcome, 3);
    // Each process has its own.
    let slowest = changes(&outcome).iter().map(|(_, divisor)| *divisor).max().unwrap_or(1);
    let by_label = outcome.trace.periods_by_label();
    for thread in 0..3 {
        let name = format!("busy-{thread}");
        let sampled_ns = crate::common::periods_of(&by_label, &name) as f64 * PERIOD_NS;
        let used_ns = target.fact(&format!("used_{thread}")) as f64;
        let most_ns = 0.03 * used_ns + 2.0 * BOTH_EXPIRIES * slowest as f64 * PERIOD_NS;
        assert!((sampled_ns - used_ns).abs() < most_ns, "{name}: {sampled_ns} of {used_ns}");
    }
}

#[test]
fn events_with_a_harmless_signal_are_slowed_down_for_a_budget_and_weights_add_up() {
    needs_recording!();
    let _machine = alone();
    let (_, outcome) = record_busy(&["--engine", "signal", "--max-overhead", "5%"]);
    check_rate_changes(&outcome, 3);
    check_sum(&outcome, 3);
}

#[test]
fn timers_are_slowed_down_for_a_budget_and_weights_add_up() {
    needs_recording!();
    let _machine = alone();
    // Less than one signal a tick takes.
    let (_, outcome) = record_busy(&["--engine", "timer", "--max-overhead", "0.05%"]);
    check_rate_changes(&outcome, 3);
    check_sum(&outcome, 3);
    let expiries = outcome.trace.number("timer_hits") as f64;
    let seconds = outcome.trace.number("cpu_time_ns") as f64 / 1e9;
    assert!(expiries / seconds < 60.0, "{expiries} expiries in {seconds} s\n{}", outcome.text());
}

#[test]
fn shares_of_functions_are_right_at_a_rate_that_changes() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("split", &[]);
    let options = [&FAST[..], &["--engine", "perf", "--max-overhead", "8%"]].concat();
    let outcome = record_cpu(target.pid(), Duration::from_secs(5), &options);
    target.goes_on_and_ends_by_itself();
    check_rate_changes(&outcome, 1);
    check_sum(&outcome, 1);
    let (folded, weights) = (outcome.trace.folded(), weights(&outcome));
    // The number of samples that would give the same precision if all had the same weight.
    let squares: f64 = weights.iter().map(|weight| weight * weight).sum();
    let draws = weights.iter().sum::<f64>().powi(2) / squares;
    let own = ["alpha", "beta", "gamma"].map(|name| target.fact(&format!("{name}_ns")) as f64);
    for (name, own_ns) in ["alpha", "beta", "gamma"].iter().zip(own) {
        let truth = own_ns / own.iter().sum::<f64>();
        let share = folded.percent_of(&format!("kernel_{name}")) / 100.0;
        let error = (truth * (1.0 - truth) / draws).sqrt();
        let text = || format!("{name}: {share} of {truth}, {draws} draws\n{}", outcome.text());
        assert!((share - truth).abs() < CHANCE * error, "{}", text());
    }
}

#[test]
fn a_huge_budget_changes_nothing_and_the_cost_is_reported_without_one() {
    needs_recording!();
    let _machine = alone();
    for options in [&["--max-overhead", "100%"][..], &[]] {
        let target = Target::start("split", &[]);
        let slow = ["--engine", "perf", "--freq", "999", "--no-kernel"];
        let options = [&slow[..], options].concat();
        let outcome = record_cpu_and_end(target, Duration::from_secs(2), &options);
        assert!(line(&outcome, "cost").contains("the recorder used"), "{}", outcome.text());
        assert!(!line(&outcome, "rate").contains("--max-overhead"), "{}", outcome.text());
        let due = outcome.trace.number("cpu_time_ns") as f64 / 1e9 * 999.0;
        let samples = outcome.trace.number("samples") as f64;
        assert!((0.9..1.05).contains(&(samples / due)), "{samples} of {due}\n{}", outcome.text());
        let expiries = outcome.trace.number("cost_hits") as f64;
        assert!((0.95..1.1).contains(&(expiries / samples)), "{expiries} for {samples} samples");
        let [handlers, delivery] = ["cost_handlers_ns", "cost_delivery_ns"]
            .map(|key| outcome.trace.number(key) as f64 / expiries);
        assert!((50.0..200_000.0).contains(&handlers), "{handlers} ns in a handler");
        assert!((200.0..500_000.0).contains(&delivery), "{delivery} ns for a delivery");
        if options.contains(&"100%") {
            assert_eq!(changes(&outcome), []);
        }
    }
}

#[test]
fn time_in_the_kernel_adds_up_at_a_lower_rate() {
    needs_recording!();
    let _machine = alone();
    let target = Target::start("reader", &[]);
    let options = [&FAST[..], &["--engine", "perf", "--max-overhead", "4%"]].concat();
    let outcome = record_cpu(target.pid(), Duration::from_secs(4), &options);
    drop(target);
    check_rate_changes(&outcome, 1);
    if outcome.trace.number("kernel_included") == 0 {
        skip!("perf_event_paranoid: time in the kernel is not sampled here");
    }
    check_sum(&outcome, 1);
}

#[test]
fn threads_of_a_millisecond_have_their_cpu_time_at_a_lower_rate() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("shortlived", &[]);
    let pid = target.pid().to_string();
    let options = ["--engine", "perf", "--max-overhead", "1%", "--duration", "3600"];
    let args = [&["--pid", &pid][..], &FAST, &options].concat();
    let mut recorder = Recorder::start(&args);
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_secs(3));
    recorder.send(nix::sys::signal::Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    let whole_ns = cpu_clock(target.pid()).as_nanos() as f64;
    target.goes_on_and_ends_by_itself();
    check_rate_changes(&outcome, 1);
    let in_threads = (target.fact("threads_ns") as f64 / whole_ns).min(1.0);
    let used_ns = outcome.trace.number("cpu_time_ns") as f64 * in_threads;
    let periods = outcome.trace.periods_by_label().get("short").copied().unwrap_or(0);
    let share = periods as f64 * PERIOD_NS / used_ns;
    assert!((0.9..1.1).contains(&share), "{:.1} %\n{}", 100.0 * share, outcome.text());
}

/// Returns, for each process, the reported CPU time of the signals and of the recorder.
fn charged(outcome: &Outcome) -> Vec<(u64, u64)> {
    let metadata = outcome.trace.objects("METADATA");
    let number = |key: &str| key.strip_prefix("process.")?.parse::<u32>().ok();
    // The recorder writes an entry when it attaches to a process, and another at its end.
    let of = |it: &serde_json::Value| {
        let (key, fields) = (number(it["key"].as_str()?)?, it["value"].as_array()?);
        Some((key, (fields.get(9)?.as_u64()?, fields.get(10)?.as_u64()?)))
    };
    let last: BTreeMap<u32, (u64, u64)> = metadata.iter().filter_map(of).collect();
    last.into_values().collect()
}

#[test]
fn several_processes_are_charged_together_what_the_recorder_uses_at_most() {
    needs_recording!();
    let _machine = alone();
    let targets = [(); 3].map(|()| Target::start("prey", &["spin"]));
    let pids = targets.each_ref().map(|it| it.pid().to_string()).join(",");
    let args = [&["--pid", &pids][..], &FAST, &["--max-overhead", "40%"]].concat();
    let mut recorder = Recorder::start(&args);
    targets.iter().for_each(|it| recorder.wait_until_attached(it.pid()));
    for target in &targets {
        recorder.wait_for_cpu(target.pid(), Duration::from_millis(700));
    }
    recorder.send(nix::sys::signal::Signal::SIGINT);
    // Until the process is reaped, its clock shows all the CPU time that it used.
    let pid = nix::unistd::Pid::from_raw(recorder.pid());
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    waitid(Id::Pid(pid), flags).expect("the end of the recorder");
    let used_ns = cpu_clock(pid.as_raw()).as_nanos() as u64;
    let outcome = recorder.finish().expect_code(0);
    let charged = charged(&outcome);
    assert!(charged.len() == 3 && charged.iter().all(|(_, ns)| *ns > 0), "{charged:?}");
    let sum = |part: fn(&(u64, u64)) -> u64| charged.iter().map(part).sum::<u64>();
    let (signals_ns, recorder_ns) = (sum(|it| it.0), sum(|it| it.1));
    assert_eq!(outcome.trace.number("cost_recorder_ns"), recorder_ns);
    let target_ns = ["cost_handlers_ns", "cost_delivery_ns"].map(|key| outcome.trace.number(key));
    assert_eq!(target_ns.iter().sum::<u64>(), signals_ns);
    // The guardians are processes of their own, with an attach and a restore each.
    let guardians_ns = 3 * 50_000_000;
    assert!(recorder_ns <= used_ns + guardians_ns, "{charged:?} of {used_ns}");
    // The difference is before the first attach and after the last restore.
    assert!(recorder_ns >= used_ns / 4, "{charged:?} of {used_ns}");
    assert!(line(&outcome, "cost").contains("of the targets' CPU time"), "{}", outcome.text());
}
