//! `traceprof detach`: what it removes, what it refuses, and its exit codes.

use std::process::Output;
use std::time::Duration;

use crate::common::{
    Recorder, Snapshot, Target, as_nobody, needs_fault_points, needs_recording, program,
    program_for_everyone, scratch_dir, together, traceprof, wait_until,
};

fn detach(pid: i32) -> Output {
    traceprof(&["detach", "--pid", &pid.to_string()]).output().unwrap()
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Records until the test kills recorder and guardian in the middle of sampling.
fn leave_residue(mut command: std::process::Command, pid: i32) {
    let dir = scratch_dir();
    command.args(["record", "-q", "--pid", &pid.to_string(), "--output"]);
    command.arg(dir.path().join("killed.trace")).env("TRACEPROF_FAULT", "RecordLooped=both");
    assert_eq!(command.status().unwrap().code(), None);
}

#[test]
fn a_process_without_residue_is_left_alone() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("prey", &["spin"]);
    let before = Snapshot::take(target.pid());
    let output = detach(target.pid());
    let text = format!("nothing of a recording is left in process {}\n", target.pid());
    assert_eq!((output.status.code(), message(&output)), (Some(0), text));
    assert_eq!(before, Snapshot::take(target.pid()));
    target.goes_on_and_ends_by_itself();
}

#[test]
fn residue_is_removed_and_reported() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let mut target = Target::start("prey", &["crowd"]);
    let before = Snapshot::take(target.pid());
    leave_residue(traceprof(&[]), target.pid());
    assert!(!before.differences(&Snapshot::take(target.pid())).is_empty());
    let output = detach(target.pid());
    assert_eq!(output.status.code(), Some(0), "{}", message(&output));
    let text = format!("removed from process {}: the agent of a killed recording", target.pid());
    assert!(message(&output).starts_with(&text), "{}", message(&output));
    let differences = || before.differences(&Snapshot::take(target.pid()));
    let clean = wait_until(Duration::from_secs(10), || differences().is_empty());
    assert!(clean, "{:#?}", differences());
    assert!(message(&detach(target.pid())).starts_with("nothing"));
    target.goes_on_and_ends_by_itself();
}

#[test]
fn the_user_of_the_target_may_remove_residue() {
    needs_recording!();
    needs_fault_points!();
    let dir = scratch_dir();
    let copy = program_for_everyone(&program("prey"), dir.path());
    let own = program_for_everyone(env!("CARGO_BIN_EXE_traceprof").as_ref(), dir.path());
    let Some(mut command) = as_nobody(&copy) else { return };
    command.arg("spin");
    let _machine = together();
    let mut target = Target::spawn(command);
    let before = Snapshot::take(target.pid());
    leave_residue(traceprof(&[]), target.pid());
    let mut command = as_nobody(&own).unwrap();
    let output = command.args(["detach", "--pid", &target.pid().to_string()]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", message(&output));
    assert!(message(&output).starts_with("removed"), "{}", message(&output));
    let clean = wait_until(Duration::from_secs(10), || {
        before.differences(&Snapshot::take(target.pid())).is_empty()
    });
    assert!(clean, "{:#?}", before.differences(&Snapshot::take(target.pid())));
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_process_that_is_being_recorded_is_refused_by_name_of_the_recorder() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("prey", &["spin"]);
    let mut recorder = Recorder::start(&["--pid", &target.pid().to_string()]);
    recorder.wait_until_attached(target.pid());
    let output = detach(target.pid());
    assert_eq!(output.status.code(), Some(3), "{}", message(&output));
    let name = format!("another traceprof (pid {}) already records the target", recorder.pid());
    assert!(message(&output).contains(&name), "{}", message(&output));
    recorder.send(nix::sys::signal::Signal::SIGINT);
    recorder.finish();
    target.goes_on_and_ends_by_itself();
}
