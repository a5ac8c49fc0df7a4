//! Outputs in the way, other users' processes, and traces that are damaged.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{
    Recorder, Target, Trace, as_nobody, needs_recording, program, program_for_everyone, record,
    skip, together, traceprof,
};

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_name_that_only_another_users_process_has_is_waited_for() {
    let _machine = together();
    let trace = Trace::new();
    let ours = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), trace.dir());
    // No other process has this name.
    let name = format!("oth{}", std::process::id());
    let theirs = trace.dir().join(&name);
    fs::copy(program("prey"), &theirs).expect("a copy");
    let mut command = Command::new(&theirs);
    command.arg("spin");
    let _target = Target::spawn(command);
    let Some(mut command) = as_nobody(&ours) else { skip!("root: needed to act as two users") };
    command.args(["record", "--wait=300ms", "--name", &format!("^{name}$")]);
    let outcome = Recorder::spawn(command, trace).finish().expect_code(3);
    let text = outcome.text();
    assert!(text.contains("may not be recorded: waiting for another one"), "{text}");
    assert!(text.contains("uid 0"), "the last line gives the reason: {text}");
}

#[test]
fn existing_output_is_replaced_with_force() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let trace = Trace::new();
    fs::write(trace.path(), "precious").expect("a file in the way");
    let pid = target.pid().to_string();
    let command = traceprof(&["record", "--pid", &pid, "--duration", "1", "--force"]);
    let outcome = Recorder::spawn(command, trace).finish().expect_code(0);
    assert!(outcome.trace.view(&["print", "--tree"]).contains("kernel_alpha"));
    target.goes_on_and_ends_by_itself();
}

/// Every prefix of a trace is readable, or is refused with a message.
#[test]
fn truncated_and_damaged_traces() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let outcome = record(target.pid(), 1, &["--freq", "997"]);
    target.goes_on_and_ends_by_itself();
    let data = fs::read(outcome.trace.path()).expect("the trace");
    let path = outcome.trace.dir().join("damaged.trace");
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..60 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let mut damaged = data.clone();
        match round % 2 {
            0 => damaged.truncate(random as usize % data.len()),
            _ => damaged[random as usize % data.len()] ^= 1 << (random >> 60 & 7),
        }
        fs::write(&path, damaged).expect("damaged trace");
        for command in [&["print", "--tree"][..], &["print", "--timeline"], &["dump"]] {
            let output = traceprof(command).arg(&path).output().expect("traceprof");
            assert!(matches!(output.status.code(), Some(0 | 10)), "{command:?}: {}", output.status);
            assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
        }
    }
}
