//! Threads that are recalled, and put back at places where that is not easy.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::super::chain::{Call, Chain, Landing, Step};
use super::super::gadget::Gadgets;
use super::super::identity::Execution;
use super::super::stop::{self, Launched};
use super::super::threads;
use super::stand_in::StandIn;
use super::victim::{Look, Victim, build};
use super::{JAILED, alone, attach_and_detach, look_again, preflight, spinner};
use crate::inject::{Guardian, InjectError};
use crate::proc;

const NARROW: &str = include_str!("victims/narrow.c");
const WAIT: Duration = Duration::from_secs(5);

/// Sets the only thread going on a chain of one call that does nothing.
fn launch(pid: i32) -> Launched {
    let mappings = proc::mappings(pid).unwrap();
    let gadgets = Gadgets::find(pid, Execution::of(pid), &mappings).unwrap();
    let mut stopped = stop::stop(pid, WAIT, WAIT).unwrap();
    stopped.prepare().unwrap();
    let top = threads::stack_top(&stopped, &mappings).unwrap();
    let landing = Landing { gadget: gadgets.call.unwrap(), restorer: gadgets.restorer.unwrap() };
    let steps = [Step::Call(Call::new(libc::SYS_getppid, &[]))];
    let chain = Chain::new(&stopped.saved, &steps, landing, top);
    stopped.launch(chain).unwrap()
}

fn await_state(pid: i32, state: char) {
    let deadline = Instant::now() + WAIT;
    while proc::task_stat(pid, pid).unwrap().state != state {
        assert!(Instant::now() < deadline, "it is not in state {state}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn thread_is_taken_off_a_chain_that_it_has_not_begun() {
    let _alone = alone();
    let victim = spinner();
    let stand_in = StandIn::new(victim.pid);
    let before = Look::at(victim.pid, true);
    for _ in 0..20 {
        // As long as job control has it stopped it cannot begin.
        victim.signal(Signal::SIGSTOP);
        await_state(victim.pid, 'T');
        let launched = launch(victim.pid);
        assert!(launched.recall(&stand_in.plan).unwrap(), "it was at the chain's beginning");
        assert!(!launched.recall(&stand_in.plan).unwrap(), "it was put back");
        victim.signal(Signal::SIGCONT);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(look_again(victim.pid, true, &before), before);
    victim.expect(7);
}

#[test]
fn thread_that_came_home_is_left_as_it_is() {
    let _alone = alone();
    let victim = spinner();
    let stand_in = StandIn::new(victim.pid);
    for _ in 0..20 {
        let launched = launch(victim.pid);
        std::thread::sleep(Duration::from_millis(5));
        assert!(!launched.recall(&stand_in.plan).unwrap());
    }
    victim.expect(7);
}

/// It sleeps again when the recall asks, in a call that a stop would break.
#[test]
fn failed_mapping_does_not_break_the_wait_of_the_thread() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("narrow", NARROW, &[])));
    for _ in 0..3 {
        let stand_in = StandIn::new(victim.pid);
        let outcome = Guardian::start().unwrap().attach(&stand_in.plan);
        assert!(matches!(outcome, Err(InjectError::MapFailed { .. })), "{outcome:?}");
    }
    victim.expect(7);
}

/// No system call at all has number -1, which such filters forbid.
#[test]
fn filter_that_forbids_what_is_no_call_is_not_shown_one() {
    let _alone = alone();
    for how in ["kill", "refuse"] {
        let mut command = Command::new(build("jailed", JAILED, &[]));
        command.arg(how);
        let victim = Victim::start(command);
        await_state(victim.pid, 'S');
        preflight(victim.pid).unwrap();
        for _ in 0..3 {
            attach_and_detach(victim.pid);
        }
        victim.expect(7);
    }
}

/// Nothing blocks SIGSTOP, and a thread that is led meets it in the middle.
#[test]
fn stop_that_comes_while_a_thread_is_led_is_not_lost() {
    let _alone = alone();
    let mut command = Command::new(build("jailed", JAILED, &[]));
    command.arg("kill");
    let victim = Victim::start(command);
    for round in 0..40u64 {
        await_state(victim.pid, 'S');
        let stand_in = StandIn::new(victim.pid);
        let mut guardian = Guardian::start().unwrap();
        let pid = victim.pid;
        let stopper = std::thread::spawn(move || {
            let deadline = Instant::now() + WAIT;
            while proc::status(pid).unwrap().tracer == 0 && Instant::now() < deadline {}
            std::thread::sleep(Duration::from_micros(round * 10));
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        });
        let attached = guardian.attach(&stand_in.plan);
        stopper.join().unwrap();
        await_state(victim.pid, 'T');
        victim.signal(Signal::SIGCONT);
        attached.unwrap();
        assert_eq!(guardian.detach().unwrap().residue, None);
    }
    victim.expect(7);
}
