//! Real attaches to victims that check themselves, with a comparison of the state before and after.

mod agent;
mod capture;
mod death;
mod forwarded;
mod held_program;
mod pending_signals;
mod residue;
mod seccomp;
mod stand_in;
mod starved;
mod timers;
mod victim;
mod withdrawn;

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::proc;
use stand_in::{StandIn, sigtrap_event, start_guardian};
use victim::{Victim, VisibleState, assert_segments_gone, build};

const BARE: &str = include_str!("../../../tests/targets/bare.c");
const SPINNER: &str = include_str!("victims/spinner.c");
const SLEEPER: &str = include_str!("victims/sleeper.c");
const BLOCKERS: &str = include_str!("victims/blockers.c");
const FIBER: &str = include_str!("victims/fiber.c");
const TRACER: &str = include_str!("victims/tracer.c");
const THREADS: &str = include_str!("victims/threads.c");
const REPLACER: &str = include_str!("victims/replacer.c");
const FILTERED: &str = include_str!("victims/filtered.c");
const JUMPER: &str = include_str!("victims/jumper.c");
const PERIOD_NS: u64 = 200_000;

/// Serializes the tests: a guardian forked by another test would hold this test's segments, and two
/// tests would compete for two processors.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spinner() -> Victim {
    Victim::start(Command::new(build("spinner", SPINNER, &[])))
}

/// A program without a restorer.
fn bare() -> Victim {
    let options = ["-nostdlib", "-static", "-fno-stack-protector"];
    Victim::start(Command::new(build("bare", BARE, &options)))
}

/// Opens perf events on all threads and returns them.
fn sample(pid: i32) -> Vec<std::os::fd::OwnedFd> {
    let tids = proc::tasks(pid).unwrap();
    let events: Vec<_> = tids.into_iter().filter_map(|tid| sigtrap_event(tid, PERIOD_NS)).collect();
    if events.is_empty() {
        eprintln!("SKIPPED: no perf events here, nothing samples during the attach");
    }
    events
}

/// Waits for a while until the target is in its earlier state. A thread whose call was restarted is
/// outside the call for a moment, with another mask if the call has one of its own. On a busy
/// machine that moment is long.
fn await_unchanged(pid: i32, steady: bool, before: &VisibleState) -> VisibleState {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let now = VisibleState::at(pid, steady);
        if now == *before || Instant::now() > deadline {
            return now;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Attaches, samples for a while and detaches, and checks that nothing has changed.
fn round(pid: i32, steady: bool) -> (AttachReport, DetachReport) {
    let before = VisibleState::at(pid, steady);
    preflight(pid).unwrap();
    let stand_in = StandIn::new(pid);
    let mut guardian = start_guardian();
    let attached = guardian.attach(&stand_in.plan).unwrap();
    let events = sample(pid);
    std::thread::sleep(Duration::from_millis(30));
    drop(events);
    let detached = guardian.detach().unwrap();
    assert_eq!(detached.residue, None);
    assert_eq!(await_unchanged(pid, steady, &before), before);
    let ids = stand_in.ids();
    drop(guardian);
    drop(stand_in);
    assert_segments_gone(ids);
    (attached, detached)
}

/// Attaches and detaches at once, and checks that nothing is left.
fn attach_and_detach(pid: i32) {
    let stand_in = StandIn::new(pid);
    let mut guardian = start_guardian();
    guardian.attach(&stand_in.plan).unwrap();
    assert_eq!(guardian.detach().unwrap().residue, None);
    let ids = stand_in.ids();
    drop((guardian, stand_in));
    assert_segments_gone(ids);
}

#[test]
fn spinner_keeps_its_registers_and_red_zone() {
    let _alone = alone();
    let victim = spinner();
    for _ in 0..10 {
        let before = VisibleState::at(victim.pid, true);
        let stand_in = StandIn::new(victim.pid);
        let mut guardian = start_guardian();
        let report = guardian.attach(&stand_in.plan).unwrap();
        assert_eq!((report.stops_ns.len(), report.bare_call, report.tid), (2, false, victim.pid));
        let events = sample(victim.pid);
        let deadline = Instant::now() + Duration::from_secs(5);
        while !events.is_empty() && stand_in.signals_taken() < 100 {
            assert!(Instant::now() < deadline, "only {} signals", stand_in.signals_taken());
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(events);
        let report = guardian.detach().unwrap();
        assert_eq!((report.threads, report.residue), (1, None));
        assert_eq!(VisibleState::settled(victim.pid, &before), before);
    }
    victim.expect(7);
}

#[test]
fn handlers_that_jump_away_do_not_leave_the_chain_behind() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("jumper", JUMPER, &[])));
    for _ in 0..20 {
        round(victim.pid, false);
    }
    victim.expect(7);
}

#[test]
fn statically_linked_program_is_attached_to() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("spinner", SPINNER, &["-static"])));
    let (report, _) = round(victim.pid, true);
    assert!(!report.bare_call);
    victim.expect(7);
}

#[test]
fn program_without_a_restorer_is_attached_to() {
    let _alone = alone();
    let victim = bare();
    for _ in 0..5 {
        round(victim.pid, true);
    }
    victim.expect(7);
}

#[test]
fn single_thread_in_nanosleep_sleeps_on_undisturbed() {
    let _alone = alone();
    let mut victim = Victim::start(Command::new(build("sleeper", SLEEPER, &[])));
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..3 {
        round(victim.pid, true);
    }
    victim.expect_end(0);
}

#[test]
fn no_blocking_call_returns() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("blockers", BLOCKERS, &[])));
    // A thread in sigwait shows another mask, so wait until the main thread gets there.
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..5 {
        let (_, report) = round(victim.pid, true);
        assert_eq!(report.threads, 20);
    }
    victim.expect(0);
}

#[test]
fn fiber_stacks_are_not_written() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("fiber", FIBER, &[])));
    for _ in 0..5 {
        let (report, _) = round(victim.pid, true);
        assert!(report.bare_call);
    }
    victim.expect(7);
}

#[test]
fn many_threads_that_come_and_go_survive() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("threads", THREADS, &[])));
    for _ in 0..10 {
        let (attached, detached) = round(victim.pid, false);
        eprintln!("stops {:?}, restore {detached:?}", attached.stops_ns);
        assert!(detached.threads >= 99);
    }
    victim.expect(7);
}

#[test]
fn python_with_threads_goes_on() {
    let _alone = alone();
    const SCRIPT: &str = "
import sys, threading, time, signal
done = False
def stop(*_):
    global done
    done = True
signal.signal(signal.SIGTERM, stop)
def spin():
    while not done: sum(range(1000))
workers = [threading.Thread(target=spin) for _ in range(3)]
for w in workers: w.start()
print('ready', flush=True)
while not done: time.sleep(0.01)
for w in workers: w.join()
sys.exit(7)
";
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT]);
    let victim = Victim::start(command);
    for _ in 0..3 {
        round(victim.pid, false);
    }
    victim.expect(7);
}

#[test]
fn go_program_goes_on() {
    let _alone = alone();
    const SOURCE: &str = r#"package main
import ("fmt"; "os"; "os/signal"; "runtime"; "syscall"; "time")
func deep(n int) int {
	if n == 0 { return 0 }
	var pad [64]int
	pad[n%64] = n
	return deep(n-1) + pad[n%64] - n
}
func main() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	for i := 0; i < 8; i++ {
		go func() { for { if deep(500) != 0 { os.Exit(1) }; _ = make([]byte, 10000) } }()
	}
	go func() { for { runtime.GC(); time.Sleep(time.Millisecond) } }()
	time.Sleep(50 * time.Millisecond) // The first timer makes the runtime open its poller.
	fmt.Println("ready")
	<-c
	os.Exit(7)
}"#;
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("main.go"), directory.path().join("main"));
    std::fs::write(&source, SOURCE).unwrap();
    let built = Command::new("go").args(["build", "-o"]).arg(&program).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        let required = std::env::var_os("TRACEPROF_TEST_REQUIRE").is_some();
        assert!(!required, "no go compiler here, and no test may be skipped");
        eprintln!("SKIP: no go compiler here");
        return;
    }
    let victim = Victim::start(Command::new(program));
    for _ in 0..5 {
        round(victim.pid, false);
    }
    victim.expect(7);
}

#[test]
fn stopped_process_stays_stopped() {
    let _alone = alone();
    let victim = spinner();
    victim.signal(Signal::SIGSTOP);
    let stopped = || proc::status(victim.pid).unwrap().state == 'T';
    while !stopped() {
        std::thread::sleep(Duration::from_millis(1));
    }
    round(victim.pid, true);
    assert!(stopped());
    victim.signal(Signal::SIGCONT);
    round(victim.pid, true);
    victim.expect(7);
}

#[test]
fn tracer_in_the_way_is_named() {
    let _alone = alone();
    let victim = spinner();
    let mut command = Command::new(build("tracer", TRACER, &[]));
    command.arg(victim.pid.to_string());
    let tracer = Victim::start(command);
    let target = format!("process {} ({})", victim.pid, proc::status(victim.pid).unwrap().name);
    let name = "tracer".to_owned();
    let refusal = Refusal::AlreadyTraced { target, tracer: tracer.pid, name };
    assert_eq!(preflight(victim.pid), Err(refusal.clone()));
    let stand_in = StandIn::new(victim.pid);
    let mut guardian = start_guardian();
    assert_eq!(guardian.attach(&stand_in.plan), Err(InjectError::Refused(refusal)));
    drop(tracer);
    victim.expect(7);
}

#[test]
fn debugger_that_came_later_delays_the_restore() {
    let _alone = alone();
    let victim = spinner();
    let before = VisibleState::at(victim.pid, true);
    let stand_in = StandIn::new(victim.pid);
    let mut guardian = start_guardian();
    guardian.attach(&stand_in.plan).unwrap();
    let mut command = Command::new(build("tracer", TRACER, &[]));
    command.arg(victim.pid.to_string());
    let tracer = Victim::start(command);
    let pid = tracer.pid;
    let leaves = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(tracer);
    });
    assert_eq!(guardian.detach().unwrap().residue, None);
    leaves.join().unwrap();
    assert_eq!(VisibleState::settled(victim.pid, &before), before);

    let mut guardian = start_guardian();
    let stand_in = StandIn::new(victim.pid);
    guardian.attach(&stand_in.plan).unwrap();
    let mut command = Command::new(build("tracer", TRACER, &[]));
    command.arg(victim.pid.to_string());
    let tracer = Victim::start(command);
    assert_ne!(tracer.pid, pid);
    let message = guardian.detach().unwrap_err().to_string();
    assert!(message.contains("already traced by tracer") && message.contains("left in the target"));
    drop(tracer);
    victim.expect(7);
}

#[test]
fn process_of_another_user_is_attached_to() {
    let _alone = alone();
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: only root can attach to another user's process");
        return;
    }
    let victim = Victim::as_user(build("spinner", SPINNER, &[]), 65534);
    round(victim.pid, true);
    victim.expect(7);
}

#[test]
fn replaced_handler_is_left_alone_and_stays_callable() {
    let _alone = alone();
    let mut victim = Victim::start(Command::new(build("replacer", REPLACER, &[])));
    let stand_in = StandIn::new(victim.pid);
    let mut guardian = start_guardian();
    guardian.attach(&stand_in.plan).unwrap();
    victim.signal(Signal::SIGUSR1);
    assert_eq!(victim.line(), "r\n");
    let report = guardian.detach().unwrap();
    assert!(report.residue.unwrap().contains("replaced"));
    victim.signal(Signal::SIGUSR2);
    assert_eq!(victim.line(), "c\n");
    assert_eq!(stand_in.signals_taken(), 1);
    drop(guardian);
    let (pid, start_time) = (victim.pid, proc::start_time(victim.pid).unwrap());
    let remove = crate::inject::restore::residue::remove;
    let removed = || remove(pid, start_time).unwrap().remove(0).residue;
    assert!(removed().is_some(), "it is removed while the application may call it");
    victim.signal(Signal::SIGHUP);
    assert_eq!(victim.line(), "f\n");
    assert_eq!(removed(), None);
    assert!(remove(pid, start_time).unwrap().is_empty(), "its segments are mapped");
    victim.expect(7);
}

#[test]
fn failed_map_is_explained_and_undone() {
    let _alone = alone();
    let victim = spinner();
    let before = VisibleState::at(victim.pid, true);
    let mut stand_in = StandIn::new(victim.pid);
    let taken = proc::mappings(victim.pid).unwrap()[0].start;
    stand_in.plan.tables.avma = taken;
    let mut guardian = start_guardian();
    let failure = guardian.attach(&stand_in.plan).unwrap_err();
    let expected = InjectError::MapFailed { segment: "tables".to_owned(), errno: libc::EINVAL };
    assert_eq!(failure, expected);
    assert_eq!(VisibleState::settled(victim.pid, &before), before);
    victim.expect(7);
}

#[test]
fn silent_entry_is_explained_and_undone() {
    let _alone = alone();
    let victim = spinner();
    let before = VisibleState::at(victim.pid, true);
    let mut stand_in = StandIn::new(victim.pid);
    // The handler's `ret`, just before the restorer.
    stand_in.plan.entry_avma = stand_in.plan.restorer_avma - 1;
    let mut guardian = start_guardian();
    assert_eq!(guardian.attach(&stand_in.plan), Err(InjectError::EntryTimedOut));
    assert_eq!(VisibleState::settled(victim.pid, &before), before);
    victim.expect(7);
}

#[test]
fn failed_entry_is_explained_and_undone() {
    let _alone = alone();
    let victim = spinner();
    let before = VisibleState::at(victim.pid, true);
    let stand_in = StandIn::with_signal(victim.pid, libc::SIGKILL);
    let mut guardian = start_guardian();
    let expected = InjectError::EntryFailed { error: 2, errno: libc::EINVAL };
    assert_eq!(guardian.attach(&stand_in.plan), Err(expected));
    assert_eq!(VisibleState::settled(victim.pid, &before), before);
    victim.expect(7);
}

#[test]
fn target_that_ended_is_no_failure_of_the_restore() {
    let _alone = alone();
    let mut victim = spinner();
    let stand_in = StandIn::new(victim.pid);
    let mut guardian = start_guardian();
    guardian.attach(&stand_in.plan).unwrap();
    victim.child.kill().unwrap();
    victim.child.wait().unwrap();
    assert_eq!(guardian.detach(), Ok(DetachReport::default()));
    assert_eq!(guardian.attach(&stand_in.plan), Err(InjectError::Gone));
}

#[test]
fn signals_that_arrive_all_the_time_do_no_harm() {
    let _alone = alone();
    for (name, source, bare_call) in [("spinner", SPINNER, false), ("fiber", FIBER, true)] {
        let victim = Victim::start(Command::new(build(name, source, &["-DTICKING"])));
        for _ in 0..10 {
            let (report, _) = round(victim.pid, true);
            assert!(report.bare_call == bare_call || bare_call, "{report:?}");
        }
        victim.expect(7);
    }
}

#[test]
fn target_that_ends_meanwhile_ends_as_it_would() {
    let _alone = alone();
    for run in 0..30u64 {
        let victim = spinner();
        let stand_in = StandIn::new(victim.pid);
        let mut guardian = start_guardian();
        let pid = Pid::from_raw(victim.pid);
        let end = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(run * run * 7919 % 15_000));
            kill(pid, Signal::SIGTERM).unwrap();
        });
        let outcome = guardian.attach(&stand_in.plan);
        if let Err(error) = &outcome {
            assert!(error.is_gone(), "{error}");
        } else {
            assert_eq!(guardian.detach().unwrap().residue, None);
        }
        end.join().unwrap();
        let mut victim = victim;
        victim.expect_end(7);
    }
}

#[test]
fn other_ipc_namespace_is_refused() {
    let _alone = alone();
    let possible = Command::new("unshare").args(["--ipc", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no permission to enter another IPC namespace");
        return;
    }
    let mut command = Command::new("unshare");
    command.arg("--ipc").arg(build("spinner", SPINNER, &[]));
    let victim = Victim::start(command);
    assert_eq!(preflight(victim.pid), Err(Refusal::OtherIpcNamespace));
    // Without the preflight, the target cannot attach segments of another namespace.
    let before = VisibleState::at(victim.pid, true);
    let stand_in = StandIn::new(victim.pid);
    let mut guardian = start_guardian();
    let failure = guardian.attach(&stand_in.plan).unwrap_err();
    assert!(matches!(failure, InjectError::MapFailed { errno: libc::EINVAL, .. }), "{failure}");
    assert_eq!(VisibleState::settled(victim.pid, &before), before);
    victim.expect(7);
}
