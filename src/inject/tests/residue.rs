//! Parts of an agent, as a guardian leaves them that is killed in the middle of its work.

use std::time::{Duration, Instant};

use super::stand_in::StandIn;
use super::victim::{Victim, VisibleState};
use super::{alone, attach_and_detach, await_unchanged, bare, spinner};
use crate::inject::plan::AttachPlan;
use crate::inject::ptrace::Tracee;
use crate::inject::restore::residue;
use crate::inject::stop::Stopped;
use crate::inject::syscall::Syscall;
use crate::inject::worker::execution::ExecIdentity;
use crate::inject::worker::gadgets::Gadgets;
use crate::proc;

/// Makes the process run the calls of an attach that ends there.
fn make(pid: i32, calls: &[Syscall]) {
    let mappings = proc::mappings(pid).unwrap();
    let gadgets = Gadgets::find(pid, ExecIdentity::of(pid).unwrap(), &mappings).unwrap();
    let tracee = Tracee::seize(pid).unwrap();
    tracee.interrupt().unwrap();
    let last = Instant::now() + Duration::from_secs(5);
    let mut stopped = Stopped::collect(tracee, Instant::now(), last, last).ok().unwrap();
    stopped.prepare().unwrap();
    for call in calls {
        assert!(stopped.run_bare_call(gadgets.syscall, call).unwrap() > 0);
    }
    stopped.release().unwrap();
}

fn part_is_removed_by_the_next_attach(victim: &Victim, part: fn(&AttachPlan) -> Vec<Syscall>) {
    let pid = victim.pid;
    let before = VisibleState::at(pid, true);
    let left = StandIn::new(pid);
    make(pid, &part(&left.plan));
    let start_time = proc::start_time(pid).unwrap();
    assert_eq!(residue::find(pid, start_time).unwrap().len(), 1);
    assert_ne!(VisibleState::at(pid, true), before);
    attach_and_detach(pid);
    assert!(residue::find(pid, start_time).unwrap().is_empty());
    assert_eq!(await_unchanged(pid, true, &before), before);
}

#[test]
fn part_of_an_agent_is_removed_by_the_next_attach() {
    let _alone = alone();
    let parts: [fn(&AttachPlan) -> Vec<Syscall>; 3] = [
        |plan| vec![plan.data.attach()],
        |plan| vec![plan.data.attach(), plan.code.attach()],
        |plan| vec![plan.tables.attach(), plan.data.attach()],
    ];
    for victim in [spinner(), bare()] {
        for part in parts {
            part_is_removed_by_the_next_attach(&victim, part);
        }
        victim.expect(7);
    }
}
