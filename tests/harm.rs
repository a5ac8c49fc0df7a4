//! What a target must never notice: compared from outside before and after, and checked by targets
//! that test themselves.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::{
    Recorder, Snapshot, Target, is_long_run, needs_recording, record, record_cpu, scratch_dir,
    together, traceprof, wait_until,
};

/// Checks that the target is as before. A target that handles its own signals looks different while
/// it does so, so the check retries.
fn assert_restored(before: &Snapshot, target: &Target) {
    let differences = || before.differences(&Snapshot::take(target.pid()));
    let restored = wait_until(Duration::from_secs(2), || differences().is_empty());
    assert!(restored, "left in the target: {:#?}", differences());
}

#[test]
fn finished_recording_leaves_nothing() {
    needs_recording!();
    let _machine = together();
    for name in ["split", "threads"] {
        let mut target = Target::start(name, &[]);
        let before = Snapshot::take(target.pid());
        record(target.pid(), 1, &["--freq", "997"]);
        assert_restored(&before, &target);
        target.goes_on_and_ends_by_itself();
    }
}

#[test]
fn ten_recordings_of_one_target_leave_nothing() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let before = Snapshot::take(target.pid());
    for _ in 0..10 {
        let pid = target.pid().to_string();
        let args = ["--pid", &pid, "--duration", "0.2", "--freq", "997", "--verify-detach"];
        let outcome = Recorder::start(&args).finish();
        assert!(matches!(outcome.code(), Some(0 | 4)), "{}", outcome.text());
        let line =
            outcome.text().lines().find(|line| line.starts_with("verified")).map(str::to_owned);
        assert!(
            line.is_some_and(|it| it.contains("the target is as it was")),
            "{}",
            outcome.text()
        );
        assert_eq!(outcome.trace.number("left_in_target"), 0);
    }
    assert_restored(&before, &target);
    target.goes_on_and_ends_by_itself();
}

/// The system calls that the kernel does not restart by itself after a stop or a handler.
#[test]
fn sleeping_thread_gets_no_eintr() {
    needs_recording!();
    let _machine = together();
    for call in ["nanosleep", "poll", "read", "futex", "sigwait"] {
        let mut target = Target::start("sleeper", &[call, "burn"]);
        let before = Snapshot::take(target.pid());
        record(target.pid(), 1, &["--freq", "997"]);
        assert_restored(&before, &target);
        target.goes_on_and_ends_by_itself();
        assert_eq!(target.fact("eintr"), 0, "EINTR from {call}");
        assert_eq!(target.fact("other"), 0, "{call} came back");
    }
}

#[test]
fn idle_process_has_no_samples_and_code_4() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("sleeper", &["nanosleep"]);
    let pid = target.pid().to_string();
    let outcome = Recorder::start(&["--pid", &pid, "--duration", "1"]).finish().expect_code(4);
    assert!(outcome.trace.path().exists(), "the file is written");
    outcome.trace.view(&["print", "--tree"]);
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("eintr") + target.fact("other"), 0);
}

#[test]
fn killed_recorder_leaves_nothing() {
    needs_recording!();
    let _machine = together();
    for (name, delay_ms) in [("split", 700), ("threads", 1300), ("threads", 100)] {
        let mut target = Target::start(name, &[]);
        let before = Snapshot::take(target.pid());
        let pid = target.pid().to_string();
        let mut recorder = Recorder::start(&["--pid", &pid, "--duration", "60", "--freq", "997"]);
        recorder.wait_until_attached(target.pid());
        std::thread::sleep(Duration::from_millis(delay_ms));
        recorder.send(Signal::SIGKILL);
        assert_restored_soon(&before, &target, &format!("{name} after {delay_ms} ms"));
        target.goes_on_and_ends_by_itself();
    }
}

/// Returns the time from the start of a recorder to its first change of the target.
fn time_to_attach(target: &Target, before: &Snapshot) -> Duration {
    let pid = target.pid().to_string();
    let started = Instant::now();
    let mut recorder = Recorder::start(&["--pid", &pid, "--duration", "60"]);
    recorder.wait_until_attached(target.pid());
    let taken = started.elapsed();
    drop(recorder);
    assert_restored_soon(before, target, "killed once attached");
    taken
}

fn assert_restored_soon(before: &Snapshot, target: &Target, when: &str) {
    let differences = || before.differences(&Snapshot::take(target.pid()));
    let restored = wait_until(Duration::from_secs(20), || differences().is_empty());
    assert!(restored, "{when}: {:#?}", differences());
}

/// Kills the recorder at many moments of the attach, when most changes are made. Half of the kills
/// are spread over the complete attach, the other half over the time after the first change.
#[test]
fn recorder_killed_while_attaching_leaves_nothing() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let before = Snapshot::take(target.pid());
    let pid = target.pid().to_string();
    let attach = time_to_attach(&target, &before).max(time_to_attach(&target, &before));
    let kills = if is_long_run() { 400 } else { 30 };
    let (mut found_attached, mut found_untouched) = (0, 0);
    for kill in 0..kills {
        let part = f64::from(kill / 2) / f64::from(kills / 2);
        let after_the_first_change = kill % 2 == 1;
        let mut recorder = Recorder::start(&["--pid", &pid, "--duration", "60"]);
        let delay = if after_the_first_change {
            recorder.wait_until_attached(target.pid());
            attach.mul_f64(0.5 * part)
        } else {
            attach.mul_f64(1.2 * part)
        };
        std::thread::sleep(delay);
        if recorder.has_exited() {
            panic!("the recorder exited before the kill: {}", recorder.finish().text());
        }
        recorder.send(Signal::SIGKILL);
        let untouched = before.differences(&Snapshot::take(target.pid())).is_empty();
        found_attached += u32::from(after_the_first_change || !untouched);
        found_untouched += u32::from(!after_the_first_change && untouched);
        drop(recorder);
        assert_restored_soon(&before, &target, &format!("killed after {delay:?}"));
    }
    assert!(found_untouched > 0, "no kill came before the first change to the target");
    assert!(found_attached >= kills / 2, "{found_attached} kills came after the first change");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn data_written_before_the_recorder_was_killed_is_readable() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let dir = scratch_dir();
    let path = dir.path().join("killed.trace");
    let mut command = traceprof(&["record", "--duration", "60", "--freq", "997", "--pid"]);
    command.arg(target.pid().to_string()).arg("--output").arg(&path);
    let mut recorder = Recorder::around(
        command.stderr(std::process::Stdio::piped()).spawn().expect("traceprof"),
        crate::common::Trace::new(),
    );
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_secs(1));
    // The recorder writes at least once a second.
    std::thread::sleep(Duration::from_secs(3));
    recorder.send(Signal::SIGKILL);
    drop(recorder);
    target.goes_on_and_ends_by_itself();
    // The data may still be in an unfinished file with another name.
    let files = std::fs::read_dir(dir.path()).expect("directory").filter_map(Result::ok);
    let mut files: Vec<_> = files.map(|entry| entry.path()).collect();
    files.retain(|path| !path.to_string_lossy().contains(".idx"));
    assert_eq!(files.len(), 1, "{files:?}");
    let output = traceprof(&["print", "--tree"]).arg(&files[0]).output().expect("traceprof");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("kernel_alpha"), "{} {text}", output.status);
}

#[test]
fn application_that_owns_sigtrap_keeps_every_trap() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("sigtrap_user", &[]);
    let before = Snapshot::take(target.pid());
    let pid = target.pid().to_string();
    // A refusal of such a target with a message is as good as a recording. Harm is not.
    let outcome = Recorder::start(&["--pid", &pid, "--duration", "3", "--freq", "1999"]).finish();
    match outcome.code() {
        Some(0) => assert!(outcome.trace.folded().total() > 100, "samples"),
        _ => assert!(outcome.text().contains("SIGTRAP"), "a reason: {}", outcome.text()),
    }
    assert!(!outcome.text().contains("panicked"), "{}", outcome.text());
    assert_restored(&before, &target);
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("raised"), target.fact("handled"), "traps");
    assert_eq!(target.fact("own_handler"), 1);
}

/// A thread that is stopped while its own trap is pending must get the trap after the restore. This
/// target only raises traps, so it is nearly always inside our handler. The agent may have to stay,
/// inert, but then the report says so, and still no trap is lost.
#[test]
fn trap_that_is_pending_at_a_stop_is_not_lost() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("sigtrap_user", &["dense"]);
    let pid = target.pid().to_string();
    let mut is_clean = false;
    for _ in 0..4 {
        let outcome = Recorder::start(&["--pid", &pid, "--duration", "0.1"]).finish();
        let text = outcome.text();
        is_clean = match outcome.code() {
            Some(0 | 4) => !text.contains("left behind"),
            // The agent of an earlier recording is still there, which this recorder refuses.
            Some(1) => !text.contains("left in the target"),
            other => panic!("{other:?}: {text}"),
        };
    }
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("raised"), target.fact("handled"), "traps");
    assert_eq!(target.fact("own_handler"), u64::from(is_clean), "not what the report says");
}

#[test]
fn hundred_sleeping_threads_sleep_on() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("many_threads", &["100"]);
    let before = Snapshot::take(target.pid());
    let outcome = record_cpu(target.pid(), Duration::from_secs(1), &["--freq", "499"]);
    assert_restored(&before, &target);
    assert!(outcome.trace.folded().count_of("lone_worker") > 400);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn second_recorder_is_refused_and_leaves_the_first_alone() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let before = Snapshot::take(target.pid());
    let pid = target.pid().to_string();
    let mut first = Recorder::start(&["--pid", &pid, "--duration", "3"]);
    first.wait_until_attached(target.pid());
    let second = Recorder::start(&["--pid", &pid, "--duration", "1"]).finish().expect_code(3);
    let named = format!("another traceprof (pid {})", first.pid());
    assert!(second.text().contains(&named), "{}", second.text());
    assert!(!second.trace.path().exists(), "a refused recording leaves a file");
    first.finish().expect_code(0);
    assert_restored(&before, &target);
    target.goes_on_and_ends_by_itself();
}

/// Returns the process that traces the target, a child of the recorder.
fn guardian_of(recorder: i32) -> i32 {
    let children = format!("/proc/{recorder}/task/{recorder}/children");
    let children = std::fs::read_to_string(children).expect("children of the recorder");
    let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    children.into_iter().find(|pid| name(pid) == "traceprof-guard\n").expect("a guardian")
}

fn kill(pid: i32, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("a signal");
}

#[test]
fn recorder_whose_guardian_was_killed_restores_the_target_itself() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let before = Snapshot::take(target.pid());
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "--duration", "2"]);
    recorder.wait_until_attached(target.pid());
    std::thread::sleep(Duration::from_millis(500));
    kill(guardian_of(recorder.pid()), Signal::SIGKILL);
    recorder.finish().expect_code(0);
    assert_restored(&before, &target);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn next_recording_removes_what_a_killed_pair_left() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let before = Snapshot::take(target.pid());
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "--duration", "60"]);
    recorder.wait_until_attached(target.pid());
    std::thread::sleep(Duration::from_millis(500));
    let guardian = guardian_of(recorder.pid());
    // Stopped, so that it does not notice the guardian's exit before its own.
    recorder.send(Signal::SIGSTOP);
    kill(guardian, Signal::SIGKILL);
    recorder.send(Signal::SIGKILL);
    drop(recorder);
    std::thread::sleep(Duration::from_millis(200));
    let left = before.differences(&Snapshot::take(target.pid()));
    assert!(!left.is_empty(), "nothing was left behind, so this test shows nothing");
    record(target.pid(), 1, &[]);
    assert_restored(&before, &target);
    target.goes_on_and_ends_by_itself();
}
