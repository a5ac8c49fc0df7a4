//! Guardians that do not run: stopped by SIGSTOP, or in a frozen control group. A thread that such
//! a guardian holds goes on within seconds.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use traceprof::fault::FaultPoint;

use super::strike::GUARDIAN;
use crate::common::{
    ControlGroup, OWN_EXIT_CODE, Recorder, Snapshot, Target, Trace, child_named, is_root,
    needs_fault_points, needs_recording, scratch_dir, skip, together, traceprof, wait_until,
};

/// Longest time for which a thread may stay stopped: the kernel acts after a fifth of a second, and
/// the machine is busy.
const STOPPED_MAX: Duration = Duration::from_secs(3);
/// Longest such time in a frozen control group, in which only SIGKILL helps, after five seconds.
const FROZEN_MAX: Duration = Duration::from_secs(9);
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest time for which any thread of a process was seen in a tracing stop.
#[derive(Default)]
struct LongestStop {
    since: Option<Instant>,
    longest: Duration,
}

impl LongestStop {
    fn look(&mut self, target: &Target) {
        self.since = match target.states().contains('t') {
            true => Some(*self.since.get_or_insert_with(Instant::now)),
            false => None,
        };
        self.longest = self.longest.max(self.since.map_or(Duration::ZERO, |it| it.elapsed()));
    }
}

/// Starts a recorder that passes this fault.
fn recorder(target: &Target, fault: &str, engine: &str, log: &Path) -> Recorder {
    let mut command = traceprof(&["record", "--freq", "997", "--duration", "200ms"]);
    command.args(["--engine", engine, "--pid", &target.pid().to_string()]);
    command.env("TRACEPROF_FAULT", fault).env("TRACEPROF_FAULT_LOG", log);
    Recorder::spawn(command, Trace::new())
}

fn did(log: &Path, fault: &str) -> bool {
    fs::read_to_string(log).unwrap_or_default().lines().any(|line| line == fault)
}

/// Waits for the recorder's exit, and returns for how long a thread was stopped meanwhile.
fn longest_stop(recorder: &mut Recorder, target: &Target) -> Duration {
    let mut stop = LongestStop::default();
    let has_ended = wait_until(PATIENCE, || {
        stop.look(target);
        recorder.has_exited()
    });
    assert!(has_ended, "the recorder waits for its guardian; threads {}", target.states());
    stop.longest
}

fn end(mut target: Target) {
    target.send(Signal::SIGTERM);
    assert_eq!(target.wait().code(), Some(OWN_EXIT_CODE));
}

/// SIGSTOP cannot be blocked. It reaches a guardian with and without a thread in its hands.
#[test]
fn stopped_guardian_holds_no_thread_and_finishes() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let points = [
        FaultPoint::AttachRequested,
        FaultPoint::ThreadStopped,
        FaultPoint::LaunchSet,
        FaultPoint::EntryStopped,
        FaultPoint::RecordLooped,
        FaultPoint::RestoreStopped,
        FaultPoint::RestoreActionKnown,
        FaultPoint::RestoreOthersReleased,
    ];
    for (point, engine) in points.iter().zip(["perf", "timer"].into_iter().cycle()) {
        let target = Target::start("prey", &["crowd"]);
        let before = Snapshot::take(target.pid());
        let (directory, fault) = (scratch_dir(), format!("{}=freeze", point.name()));
        let log = directory.path().join("log");
        let mut recorder = recorder(&target, &fault, engine, &log);
        let longest = longest_stop(&mut recorder, &target);
        let outcome = recorder.finish();
        // While the guardian is stopped, the recording may end before it has a sample.
        assert!(matches!(outcome.code(), Some(0 | 4)), "{point:?}: {}", outcome.text());
        assert!(did(&log, &fault), "{point:?} was not passed");
        assert!(longest < STOPPED_MAX, "{point:?}: {longest:?}; {}", outcome.text());
        assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0], "{point:?}");
        end(target);
    }
}

/// A paused container has its processes in such a group.
#[test]
fn guardian_in_a_frozen_group_holds_no_thread() {
    needs_recording!();
    needs_fault_points!();
    if !is_root() {
        skip!("root: needed to make a control group");
    }
    let _machine = together();
    for (point, code) in [(FaultPoint::ThreadStopped, 1), (FaultPoint::RestoreStopped, 0)] {
        let Some(group) = ControlGroup::to_freeze(2) else { skip!("control groups of version 2") };
        let target = Target::start("prey", &["crowd"]);
        let before = Snapshot::take(target.pid());
        let (directory, fault) = (scratch_dir(), format!("{}=stall", point.name()));
        let log = directory.path().join("log");
        let mut recorder = recorder(&target, &fault, "perf", &log);
        assert!(wait_until(PATIENCE, || did(&log, &fault)), "{point:?} was not passed");
        let guardian = child_named(recorder.pid(), GUARDIAN).expect("a guardian");
        assert!(group.add(guardian) && group.freeze(), "{point:?}");
        let longest = longest_stop(&mut recorder, &target);
        let outcome = recorder.finish();
        assert!(longest < FROZEN_MAX, "{point:?}: {longest:?}; {}", outcome.text());
        // On a busy machine there may be no sample.
        let is_right = outcome.code() == Some(code) || (code == 0 && outcome.code() == Some(4));
        assert!(is_right, "{point:?}: {}", outcome.text());
        assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0], "{point:?}");
        end(target);
    }
}
