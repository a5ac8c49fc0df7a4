//! Handlers of the application that run on top of the agent's frames, or call the agent's handler.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use traceprof_abi::layout::{self, Counter, PRIMING};
use traceprof_abi::sync::Ordering;

use super::agent::{Agent, SIGNAL, send, timers, until};
use super::alone;
use super::victim::{Victim, VisibleState, build};
use crate::inject::Guardian;
use crate::inject::restore::residue;
use crate::proc;

const PENDING_PAIR: &str = include_str!("victims/pending_pair.c");
const INTERRUPTED: &str = include_str!("victims/interrupted.c");
const FORWARDER: &str = include_str!("victims/forwarder.c");
/// How long the application's handler stays after the detach has begun.
const STAYS: Duration = Duration::from_millis(500);

/// The second signal is delivered as soon as the mask permits it. Where our handler set the mask,
/// the second handler ran on top of our frame.
#[test]
fn a_handler_that_was_held_back_by_ours_does_not_return_to_it() {
    let _alone = alone();
    let mut victim = Victim::start(Command::new(build("pending_pair", PENDING_PAIR, &[])));
    let before = VisibleState::at(victim.pid, true);
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    victim.signal(Signal::SIGUSR1);
    assert_eq!(victim.line(), "in\n");
    assert_eq!(guardian.detach().unwrap().residue, None);
    assert_eq!(agent.count(Counter::Foreign), 1);
    victim.signal(Signal::SIGUSR2);
    assert_eq!(victim.line(), "out\n");
    assert_eq!(VisibleState::settled(victim.pid, &before), before);
    victim.expect(7);
}

/// The application calls our handler as a function, with a mask of its own, and another handler
/// interrupts it.
#[test]
fn the_agent_stays_while_a_handler_is_to_return_to_it() {
    let _alone = alone();
    for how in ["same", "other", "twice"] {
        let mut command = Command::new(build("interrupted", INTERRUPTED, &[]));
        command.arg(how);
        let mut victim = Victim::start(command);
        let agent = Agent::new(victim.pid);
        let mut guardian = agent.attach(SIGNAL);
        victim.signal(Signal::SIGUSR1);
        assert_eq!(victim.line(), "in\n", "{how}");
        let (pid, since) = (victim.pid, Instant::now());
        let leaves = std::thread::spawn(move || {
            std::thread::sleep(STAYS);
            send(pid, libc::SIGUSR2);
        });
        let report = guardian.detach().unwrap();
        assert!(since.elapsed() >= STAYS, "{how}: detached below the handler");
        assert_eq!(report.residue, None, "{how}");
        leaves.join().unwrap();
        assert_eq!(victim.line(), "out\n", "{how}");
        victim.expect(7);
    }
}

/// The handler does not return, so the agent stays, and a later restore removes it.
#[test]
fn a_handler_that_stays_on_the_agent_is_named() {
    let _alone = alone();
    let mut command = Command::new(build("interrupted", INTERRUPTED, &[]));
    command.arg("same");
    let mut victim = Victim::start(command);
    let before = VisibleState::at(victim.pid, false);
    let agent = Agent::new(victim.pid);
    let mut guardian = agent.attach(SIGNAL);
    victim.signal(Signal::SIGUSR1);
    assert_eq!(victim.line(), "in\n");
    let message = guardian.detach().unwrap_err().to_string();
    let thread = format!("thread {} of the target runs a signal handler", victim.pid);
    assert!(message.contains(&thread), "{message}");
    victim.signal(Signal::SIGUSR2);
    assert_eq!(victim.line(), "out\n");
    drop(guardian);
    let start_time = proc::start_time(victim.pid).unwrap();
    let reports = residue::remove(victim.pid, start_time).unwrap();
    assert_eq!(reports.len(), 1);
    assert!(reports.iter().all(|report| report.residue.is_none()), "{reports:?}");
    assert_eq!(VisibleState::at(victim.pid, false), before);
    victim.expect(7);
}

/// Attaches to a victim that then puts its handler over ours.
fn forwarder(how: &str, first: &str) -> (Victim, Agent, Guardian) {
    let mut command = Command::new(build("forwarder", FORWARDER, &["-foptimize-sibling-calls"]));
    command.args([how, first]);
    let mut victim = Victim::start(command);
    let agent = Agent::new(victim.pid);
    let guardian = agent.attach(SIGNAL);
    victim.signal(Signal::SIGUSR1);
    assert_eq!(victim.line(), "over\n");
    (victim, agent, guardian)
}

/// The forwarder raises the signal ten times, and each of its handlers sees each once.
#[test]
fn a_handler_over_ours_may_forward_its_own_signals() {
    let _alone = alone();
    for first in ["default", "handled"] {
        for how in ["call", "jump", "bare"] {
            let (mut victim, agent, mut guardian) = forwarder(how, first);
            let seen = if first == "handled" { "10 10\n" } else { "10 0\n" };
            victim.signal(Signal::SIGUSR2);
            assert_eq!(victim.line(), seen, "{how} {first}");
            assert_eq!(agent.count(Counter::Foreign), 10, "{how} {first}");
            let residue = guardian.detach().unwrap().residue.unwrap();
            assert!(residue.contains("may still call"), "{residue}");
            victim.signal(Signal::SIGUSR2);
            assert_eq!(victim.line(), seen, "{how} {first}, after the detach");
            victim.expect(7);
        }
    }
}

/// The agent has moved to another signal, and the timers of the former signal still expire. With a
/// call of one argument the handler cannot know them.
#[test]
fn late_expiries_of_a_former_signal_are_swallowed() {
    const NEXT: i32 = SIGNAL + 2;
    let _alone = alone();
    for how in ["call", "jump"] {
        let (victim, agent, mut guardian) = forwarder(how, "default");
        let control = agent.data().control();
        agent.want_timers();
        agent.prime(victim.pid, SIGNAL);
        until("timers", || !timers(victim.pid).is_empty());
        let (former, now) = (&control.signals[layout::FORMER.start], &control.signals[PRIMING]);
        for (to, from) in former.old_action.iter().zip(&now.old_action) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (to, from) in former.our_action.iter().zip(&now.our_action) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        former.installed.store(layout::REPLACED, Ordering::Relaxed);
        former.signal.store(SIGNAL as u32, Ordering::Relaxed);
        now.installed.store(0, Ordering::Relaxed);
        now.signal.store(NEXT as u32, Ordering::Relaxed);
        agent.prime(victim.pid, SIGNAL);
        until("late signals", || agent.count(Counter::Stale) >= 1);
        until("the end of the timers", || timers(victim.pid).is_empty());
        assert_eq!(agent.count(Counter::Foreign), 0, "{how}");
        assert!(guardian.detach().unwrap().residue.is_some());
        victim.expect(7);
    }
}
