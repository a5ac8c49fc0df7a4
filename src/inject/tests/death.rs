//! Recorders and guardians that are killed at any moment.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use traceprof_abi::layout::Operation;

use super::agent::{Agent, SIGNAL, timers, until};
use super::stand_in::{StandIn, start_guardian};
use super::timers::changer;
use super::victim::{Victim, VisibleState, build, states};
use super::{SPINNER, THREADS, alone, await_unchanged, sample, spinner};
use crate::inject::ptrace::tracing_thread::on_tracing_thread;
use crate::inject::ptrace::{Tracee, TraceeEvent};
use crate::proc;

const VICTIM_VARIABLE: &str = "TRACEPROF_TEST_VICTIM";

/// Not a test by itself: the recorder that the next tests kill.
#[test]
#[ignore = "run by other tests, in a process of its own"]
fn recorder_to_be_killed() {
    let Ok(pid) = std::env::var(VICTIM_VARIABLE) else { return };
    let pid = pid.parse().unwrap();
    let stand_in = StandIn::new(pid);
    let mut guardian = start_guardian();
    let mut out = std::io::stdout();
    writeln!(out, "\nguardian {}", guardian.pid()).unwrap();
    out.flush().unwrap();
    guardian.attach(&stand_in.plan).unwrap();
    let events = sample(pid);
    std::thread::sleep(Duration::from_millis(20));
    drop(events);
    guardian.detach().unwrap();
    std::thread::sleep(Duration::from_secs(1));
}

/// Not a test by itself: a recorder with timers.
#[test]
#[ignore = "run by other tests, in a process of its own"]
fn recorder_with_timers_to_be_killed() {
    let Ok(pid) = std::env::var(VICTIM_VARIABLE) else { return };
    let agent = Agent::new(pid.parse().unwrap());
    agent.lease(Duration::from_millis(100));
    let guardian = start_guardian();
    let mut out = std::io::stdout();
    writeln!(out, "\nguardian {}", guardian.pid()).unwrap();
    out.flush().unwrap();
    let mut guardian = agent.attach_with(guardian, SIGNAL);
    for _ in 0..4 {
        agent.lease(Duration::from_millis(100));
        agent.want_timers();
        guardian.run_entry(Operation::Arm).unwrap();
        std::thread::sleep(Duration::from_millis(3));
        guardian.run_entry(Operation::Disarm).unwrap();
    }
    agent.want_timers();
    guardian.run_entry(Operation::Arm).unwrap();
    guardian.detach().unwrap();
    std::thread::sleep(Duration::from_secs(1));
}

/// Starts a recorder in a process of its own. Returns it and its guardian's pid.
fn start_recorder(pid: i32) -> (std::process::Child, i32) {
    start("inject::tests::death::recorder_to_be_killed", pid)
}

fn start(test: &str, pid: i32) -> (std::process::Child, i32) {
    let mut recorder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(VICTIM_VARIABLE, pid.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(recorder.stdout.take().unwrap()).lines();
    let mut guardians =
        lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("guardian ")?.parse().ok());
    let guardian = guardians.next().unwrap();
    (recorder, guardian)
}

/// Waits until a guardian has exited; its parent may not have reaped it.
fn await_end(guardian: i32, victim: &Victim) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while proc::status(guardian).is_ok_and(|status| status.state != 'Z') {
        let does_not_end = || format!("{}\nof {}", states(guardian), states(victim.pid));
        assert!(Instant::now() < deadline, "does not end: {}", does_not_end());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn guardian_restores_when_the_recorder_is_killed() {
    let _alone = alone();
    let victim = spinner();
    let before = VisibleState::at(victim.pid, true);
    for run in 0..60u64 {
        let (mut recorder, guardian) = start_recorder(victim.pid);
        std::thread::sleep(Duration::from_micros(run * run * 7919 % 35_000));
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        await_end(guardian, &victim);
        assert_eq!(VisibleState::settled(victim.pid, &before), before, "run {run}");
    }
    victim.expect(7);
}

#[test]
fn target_survives_the_death_of_the_guardian() {
    let _alone = alone();
    for program in ["spinner", "threads"] {
        for run in 0..25u64 {
            let source = if program == "spinner" { SPINNER } else { THREADS };
            let victim = Victim::start(Command::new(build(program, source, &[])));
            let (mut recorder, guardian) = start_recorder(victim.pid);
            std::thread::sleep(Duration::from_micros(run * run * 7919 % 35_000));
            // The kill comes in the attach, while sampling, in the restore, or after it.
            kill(Pid::from_raw(guardian), Signal::SIGKILL).unwrap();
            recorder.kill().unwrap();
            recorder.wait().unwrap();
            until("no tracer is left", || proc::status(victim.pid).unwrap().tracer == 0);
            victim.expect(7);
        }
    }
}

/// The kernel reports a leader's exit only after the exits of all other threads of its process were
/// consumed. If the same tracer holds those threads, nothing consumes them.
#[test]
fn end_of_a_leader_is_seen_while_other_threads_of_it_are_held() {
    const PATIENCE: Duration = Duration::from_secs(10);
    let _alone = alone();
    let victim = Victim::start(Command::new(build("threads", THREADS, &[])));
    let took = on_tracing_thread(|| {
        let until = Instant::now() + PATIENCE;
        let mut tids = proc::tasks(victim.pid).unwrap();
        tids.sort_by_key(|&tid| tid != victim.pid);
        // A thread that is exiting may disappear in between.
        let seize = |tid: i32| Tracee::seize(tid).ok();
        let mut held: Vec<Tracee> = tids.into_iter().filter_map(seize).collect();
        held.retain(|tracee| {
            tracee.interrupt().is_ok() && matches!(tracee.wait(until), Ok(TraceeEvent::Interrupt))
        });
        assert!(held.len() > 1 && held[0].tid() == victim.pid);
        victim.signal(Signal::SIGKILL);
        let since = Instant::now();
        let stop = held[0].wait(since + PATIENCE).unwrap();
        assert!(matches!(stop, TraceeEvent::Exited(_)), "{stop:?}");
        since.elapsed()
    });
    assert!(took < PATIENCE / 2, "{took:?}");
}

#[test]
fn timers_end_whatever_process_is_killed_and_whenever() {
    let _alone = alone();
    let victim = changer();
    let before = VisibleState::at(victim.pid, true);
    let mut left = 0;
    for run in 0..40u64 {
        let test = "inject::tests::death::recorder_with_timers_to_be_killed";
        let (mut recorder, guardian) = start(test, victim.pid);
        std::thread::sleep(Duration::from_micros(run * run * 7919 % 60_000));
        let both = run % 2 == 0;
        if both {
            kill(Pid::from_raw(guardian), Signal::SIGKILL).unwrap();
        }
        recorder.kill().unwrap();
        recorder.wait().unwrap();
        await_end(guardian, &victim);
        if both {
            // All four threads run, so all timers expire.
            until("the end of the lease", || timers(victim.pid).is_empty());
            left += usize::from(VisibleState::at(victim.pid, true) != before);
            let agent = Agent::new(victim.pid);
            let mut guardian = agent.attach(SIGNAL);
            assert_eq!(guardian.detach().unwrap().residue, None);
        }
        assert_eq!(timers(victim.pid).len(), 0, "run {run}");
        assert_eq!(await_unchanged(victim.pid, true, &before), before, "run {run}");
    }
    assert!(
        left > 3,
        "only {left} of 20 pairs left something behind: killed too early or too late"
    );
    victim.expect(7);
}
