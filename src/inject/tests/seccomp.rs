//! Targets under seccomp filters: whether an attach succeeds, and which thread it uses.

use std::process::Command;
use std::time::{Duration, Instant};

use super::stand_in::{StandIn, start_guardian};
use super::victim::{Victim, VisibleState, build};
use super::{FILTERED, alone, attach_and_detach, await_unchanged, preflight};
use crate::inject::*;
use crate::proc;

/// Waits until all threads sleep.
fn await_sleep(pid: i32) {
    let deadline = Instant::now() + Duration::from_secs(5);
    let is_asleep = |tid| proc::task_stat(pid, tid).is_ok_and(|stat| stat.state == 'S');
    while !proc::tasks(pid).unwrap().into_iter().all(is_asleep) {
        assert!(Instant::now() < deadline, "a thread does not sleep");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn seccomp_is_refused_unless_it_is_known_to_permit() {
    let _alone = alone();
    let program = build("filtered", FILTERED, &[]);
    let mut command = Command::new(&program);
    command.arg("strict");
    let strict = Victim::start(command);
    assert_eq!(preflight(strict.pid), Err(Refusal::SeccompStrict));
    let victim = Victim::start(Command::new(&program));
    let facts = preflight(victim.pid).unwrap();
    let judged = start_guardian().check_seccomp(&facts, Permits::default());
    if nix::unistd::geteuid().is_root() {
        let judged = judged.unwrap();
        assert!(judged.seen.contains("1 thread") && judged.no_timers.is_none(), "{judged:?}");
    } else {
        assert!(matches!(judged, Err(InjectError::Refused(Refusal::SeccompUnknown { .. }))));
    }
    attach_and_detach(victim.pid);
    victim.expect(7);
}

/// The other thread sleeps in a call that a chain disturbs more than the filtered thread's call.
#[test]
fn thread_without_a_filter_is_preferred_to_a_better_one_with_some() {
    let _alone = alone();
    let mut command = Command::new(build("filtered", FILTERED, &[]));
    command.arg("beside");
    let victim = Victim::start(command);
    await_sleep(victim.pid);
    let before = VisibleState::at(victim.pid, true);
    let tids = proc::tasks(victim.pid).unwrap();
    let other = tids.into_iter().find(|&tid| tid != victim.pid);
    let stand_in = StandIn::new(victim.pid);
    let mut guardian = start_guardian();
    let report = guardian.attach(&stand_in.plan).unwrap();
    assert_eq!(Some(report.tid), other);
    guardian.detach().unwrap();
    assert_eq!(await_unchanged(victim.pid, true, &before), before);
    let (_, why) = first_choice(victim.pid, &proc::mappings(victim.pid).unwrap()).unwrap();
    assert!(why.contains("no seccomp filter"), "{why}");
    victim.expect(7);
}

/// Without any filter, the first choice is the thread in `pause`.
#[test]
fn thread_in_a_call_that_restarts_unseen_is_the_first_choice() {
    let _alone = alone();
    let mut command = Command::new(build("filtered", FILTERED, &[]));
    command.arg("beside without");
    let victim = Victim::start(command);
    await_sleep(victim.pid);
    let (tid, why) = first_choice(victim.pid, &proc::mappings(victim.pid).unwrap()).unwrap();
    assert_eq!((tid, why), (victim.pid, "it sleeps in a call that the kernel restarts by itself"));
    victim.expect(7);
}

/// The filtered thread runs, which would otherwise make it the better one.
#[test]
fn thread_under_a_filter_that_came_later_is_not_used_by_the_restore() {
    let _alone = alone();
    let mut command = Command::new(build("filtered", FILTERED, &[]));
    command.arg("later");
    let victim = Victim::start(command);
    await_sleep(victim.pid);
    let before = VisibleState::at(victim.pid, false);
    let stand_in = StandIn::new(victim.pid);
    let mut guardian = start_guardian();
    guardian.attach(&stand_in.plan).unwrap();
    victim.signal(nix::sys::signal::Signal::SIGUSR1);
    let deadline = Instant::now() + Duration::from_secs(10);
    while proc::task_status(victim.pid, victim.pid).unwrap().seccomp == 0 {
        assert!(Instant::now() < deadline, "it is under no filter");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(guardian.detach().unwrap().residue, None);
    assert_eq!(await_unchanged(victim.pid, false, &before), before);
    victim.expect(7);
}
