//! Targets whose control group is frozen, as by `docker pause`, or gets hardly any processor.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::{
    ControlGroup, OWN_EXIT_CODE, Recorder, Snapshot, Target, needs_recording, skip, together,
    traceprof, wait_until,
};

const PATIENCE: Duration = Duration::from_secs(120);

fn end(mut target: Target) -> i32 {
    target.send(Signal::SIGTERM);
    target.wait().code().expect("an exit code")
}

/// Returns the kinds of control groups that can be frozen here.
fn versions() -> Vec<u32> {
    [1, 2].into_iter().filter(|version| ControlGroup::to_freeze(*version).is_some()).collect()
}

/// Nothing would end an attach to it.
#[test]
fn frozen_process_is_refused_with_the_command_that_thaws_it() {
    needs_recording!();
    if versions().is_empty() {
        skip!("control groups: none can be created here");
    }
    let _machine = together();
    for version in versions() {
        let target = Target::start("prey", &["spin"]);
        let pid = target.pid().to_string();
        let group = ControlGroup::to_freeze(version).expect("a group, as before");
        assert!(group.add(target.pid()) && group.freeze(), "version {version}");
        let before = Snapshot::take(target.pid());
        let args = ["--pid", &pid, "--duration", "1"];
        let outcome = Recorder::start(&args).finish().expect_code(3);
        assert!(outcome.text().contains("control group is frozen"), "{}", outcome.text());
        let doctor = traceprof(&["doctor", "--pid", &pid]).output().expect("traceprof");
        let text = String::from_utf8_lossy(&doctor.stdout);
        let is_command = |line: &&str| line.trim_start().starts_with("$ echo ");
        let line = text.lines().find(is_command).unwrap_or_else(|| panic!("{version}: {text}"));
        let command = line.trim_start().trim_start_matches("$ ");
        let thawed = std::process::Command::new("sh").args(["-c", command]).status();
        assert!(thawed.is_ok_and(|status| status.success()), "{command}");
        assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0], "{version}");
        // It would not end if it were still frozen.
        assert_eq!(end(target), OWN_EXIT_CODE, "version {version}: {command}");
    }
}

/// The recorder cannot restore a frozen process. It ends all the same, and says what is left.
#[test]
fn process_that_is_frozen_while_recorded_is_restored_when_it_runs() {
    needs_recording!();
    if versions().is_empty() {
        skip!("control groups: none can be created here");
    }
    let _machine = together();
    for (version, engine) in versions().into_iter().zip(["timer", "perf"]) {
        let mut target = Target::start("prey", &["spin"]);
        let pid = target.pid().to_string();
        let group = ControlGroup::to_freeze(version).expect("a group, as before");
        assert!(group.add(target.pid()), "version {version}");
        let before = Snapshot::take(target.pid());
        let options = ["--pid", &pid, "--freq", "997", "--engine", engine];
        let mut recorder = Recorder::start(&options);
        recorder.wait_until_attached(target.pid());
        recorder.wait_for_cpu(target.pid(), Duration::from_millis(300));
        assert!(group.freeze(), "version {version}");
        recorder.send(Signal::SIGINT);
        let since = Instant::now();
        let case = |text: &str| format!("version {version}, {:?}: {text}", since.elapsed());
        assert!(wait_until(PATIENCE, || recorder.has_exited()), "{}", case("it does not end"));
        let outcome = recorder.finish();
        assert_eq!(outcome.code(), Some(11), "{}", case(&outcome.text()));
        assert!(outcome.trace.folded().total() > 100, "{}", case(&outcome.text()));
        let advice = format!("`traceprof detach --pid {pid}`");
        assert!(outcome.text().contains(&advice), "{}", case(&outcome.text()));
        assert!(group.thaw(), "version {version}");
        let removed = traceprof(&["detach", "--pid", &pid]).output().expect("traceprof");
        let text = String::from_utf8_lossy(&removed.stderr);
        assert!(matches!(removed.status.code(), Some(0)), "{}", case(&text));
        assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0], "{version}");
        assert!(!target.has_exited(), "version {version}");
        assert_eq!(end(target), OWN_EXIT_CODE, "version {version}");
    }
}

/// A thread that waits for a processor does not stop for seconds. If it is let go before that, its
/// `epoll_wait` ends with EINTR.
#[test]
fn calls_of_threads_without_a_processor_end_as_they_would() {
    needs_recording!();
    let _machine = together();
    for engine in super::some_engines() {
        let Some(group) = ControlGroup::starving() else {
            skip!("control groups: none can be created here");
        };
        let target = Target::start("prey", &["crowd"]);
        let pid = target.pid().to_string();
        let mut recorder = Recorder::start(&["--pid", &pid, "--engine", engine]);
        recorder.wait_until_attached(target.pid());
        recorder.wait_for_cpu(target.pid(), Duration::from_millis(100));
        assert!(group.add(target.pid()), "{engine}");
        // Uses up what the group has.
        std::thread::sleep(Duration::from_secs(1));
        recorder.send(Signal::SIGINT);
        let outcome = recorder.finish();
        drop(group);
        if outcome.code() == Some(11) {
            traceprof(&["detach", "--pid", &pid]).output().expect("traceprof");
        }
        assert_eq!(end(target), OWN_EXIT_CODE, "{engine}: {}", outcome.text());
    }
}
