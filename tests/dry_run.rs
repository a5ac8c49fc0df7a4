//! `record --dry-run`: what would be done, that it is not, and the refusals of the recording.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{
    Recorder, Snapshot, Target, Trace, needs_recording, record_cpu, together, traceprof,
};

/// What a dry run prints, label by label; the target and the files are as before.
fn steps(target: &Target, options: &[&str]) -> Vec<(String, String)> {
    let trace = Trace::new();
    let before = Snapshot::take(target.pid());
    let mut command = traceprof(&["record", "--dry-run", "--output"]);
    command.arg(trace.path()).args(options).arg("--pid").arg(target.pid().to_string());
    let output = command.output().expect("traceprof");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    let left = std::fs::read_dir(trace.dir()).expect("the place of the trace").count();
    assert_eq!(left, 0, "a file of a dry run");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains(&trace.path().display().to_string()), "{text}");
    let lines = text.lines().map(|line| line.split_once("  ").expect("a label and a text"));
    lines.map(|(label, text)| (label.trim().to_owned(), text.trim().to_owned())).collect()
}

fn of<'a>(steps: &'a [(String, String)], label: &str) -> &'a str {
    let found = steps.iter().find(|(it, _)| it == label);
    &found.unwrap_or_else(|| panic!("no {label} in {steps:?}")).1
}

#[test]
fn steps_are_told_and_none_is_taken() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let told = steps(&target, &["--duration", "2"]);
    assert!(of(&told, "stop").contains(&format!("thread {}", target.pid())), "{told:?}");
    assert!(of(&told, "signals").contains("SIGTRAP"), "{told:?}");
    assert!(of(&told, "end").contains("2.000 s"), "{told:?}");
    for part in ["code 0x", "tables 0x", "data 0x"] {
        assert!(of(&told, "map").contains(part), "{told:?}");
    }
    // The recording itself does so.
    let outcome = record_cpu(target.pid(), Duration::from_millis(200), &[]);
    let engine = of(&told, "engine").split(':').next().expect("a name");
    assert!(outcome.text().contains(engine), "{engine}: {}", outcome.text());
    let timers = steps(&target, &["--engine", "timer"]);
    assert!(of(&timers, "engine").contains("asked for"), "{timers:?}");
    assert!(of(&timers, "signals").contains("SIGURG"), "{timers:?}");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn refusals_are_those_of_the_recording() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let mut first = Recorder::start(&["--pid", &target.pid().to_string(), "--duration", "600"]);
    first.wait_until_attached(target.pid());
    first.wait_for_cpu(target.pid(), Duration::from_millis(200));
    let refused = |extra: &[&str], trace: Trace| {
        let pid = target.pid().to_string();
        let mut command = traceprof(&["record", "--duration", "1", "--pid", &pid]);
        command.args(extra);
        let outcome = Recorder::spawn(command, trace).finish();
        (outcome.code(), outcome.text().replace(&outcome.trace.path().display().to_string(), ""))
    };
    let found = refused(&["--dry-run"], Trace::new());
    assert_eq!(found.0, Some(3), "{}", found.1);
    assert_eq!(found, refused(&[], Trace::new()));
    first.send(Signal::SIGINT);
    first.finish().expect_code(0);
    let existing = || {
        let trace = Trace::new();
        std::fs::write(trace.path(), "precious").expect("a file in the way");
        trace
    };
    let found = refused(&["--dry-run"], existing());
    assert_eq!(found.0, Some(6), "{}", found.1);
    assert_eq!(found, refused(&[], existing()));
    target.goes_on_and_ends_by_itself();
}

#[test]
fn program_is_looked_for_and_not_started() {
    needs_recording!();
    let trace = Trace::new();
    let made = trace.dir().join("made");
    let run = |program: &str| {
        let mut command = traceprof(&["record", "--dry-run", "--output"]);
        command.arg(trace.path()).args(["--", program]).arg(&made).output().expect("traceprof")
    };
    let output = run("touch");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("/touch, held before its first instruction"), "{text}");
    assert!(text.contains("thread CPU timer"), "{text}");
    assert!(!made.exists(), "the program ran");
    assert!(Command::new("touch").arg(&made).status().expect("touch").success() && made.exists());
    let output = run("no-such-program");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-program"));
}
