//! Guardians that do not run: stopped by SIGSTOP, or in a frozen control group. A thread that such
//! a guardian holds goes on within seconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use traceprof::fault::FaultPoint;

use super::strike::GUARDIAN;
use crate::common::{
    OWN_EXIT_CODE, Recorder, Snapshot, Target, Trace, child_named, is_root, needs_fault_points,
    needs_recording, scratch_dir, skip, together, traceprof, wait_until,
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

/// A control group of version 2. Dropping it thaws and removes it.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let name = format!("traceprof-frozen-{}", std::process::id());
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().find_map(|parent| {
            let group = Group(Path::new(parent).join(&name));
            fs::create_dir(&group.0).ok()?;
            group.0.join("cgroup.freeze").exists().then_some(group)
        })
    }

    fn freeze(&self, pid: i32) -> bool {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())
            .and_then(|()| fs::write(self.0.join("cgroup.freeze"), "1"))
            .is_ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.freeze"), "0");
        let members = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines() {
            let _ = fs::write(self.0.parent().unwrap().join("cgroup.procs"), pid);
        }
        wait_until(Duration::from_secs(5), || fs::remove_dir(&self.0).is_ok());
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
        let Some(group) = Group::new() else { skip!("control groups of version 2") };
        let target = Target::start("prey", &["crowd"]);
        let before = Snapshot::take(target.pid());
        let (directory, fault) = (scratch_dir(), format!("{}=stall", point.name()));
        let log = directory.path().join("log");
        let mut recorder = recorder(&target, &fault, "perf", &log);
        assert!(wait_until(PATIENCE, || did(&log, &fault)), "{point:?} was not passed");
        let guardian = child_named(recorder.pid(), GUARDIAN).expect("a guardian");
        assert!(group.freeze(guardian), "{point:?}");
        let longest = longest_stop(&mut recorder, &target);
        let outcome = recorder.finish();
        assert!(longest < FROZEN_MAX, "{point:?}: {longest:?}; {}", outcome.text());
        assert_eq!(outcome.code(), Some(code), "{point:?}: {}", outcome.text());
        assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0], "{point:?}");
        end(target);
    }
}
