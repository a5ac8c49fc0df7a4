//! Exit codes that need a recording, each from the command line.

use std::process::Command;
use std::time::Duration;

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::common::{
    Outcome, Recorder, Snapshot, Target, Trace, has_command, needs_fault_points, needs_recording,
    record_cpu, script, skip, together, traceprof, wait_until,
};

fn summary(outcome: &Outcome) -> serde_json::Value {
    serde_json::from_slice(&outcome.output.stdout).expect("one object")
}

#[test]
fn stacks_that_end_early_are_a_quality_below_the_requested_one() {
    needs_recording!();
    let _machine = together();
    let target = Target::start("variable_frame", &[]);
    let pid = target.pid().to_string();
    let args = ["--pid", &pid, "--json", "--freq", "997", "--fail-under", "100"];
    let mut recorder = Recorder::start(&args);
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(5);
    let summary = summary(&outcome);
    assert_eq!(summary["exit_code"], 5);
    assert!(summary["quality_percent"].as_f64() < Some(100.0), "{summary}");
    let reason = summary["reason"].as_str().expect("a reason");
    assert!(reason.contains("--fail-under") && reason.contains("is written"), "{reason}");
    assert!(outcome.trace.path().exists());
}

/// A program without functions of the language has no quality, which is too low.
#[test]
fn names_of_a_language_are_a_quality_too() {
    needs_recording!();
    if !has_command("/usr/bin/python3") {
        skip!("python3: not installed");
    }
    let _machine = together();
    let mut python = Command::new("/usr/bin/python3");
    python.arg(script("work.py"));
    let target = Target::spawn(python);
    let options = ["--freq", "997", "--json", "--fail-under", "50", "--fail-under", "python=90"];
    let outcome = record_cpu(target.pid(), Duration::from_millis(500), &options);
    let named = summary(&outcome)["named_percent"]["python"].as_f64();
    assert!(named >= Some(90.0), "{named:?}");
    assert!(outcome.text().contains("samples have a name"), "{}", outcome.text());

    let target = Target::start("steady", &[]);
    let pid = target.pid().to_string();
    let options = ["--pid", &pid, "--json", "--duration", "300ms", "--fail-under", "python=0"];
    let outcome = Recorder::start(&options).finish().expect_code(5);
    let summary = summary(&outcome);
    let reason = summary["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("no sample has a Python function"), "{reason}");
    assert_eq!(summary["named_percent"], serde_json::json!({}), "{summary}");
}

/// The kernel's frame alone does not fit on the target's alternate stacks.
#[test]
fn a_target_that_dies_while_it_is_sampled_is_reported() {
    needs_recording!();
    let _machine = together();
    for engine in ["perf", "timer"] {
        let target = Target::start("edge", &["alternate", "-256"]);
        let pid = target.pid().to_string();
        let args = ["--pid", &pid, "--json", "--freq", "997", "--engine", engine];
        let outcome = Recorder::start(&args).finish().expect_code(12);
        let summary = summary(&outcome);
        if engine == "timer" && summary["ended"].is_null() {
            expect_death_during_attach(&outcome, &pid);
            continue;
        }
        let died = format!("SIGSEGV ended process {pid} while it was sampled");
        assert_eq!(summary["ended"], died, "{summary}");
        let reason = summary["reason"].as_str().expect("a reason");
        assert!(reason.starts_with(&died) && reason.contains("is written"), "{reason}");
        assert!(outcome.trace.path().exists());
    }
}

/// The first expiry of a timer can come as early as this crash.
#[test]
fn a_target_that_dies_during_the_attach_is_reported() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let target = Target::start("steady", &[]);
    let pid = target.pid().to_string();
    let mut command = traceprof(&["record", "--pid", &pid, "--json", "--engine", "timer"]);
    command.env("TRACEPROF_FAULT", "MapSeen=crash,EntryStopped=stall");
    let outcome = Recorder::spawn(command, Trace::new()).finish().expect_code(12);
    expect_death_during_attach(&outcome, &pid);
}

fn expect_death_during_attach(outcome: &Outcome, pid: &str) {
    let summary = summary(outcome);
    let died = format!("SIGSEGV ended process {pid} during the attach");
    let reason = summary["reason"].as_str().expect("a reason");
    assert!(reason.starts_with(&died), "{summary}");
    assert!(!outcome.trace.path().exists());
}

/// A debugger that attaches during the recording prevents the detach.
#[test]
fn residue_in_the_target_has_a_code_and_can_be_removed() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let raw_pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--json", "--freq", "997", "--pid", &raw_pid]);
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
    let pid = Pid::from_raw(target.pid());
    ptrace::seize(pid, ptrace::Options::empty()).expect("a tracer during the recording");
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(11);
    // The target stops at a sample's signal or at this signal.
    target.send(Signal::SIGSTOP);
    waitpid(pid, Some(WaitPidFlag::__WALL)).expect("a stop");
    ptrace::detach(pid, None).expect("detach");
    target.send(Signal::SIGCONT);
    let summary = summary(&outcome);
    assert_ne!(summary["left_in_target"], serde_json::json!([]), "{summary}");
    let advice = format!("traceprof detach --pid {raw_pid}");
    assert!(summary["reason"].as_str().expect("a reason").contains(&advice), "{summary}");
    let removed = traceprof(&["detach", "--pid", &raw_pid]).output().expect("traceprof");
    assert_eq!(removed.status.code(), Some(0), "{}", String::from_utf8_lossy(&removed.stderr));
    expect_as_before(&before, &target);
    target.goes_on_and_ends_by_itself();
}

/// Checks that nothing of the recording remains in the target.
fn expect_as_before(before: &Snapshot, target: &Target) {
    let differences = || before.differences(&Snapshot::take(target.pid()));
    let is_over = wait_until(Duration::from_secs(10), || differences().is_empty());
    assert!(is_over, "{:#?}", differences());
}

#[test]
fn a_second_signal_does_not_wait_for_anything() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let mut command = traceprof(&["record", "--pid", &target.pid().to_string()]);
    command.env("TRACEPROF_FAULT", "RecordEnding=hang");
    let mut recorder = Recorder::spawn(command, Trace::new());
    recorder.wait_until_attached(target.pid());
    recorder.send(Signal::SIGINT);
    // A second signal within half a second counts as the same request.
    std::thread::sleep(Duration::from_millis(600));
    assert!(!recorder.has_exited());
    recorder.send(Signal::SIGINT);
    recorder.finish().expect_code(130);
    expect_as_before(&before, &target);
    target.goes_on_and_ends_by_itself();
}
