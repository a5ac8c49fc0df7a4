//! Errors: each has one clear message and the documented exit code, and leaves nothing half done.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::common::{
    Recorder, Target, Trace, as_nobody, is_root, needs_recording, program, program_for_everyone,
    record, scratch_dir, skip, together, traceprof,
};

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn check(args: &[&str], code: i32, message_part: &str) {
    let output = traceprof(args).output().expect("traceprof");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    let is_said = text.to_lowercase().contains(&message_part.to_lowercase());
    assert!(is_said, "{args:?}: no {message_part} in: {text}");
    assert!(!text.contains("panicked"), "{args:?}: {text}");
}

#[test]
fn usage() {
    check(&[], 2, "usage");
    check(&["record"], 2, "--pid");
    check(&["record", "--pid", "12x"], 2, "12x");
    check(&["record", "--pid", "-5"], 2, "-5");
    check(&["record", "--pid", "1", "--freq", "0"], 2, "freq");
    check(&["record", "--pid", "1", "--", "true"], 2, "use either `traceprof record 1` or");
    check(&["no-such-command"], 2, "no-such-command");
    check(&["export", "x.trace", "--format", "no-such-format"], 2, "no-such-format");
}

#[test]
fn help_and_version_are_no_errors() {
    for args in [&["--help"][..], &["--version"], &["record", "--help"]] {
        let output = traceprof(args).output().expect("traceprof");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{args:?}");
    }
}

/// Pid 2 of the outer namespace is a kernel thread or another process.
#[test]
fn a_proc_of_another_pid_namespace_is_noticed() {
    if !is_root() {
        skip!("root: needed for a pid namespace");
    }
    let trace = Trace::new();
    // /proc is not mounted again, so it still shows the outer namespace.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", env!("CARGO_BIN_EXE_traceprof"), "record", "--pid", "2"]);
    let output = command.arg("--output").arg(trace.path()).output().expect("unshare");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("another pid namespace") && !text.contains("kernel thread"), "{text}");
}

#[test]
fn no_such_process() {
    let mut child = Command::new("true").spawn().expect("true");
    let pid = child.id().to_string();
    child.wait().expect("end of true");
    let trace = Trace::new();
    let output = traceprof(&["record", "--pid", &pid, "--duration", "1", "--output"])
        .arg(trace.path())
        .output()
        .expect("traceprof");
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains(&pid), "{}", stderr(&output));
    assert!(!trace.path().exists(), "a file without a recording");
}

#[test]
fn zombie_is_a_process_that_has_exited() {
    let mut child = Command::new("true").spawn().expect("true");
    let pid = child.id().to_string();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let trace = Trace::new();
    let output = traceprof(&["record", "--pid", &pid, "--duration", "1", "--output"])
        .arg(trace.path())
        .output()
        .expect("traceprof");
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(!trace.path().exists(), "a file without a recording");
    child.wait().expect("end of true");
}

#[test]
fn process_of_another_user_is_not_permitted() {
    let _machine = together();
    let trace = Trace::new();
    let ours = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), trace.dir());
    let Some(mut command) = as_nobody(&ours) else { skip!("root: needed to act as two users") };
    let mut target = Target::start("split", &[]);
    command.args(["record", "--duration", "1", "--pid"]).arg(target.pid().to_string());
    let outcome = Recorder::spawn(command, trace).finish().expect_code(3);
    assert!(!outcome.trace.path().exists(), "a file without a recording");
    let text = outcome.text();
    assert!(text.contains("root") || text.contains("user") || text.contains("CAP_"), "{text}");
    target.goes_on_and_ends_by_itself();
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
fn process_traced_by_another_names_the_tracer() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = Pid::from_raw(target.pid());
    ptrace::seize(pid, ptrace::Options::empty()).expect("a tracer before the recorder");
    let raw_pid = target.pid().to_string();
    let outcome = Recorder::start(&["--pid", &raw_pid, "--duration", "1"]).finish().expect_code(3);
    // The tracer is this test's thread. The status file names its process or its thread.
    let tracer = fs::read_to_string(format!("/proc/{raw_pid}/status")).expect("status");
    let tracer = tracer.lines().find_map(|line| line.strip_prefix("TracerPid:")).expect("tracer");
    assert!(outcome.text().contains(tracer.trim()), "{} in {}", tracer.trim(), outcome.text());
    assert!(!outcome.trace.path().exists(), "a file without a recording");
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).expect("stop before detach");
    nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::__WALL)).expect("stop");
    ptrace::detach(pid, None).expect("detach");
    target.send(nix::sys::signal::Signal::SIGCONT);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn existing_output_is_not_overwritten_without_force() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let trace = Trace::new();
    fs::write(trace.path(), "precious").expect("a file in the way");
    let pid = target.pid().to_string();
    let args = ["record", "--pid", &pid, "--duration", "1"];
    let outcome = Recorder::spawn(traceprof(&args), trace).finish().expect_code(6);
    assert!(outcome.text().contains("--force"), "the remedy: {}", outcome.text());
    let trace = outcome.trace;
    assert_eq!(fs::read(trace.path()).expect("the file"), b"precious");

    let mut command = traceprof(&args);
    command.arg("--force");
    let outcome = Recorder::spawn(command, trace).finish().expect_code(0);
    assert!(outcome.trace.view(&["print", "--tree"]).contains("kernel_alpha"));
    target.goes_on_and_ends_by_itself();
}

#[test]
fn output_that_cannot_be_written_is_found_before_the_target_is_touched() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    check(
        &["record", "--pid", &pid, "--duration", "1", "--output", "/no-such-dir/out.trace"],
        6,
        "/no-such-dir",
    );
    target.goes_on_and_ends_by_itself();
}

#[test]
fn foreign_and_damaged_files() {
    let dir = scratch_dir();
    let write = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, content).expect("test file");
        path.to_str().expect("path").to_owned()
    };
    let files = [
        write("empty", b""),
        write("text", b"no trace at all\n"),
        write("elf", &fs::read("/bin/true").expect("/bin/true")),
        write("zeroes", &[0; 1 << 16]),
        dir.path().to_str().expect("path").to_owned(),
    ];
    let exported = format!("{}/exported", dir.path().display());
    for file in &files {
        for args in [
            &["print", file][..],
            &["print", "--timeline", file],
            &["reindex", file],
            &["dump", file],
            &["dump", "--json", file],
            &["export", file, "--format", "folded", "--output", &exported],
        ] {
            check(args, 10, file);
        }
    }
    assert!(!Path::new(&exported).exists(), "an export of nothing");
    check(&["print", "/no-such-file.trace"], 13, "/no-such-file.trace");
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
