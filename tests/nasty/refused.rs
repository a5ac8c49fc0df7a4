//! Targets that cannot be recorded: the refusal comes before any change in them.

use std::path::Path;
use std::process::Command;

use crate::common::{
    Recorder, Snapshot, Target, Trace, as_nobody, needs_recording, program, program_for_everyone,
    scratch_dir, skip, together, traceprof, variant,
};

/// Checks that the recorder refuses the target with this code and a message with all these words,
/// and that the target is unchanged and goes on.
fn refused(mut target: Target, mut command: Command, code: i32, words: &[&str]) {
    let before = Snapshot::take(target.pid());
    command.args(["record", "--duration", "1", "--pid", &target.pid().to_string()]);
    let outcome = Recorder::spawn(command, Trace::new()).finish().expect_code(code);
    let text = outcome.text();
    for word in words {
        assert!(text.contains(word), "no {word:?}: {text}");
    }
    assert_eq!(text.lines().count(), 1, "one message: {text}");
    assert!(!outcome.trace.path().exists(), "a refused recording leaves a file");
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn filter_that_kills_for_our_calls() {
    needs_recording!();
    let _machine = together();
    let target = Target::start("steady", &["4", "lethal"]);
    refused(target, traceprof(&[]), 3, &["seccomp filter", "shmat", "cannot be recorded"]);
}

#[test]
fn program_of_32_bits() {
    needs_recording!();
    let _machine = together();
    let flags = ["-m32", "-nostdlib", "-static", "-fno-pie", "-no-pie"];
    let narrow = variant("narrow", "narrow.c", "cc", &flags);
    let runs = Command::new(&narrow).arg("once").status();
    if !runs.is_ok_and(|status| status.code() == Some(17)) {
        skip!("32-bit programs do not run on this kernel");
    }
    refused(Target::spawn(Command::new(narrow)), traceprof(&[]), 3, &["32-bit", "64-bit x86-64"]);
}

#[test]
fn process_that_is_closed_to_its_own_user() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let steady = program_for_everyone(&program("steady"), dir.path());
    let ours = Path::new(env!("CARGO_BIN_EXE_traceprof"));
    let ours = program_for_everyone(ours, dir.path());
    let (Some(mut target), Some(command)) = (as_nobody(&steady), as_nobody(&ours)) else {
        skip!("root: needed to act as another user");
    };
    target.args(["4", "undumpable"]);
    refused(Target::spawn(target), command, 3, &["not dumpable", "run as root"]);
}

/// Timers would need a signal that nobody waits for.
#[test]
fn program_that_waits_for_every_signal() {
    needs_recording!();
    let _machine = together();
    let target = Target::start("signals", &["waited"]);
    let command = |engine| {
        let mut command = traceprof(&["record", "--engine", engine, "--duration", "1"]);
        command.arg("--pid").arg(target.pid().to_string());
        command
    };
    let outcome = Recorder::spawn(command("timer"), Trace::new()).finish();
    assert!(!matches!(outcome.code(), Some(0 | 4)), "{}", outcome.text());
    assert!(outcome.text().contains("--engine perf"), "{}", outcome.text());
    Recorder::spawn(command("perf"), Trace::new()).finish().expect_code(0);
}
