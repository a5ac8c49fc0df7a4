//! Sample weights against the threads' own CPU clocks.

use std::io::Write;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{
    Outcome, Recorder, Target, alone, cpu_clock, is_long_run, is_root, needs_recording, periods_of,
    record_team, skip, wait_until,
};

/// Timeout of a target's work, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Prints a measurement to stderr, which the harness does not hide for a passing test.
fn report(line: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(std::io::stderr(), "measured: {line}");
}

/// Records threads that use this much CPU time each, from the first to the last instruction of it.
fn record_busy(
    program: &str,
    (threads, each): (usize, Duration),
    options: &[&str],
) -> (Target, Outcome) {
    let (count, ms) = (threads.to_string(), each.as_millis().to_string());
    let options = [&["--freq", "999"], options].concat();
    record_team(program, &[&count, &ms], each * threads as u32, &options)
}

/// Records such threads and checks that the weight of each thread's samples equals its CPU time
/// within this many percent.
fn check_threads(
    program: &str,
    (threads, each): (usize, Duration),
    options: &[&str],
    most_percent: f64,
) {
    let (target, outcome) = record_busy(program, (threads, each), options);
    let by_label = outcome.trace.periods_by_label();
    let (mut worst, mut sum, mut used_ns) = ((0.0f64, 0), 0.0, 0);
    for thread in 0..threads {
        let name = format!("busy-{thread}");
        let count = periods_of(&by_label, &name);
        let own_ns = target.fact(&format!("used_{thread}"));
        let sampled_ns = count as f64 / 999.0 * 1e9;
        let error = 100.0 * (sampled_ns / own_ns as f64 - 1.0);
        worst = if error.abs() > worst.0.abs() { (error, thread) } else { worst };
        sum += sampled_ns;
        used_ns += own_ns;
    }
    let (worst, thread) = worst;
    let whole = 100.0 * (sum / used_ns as f64 - 1.0);
    report(&format!(
        "{threads} threads of {program} {options:?}: worst {worst:+.2} %, all {whole:+.2} %"
    ));
    assert!(worst.abs() < most_percent, "busy-{thread}: {worst:+.2} %\n{}", outcome.text());
}

/// Checks an engine with threads that use seconds of CPU time each, part of it in the kernel.
fn check_engine(options: &[&str]) {
    needs_recording!();
    let _machine = alone();
    check_threads("busy_named", (8, Duration::from_secs(2)), options, 2.0);
    if is_long_run() {
        check_threads("busy_named", (200, Duration::from_secs(5)), options, 2.0);
    }
}

#[test]
fn every_thread_has_its_cpu_time_with_perf_events() {
    check_engine(&["--engine", "perf"]);
}

/// For hundreds of rounds all expiries fall into the work of one family of threads. Unless the
/// thread clocks correct the weights, one thread is off by 2 to 5 %, and nearly always by more than
/// 1 %.
#[test]
fn threads_in_step_with_the_sampler_have_their_cpu_time() {
    needs_recording!();
    let _machine = alone();
    check_threads("lockstep", (2, Duration::from_secs(3)), &["--engine", "perf"], 1.0);
}

#[test]
fn every_thread_has_its_cpu_time_with_timers() {
    check_engine(&["--engine", "timer"]);
}

/// Records the storm. Returns the share of its threads' CPU time that samples cover, and the largest
/// that they can cover. The thread that starts them is left out.
fn record_storm(options: &[&str], cpu: Duration) -> (f64, f64, Outcome) {
    let mut target = Target::start("shortlived", &[]);
    let pid = target.pid().to_string();
    let args = ["--pid", &pid, "--duration", "3600", "--freq", "999"];
    let mut recorder = Recorder::start(&[&args[..], options].concat());
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), cpu);
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("failed"), 0, "threads that could not be created");
    let all_ns = target.fact("all_ns") as f64;
    let threads_ns = target.fact("threads_ns") as f64;
    let used_ns = outcome.trace.number("cpu_time_ns") as f64 * threads_ns / all_ns;
    let periods = outcome.trace.periods_by_label().get("short").copied().unwrap_or(0);
    // The threads read their clocks before they exit, and an exit takes longer beside other work.
    let with_exits = (all_ns - target.fact("starter_ns") as f64) / threads_ns;
    (periods as f64 / 999.0 * 1e9 / used_ns, with_exits, outcome)
}

#[test]
fn a_storm_of_threads_has_its_cpu_time_with_perf_events() {
    needs_recording!();
    let _machine = alone();
    let (share, most, outcome) = record_storm(&["--engine", "perf"], Duration::from_secs(3));
    let measured =
        format!("{:.1} % of its CPU time, or {:.1} % with exits", share * 100.0, most * 100.0);
    report(&format!("storm of 1 ms threads at 999 Hz: {measured}"));
    assert!((0.97..=most + 0.03).contains(&share), "{measured}\n{}", outcome.text());
}

#[test]
fn a_storm_of_threads_has_a_shortfall_with_timers_that_is_reported() {
    needs_recording!();
    let _machine = alone();
    let (share, most, outcome) = record_storm(&["--engine", "timer"], Duration::from_secs(2));
    let text = outcome.text();
    report(&format!("the same with timers: {:.1} %", 100.0 * share));
    assert!(share < most + 0.03, "{:.1} %", 100.0 * share);
    // The thread that starts the others exists all the time.
    let starter = outcome.trace.periods_by_label().get("shortlived").copied().unwrap_or(0);
    let all_ns = outcome.trace.number("cpu_time_ns") as f64;
    let starter = starter as f64 / 999.0 * 1e9 / all_ns;
    report(&format!("of which the thread that starts them has {:.1} %", 100.0 * starter));
    // It uses 2 to 3 %, which is about ten expiries.
    assert!(starter > 0.005, "{:.1} %\n{text}", 100.0 * starter);
    let line = text.lines().find(|line| line.starts_with("CPU time")).expect("an account");
    assert!(line.contains("before threads had their timers"), "{line}");
}

/// Results of a storm that is recorded from its first thread to its last.
struct Storm {
    /// The share of its own CPU time that samples cover, for the thread that starts the others.
    starter: f64,
    /// The share of their CPU time that samples cover, for all other threads together.
    others: f64,
    /// The part of all CPU time that the starting thread uses, by the threads' clocks.
    starter_part: f64,
    outcome: Outcome,
}

/// Records `storm` until its first thread has used this much CPU time.
fn record_short(options: &[&str], each_us: u32, starter: Duration) -> Storm {
    let (each, ms) = (each_us.to_string(), starter.as_millis().to_string());
    let mut target = Target::start("storm", &["16", &each, &ms]);
    let pid = target.pid();
    let pid_text = pid.to_string();
    let args = ["--pid", &pid_text, "--duration", "3600", "--freq", "999"];
    let mut recorder = Recorder::start(&[&args[..], options].concat());
    recorder.wait_until_attached(pid);
    std::thread::sleep(Duration::from_millis(500));
    target.send(Signal::SIGUSR1);
    let name = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    assert!(wait_until(PATIENCE, || name().trim() == "storm-done"), "the target does not exit");
    // A later rotation brings the remainders of the last threads.
    std::thread::sleep(Duration::from_millis(300));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    let periods = outcome.trace.periods_by_label();
    let all: u64 = periods.values().sum();
    // The starting thread renames itself at the end.
    let starter = periods.get("storm-done").copied().unwrap_or(0);
    let (starter_ns, all_ns) = (target.fact("starter_ns"), target.fact("all_ns"));
    let share = |periods: u64, ns: u64| periods as f64 / 999.0 * 1e9 / ns as f64;
    let storm = Storm {
        starter: share(starter, starter_ns),
        others: share(all - starter, all_ns - starter_ns),
        starter_part: starter_ns as f64 / all_ns as f64,
        outcome,
    };
    report(&format!(
        "storm of threads of {each_us} us {options:?}: {:.1} % of the time of who starts them, \
         {:.1} % of theirs",
        100.0 * storm.starter,
        100.0 * storm.others,
    ));
    storm
}

/// The kernel hands the periods that a parent has begun to its children. They are lost when the
/// children exit.
#[test]
fn the_starter_of_a_storm_has_its_cpu_time_with_perf_events() {
    needs_recording!();
    let _machine = alone();
    let storm = record_short(&["--engine", "perf"], 25, Duration::from_secs(3));
    let text = storm.outcome.text();
    assert!((0.98..=1.02).contains(&storm.starter), "{:.1} %\n{text}", 100.0 * storm.starter);
    // Most of the CPU time of these threads is their exit, after the kernel's last event. How much
    // time that is depends on the kernel. The microseconds that they compute before are not lost.
    assert!((0.1..=1.02).contains(&storm.others), "{:.1} %\n{text}", 100.0 * storm.others);
    // Most of it was sampled, so the weight is anchored at samples and not estimated.
    let folded = storm.outcome.trace.folded();
    let share = folded.count_of("main") as f64 / folded.total() as f64;
    let own = storm.starter_part;
    assert!(share > 0.5 * own, "main is in {share:.3}, and uses {own:.3} of the time\n{text}");
}

/// These threads never read their own CPU time. The scheduler last counted it at their last tick or
/// switch.
#[test]
fn threads_shorter_than_a_tick_have_their_cpu_time_with_perf_events() {
    needs_recording!();
    if !is_root() {
        skip!("root: the kernel reports the CPU time of exited threads only to root");
    }
    let _machine = alone();
    let storm = record_short(&["--engine", "perf"], 900, Duration::from_millis(60));
    let text = storm.outcome.text();
    assert!((0.9..=1.02).contains(&storm.others), "{:.1} %\n{text}", 100.0 * storm.others);
}

#[test]
fn the_starter_of_a_storm_has_its_cpu_time_with_timers() {
    needs_recording!();
    let _machine = alone();
    let storm = record_short(&["--engine", "timer"], 25, Duration::from_secs(3));
    let text = storm.outcome.text();
    assert!((0.96..=1.04).contains(&storm.starter), "{:.1} %\n{text}", 100.0 * storm.starter);
    assert!(storm.others < 1.02, "{:.1} %\n{text}", 100.0 * storm.others);
}

/// Returns the share of a process's CPU time that the kernel accounts as user time.
fn user_share(pid: i32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<f64> = fields.split_whitespace().map(|it| it.parse().unwrap_or(0.0)).collect();
    // utime and stime, the fields after the name.
    fields[11] / (fields[11] + fields[12])
}

/// Every expiry at ten thousand a second and core is written or counted as lost.
#[test]
fn no_sample_is_lost_at_ten_kilohertz_on_all_cores() {
    needs_recording!();
    let _machine = alone();
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let seconds = if is_long_run() { 10 } else { 3 };
    let each = Duration::from_secs(seconds);
    let (count, ms) = (cores.to_string(), each.as_millis().to_string());
    let mut target = Target::start("busy_named", &[&count, &ms]);
    let pid = target.pid().to_string();
    let args = ["--pid", &pid, "--duration", "3600", "--engine", "perf", "--no-kernel"];
    let mut recorder = Recorder::start(&[&args[..], &["--freq", "10000"]].concat());
    recorder.wait_until_attached(target.pid());
    std::thread::sleep(Duration::from_millis(500));
    target.send(Signal::SIGUSR1);
    let whole = each * cores as u32;
    assert!(wait_until(PATIENCE, || cpu_clock(target.pid()) > whole), "the target does not run");
    let in_user = user_share(target.pid());
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    let trace = &outcome.trace;
    let lost: u64 = [
        "lost.no thread slot",
        "lost.no hazard slot",
        "lost.overtaken by rotations",
        "lost.log full",
        "lost.control block unusable",
        "lost.log holes",
        "lost.log records unreadable",
        "lost.thread unknown",
    ]
    .into_iter()
    .map(|key| trace.number(key))
    .sum();
    let (samples, puts) = (trace.number("samples"), trace.number("puts"));
    let due = trace.number("cpu_time_ns") as f64 / 1e9 * 10_000.0;
    let share = (samples + lost) as f64 / due;
    report(&format!(
        "{samples} samples at 10 kHz on {cores} cores, {lost} lost and counted: {:.1} %",
        100.0 * share
    ));
    // Each logged sample was stored before. Samples that got no hazard slot or thread slot were not
    // stored.
    let unput = trace.number("lost.no thread slot")
        + trace.number("lost.no hazard slot")
        + trace.number("lost.overtaken by rotations")
        + trace.number("lost.control block unusable");
    assert_eq!(samples + lost - unput, puts, "{}", outcome.text());
    // The remainder is in the kernel, signal delivery included.
    let least = 0.95 * in_user;
    assert!((least..1.01).contains(&share), "{share}, {in_user}\n{}", outcome.text());
    assert!(lost <= samples / 50, "{}", outcome.text());
}
