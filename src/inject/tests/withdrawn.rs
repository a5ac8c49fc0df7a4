//! Threads that are withdrawn from a chain, and put back at difficult points.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::pending_signals::queue_sampling_signal;
use super::stand_in::{StandIn, start_guardian};
use super::victim::{Victim, VisibleState, build};
use super::{FILTERED, alone, attach_and_detach, await_unchanged, preflight, spinner};
use crate::inject::ptrace::{Tracee, TraceeEvent};
use crate::inject::sigreturn_chain::{Chain, ChainGadgets, ChainStep};
use crate::inject::stop::{self, Launched, Stopped};
use crate::inject::syscall::Syscall;
use crate::inject::worker::execution::ExecIdentity;
use crate::inject::worker::gadgets::Gadgets;
use crate::inject::worker::stack::stack_top;
use crate::inject::{InjectError, arch};
use crate::proc::{self, Mapping};

const NARROW: &str = include_str!("victims/narrow.c");
const WAIT: Duration = Duration::from_secs(5);

/// Launches the only thread on a chain of one call without an effect.
fn launch(pid: i32) -> Launched {
    let mappings = proc::mappings(pid).unwrap();
    let gadgets = Gadgets::find(pid, ExecIdentity::of(pid).unwrap(), &mappings).unwrap();
    let mut stopped = stop::stop(pid, WAIT, WAIT).unwrap();
    stopped.prepare().unwrap();
    let (chain, _) = getppid_chain(&stopped, gadgets, &mappings);
    stopped.launch(chain).unwrap()
}

/// Returns a chain of one call without an effect, and its only step.
fn getppid_chain(
    stopped: &Stopped,
    gadgets: Gadgets,
    mappings: &[Mapping],
) -> (Chain, [ChainStep; 1]) {
    let top = stack_top(stopped, mappings).unwrap();
    let chain_gadgets = ChainGadgets {
        syscall_return: gadgets.syscall_return.unwrap(),
        restorer: gadgets.restorer.unwrap(),
    };
    let steps = [ChainStep::Syscall(Syscall::new(libc::SYS_getppid, &[]))];
    (Chain::new(stopped.saved(), &steps, chain_gadgets, top), steps)
}

fn await_state(pid: i32, state: char) {
    let deadline = Instant::now() + WAIT;
    loop {
        let found = proc::task_stat(pid, pid).unwrap().state;
        if found == state {
            return;
        }
        let wait = proc::wait_channel(pid, pid);
        let is_overdue = Instant::now() >= deadline || proc::has_ended(found);
        assert!(!is_overdue, "it is in state {found}, not {state}: {wait:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the only thread has run for this time since the call.
fn await_cpu_time(pid: i32, time: Duration) {
    let used = || proc::task_cpu_or_ticks_ns(pid, pid).unwrap();
    let (before, deadline) = (used(), Instant::now() + WAIT);
    while used() - before < time.as_nanos() as u64 {
        assert!(Instant::now() < deadline, "it does not run");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn thread_is_taken_off_a_chain_that_it_has_not_started() {
    let _alone = alone();
    let victim = spinner();
    let stand_in = StandIn::new(victim.pid);
    let before = VisibleState::at(victim.pid, true);
    for _ in 0..20 {
        // While job control stops the thread, it cannot start.
        victim.signal(Signal::SIGSTOP);
        await_state(victim.pid, 'T');
        let launched = launch(victim.pid);
        assert!(launched.withdraw(&stand_in.plan).unwrap(), "it was at the start of the chain");
        assert!(!launched.withdraw(&stand_in.plan).unwrap(), "it was already put back");
        victim.signal(Signal::SIGCONT);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(await_unchanged(victim.pid, true, &before), before);
    victim.expect(7);
}

#[test]
fn thread_that_finished_its_chain_is_left_as_it_is() {
    let _alone = alone();
    let victim = spinner();
    let stand_in = StandIn::new(victim.pid);
    for _ in 0..20 {
        let launched = launch(victim.pid);
        await_cpu_time(victim.pid, Duration::from_millis(5));
        assert!(!launched.withdraw(&stand_in.plan).unwrap());
    }
    victim.expect(7);
}

/// At the withdrawal, the thread sleeps again, in a call that a stop would break.
#[test]
fn failed_mapping_does_not_break_the_wait_of_the_thread() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("narrow", NARROW, &[])));
    for _ in 0..3 {
        let stand_in = StandIn::new(victim.pid);
        let outcome = start_guardian().attach(&stand_in.plan);
        assert!(matches!(outcome, Err(InjectError::MapFailed { .. })), "{outcome:?}");
    }
    victim.expect(7);
}

/// No system call has number -1, which such filters forbid.
#[test]
fn filter_that_forbids_unknown_calls_never_sees_one() {
    let _alone = alone();
    for how in ["kill", "refuse"] {
        let mut command = Command::new(build("filtered", FILTERED, &[]));
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

/// On a busy machine a thread may stop again after the kernel has prepared it to continue a sleep,
/// and before the thread runs. Such a thread must not be set on a chain, which would end the sleep.
#[test]
fn thread_that_is_about_to_continue_its_sleep_sleeps_on() {
    let _alone = alone();
    let mut command = Command::new(build("filtered", FILTERED, &[]));
    command.arg("kill");
    let victim = Victim::start(command);
    // The number of the interrupted call is lost if the thread was already in user code.
    for is_number_known in [true, false].repeat(3) {
        await_state(victim.pid, 'S');
        let stopped = stop_before_continuation(victim.pid, is_number_known, || ());
        run_getppid(stopped);
    }
    await_state(victim.pid, 'S');
    victim.expect(7);
}

/// The handler's return would drop what the kernel knows of the sleep.
#[test]
fn sampling_signal_before_the_continuation_of_a_sleep_does_not_end_it() {
    let _alone = alone();
    let mut command = Command::new(build("filtered", FILTERED, &[]));
    command.arg("kill");
    let victim = Victim::start(command);
    stop::take_withheld();
    for is_number_known in [true, false].repeat(3) {
        await_state(victim.pid, 'S');
        let pid = victim.pid;
        drop(stop_before_continuation(pid, is_number_known, || queue_sampling_signal(pid)));
    }
    assert_eq!(stop::take_withheld(), (6, 0));
    await_state(victim.pid, 'S');
    victim.expect(7);
}

/// Stops the only thread in its sleep and makes the change that the kernel makes to continue it.
/// Then it runs `then`, and only afterwards reads the pending signals.
fn stop_before_continuation(pid: i32, is_number_known: bool, then: impl FnOnce()) -> Stopped {
    let (since, tracee) = (Instant::now(), Tracee::seize(pid).unwrap());
    let deadline = since + WAIT;
    tracee.interrupt().unwrap();
    assert_eq!(tracee.wait(deadline).unwrap(), TraceeEvent::Interrupt);
    let mut registers = tracee.registers().unwrap().unwrap();
    assert_eq!(arch::interrupted(&registers), arch::Interrupted::RestartBlock);
    registers.rax = libc::SYS_restart_syscall as u64;
    registers.rip -= arch::SYSCALL.len() as u64;
    if !is_number_known {
        registers.orig_rax = u64::MAX;
    }
    tracee.set_registers(&registers).unwrap();
    then();
    Stopped::collect(tracee, since, deadline, deadline).unwrap()
}

/// Lets a stopped thread make a call without an effect, as an attach does.
fn run_getppid(mut stopped: Stopped) {
    let pid = stopped.tid();
    let mappings = proc::mappings(pid).unwrap();
    let gadgets = Gadgets::find(pid, ExecIdentity::of(pid).unwrap(), &mappings).unwrap();
    stopped.prepare().unwrap();
    let may_be_launched = stopped.may_be_launched();
    let (chain, steps) = getppid_chain(&stopped, gadgets, &mappings);
    if may_be_launched {
        stopped.launch(chain).unwrap();
    } else {
        let parent = nix::unistd::getpid().as_raw();
        assert_eq!(stopped.run_stepwise(&chain, &steps).unwrap(), [i64::from(parent)]);
        stopped.release().unwrap();
    }
}

/// Nothing blocks SIGSTOP, so it can reach a thread in the middle of a step.
#[test]
fn stop_that_comes_while_a_thread_is_stepped_is_not_lost() {
    let _alone = alone();
    let mut command = Command::new(build("filtered", FILTERED, &[]));
    command.arg("kill");
    let victim = Victim::start(command);
    for round in 0..40u64 {
        await_state(victim.pid, 'S');
        let stand_in = StandIn::new(victim.pid);
        let mut guardian = start_guardian();
        let pid = victim.pid;
        let is_attached = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&is_attached);
        let stopper = std::thread::spawn(move || {
            // The attach may be over before a tracer is seen: the stop comes after it then.
            while proc::status(pid).unwrap().tracer == 0 && !is_over.load(Ordering::Relaxed) {}
            std::thread::sleep(Duration::from_micros(round * 10));
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        });
        let attached = guardian.attach(&stand_in.plan);
        is_attached.store(true, Ordering::Relaxed);
        stopper.join().unwrap();
        await_state(victim.pid, 'T');
        victim.signal(Signal::SIGCONT);
        attached.unwrap();
        assert_eq!(guardian.detach().unwrap().residue, None);
    }
    victim.expect(7);
}
