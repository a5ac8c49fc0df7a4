//! Targets whose threads rarely get a processor.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::stand_in::{StandIn, start_guardian};
use super::victim::{Victim, VisibleState, build};
use super::{alone, attach_and_detach, await_unchanged, round};
use crate::inject::InjectError;

const STARVED: &str = include_str!("victims/starved.c");

/// A control group whose processes share 1 % of a processor. Dropping it removes it.
struct Group {
    directory: PathBuf,
}

impl Group {
    /// Puts a process into such a group. Returns `None` if groups cannot be created.
    fn starving(pid: i32) -> Option<Group> {
        let name = format!("traceprof-test-{}", std::process::id());
        let first = ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"]
            .map(|parent| (parent, "cpu.cfs_quota_us", "1000"));
        let all = first.into_iter().chain([("/sys/fs/cgroup", "cpu.max", "1000 100000")]);
        for (parent, file, limit) in all {
            let directory = Path::new(parent).join(&name);
            if fs::create_dir(&directory).is_err() {
                continue;
            }
            let group = Group { directory };
            let set = fs::write(group.directory.join(file), limit)
                .and_then(|()| fs::write(group.directory.join("cgroup.procs"), pid.to_string()));
            if set.is_ok() {
                return Some(group);
            }
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let parent = self.directory.parent().unwrap().join("cgroup.procs");
        let members = fs::read_to_string(self.directory.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines() {
            let _ = fs::write(&parent, pid);
        }
        let _ = fs::remove_dir(&self.directory);
    }
}

/// A resumed thread without a processor used to be abandoned when its time was up. In a bare system
/// call it returned into nothing, and a chain ran at an unexpected time.
#[test]
fn starved_target_survives_whatever_takes_too_long() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("starved", STARVED, &[])));
    let before = VisibleState::at(victim.pid, true);
    let Some(group) = Group::starving(victim.pid) else {
        eprintln!("SKIPPED: no control group of the cpu controller can be made here");
        return;
    };
    let last = Instant::now() + Duration::from_secs(8);
    let mut attached = 0;
    while Instant::now() < last {
        let stand_in = StandIn::new(victim.pid);
        let mut guardian = start_guardian();
        let outcome = guardian.attach(&stand_in.plan).and_then(|_| {
            attached += 1;
            guardian.detach()
        });
        match outcome {
            Ok(report) => report.residue.iter().for_each(|residue| eprintln!("left: {residue}")),
            // A group in debt gets no processor for seconds, and half a minute may be too short.
            // The remaining agent is then inert.
            Err(
                error @ (InjectError::EntryTimedOut
                | InjectError::WouldNotStop { .. }
                | InjectError::Residue { .. }),
            ) => eprintln!("refused: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
    eprintln!("attached {attached} times");
    drop(group);
    // The next attach removes the residue.
    attach_and_detach(victim.pid);
    assert_eq!(await_unchanged(victim.pid, true, &before), before);
    round(victim.pid, true);
    victim.expect(7);
}
