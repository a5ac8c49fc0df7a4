//! The `signal` engine: what a program may do with its signals, and which threads are sampled.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{
    Outcome, Recorder, Snapshot, Target, Trace, alone, child_named, cpu_clock, is_long_run,
    needs_recording, program, record_command, record_cpu, skip, together, traceprof, wait_until,
};

const SECOND: Duration = Duration::from_secs(1);
const SIGNAL: &str = "perf task clock, ignorable signal";

/// Whether events sample the kernel, too. If not, new threads are sampled in user mode only.
fn has_kernel(outcome: &Outcome) -> bool {
    outcome.trace.number("kernel_included") == 1
}

#[test]
fn started_programs_are_sampled_at_the_asked_rate_from_their_first_instruction() {
    needs_recording!();
    let _machine = alone();
    const FREQ: f64 = 1997.0;
    let freq = FREQ.to_string();
    let outcome = record_command(&["--freq", &freq], "exitcode", &["42", "1000", "0"]);
    let outcome = outcome.expect_code(0);
    let text = outcome.text();
    assert!(text.contains(SIGNAL) && text.contains("starts"), "{text}");
    let sampled_ms = outcome.trace.folded().count_of("first_phase") as f64 * 1000.0 / FREQ;
    assert!((950.0..1050.0).contains(&sampled_ms), "{sampled_ms:.0} ms of 1000 ms");
    // Timers would take a sample at each tick of the kernel, of which no kernel has more than 1000.
    assert!(outcome.trace.number("samples") > 1500, "{text}");
}

#[test]
fn a_program_that_resets_its_signals_lives_and_is_sampled_on() {
    needs_recording!();
    let _machine = together();
    for what in ["default", "own", "urgent", "all"] {
        let mut target = Target::start("trap_reset", &[what]);
        let pid = target.pid().to_string();
        let options = ["--engine", "signal", "--freq", "1999", "--duration", "600"];
        let mut recorder = Recorder::start(&[&["--pid", &pid][..], &options].concat());
        recorder.wait_until_attached(target.pid());
        recorder.wait_for_cpu(target.pid(), SECOND / 2);
        target.send(Signal::SIGUSR1);
        recorder.wait_for_cpu(target.pid(), 3 * SECOND);
        recorder.send(Signal::SIGINT);
        let outcome = recorder.finish().expect_code(0);
        let (text, folded) = (outcome.text(), outcome.trace.folded());
        assert!(folded.count_of("before_the_reset") > 500, "{what}: {text}");
        assert!(folded.count_of("after_the_reset") > 3000, "{what}: {text}");
        let notices = |part: &str| {
            text.lines().filter(|line| line.starts_with("note:") && line.contains(part)).count()
        };
        let (others, without) = (notices("continues with SIGWINCH"), notices("without a signal"));
        let expected = match what {
            "default" | "own" => (0, 0),
            "urgent" => (1, 0),
            // It resets the other signal, too.
            _ => (1, 1),
        };
        assert_eq!((others, without), expected, "{what}: {text}");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("maps");
        assert!(!maps.contains("/SYSV"), "{what}: the agent is left: {text}");
        target.goes_on_and_ends_by_itself();
        assert_eq!(target.fact("handled") > 0, what == "urgent", "{what}: {text}");
    }
}

/// With SIGTRAP, most of these programs would die.
#[test]
fn programs_that_reset_their_signals_at_any_moment_live() {
    needs_recording!();
    let _machine = together();
    let programs = if is_long_run() { 500 } else { 16 };
    for number in 0..programs {
        let before_ms = (number * 7 % 20).to_string();
        let args = ["43", &before_ms, "10", "reset"];
        let outcome = record_command(&["--freq", "4999"], "exitcode", &args).expect_code(0);
        let text = outcome.text();
        assert!(text.contains(SIGNAL), "{text}");
        assert!(text.contains("exited with code 43"), "number {number}: {text}");
    }
}

#[test]
fn sleepers_get_no_eintr_from_events() {
    needs_recording!();
    let _machine = together();
    for call in ["nanosleep", "poll", "read", "futex", "sigwait"] {
        let mut target = Target::start("sleeper", &[call, "burn"]);
        let options = ["--engine", "signal", "--freq", "4999"];
        let outcome = record_cpu(target.pid(), SECOND / 2, &options);
        assert!(outcome.trace.folded().count_of("burn") > 1000, "{call}");
        target.goes_on_and_ends_by_itself();
        assert_eq!((target.fact("eintr"), target.fact("other")), (0, 0), "{call}");
    }
}

#[test]
fn threads_that_nap_have_samples_and_no_eintr() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("naps", &[]);
    let options = ["--engine", "signal", "--freq", "4999"];
    let outcome = record_cpu(target.pid(), 2 * SECOND, &options);
    target.goes_on_and_ends_by_itself();
    let text = outcome.text();
    assert!(outcome.trace.folded().count_of("between_naps") > 1000, "{text}");
    for kind in 0..3 {
        let eintr = target.fact(&format!("eintr_{kind}"));
        let naps = target.fact(&format!("naps_{kind}"));
        assert_eq!(eintr, 0, "kind {kind}, {naps} naps: {text}");
    }
}

#[test]
fn a_thread_that_blocks_the_signal_is_sampled_without_it() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("blocked", &[]);
    let options = ["--engine", "signal", "--freq", "999"];
    let outcome = record_cpu(target.pid(), 2 * SECOND, &options);
    let (text, folded) = (outcome.text(), outcome.trace.folded());
    target.goes_on_and_ends_by_itself();
    // How much each gets is up to the machine.
    let [blocked, open] = ["blocked_work", "open_work"].map(|name| folded.percent_of(name));
    assert!(blocked > 10.0 && open > 10.0, "{blocked:.1} % and {open:.1} %\n{text}");
    assert!(blocked + open > 97.0, "{blocked:.1} % and {open:.1} %\n{text}");
    assert!(text.lines().all(|line| !line.starts_with("not sampled")), "{text}");
    let used_ns = outcome.trace.number("cpu_time_ns") as f64;
    let sampled = outcome.trace.number("weight_sum") as f64 * 1e9 / 999.0 / used_ns;
    assert!((0.96..1.04).contains(&sampled), "{:.1} %\n{text}", sampled * 100.0);
}

/// Returns the share of the threads' CPU time that their samples stand for.
fn share_of_short_threads(target: &Target, outcome: &Outcome, freq: f64) -> f64 {
    let whole_ns = target.fact("all_ns") as f64;
    let in_threads = target.fact("threads_ns") as f64 / whole_ns;
    let used_ns = outcome.trace.number("cpu_time_ns") as f64 * in_threads;
    let periods = outcome.trace.periods_by_label().get("short").copied().unwrap_or(0);
    periods as f64 * 1e9 / freq / used_ns
}

#[test]
fn threads_of_a_millisecond_have_their_cpu_time() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("shortlived", &[]);
    let options = ["--engine", "signal", "--freq", "9973"];
    let outcome = record_cpu(target.pid(), 2 * SECOND, &options);
    if !has_kernel(&outcome) {
        skip!("perf_event_paranoid: time in the kernel is not sampled here");
    }
    target.goes_on_and_ends_by_itself();
    let share = share_of_short_threads(&target, &outcome, 9973.0);
    assert!((0.95..1.05).contains(&share), "{:.1} %\n{}", 100.0 * share, outcome.text());
}

#[test]
fn threads_of_a_millisecond_have_their_cpu_time_in_a_started_program() {
    needs_recording!();
    let _machine = alone();
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--stats", "--freq", "9973"]);
    command.args(["--exit-code", "recording"]);
    command.arg("--output").arg(trace.path()).arg("--").arg(program("shortlived"));
    let mut recorder = Recorder::spawn(command, trace);
    let (parent, mut pid) = (recorder.pid(), None);
    assert!(wait_until(Duration::from_secs(60), || {
        pid = child_named(parent, "shortlived");
        pid.is_some_and(|pid| cpu_clock(pid) > 2 * SECOND)
    }));
    let pid = nix::unistd::Pid::from_raw(pid.expect("the program"));
    nix::sys::signal::kill(pid, Signal::SIGTERM).expect("the program");
    let outcome = recorder.finish().expect_code(0);
    let text = outcome.text();
    assert!(text.contains(SIGNAL), "{text}");
    if !has_kernel(&outcome) {
        skip!("perf_event_paranoid: time in the kernel is not sampled here");
    }
    let used = outcome.trace.number("cpu_time_ns") as f64;
    let sampled = outcome.trace.number("weight_sum") as f64 * 1e9 / 9973.0 / used;
    assert!((0.95..1.03).contains(&sampled), "{:.1} %\n{text}", sampled * 100.0);
    let by_label = outcome.trace.periods_by_label();
    let short = by_label.get("short").copied().unwrap_or(0) as f64;
    let all: u64 = by_label.values().sum();
    assert!(short / all as f64 > 0.8, "{short} of {all} periods\n{text}");
}

#[test]
fn events_with_a_harmless_signal_leave_nothing() {
    needs_recording!();
    let _machine = together();
    for name in ["split", "threads"] {
        let mut target = Target::start(name, &[]);
        let before = Snapshot::take(target.pid());
        let outcome = record_cpu(target.pid(), SECOND, &["--engine", "signal", "--freq", "997"]);
        assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0], "{name}");
        let share = outcome.trace.number("weight_sum") as f64 / 997.0 * 1e9
            / outcome.trace.number("cpu_time_ns") as f64;
        assert!((0.95..1.05).contains(&share), "{name}: {share:.3} of its CPU time");
        target.goes_on_and_ends_by_itself();
    }
}
