//! Targets that do not run: stopped by job control, or waiting for a child of vfork.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{BOTH, Proof};
use crate::common::{
    OWN_EXIT_CODE, Recorder, Snapshot, Target, needs_recording, together, wait_until,
};

/// Stopped and continued; `record` is what happens in between.
fn continued(record: impl Fn(&Target)) -> Target {
    let mut target = Target::start("steady", &["8"]);
    target.send(Signal::SIGSTOP);
    let limit = Duration::from_secs(20);
    assert!(wait_until(limit, || target.state() == 'T'), "state {}", target.state());
    record(&target);
    target.send(Signal::SIGCONT);
    target.goes_on_and_ends_by_itself();
    target
}

/// Continuing breaks some calls: as many as without a recorder.
#[test]
fn stopped_process_is_recorded_and_stays_stopped() {
    needs_recording!();
    let _machine = together();
    let alone = continued(|_| ());
    let recorded = continued(|target| {
        let before = Snapshot::take(target.pid());
        for engine in BOTH {
            let pid = target.pid().to_string();
            let args = ["--pid", &pid, "--duration", "1", "--freq", "2000", "--engine", engine];
            Recorder::start(&args).finish().expect_code(4);
            assert_eq!(target.state(), 'T', "{engine}");
            assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0], "{engine}");
        }
    });
    assert_eq!((recorded.fact("wrong"), recorded.fact("other")), (0, 0));
    // The cure puts right what the stop has broken, too.
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

/// It cannot be stopped until the child is done: told within the limit, and nobody waits longer.
#[test]
fn only_thread_in_vfork_is_told_and_not_harmed() {
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
