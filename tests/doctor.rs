//! `doctor`: its findings, that `record` agrees with them, and that it touches nothing.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::{
    Java, Node, Recorder, Snapshot, Target, Trace, as_nobody, needs_recording, program,
    program_for_everyone, record_cpu, scratch_dir, skip, some_pythons, together, traceprof,
    without_perf,
};

/// Returns the findings of `doctor --json` with its exit code, which the JSON must also contain.
pub(crate) fn examined(mut command: Command) -> (Value, i32) {
    let output = command.output().expect("traceprof");
    let text = String::from_utf8(output.stdout).expect("text");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let all: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{errors}"));
    let code = output.status.code().expect("an exit code");
    assert_eq!(all["exit_code"], code, "{text}");
    assert_eq!(all["records"], code == 0, "{text}");
    assert_eq!(all["refusal"].is_null(), code == 0, "{text}");
    assert!(all["sigtrap"].as_str().is_some_and(|text| text.contains("--engine timer")), "{text}");
    (all, code)
}

pub(crate) fn doctor(pid: i32) -> Command {
    let mut command = traceprof(&["doctor", "--json", "--pid"]);
    command.arg(pid.to_string());
    command
}

/// Returns the finding about this subject, in the list of the target or of the host.
pub(crate) fn finding<'a>(all: &'a Value, list: &str, subject: &str) -> &'a Value {
    let list = if list == "host" { &all["host"] } else { &all["target"]["findings"] };
    let mut findings = list.as_array().expect("a list").iter();
    let found = findings.find(|finding| finding["subject"] == subject);
    found.unwrap_or_else(|| panic!("no {subject} in {list}"))
}

/// Returns the message with which `record` refuses, without the program's name.
pub(crate) fn refusal_of_record(pid: i32, code: i32, mut command: Command) -> String {
    command.args(["record", "--duration", "1", "--pid"]).arg(pid.to_string());
    let outcome = Recorder::spawn(command, Trace::new()).finish().expect_code(code);
    assert!(!outcome.trace.path().exists(), "a file without a recording");
    let text = String::from_utf8_lossy(&outcome.output.stderr).into_owned();
    text.trim_end().strip_prefix("traceprof: ").expect("the name").to_owned()
}

/// Checks that `doctor` and `record` refuse a process in the same words and with the same code.
pub(crate) fn assert_refused(pid: i32, code: i32, subject: &str) -> Value {
    let before = Snapshot::take(pid);
    let (all, found) = examined(doctor(pid));
    assert_eq!(found, code, "{all}");
    let finding = finding(&all, "target", subject);
    assert_eq!(finding["state"], "obstacle", "{all}");
    assert_eq!(all["refusal"], finding["seen"], "{all}");
    assert_eq!(all["refusal"], refusal_of_record(pid, code, traceprof(&[])));
    assert_eq!(before.differences(&Snapshot::take(pid)), [""; 0]);
    finding.clone()
}

/// Checks that `record` uses the engine that `doctor` names, for the same reason.
fn assert_engine(target: &mut Target, engine: &str) {
    let pid = target.pid();
    let (all, code) = examined(doctor(pid));
    assert_eq!(code, 0, "{all}");
    let prospect = |key: &str| all["prospect"][key].as_str().expect(key).to_owned();
    assert_eq!(prospect("engine"), engine, "{all}");
    let outcome = record_cpu(pid, Duration::from_millis(200), &[]);
    let dump = outcome.trace.view(&["dump", "--json"]);
    let in_trace = |key: &str| {
        let objects = dump.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
        let fields = objects.map(|mut object| object["fields"].take());
        fields.into_iter().find(|fields| fields["key"] == key).expect(key)["value"].clone()
    };
    assert_eq!(in_trace("engine"), prospect("engine"));
    assert_eq!(in_trace("engine_why"), prospect("why"));
    let kernel = all["prospect"]["kernel_included"].as_bool().expect("a bool");
    assert_eq!(in_trace("kernel_included"), u64::from(kernel));
}

#[test]
fn host_alone_is_described_in_text_and_json() {
    needs_recording!();
    let (all, code) = examined(traceprof(&["doctor", "--json"]));
    assert_eq!((code, &all["target"]), (0, &Value::Null), "{all}");
    for subject in ["user", "kernel", "perf events", "shared memory", "processor"] {
        assert!(finding(&all, "host", subject)["seen"].is_string(), "{all}");
    }
    let output = traceprof(&["doctor"]).output().expect("traceprof");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}");
    let engine = all["prospect"]["engine"].as_str().expect("an engine");
    assert!(text.starts_with("host\n") && text.contains(engine), "{text}");
    // The text says what cannot be prevented, and what prevents it.
    assert!(text.contains("--engine signal and --engine timer are always safe"), "{text}");
}

#[test]
fn engine_that_is_named_is_the_one_that_records() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    examined(doctor(target.pid()));
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    assert_engine(&mut target, "perf task clock, ignorable signal");
    target.goes_on_and_ends_by_itself();
    let mut target = Target::start("sigtrap_user", &[]);
    assert_engine(&mut target, "perf task clock, ignorable signal");
    target.goes_on_and_ends_by_itself();
    let mut python = Command::new("python3");
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets/script.py"));
    let mut target = Target::spawn(python);
    assert_engine(&mut target, "thread CPU timer");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn refused_perf_events_are_a_limit_with_a_way_out() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let (all, code) = examined(without_perf(doctor(target.pid())));
    assert_eq!((code, &all["prospect"]["engine"]), (0, &"thread CPU timer".into()), "{all}");
    let events = finding(&all, "target", "perf events");
    assert_eq!(events["state"], "limit", "{all}");
    assert!(events["remedy"].as_str().is_some_and(|line| line.contains("sysctl")), "{all}");
    assert_eq!(all["prospect"]["why"], events["seen"], "{all}");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn process_traced_by_another_is_refused_by_name() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = Pid::from_raw(target.pid());
    ptrace::seize(pid, ptrace::Options::empty()).expect("a tracer before the doctor");
    let found = assert_refused(target.pid(), 3, "tracer");
    assert!(found["remedy"].as_str().is_some_and(|line| line.starts_with("kill ")), "{found}");
    nix::sys::signal::kill(pid, Signal::SIGSTOP).expect("stop before detach");
    nix::sys::wait::waitpid(pid, Some(nix::sys::wait::WaitPidFlag::__WALL)).expect("stop");
    ptrace::detach(pid, None).expect("detach");
    target.send(Signal::SIGCONT);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn process_that_is_being_recorded_names_the_recorder() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "--duration", "600"]);
    recorder.wait_until_attached(target.pid());
    // The first visible step is not the end of the attach.
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(200));
    let found = assert_refused(target.pid(), 3, "other recorder");
    assert_eq!(found["remedy"], format!("kill -INT {}", recorder.pid()));
    recorder.send(Signal::SIGINT);
    recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn limits_that_leave_no_room_are_found_before_the_target_is_touched() {
    needs_recording!();
    let _machine = together();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -S -v 200000 && exec \"$0\""]).arg(program("split"));
    let mut target = Target::spawn(limited);
    let found = assert_refused(target.pid(), 1, "room");
    let remedy = found["remedy"].as_str().expect("a remedy").to_owned();
    let changed = Command::new("sh").args(["-c", &remedy]).status().expect("sh");
    assert!(changed.success(), "{remedy}");
    let (all, code) = examined(doctor(target.pid()));
    assert_eq!(code, 0, "the advice helps: {all}");
    target.goes_on_and_ends_by_itself();
}

/// Checks what `doctor` says about the language of a program.
fn assert_language(command: Command, label: &str, gives: &str) {
    let mut target = Target::spawn(command);
    let (all, _) = examined(doctor(target.pid()));
    let found = finding(&all, "target", "language");
    assert_eq!(found["state"], "fine", "{found}");
    let seen = found["seen"].as_str().expect("text");
    let (runtime, given) = seen.split_once(": ").expect(seen);
    assert!(runtime.starts_with(label) && given == gives, "{seen}");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn languages_are_named_with_what_a_recording_shows() {
    needs_recording!();
    let _machine = together();
    for python in some_pythons(38) {
        let tasks = if python.minor >= 14 { ", asyncio tasks" } else { "" };
        let label = format!("Python 3.{}.", python.minor);
        let gives = format!("functions, lines, threads{tasks}");
        assert_language(python.runs("callers.py"), &label, &gives);
    }
    for java in Java::some(43) {
        let label = format!("Java {}", java.version);
        let named = |options: &[&str]| {
            let mut command = java.runs("Named", options);
            command.arg("0");
            command
        };
        assert_language(named(&[]), &label, "methods, lines, threads");
        if java.version >= 17 {
            let gives = "methods, lines, threads only in stacks, because of ZGC";
            assert_language(named(&["-XX:+UseZGC"]), &label, gives);
        }
    }
    for node in Node::some(66) {
        let label = format!("Node.js {}.", node.version);
        assert_language(node.runs("shares.js", &[]), &label, "functions, lines");
    }
    if let Some(node) = Node::some(69).first() {
        let gives = "functions, lines (not checked: it has no optimized code yet)";
        assert_language(node.runs("shares.js", &["--jitless"]), "Node.js", gives);
    }
    let native = Target::start("steady", &["2"]);
    let (all, _) = examined(doctor(native.pid()));
    assert!(!all.to_string().contains("\"language\""), "{all}");
}

#[test]
fn doctor_is_no_target_of_its_own_and_a_missing_process_has_no_findings() {
    let own = format!("exec {} doctor --json --pid $$", env!("CARGO_BIN_EXE_traceprof"));
    let mut shell = Command::new("sh");
    shell.args(["-c", &own]);
    let (all, code) = examined(shell);
    assert_eq!(code, 1, "{all}");
    assert!(all["refusal"].as_str().is_some_and(|text| text.contains("itself")), "{all}");
    let mut ended = Command::new("true").spawn().expect("true");
    let pid = ended.id() as i32;
    ended.wait().expect("end of true");
    let (all, code) = examined(doctor(pid));
    assert_eq!(code, 7, "{all}");
    assert_eq!(finding(&all, "target", "process")["seen"], all["refusal"]);
}

#[test]
fn user_without_privileges_gets_findings_for_own_and_other_processes() {
    needs_recording!();
    let _machine = together();
    let place = scratch_dir();
    let ours = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), place.path());
    let split = program_for_everyone(&program("split"), place.path());
    let Some(as_other) = as_nobody(&split) else { skip!("root: needed to act as two users") };
    let mut own = Target::spawn(as_other);
    let mut roots = Target::start("split", &[]);
    let doctor = |pid: i32| {
        let mut command = as_nobody(&ours).expect("root");
        command.args(["doctor", "--json", "--pid"]).arg(pid.to_string());
        examined(command)
    };
    let (all, code) = doctor(own.pid());
    assert_eq!(code, 0, "{all}");
    assert_eq!(finding(&all, "host", "user")["seen"], "uid 65534", "{all}");
    let (all, code) = doctor(roots.pid());
    assert_eq!(code, 3, "{all}");
    let permission = finding(&all, "target", "permission to trace");
    assert_eq!(permission["state"], "obstacle", "{all}");
    let remedy = format!("sudo traceprof record --pid {}", roots.pid());
    assert_eq!(permission["remedy"], remedy, "{all}");
    let refusal = refusal_of_record(roots.pid(), 3, as_nobody(&ours).expect("root"));
    assert_eq!(all["refusal"], refusal);
    own.goes_on_and_ends_by_itself();
    roots.goes_on_and_ends_by_itself();
}
