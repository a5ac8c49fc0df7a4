//! Programs that may not be attached to: the recording ends with the data that it has, and says
//! why.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{FREQ, PATIENCE, chain, check_names, relay, start, wait_until_in};
use crate::common::{
    Outcome, Trace, as_nobody, needs_recording, program_for_everyone, scratch_dir, skip, together,
    unprivileged_obstacle, variant, wait_until,
};

#[test]
fn a_program_that_cannot_be_attached_to_ends_the_recording_with_what_it_has() {
    needs_recording!();
    let _machine = together();
    let flags = ["-m32", "-nostdlib", "-static", "-fno-pie", "-no-pie"];
    let narrow = variant("narrow", "narrow.c", "cc", &flags);
    if Command::new(&narrow).arg("once").status().is_err() {
        skip!("this kernel runs no 32-bit programs");
    }
    let mut words = chain(&[("one", "main", "wait")]);
    words.push(narrow.display().to_string());
    let (mut target, mut recorder) = start(&words, &["--follow-exec"]);
    wait_until_in(&mut recorder, &target, "one");
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(500));
    target.send(Signal::SIGTERM);
    let outcome = recorder.finish().expect_code(0);
    let text = outcome.text();
    let ended = text.lines().find(|line| line.starts_with("ended ")).expect("a reason");
    assert!(ended.contains("narrow, which is not sampled: ") && ended.contains("32-bit"), "{text}");
    check_names(&outcome.trace, "one", 200);
    target.goes_on_and_ends_by_itself();
    assert!(outcome.trace.view(&["verify"]).contains("clean"));
    let header = outcome.trace.view(&["print", "--tree"]);
    assert!(header.contains("narrow after ") && header.contains("(not sampled: "), "{header}");
}

/// The program enters that mode before the recorder can inspect it.
#[test]
fn a_program_in_strict_mode_ends_the_recording_with_what_it_has() {
    needs_recording!();
    let _machine = together();
    let words = chain(&[("one", "main", "wait"), ("two", "strict", "wait")]);
    let (mut target, mut recorder) = start(&words, &["--follow-exec"]);
    wait_until_in(&mut recorder, &target, "one");
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(500));
    recorder.send(Signal::SIGSTOP);
    target.send(Signal::SIGTERM);
    let status = format!("/proc/{}/status", target.pid());
    let is_strict =
        || std::fs::read_to_string(&status).is_ok_and(|text| text.contains("Seccomp:\t1"));
    assert!(wait_until(PATIENCE, is_strict));
    recorder.send(Signal::SIGCONT);
    let outcome = recorder.finish().expect_code(0);
    let text = outcome.text();
    let ended = text.lines().find(|line| line.starts_with("ended ")).expect("a reason");
    assert!(ended.contains("relay_two, which is not sampled: "), "{text}");
    assert!(ended.contains("strict seccomp mode"), "{text}");
    check_names(&outcome.trace, "one", 200);
    assert_eq!(outcome.trace.folded().count_of("burn_two"), 0);
    assert!(outcome.trace.view(&["verify"]).contains("clean"));
    target.goes_on_and_ends_by_itself();
}

/// The second program belongs to another user, or is not dumpable because the user cannot read it.
#[test]
fn a_program_that_is_protected_ends_the_recording_with_what_it_has() {
    needs_recording!();
    let _machine = together();
    if let Some(obstacle) = unprivileged_obstacle() {
        skip!("{obstacle}");
    }
    for mode in ["4755", "0711"] {
        let dir = scratch_dir();
        let copy = |who: &str| program_for_everyone(&PathBuf::from(relay(who)), dir.path());
        let (first, second) = (copy("one"), copy("two"));
        let chmod = Command::new("chmod").arg(mode).arg(&second).status().expect("chmod");
        assert!(chmod.success());
        let traceprof = PathBuf::from(env!("CARGO_BIN_EXE_traceprof"));
        let Some(mut command) = as_nobody(&program_for_everyone(&traceprof, dir.path())) else {
            skip!("needs root to become another user");
        };
        let trace = Trace::new();
        command.args(["record", "--follow-exec", "--freq", FREQ, "--output"]).arg(trace.path());
        command.arg("--").arg(first).args(["main", "400"]).arg(&second).args(["main", "300"]);
        let outcome = Outcome { output: command.output().expect("traceprof"), trace };
        let outcome = outcome.expect_code(17);
        let text = outcome.text();
        let ended = text.lines().find(|line| line.starts_with("ended ")).expect("a reason");
        assert!(ended.contains("not sampled: the target is protected"), "{mode}: {text}");
        assert!(text.contains("exited with code 17"), "{text}");
        check_names(&outcome.trace, "one", 300);
        assert_eq!(outcome.trace.folded().count_of("burn_two"), 0);
    }
}
