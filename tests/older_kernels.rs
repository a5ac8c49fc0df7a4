//! Kernels that lack newer calls, as seccomp filters of the recorder imitate them: a recording
//! works without the call, or is refused with the version that has it.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{
    ERRNO, Outcome, Recorder, Snapshot, Target, Trace, as_nobody, child_named, is_root,
    needs_recording, program, program_for_everyone, scratch_dir, skip, together, traceprof,
    without, without_argument,
};
use crate::doctor::{doctor, examined, finding, refusal_of_record};

const SHORT: Duration = Duration::from_millis(300);
const POPULATE_WRITE: u32 = 23;
const GET_RSEQ_CONFIGURATION: u32 = 0x420f;

/// A call that an older kernel lacks: its number, an argument with which it is newer than the call
/// itself, and the kernel's answer.
struct Missing(libc::c_long, Option<(u32, u32)>, i32);

const OPENAT2: Missing = Missing(libc::SYS_openat2, None, libc::ENOSYS);
const CLOSE_RANGE: Missing = Missing(libc::SYS_close_range, None, libc::ENOSYS);
const FACCESSAT2: Missing = Missing(libc::SYS_faccessat2, None, libc::ENOSYS);
const POPULATE: Missing = Missing(libc::SYS_madvise, Some((2, POPULATE_WRITE)), libc::EINVAL);
const RSEQ: Missing = Missing(libc::SYS_ptrace, Some((0, GET_RSEQ_CONFIGURATION)), libc::EIO);
const PIDFD_OPEN: Missing = Missing(libc::SYS_pidfd_open, None, libc::ENOSYS);
/// The attributes of a signalling event are longer than those that the kernel knows.
const PERF_EVENTS: Missing = Missing(libc::SYS_perf_event_open, None, libc::E2BIG);
/// What Linux 5.4 lacks and a recording can do without.
const REPLACED: [Missing; 5] = [OPENAT2, CLOSE_RANGE, FACCESSAT2, POPULATE, RSEQ];

/// Returns the command as a kernel without these calls would run it.
fn lacking<'a>(command: Command, missing: impl IntoIterator<Item = &'a Missing>) -> Command {
    missing.into_iter().fold(command, |command, &Missing(number, argument, errno)| {
        let answer = ERRNO | errno as u32;
        match argument {
            None => without(command, number, answer),
            Some(argument) => without_argument(command, number, argument, answer),
        }
    })
}

/// Runs a recorder of a command to its end.
fn started(mut recorder: Command, command: &[OsString]) -> Outcome {
    let trace = Trace::new();
    recorder.args(["--stats", "--exit-code", "recording", "--output"]).arg(trace.path());
    recorder.arg("--").args(command);
    Outcome { output: recorder.output().expect("traceprof"), trace }
}

fn assert_recorded(target: &Target, engine: &str, missing: &[&Missing]) {
    let before = Snapshot::take(target.pid());
    let mut command = traceprof(&["record", "--freq", "997", "--engine", engine, "--pid"]);
    command.arg(target.pid().to_string());
    let command = lacking(command, missing.iter().copied());
    let outcome = Recorder::spawn(command, Trace::new()).record_cpu(target.pid(), SHORT);
    assert!(outcome.trace.folded().percent_of("main") > 90.0, "{}", outcome.text());
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
}

#[test]
fn each_call_that_has_a_replacement_may_be_missing() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    for missing in &REPLACED {
        assert_recorded(&target, "timer", &[missing]);
    }
    let all: Vec<_> = REPLACED.iter().chain([&PERF_EVENTS]).collect();
    assert_recorded(&target, "auto", &all);
    let (findings, code) = examined(lacking(doctor(target.pid()), all));
    let calls = finding(&findings, "host", "kernel calls");
    assert_eq!((code, &calls["state"]), (0, &"fine".into()), "{findings}");
    let seen = calls["seen"].as_str().expect("text");
    assert!(seen.contains("MADV_POPULATE_WRITE (Linux 5.14)"), "{seen}");
    assert!(seen.contains("close_range (Linux 5.9), MADV"), "{seen}");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_command_is_recorded_from_its_start_without_newer_calls() {
    needs_recording!();
    let _machine = together();
    let command = traceprof(&["record", "--freq", "997", "--engine", "timer"]);
    let ended = [program("exitcode").into(), "42".into(), "400".into(), "600".into()];
    let outcome = started(lacking(command, &REPLACED), &ended).expect_code(0);
    assert!(outcome.trace.folded().percent_of("main") > 90.0, "{}", outcome.text());
}

/// A guardian that kept the recorder's output open would keep a pipe from its end.
#[test]
fn a_guardian_keeps_no_descriptor_of_the_recorder_without_close_range() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    let command = traceprof(&["record", "--engine", "timer", "--pid", &pid]);
    let mut recorder = Recorder::spawn(lacking(command, [&CLOSE_RANGE]), Trace::new());
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), SHORT);
    let guardian = child_named(recorder.pid(), "traceprof-guard").expect("a guardian");
    let open = std::fs::read_dir(format!("/proc/{guardian}/fd")).expect("its descriptors");
    let open: Vec<_> = open
        .map(|entry| std::fs::read_link(entry.expect("an entry").path()).expect("a descriptor"))
        .collect();
    let nulls = open.iter().filter(|path| **path == *"/dev/null").count();
    let kept = |path: &Path| {
        let name = path.to_string_lossy();
        ["socket:", "anon_inode:[pidfd]", "pidfd:"].iter().any(|kind| name.starts_with(kind))
    };
    let others = open.iter().filter(|path| kept(path)).count();
    // The claim on the target and its memory may be open, too.
    let belongs = |path: &Path| path.starts_with(format!("/proc/{pid}"));
    let strangers: Vec<_> = open
        .iter()
        .filter(|path| **path != *"/dev/null" && !kept(path) && !belongs(path))
        .collect();
    assert!(strangers.is_empty() && (nulls, others) == (3, 2), "{open:?}");
    recorder.send(nix::sys::signal::Signal::SIGINT);
    recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn without_pidfds_the_refusal_names_the_version_and_doctor_agrees() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let refusal = refusal_of_record(target.pid(), 1, lacking(traceprof(&[]), [&PIDFD_OPEN]));
    assert!(refusal.contains("Linux 5.3"), "{refusal}");
    let (findings, code) = examined(lacking(doctor(target.pid()), [&PIDFD_OPEN]));
    assert_eq!((code, &findings["refusal"]), (1, &refusal.into()), "{findings}");
    let calls = finding(&findings, "host", "kernel calls");
    assert_eq!(calls["state"], "obstacle", "{findings}");
    assert!(calls["seen"].as_str().is_some_and(|seen| seen.contains("5.3")), "{findings}");
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn events_that_the_kernel_does_not_know_are_told_from_those_that_it_refuses() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let mut command = traceprof(&["record", "--engine", "perf", "--pid"]);
    command.arg(target.pid().to_string());
    let recorder = Recorder::spawn(lacking(command, [&PERF_EVENTS]), Trace::new());
    let text = recorder.finish().expect_code(1).text();
    assert!(text.contains("use Linux 6.1 or later, or --engine timer"), "{text}");
    let (findings, code) = examined(lacking(doctor(target.pid()), [&PERF_EVENTS]));
    assert_eq!((code, &findings["prospect"]["engine"]), (0, &"thread CPU timer".into()));
    let why = findings["prospect"]["why"].as_str().expect("a reason");
    assert!(why.contains("Linux 6.1"), "{findings}");
    target.goes_on_and_ends_by_itself();
}

/// Returns the command as nobody, where Yama has this level: the setting that it would show, and
/// the kernel's answer to a tracer.
fn under_yama(ours: &Path, scope: u32) -> Command {
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs none /proc/sys/kernel && mkdir /proc/sys/kernel/yama \
        && echo \"$0\" > /proc/sys/kernel/yama/ptrace_scope \
        && exec setpriv --reuid=65534 --regid=65534 --clear-groups -- \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(scope.to_string()).arg(ours);
    without(command, libc::SYS_ptrace, ERRNO | libc::EPERM as u32)
}

#[test]
fn yama_is_named_and_its_advice_is_what_its_level_permits() {
    needs_recording!();
    if !is_root() {
        skip!("root: needed to act as another user");
    }
    let can_mount = Command::new("unshare").args(["--mount", "true"]).output();
    if !can_mount.is_ok_and(|output| output.status.success()) {
        skip!("unshare: no mount namespace");
    }
    let _machine = together();
    let place = scratch_dir();
    let ours = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), place.path());
    let split = program_for_everyone(&program("split"), place.path());
    let mut target = Target::spawn(as_nobody(&split).expect("root"));
    let before = Snapshot::take(target.pid());
    for scope in 1..=3 {
        let refusal = refusal_of_record(target.pid(), 3, under_yama(&ours, scope));
        let mut command = under_yama(&ours, scope);
        command.args(["record", "--engine", "timer"]);
        let marker = place.path().join(format!("ran-{scope}"));
        let started = started(command, &["touch".into(), marker.clone().into()]).expect_code(3);
        assert!(!marker.exists(), "a refused command has run");
        for text in [refusal, started.text()] {
            let level = format!("ptrace_scope is {scope}");
            assert!(text.contains("Yama") && text.contains(&level), "{text}");
            assert_eq!(text.contains("-- COMMAND"), scope == 1, "{text}");
            assert_eq!(text.contains("sysctl"), scope < 3, "{text}");
        }
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while !before.differences(&Snapshot::take(target.pid())).is_empty() {
        assert!(
            Instant::now() < deadline,
            "{:?}",
            before.differences(&Snapshot::take(target.pid()))
        );
    }
    target.goes_on_and_ends_by_itself();
}
