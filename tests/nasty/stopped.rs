//! Targets that do not run: stopped by job control, or waiting for a child of vfork.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Proof, some_engines};
use crate::common::{
    OWN_EXIT_CODE, Outcome, Recorder, Snapshot, Target, Trace, needs_recording, together,
    traceprof, wait_until,
};

/// Stops and continues a target, and calls `record` in between.
fn continued(record: impl Fn(&Target)) -> Target {
    let mut target = Target::start("steady", &["8"]);
    target.send(Signal::SIGSTOP);
    let limit = Duration::from_secs(20);
    let is_stopped = || target.states().chars().all(|state| state == 'T');
    assert!(wait_until(limit, is_stopped), "states {}", target.states());
    record(&target);
    target.send(Signal::SIGCONT);
    target.goes_on_and_ends_by_itself();
    target
}

/// Continuing interrupts some calls: as many as without a recorder.
#[test]
fn stopped_process_is_recorded_and_stays_stopped() {
    needs_recording!();
    let _machine = together();
    let alone = continued(|_| ());
    let recorded = continued(|target| {
        let before = Snapshot::take(target.pid());
        for engine in some_engines() {
            let pid = target.pid().to_string();
            let args = ["--pid", &pid, "--duration", "1", "--freq", "2000", "--engine", engine];
            Recorder::start(&args).finish().expect_code(4);
            assert_eq!(target.state(), 'T', "{engine}");
            assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0], "{engine}");
        }
    });
    assert_eq!((recorded.fact("wrong"), recorded.fact("other")), (0, 0));
    // The restore also repairs the calls that the stop interrupted.
    let [with, without] = [recorded, alone].map(|target| target.fact("eintr"));
    assert!(with <= without, "{with} calls broken, {without} without a recorder");
}

#[test]
fn thread_beside_one_in_vfork_is_recorded() {
    needs_recording!();
    let _machine = together();
    let target = Proof::of(Target::start("vfork_parent", &["300", "busy"])).survives();
    assert!(target.fact("children") > 3);
}

/// The thread cannot be stopped until the child is done. The recorder reports that within the
/// limit, and nobody waits longer.
#[test]
fn only_thread_in_vfork_is_reported_and_not_harmed() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("vfork_parent", &["8000"]);
    let before = Snapshot::take(target.pid());
    let pid = target.pid().to_string();
    let outcome = Recorder::start(&["--pid", &pid, "--duration", "1"]).finish();
    let text = outcome.text();
    assert_eq!(outcome.code(), Some(1), "{text}");
    assert!(text.contains("did not stop (state D)") && text.contains("try again"), "{text}");
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    target.send(Signal::SIGTERM);
    assert_eq!(target.wait().code(), Some(OWN_EXIT_CODE));
    assert_eq!((target.fact("children"), target.fact("wrong")), (1, 0));
}

/// Returns the last child that a process has now.
fn child_of(pid: i32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    children.ok()?.split_whitespace().last()?.parse().ok()
}

/// Records until the leader is in the vfork of a child that has our handlers.
fn recorded_into_vfork(target: &Target, engine: &str, limit: Duration) -> (Outcome, i32) {
    let pid = target.pid();
    let mut command = traceprof(&["record", "--freq", "997", "--engine", engine]);
    command.args(["--pid", &pid.to_string()]);
    let mut recorder = Recorder::spawn(command, Trace::new());
    recorder.wait_until_attached(pid);
    std::thread::sleep(Duration::from_millis(300));
    let before = child_of(pid);
    let mut child = None;
    let is_new = wait_until(limit, || {
        child = child_of(pid);
        child.is_some() && child != before
    });
    assert!(is_new, "no new child");
    std::thread::sleep(Duration::from_millis(300));
    recorder.send(Signal::SIGINT);
    (recorder.finish(), child.expect("a child"))
}

/// The leader does not stop, and its child has our handlers. Neither keeps the agent in memory.
#[test]
fn leader_in_vfork_beside_a_busy_thread_is_detached_from() {
    needs_recording!();
    let _machine = together();
    for engine in some_engines() {
        let mut target = Target::start("vfork_parent", &["4000", "busy"]);
        let pid = target.pid();
        let before = Snapshot::take(pid);
        let (outcome, child) = recorded_into_vfork(&target, engine, Duration::from_secs(20));
        let text = outcome.text();
        assert_eq!((outcome.code(), target.state()), (Some(0), 'D'), "{engine}: {text}");
        assert!(!text.contains("left behind"), "{engine}: {text}");
        assert_eq!(before.marks_left(&Snapshot::take(pid)), [""; 0], "{engine}: {text}");
        // Ignored by default, as when the child was made.
        for signal in [Signal::SIGURG, Signal::SIGWINCH] {
            kill(Pid::from_raw(child), signal).expect("a signal to the child");
        }
        assert_eq!(child_of(pid), Some(child), "{engine}: the thread went on sleeping");
        target.send(Signal::SIGTERM);
        assert_eq!(target.wait().code(), Some(OWN_EXIT_CODE), "{engine}");
        assert_eq!(target.fact("wrong"), 0, "{engine}");
    }
}

/// The child of vfork is in a vfork as well, so it does not stop, and its signal actions cannot be
/// restored.
#[test]
fn unavoidable_residue_is_reported_and_can_be_removed() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("vfork_parent", &["8000", "busy", "nested"]);
    let pid = target.pid();
    let before = Snapshot::take(pid);
    let (outcome, _) = recorded_into_vfork(&target, "timer", Duration::from_secs(30));
    let text = outcome.text();
    assert_eq!((outcome.code(), target.state()), (Some(11), 'D'), "{text}");
    let advice = format!("`traceprof detach --pid {pid}` removes it");
    assert!(text.contains("left behind") && text.contains(&advice), "{text}");
    assert!(outcome.trace.folded().total() > 0, "{text}");
    assert!(!before.marks_left(&Snapshot::take(pid)).is_empty(), "nothing was left behind");
    let detach = || {
        let output = traceprof(&["detach", "--pid", &pid.to_string()]).output().expect("traceprof");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let mut last = detach();
    wait_until(Duration::from_secs(20), || {
        last = detach();
        last.0 == Some(0)
    });
    assert_eq!(last.0, Some(0), "{}", last.1);
    assert_eq!(before.marks_left(&Snapshot::take(pid)), [""; 0], "{}", last.1);
    target.send(Signal::SIGTERM);
    assert_eq!(target.wait().code(), Some(OWN_EXIT_CODE));
    assert_eq!(target.fact("wrong"), 0);
}
