//! Targets under seccomp filters. Root evaluates the filters, other users try the calls out, and a
//! refusal comes before any change.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use traceprof_abi::calls::AGENT;

use crate::common::{
    ERRNO, KILL, Recorder, Snapshot, Target, Trace, as_nobody, is_root, needs_recording, program,
    program_for_everyone, scratch_dir, skip, together, traceprof, without, without_perf,
};
use crate::doctor::{assert_refused, doctor, examined, finding, refusal_of_record};

const SHORT: Duration = Duration::from_millis(300);

/// Returns the numbers of all system calls that the recorder makes in a target.
fn calls_of_recorder() -> BTreeSet<u64> {
    let led = [libc::SYS_shmat, libc::SYS_shmdt, libc::SYS_restart_syscall];
    AGENT.iter().map(|call| call.number).chain(led.map(|number| number as u64)).collect()
}

fn jailed(how: &str, rest: &[u64]) -> Target {
    let rest: Vec<String> = rest.iter().map(u64::to_string).collect();
    let mut words = vec![how];
    words.extend(rest.iter().map(String::as_str));
    Target::start("jailed", &words)
}

/// Records with this engine and checks that the target is as before.
fn assert_recorded(target: &Target, engine: &str, command: Command) {
    let before = Snapshot::take(target.pid());
    let mut command = command;
    command.args(["record", "--freq", "997", "--engine", engine, "--pid"]);
    command.arg(target.pid().to_string());
    let outcome = Recorder::spawn(command, Trace::new()).record_cpu(target.pid(), SHORT);
    assert!(outcome.trace.folded().percent_of("main") > 90.0, "{}", outcome.text());
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
}

/// Any call that the recorder makes and that is not in the list would kill the target.
#[test]
fn target_that_permits_only_what_is_listed_is_recorded() {
    needs_recording!();
    if !is_root() {
        skip!("root: needed to read filters");
    }
    let _machine = together();
    let all: Vec<u64> = calls_of_recorder().into_iter().collect();
    let mut target = jailed("only", &all);
    let (findings, code) = examined(doctor(target.pid()));
    let filters = finding(&findings, "target", "seccomp filters");
    assert_eq!((code, &filters["state"]), (0, &"fine".into()), "{findings}");
    assert!(filters["seen"].as_str().is_some_and(|seen| seen.contains("2 threads")), "{findings}");
    for engine in ["perf", "timer"] {
        assert_recorded(&target, engine, traceprof(&[]));
    }
    target.goes_on_and_ends_by_itself();
}

#[test]
fn each_listed_call_that_would_end_the_target_is_a_refusal_that_names_it() {
    needs_recording!();
    if !is_root() {
        skip!("root: needed to read filters");
    }
    let _machine = together();
    for missing in calls_of_recorder() {
        let others: Vec<u64> =
            calls_of_recorder().into_iter().filter(|number| *number != missing).collect();
        // The target itself needs this call to exit.
        let is_own = missing == libc::SYS_rt_sigreturn as u64;
        let mut target = jailed("only", &others);
        let (findings, code) = examined(doctor(target.pid()));
        assert_eq!(code, 3, "{missing}: {findings}");
        let seen = finding(&findings, "target", "seccomp filters")["seen"].clone();
        assert_eq!(findings["refusal"], seen, "{missing}");
        let refusal = refusal_of_record(target.pid(), 3, traceprof(&[]));
        assert_eq!(findings["refusal"], refusal, "{missing}");
        assert!(refusal.contains("it kills the process"), "{refusal}");
        let name = AGENT.iter().find(|call| call.number == missing).map(|call| call.name);
        let name = name.unwrap_or(match missing as i64 {
            libc::SYS_shmat => "shmat",
            libc::SYS_shmdt => "shmdt",
            _ => "restart_syscall",
        });
        assert!(refusal.contains(name), "{missing}: {refusal}");
        if !is_own {
            target.goes_on_and_ends_by_itself();
        }
    }
}

#[test]
fn answers_of_all_kinds_are_distinguished() {
    needs_recording!();
    if !is_root() {
        skip!("root: needed to read filters");
    }
    let _machine = together();
    let number = libc::SYS_shmat as u64;
    for (action, words) in [
        (KILL, "it kills the process"),
        (0, "it kills the thread"),
        (0x0003_0000, "SIGSYS"),
        (ERRNO | libc::EACCES as u32, "Permission denied"),
        (0x7ff0_0000, "its tracer"),
        (0x7fc0_0000, "another process"),
    ] {
        let mut target = jailed("but", &[number, action.into()]);
        let found = assert_refused(target.pid(), 3, "seccomp filters");
        let seen = found["seen"].as_str().expect("text");
        assert!(seen.contains("shmat") && seen.contains(words), "{seen}");
        target.goes_on_and_ends_by_itself();
    }
    const LOG: u32 = 0x7ffc_0000;
    let mut target = jailed("but", &[number, LOG.into()]);
    let (findings, code) = examined(doctor(target.pid()));
    assert_eq!(code, 0, "{findings}");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn filter_of_one_thread_counts_and_names_it() {
    needs_recording!();
    if !is_root() {
        skip!("root: needed to read filters");
    }
    let _machine = together();
    let mut target = jailed("one", &[libc::SYS_getpid as u64, KILL.into()]);
    let found = assert_refused(target.pid(), 3, "seccomp filters");
    let tasks = std::fs::read_dir(format!("/proc/{}/task", target.pid())).expect("tasks");
    let names = tasks.map(|task| task.expect("a task").file_name().into_string().expect("a tid"));
    let sleeper = names.into_iter().find(|name| *name != target.pid().to_string()).expect("two");
    let seen = found["seen"].as_str().expect("text");
    assert!(seen.contains(&format!("thread {sleeper} ")) && seen.contains("getpid"), "{seen}");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn filter_without_timers_leaves_perf() {
    needs_recording!();
    if !is_root() {
        skip!("root: needed to read filters");
    }
    let _machine = together();
    let refused = u64::from(ERRNO | libc::EPERM as u32);
    let mut target = jailed("but", &[libc::SYS_timer_create as u64, refused]);
    let (findings, code) = examined(doctor(target.pid()));
    let engine = findings["prospect"]["engine"].as_str().expect("a name");
    assert!(code == 0 && engine.starts_with("perf task clock"), "{findings}");
    let filters = finding(&findings, "target", "seccomp filters");
    assert_eq!(filters["state"], "limit", "{findings}");
    assert_recorded(&target, "auto", traceprof(&[]));
    let mut command = traceprof(&["record", "--engine", "timer", "--pid"]);
    command.arg(target.pid().to_string());
    let outcome = Recorder::spawn(command, Trace::new()).finish().expect_code(3);
    let text = outcome.text();
    assert!(text.contains("timer_create") && text.contains("--engine perf"), "{text}");
    target.goes_on_and_ends_by_itself();
}

/// Root under a filter of its own cannot read the filters of others either.
#[test]
fn without_permission_to_read_filters_the_calls_are_tried_out() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::spawn(without_perf(Command::new(program("split"))));
    let (findings, code) = examined(without_perf(doctor(target.pid())));
    let filters = finding(&findings, "target", "seccomp filters");
    assert_eq!((code, &filters["state"]), (0, &"fine".into()), "{findings}");
    assert!(filters["seen"].as_str().is_some_and(|seen| seen.contains("tried out")), "{findings}");
    assert_recorded(&target, "auto", without_perf(traceprof(&[])));
    target.goes_on_and_ends_by_itself();

    for (number, action, name) in [
        (libc::SYS_timer_create, KILL, "timer_create"),
        (libc::SYS_timer_delete, ERRNO | libc::EPERM as u32, "timer_delete"),
    ] {
        let mut target = Target::spawn(without(Command::new(program("split")), number, action));
        let (findings, code) = examined(without(doctor(target.pid()), number, action));
        assert_eq!(code, 3, "{findings}");
        assert!(findings["refusal"].as_str().is_some_and(|text| text.contains(name)), "{findings}");
        target.goes_on_and_ends_by_itself();
    }
}

#[test]
fn filters_that_can_be_neither_read_nor_tried_are_refused_unless_forced() {
    needs_recording!();
    let _machine = together();
    let place = scratch_dir();
    let ours = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), place.path());
    let split = program_for_everyone(&program("split"), place.path());
    let Some(command) = as_nobody(&split) else { skip!("root: needed to act as another user") };
    let mut target = Target::spawn(without_perf(command));
    let before = Snapshot::take(target.pid());
    let mut command = as_nobody(&ours).expect("root");
    command.args(["doctor", "--json", "--pid"]).arg(target.pid().to_string());
    let (findings, code) = examined(command);
    assert_eq!(code, 3, "{findings}");
    let filters = finding(&findings, "target", "seccomp filters");
    assert_eq!(filters["remedy"], format!("sudo traceprof record --pid {}", target.pid()));
    let refusal = refusal_of_record(target.pid(), 3, as_nobody(&ours).expect("root"));
    assert_eq!(findings["refusal"], refusal);
    assert!(refusal.contains("--allow-seccomp"), "{refusal}");
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    let mut command = as_nobody(&ours).expect("root");
    command.args(["record", "--allow-seccomp", "--pid"]).arg(target.pid().to_string());
    Recorder::spawn(command, Trace::new()).record_cpu(target.pid(), SHORT);
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    target.goes_on_and_ends_by_itself();
}
