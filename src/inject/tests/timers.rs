//! Timers on threads' CPU clocks, a signal that is added to a running agent, and priming.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use traceprof_abi::layout::{Counter, Operation, PRIMING};
use traceprof_abi::sync::Ordering;
use traceprof_abi::thread::SlotState;

use super::agent::{Agent, PERIOD_NS, SIGNAL, cpu_ns, forbid_pending_signals, send, timers, until};
use super::victim::{Victim, VisibleState, assert_segments_gone, build};
use super::{BLOCKERS, SPINNER, THREADS, alone, await_unchanged, spinner};
use crate::inject::agent_entry::STEPPED_ARM_MAX;
use crate::inject::*;

const OWNER: &str = include_str!("victims/owner.c");
const CHANGER: &str = include_str!("victims/changer.c");

fn owner(signal: i32, blocked: bool) -> Victim {
    let mut command = Command::new(build("owner", OWNER, &[]));
    command.arg(signal.to_string()).args(blocked.then_some("blocked"));
    Victim::start(command)
}

pub(super) fn changer() -> Victim {
    let victim = Victim::start(Command::new(build("changer", CHANGER, &[])));
    // A new thread blocks all signals for a moment.
    std::thread::sleep(Duration::from_millis(50));
    victim
}

/// Checks that the reported expiries cover the CPU time that the process uses.
fn expect_all_cpu_time(agent: &Agent) {
    let (cpu, periods) = (cpu_ns(agent.plan.pid), agent.periods());
    until("200 periods", || agent.periods() >= periods + 200);
    let (cpu, periods) = (cpu_ns(agent.plan.pid) - cpu, agent.periods() - periods);
    let share = (periods * PERIOD_NS) as f64 / cpu as f64;
    assert!((0.75..1.1).contains(&share), "{periods} periods in {cpu} ns");
}

#[test]
fn signal_that_is_added_while_the_agent_runs_is_restored() {
    let _alone = alone();
    let victim = spinner();
    let before = VisibleState::at(victim.pid, true);
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    assert_eq!(timers(victim.pid).len(), 0);
    let slots = agent.want_timers();
    guardian.run_entry(Operation::Arm).unwrap();
    assert_eq!((timers(victim.pid).len(), agent.count(Counter::Armed)), (1, 1));
    let slot = agent.slot(slots[&victim.pid]);
    assert_eq!(slot.state.load(Ordering::Relaxed), SlotState::Primed as u32);
    expect_all_cpu_time(&agent);
    assert_eq!(guardian.detach().unwrap().residue, None);
    assert_eq!(timers(victim.pid).len(), 0);
    assert_eq!(await_unchanged(victim.pid, true, &before), before);
    let plan = &agent.plan;
    let ids = [plan.code.shm_id, plan.tables.shm_id, plan.data.shm_id];
    drop((guardian, agent));
    assert_segments_gone(ids);
    victim.expect(7);
}

#[test]
fn sleeping_threads_get_timers_and_do_not_notice() {
    let _alone = alone();
    for (name, source, is_asleep, code) in
        [("blockers", BLOCKERS, true, 0), ("threads", THREADS, false, 7)]
    {
        let steady = is_asleep;
        let victim = Victim::start(Command::new(build(name, source, &[])));
        // A thread in sigwait shows another mask, so wait until the main thread gets there.
        std::thread::sleep(Duration::from_millis(50));
        let before = VisibleState::at(victim.pid, steady);
        let agent = Agent::new(victim.pid);
        let mut guardian = agent.attach(SIGNAL);
        let wanted = agent.want_timers().len();
        let served = || agent.count(Counter::Armed) + agent.count(Counter::TimerFailed);
        let mut entered = Vec::new();
        // The first timers' signals arm other timers. An entry that runs at the same time leaves
        // that to them.
        until("all timers", || {
            let is_done = served() as usize >= wanted;
            if !is_done {
                let before = served();
                entered.push(guardian.run_entry(Operation::Arm).unwrap().stopped_ns);
                let most = STEPPED_ARM_MAX as u64;
                assert!(!is_asleep || served() - before <= most, "{} at once", served() - before);
            }
            is_done
        });
        assert_eq!(served() as usize, wanted);
        let failed = agent.count(Counter::TimerFailed);
        // Threads that exited meanwhile have none.
        assert!(failed <= 2, "{failed} failed");
        std::thread::sleep(Duration::from_millis(100));
        let report = guardian.detach().unwrap();
        eprintln!("{name}: {wanted} timers, stops {entered:?}, restore {report:?}");
        assert_eq!(report.residue, None);
        assert_eq!(timers(victim.pid).len(), 0);
        assert_eq!(await_unchanged(victim.pid, steady, &before), before);
        victim.expect(code);
    }
}

#[test]
fn handlers_arm_pending_timers() {
    let _alone = alone();
    let victim = changer();
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    agent.prime(victim.pid, SIGNAL);
    until("the first timer", || agent.count(Counter::Armed) == 1);
    assert_eq!(agent.want_timers().len(), 4);
    until("the others", || timers(victim.pid).len() == 4);
    assert_eq!(agent.count(Counter::Armed), 4);
    guardian.detach().unwrap();
    victim.expect(7);
}

#[test]
fn thread_is_primed_once_and_acknowledged_each_time() {
    let _alone = alone();
    let victim = spinner();
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    let control = agent.data().control();
    let acks = || control.prime_acks.load(Ordering::Acquire);
    for count in 1..=3 {
        agent.prime(victim.pid, SIGNAL);
        until("the acknowledgement", || acks() == count);
    }
    assert_eq!((agent.count(Counter::Primed), agent.count(Counter::Armed)), (1, 1));
    assert_eq!(timers(victim.pid).len(), 1);
    let sum = control.prime_latency_sum_ns.load(Ordering::Relaxed);
    let most = u64::from(control.prime_latency_max_ns.load(Ordering::Relaxed));
    assert!(most <= sum && sum <= 3 * most && sum < 10_000_000_000, "{sum} {most}");
    guardian.detach().unwrap();
    victim.expect(7);
}

#[test]
fn handler_of_the_application_gets_its_signals_and_comes_back() {
    let _alone = alone();
    for signal in [SIGNAL, libc::SIGURG] {
        let mut victim = owner(signal, false);
        let raise = || send(victim.pid, signal);
        let before = VisibleState::at(victim.pid, true);
        raise();
        let agent = Agent::new(victim.pid);
        let mut guardian = agent.attach(signal);
        // The handler must not be installed twice: the saved action would be ours.
        guardian.run_entry(Operation::Install).unwrap();
        agent.want_timers();
        guardian.run_entry(Operation::Arm).unwrap();
        until("expiries", || agent.count(Counter::TimerExpiries) >= 3);
        raise();
        until("a foreign signal", || agent.count(Counter::Foreign) == 1);
        assert_eq!(guardian.detach().unwrap().residue, None);
        raise();
        let lines: Vec<String> = (0..3).map(|_| victim.line()).collect();
        assert_eq!(lines, ["o\n"; 3]);
        assert_eq!(await_unchanged(victim.pid, true, &before), before);
        victim.expect(7);
    }
}

#[test]
fn signal_that_is_ignored_by_default_stays_ours() {
    let _alone = alone();
    let victim = changer();
    let before = VisibleState::at(victim.pid, true);
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(libc::SIGURG);
    let caught = crate::proc::status(victim.pid).unwrap().caught;
    victim.signal(Signal::SIGURG);
    until("a foreign signal", || agent.count(Counter::Foreign) == 1);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(crate::proc::status(victim.pid).unwrap().caught, caught);
    assert_eq!(guardian.detach().unwrap().residue, None);
    assert_eq!(await_unchanged(victim.pid, true, &before), before);
    victim.expect(7);
}

#[test]
fn pending_signal_behind_a_mask_is_flushed() {
    let _alone = alone();
    let mut victim = owner(SIGNAL, true);
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    agent.want_timers();
    guardian.run_entry(Operation::Arm).unwrap();
    let pending = || {
        let text = std::fs::read_to_string(format!("/proc/{}/status", victim.pid)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("SigPnd:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap() >> (SIGNAL - 1) & 1 == 1
    };
    until("a pending signal", pending);
    // The target's own one-off signal would kill it, too.
    assert_eq!(guardian.detach().unwrap().residue, None);
    assert!(!pending());
    victim.signal(Signal::SIGUSR1);
    assert_eq!(victim.line(), "u\n");
    victim.expect(7);
}

#[test]
fn recorder_that_is_silent_loses_its_timers_and_gets_them_back() {
    let _alone = alone();
    let victim = changer();
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    agent.want_timers();
    guardian.run_entry(Operation::Arm).unwrap();
    assert_eq!(timers(victim.pid).len(), 4);
    agent.lease(Duration::ZERO);
    until("the end of the timers", || timers(victim.pid).is_empty());
    assert_eq!(agent.count(Counter::LeaseEnded), 4);
    guardian.run_entry(Operation::Arm).unwrap();
    assert_eq!(timers(victim.pid).len(), 0, "armed without a recorder");
    agent.lease(Duration::from_secs(60));
    guardian.run_entry(Operation::Arm).unwrap();
    assert_eq!(timers(victim.pid).len(), 4);
    expect_all_cpu_time(&agent);
    guardian.detach().unwrap();
    victim.expect(7);
}

/// Arms all timers: an entry arms some, and their signals arm the others.
fn arm_all(agent: &Agent, guardian: &mut Guardian, wanted: usize) {
    until("all timers", || {
        guardian.run_entry(Operation::Arm).unwrap();
        agent.count(Counter::Armed) + agent.count(Counter::TimerFailed) >= wanted as u64
    });
}

/// Kills a recorder and its guardian, and leaves their timers running.
fn killed_pair(victim: &Victim) -> bool {
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    let wanted = agent.want_timers().len();
    arm_all(&agent, &mut guardian, wanted);
    kill(Pid::from_raw(guardian.pid()), Signal::SIGKILL).unwrap();
    // The drop would do the guardian's work.
    std::mem::forget(guardian);
    agent.lease(Duration::from_millis(100));
    until("the end of the spinner's timer", || agent.count(Counter::LeaseEnded) > 0);
    !timers(victim.pid).is_empty()
}

#[test]
fn next_recording_removes_the_timers_that_a_killed_pair_left() {
    let _alone = alone();
    // On a busy machine, the sleepers' timers may expire before they are seen.
    let left = || {
        let victim = Victim::start(Command::new(build("threads", THREADS, &[])));
        let before = VisibleState::at(victim.pid, false);
        killed_pair(&victim).then_some((victim, before))
    };
    let found = std::iter::repeat_with(left).take(10).find_map(|it| it);
    let (victim, before) = found.expect("the sleepers' timers are still there, once in ten times");

    let next = Agent::new(victim.pid);
    let mut guardian = next.attach(SIGNAL);
    assert_eq!(timers(victim.pid).len(), 0);
    assert_eq!(guardian.detach().unwrap().residue, None);
    assert_eq!(await_unchanged(victim.pid, false, &before), before);
    victim.expect(7);
}

#[test]
fn timer_of_a_thread_that_has_exited_is_deleted() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("threads", THREADS, &[])));
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    let slots = agent.want_timers();
    arm_all(&agent, &mut guardian, slots.len());
    let (all, index) = (timers(victim.pid).len(), slots[&victim.pid]);
    let slot = agent.slot(index);
    assert_ne!(slot.timer.load(Ordering::Relaxed), 0);
    // Simulates the exit of the thread: for the kernel's list that makes no difference.
    slot.state.store(SlotState::Retired as u32, Ordering::Relaxed);
    agent.data().want_timer(index);
    guardian.run_entry(Operation::Arm).unwrap();
    until("its deletion", || slot.timer.load(Ordering::Relaxed) == 0);
    assert_eq!(timers(victim.pid).len(), all - 1);
    // The slot's next thread has another generation, so a timer of the earlier one is deleted
    // first.
    let other = slots.values().copied().find(|&it| it != index).unwrap();
    let slot = agent.slot(other);
    let timer = slot.timer.load(Ordering::Relaxed);
    slot.generation.fetch_add(1, Ordering::Relaxed);
    agent.data().want_timer(other);
    guardian.run_entry(Operation::Arm).unwrap();
    until("another timer", || ![0, timer].contains(&slot.timer.load(Ordering::Relaxed)));
    assert_eq!(timers(victim.pid).len(), all - 1);
    guardian.detach().unwrap();
    assert_eq!(timers(victim.pid).len(), 0);
    victim.expect(7);
}

#[test]
fn limit_of_pending_signals_is_counted_and_reported() {
    let _alone = alone();
    let victim = changer();
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    let slots = agent.want_timers();
    forbid_pending_signals(victim.pid);
    guardian.run_entry(Operation::Arm).unwrap();
    assert_eq!((agent.count(Counter::TimerFailed), agent.count(Counter::Armed)), (4, 0));
    for index in slots.values() {
        let error = agent.slot(*index).timer_error.load(Ordering::Relaxed);
        assert_eq!(error, libc::EAGAIN as u32);
        assert_eq!(agent.slot(*index).timer.load(Ordering::Relaxed), 0);
    }
    guardian.detach().unwrap();
    victim.expect(7);
}

#[test]
fn program_that_executes_another_has_no_timers_and_does_not_die_of_one() {
    let _alone = alone();
    let mut victim = changer();
    for _ in 0..10 {
        let agent = Agent::new(victim.pid);
        agent.data().control().period_ns.store(50_000, Ordering::Relaxed);
        let mut guardian = agent.attach(SIGNAL);
        agent.want_timers();
        guardian.run_entry(Operation::Arm).unwrap();
        until("expiries", || agent.count(Counter::TimerExpiries) >= 3);
        victim.signal(Signal::SIGUSR1);
        // The entry runs in the middle of the exec, or afterwards.
        let entered = guardian.run_entry(Operation::Arm);
        assert!(
            matches!(entered, Ok(_) | Err(InjectError::Executed | InjectError::Gone)),
            "{entered:?}"
        );
        assert_eq!(victim.line(), "ready\n");
        assert_eq!(guardian.run_entry(Operation::Arm), Err(InjectError::Executed));
        assert_eq!(timers(victim.pid).len(), 0);
        assert_eq!(guardian.detach().unwrap().residue, None);
    }
    victim.expect(7);
}

#[test]
fn forked_child_has_no_timers_and_touches_no_slot() {
    let _alone = alone();
    let mut victim = changer();
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    let slots = agent.want_timers().len();
    guardian.run_entry(Operation::Arm).unwrap();
    victim.signal(Signal::SIGUSR2);
    let child: i32 = victim.line().trim().parse().unwrap();
    assert_eq!(timers(child).len(), 0);
    // The child has the handler, so it discards the signal and claims nothing.
    let mut of_child = Agent::new(victim.pid);
    of_child.plan.pid = child;
    of_child.prime(child, SIGNAL);
    until("its handler", || agent.count(Counter::PrimeFailed) == 1);
    assert_eq!(agent.data().control().slots_next.load(Ordering::Relaxed), slots as u32);
    assert_eq!(agent.data().threads().find(child as u32), None);
    kill(Pid::from_raw(child), Signal::SIGTERM).unwrap();
    until("the child's end", || crate::proc::status(child).is_ok_and(|status| status.state == 'Z'));
    let text = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    let code: i32 = text.split_whitespace().last().unwrap().parse().unwrap();
    assert_eq!(code, 7 << 8, "the child's end");
    guardian.detach().unwrap();
    victim.expect(7);
}

#[test]
fn target_that_has_exited_is_not_entered() {
    let _alone = alone();
    let mut victim = Victim::start(Command::new(build("spinner", SPINNER, &[])));
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    agent.want_timers();
    guardian.run_entry(Operation::Arm).unwrap();
    assert_eq!(agent.data().control().signals[PRIMING].installed.load(Ordering::Relaxed), 1);
    victim.child.kill().unwrap();
    victim.child.wait().unwrap();
    assert_eq!(guardian.run_entry(Operation::Arm), Err(InjectError::Gone));
    assert_eq!(guardian.detach(), Ok(DetachReport::default()));
}
