//! Captures of threads: the copies, and their effect on the threads.

use std::sync::atomic::{AtomicBool, Ordering};

use super::agent::until;
use super::pending_signals::{queue_sampling_signal, sleeper};
use super::*;
use crate::inject::{
    Capture, CaptureSelection, Captures, NotCaptured, ThreadSnapshot, capture, capture_threads,
    read_sleeping_thread,
};

const TARGET_H: &str = include_str!("../../../tests/targets/target.h");
const EINTR: &str = include_str!("../../../tests/targets/eintr.c");
const VFORK_PARENT: &str = include_str!("../../../tests/targets/vfork_parent.c");

fn take(pid: i32) -> Result<Vec<Capture<()>>, InjectError> {
    let mappings = proc::mappings(pid).unwrap_or_default();
    let start_time = proc::start_time(pid).unwrap_or_default();
    capture(pid, start_time, &mappings, |_| ()).map(|all| all.threads)
}

/// Returns the snapshots of all threads.
fn snapshots(pid: i32) -> Vec<ThreadSnapshot> {
    let all = take(pid).unwrap().into_iter();
    all.map(|Capture { tid, outcome, .. }| outcome.unwrap_or_else(|e| panic!("{tid}: {e:?}")))
        .collect()
}

#[test]
fn no_blocking_call_returns_from_a_capture() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("blockers", BLOCKERS, &[])));
    std::thread::sleep(Duration::from_millis(50));
    let before = VisibleState::at(victim.pid, true);
    let sleeps = |tid| proc::task_stat(victim.pid, tid).is_ok_and(|stat| stat.state == 'S');
    for _ in 0..10 {
        // A thread that has waited for a processor since the last capture is not yet back in its
        // call.
        until("their sleep", || proc::tasks(victim.pid).unwrap().into_iter().all(sleeps));
        let snapshots = snapshots(victim.pid);
        assert_eq!(snapshots.len(), 20);
        for snapshot in snapshots {
            let ThreadSnapshot { registers, call, stack_avma, stack, .. } = &snapshot;
            assert!(call.is_some(), "{snapshot:?}");
            let leaf = registers.sp - stack_avma;
            assert!((128..136).contains(&leaf) && stack.len() as u64 > leaf + 8, "{snapshot:?}");
        }
        assert_eq!(await_unchanged(victim.pid, true, &before), before);
    }
    victim.expect(0);
}

/// Captures some threads, and returns the outcomes by their ids.
fn take_some(pid: i32, tids: &[i32], time_max: Duration) -> Vec<Capture<()>> {
    let mappings = proc::mappings(pid).unwrap();
    let start_time = proc::start_time(pid).unwrap();
    let chosen = CaptureSelection { tids, time_max };
    capture_threads(pid, start_time, &mappings, chosen, |_| ()).unwrap().threads
}

#[test]
fn chosen_threads_are_captured_and_others_left_alone() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("blockers", BLOCKERS, &[])));
    let tids = proc::tasks(victim.pid).unwrap();
    let sleeps = |tid: &i32| proc::task_stat(victim.pid, *tid).unwrap().state == 'S';
    until("their sleep", || tids.iter().all(sleeps));
    let clocks = |tids: &[i32]| -> Vec<_> {
        let clock = |tid: &i32| proc::TaskClock::open(victim.pid, *tid).unwrap().turns().unwrap();
        tids.iter().map(clock).collect()
    };
    let (some, others) = tids.split_at(7);
    let before = clocks(others);
    // A tid that is given twice counts once. A thread of another process is not captured, and one
    // tid belongs to no thread.
    let wanted = [some, some, &[std::process::id() as i32, i32::MAX]].concat();
    let all = take_some(victim.pid, &wanted, Duration::from_secs(5));
    assert_eq!(all.len(), some.len() + 2, "{all:?}");
    for Capture { tid, outcome, .. } in all {
        match outcome {
            Ok(snapshot) => assert!(some.contains(&tid) && snapshot.call.is_some(), "{snapshot:?}"),
            Err(missed) => {
                assert!(!some.contains(&tid) && missed == NotCaptured::Gone, "{missed:?}")
            }
        }
    }
    assert_eq!(clocks(others), before, "other threads have run");
    let none = take_some(victim.pid, some, Duration::ZERO);
    assert!(none.iter().all(|it| it.outcome == Err(NotCaptured::Late)) && none.len() == some.len());
    victim.expect(0);
}

/// The parent of a `vfork` child cannot be stopped before the child's exit.
#[test]
fn thread_that_cannot_be_stopped_delays_no_other() {
    let _alone = alone();
    let mut command = Command::new(build("vfork_parent", &target(VFORK_PARENT), &[]));
    command.args(["3000", "busy"]);
    let victim = Victim::start(command);
    until("the vfork", || proc::task_stat(victim.pid, victim.pid).unwrap().state == 'D');
    let tids = proc::tasks(victim.pid).unwrap();
    let all = take_some(victim.pid, &tids, Duration::from_secs(60));
    let outcome = |tid: i32| &all.iter().find(|it| it.tid == tid).unwrap().outcome;
    assert_eq!(outcome(victim.pid), &Err(NotCaptured::Late), "the capture waited for it");
    let busy = tids.iter().find(|tid| **tid != victim.pid).unwrap();
    assert!(outcome(*busy).is_ok(), "{all:?}");
    assert!(
        read_sleeping_thread(victim.pid, victim.pid).is_some_and(|sleeper| sleeper.call.is_some())
    );
    victim.expect(17);
}

/// Returns the source of a program of the integration tests, in one file.
fn target(source: &str) -> String {
    source.replace("#include \"target.h\"", TARGET_H)
}

#[test]
fn no_call_of_any_kind_returns_from_captures_and_copies_of_sleepers() {
    let _alone = alone();
    let mut victim = Victim::start(Command::new(build("eintr", &target(EINTR), &[])));
    let tids = proc::tasks(victim.pid).unwrap();
    let mut calls = std::collections::BTreeMap::<u64, (u32, u32)>::new();
    for round in 0..300 {
        let seen = tids.iter().filter_map(|tid| read_sleeping_thread(victim.pid, *tid)?.call);
        seen.for_each(|(number, _)| calls.entry(number).or_default().0 += 1);
        let some: Vec<i32> = tids.iter().copied().skip(round % 3).step_by(3).collect();
        for capture in take_some(victim.pid, &some, Duration::from_secs(5)) {
            if let Some((number, _)) = capture.outcome.unwrap().call {
                calls.entry(number).or_default().1 += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    victim.signal(Signal::SIGTERM);
    let mut facts = std::collections::BTreeMap::new();
    while !facts.contains_key("wrong") {
        let line = victim.line();
        let (key, value) = line.trim().split_once(' ').unwrap_or_else(|| panic!("{facts:?}"));
        facts.insert(key.to_owned(), value.parse::<u64>().unwrap());
    }
    victim.expect_end(17);
    let often = calls.iter().filter(|(_, (copied, captured))| *copied > 50 && *captured > 10);
    assert!(often.count() >= 15, "hardly any were seen in their calls: {calls:?}");
    facts.retain(|key, value| *value > 0 && !key.starts_with("calls_"));
    let total = facts.remove("calls").unwrap();
    facts.retain(|key, _| !key.starts_with("skipped"));
    assert!(total > 1000 && facts.is_empty(), "of {total} calls: {facts:?}");
    eprintln!("{total} calls; copied and captured in each: {calls:?}");
}

#[test]
fn copy_of_a_sleeper_is_the_top_of_the_captured_stack() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("blockers", BLOCKERS, &[])));
    let sleeps = |tid| proc::task_stat(victim.pid, tid).is_ok_and(|stat| stat.state == 'S');
    until("their sleep", || proc::tasks(victim.pid).unwrap().into_iter().all(sleeps));
    let tids = proc::tasks(victim.pid).unwrap();
    let seen: Vec<_> =
        tids.iter().map(|tid| read_sleeping_thread(victim.pid, *tid).unwrap()).collect();
    for (sleeper, Capture { outcome, .. }) in seen.iter().zip(take(victim.pid).unwrap()) {
        let snapshot = outcome.unwrap();
        assert_eq!((sleeper.sp, sleeper.pc), (snapshot.registers.sp, snapshot.registers.pc));
        assert_eq!((sleeper.call, sleeper.stack_avma), (snapshot.call, snapshot.stack_avma));
        // The snapshot ends with the stack's mapping, and the copy of a sleeping thread with the
        // memory or its own limit.
        let both = snapshot.stack.len().min(sleeper.stack.len());
        assert!(both > 256, "{both}");
        let pairs = sleeper.stack[..both].chunks(8).zip(snapshot.stack[..both].chunks(8));
        let differ = pairs.filter(|(one, other)| one != other).count();
        // The kernel writes the remaining timeout to a call that a stop interrupts.
        let limited = [libc::SYS_select, libc::SYS_pselect6, libc::SYS_ppoll];
        let writes = snapshot.call.is_some_and(|(number, _)| limited.contains(&(number as i64)));
        assert!(differ <= if writes { 2 } else { 0 }, "{differ} words: {:?}", snapshot.call);
    }
    victim.expect(0);
    let spinner = spinner();
    assert_eq!(read_sleeping_thread(spinner.pid, spinner.pid), None, "it runs");
    spinner.expect(7);
}

#[test]
fn signals_that_arrive_during_a_capture_do_no_harm() {
    let _alone = alone();
    for (name, source) in [("spinner", SPINNER), ("fiber", FIBER)] {
        let victim = Victim::start(Command::new(build(name, source, &["-DTICKING"])));
        for _ in 0..50 {
            assert_eq!(snapshots(victim.pid).len(), 1);
        }
        victim.expect(7);
    }
}

#[test]
fn threads_that_come_and_go_are_captured_or_gone() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("threads", THREADS, &[])));
    for _ in 0..10 {
        let all = take(victim.pid).unwrap();
        let taken = all.iter().filter(|it| it.outcome.is_ok()).count();
        let gone = all.iter().filter(|it| it.outcome == Err(NotCaptured::Gone)).count();
        assert!(taken >= 99 && taken + gone == all.len(), "{all:?}");
    }
    victim.expect(7);
}

#[test]
fn target_that_ends_during_a_capture_ends_as_it_would() {
    let _alone = alone();
    for run in 0..20u64 {
        let mut victim = spinner();
        let pid = Pid::from_raw(victim.pid);
        let end = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(run * run * 7919 % 3_000));
            kill(pid, Signal::SIGTERM).unwrap();
        });
        for _ in 0..20 {
            match take(victim.pid) {
                Ok(all) => assert!(
                    all.iter().all(|it| matches!(it.outcome, Ok(_) | Err(NotCaptured::Gone))),
                    "{all:?}"
                ),
                Err(error) => assert!(error.is_gone(), "{error}"),
            }
        }
        end.join().unwrap();
        victim.expect_end(7);
    }
}

#[test]
fn process_with_another_start_time_is_left_alone() {
    let _alone = alone();
    let victim = spinner();
    let mappings = proc::mappings(victim.pid).unwrap();
    let start_time = proc::start_time(victim.pid).unwrap() + 1;
    let outcome = capture(victim.pid, start_time, &mappings, |_| panic!("its thread was captured"));
    assert_eq!(outcome.map(|all: Captures<()>| all.threads.len()), Err(InjectError::Gone));
    victim.expect(7);
}

#[test]
fn caller_has_its_signals_back() {
    let _alone = alone();
    let victim = spinner();
    let mask = || nix::sys::signal::SigSet::thread_get_mask().unwrap();
    let before = mask();
    assert_eq!(snapshots(victim.pid).len(), 1);
    assert_eq!(mask(), before);
    victim.expect(7);
}

/// Sampling signals reach a thread all the time, and some arrive while it is stopped in its call.
#[test]
fn signals_that_a_capture_withholds_are_reported() {
    let _alone = alone();
    let victim = sleeper(&["pause"]);
    let withheld = || {
        let start_time = proc::start_time(victim.pid).unwrap();
        let mappings = proc::mappings(victim.pid).unwrap();
        capture(victim.pid, start_time, &mappings, |_| ()).unwrap().withheld
    };
    assert_eq!(withheld(), 0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Relaxed: the flag publishes no other data.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                queue_sampling_signal(victim.pid);
                std::thread::sleep(Duration::from_micros(1));
            }
        });
        until("a withheld signal", || withheld() > 0);
        is_over.store(true, Ordering::Relaxed);
    });
    // On a busy machine the thread takes the last of them late.
    let is_taken = || proc::task_status(victim.pid, victim.pid).unwrap().pending == 0;
    until("the last signal to be taken", is_taken);
    assert_eq!(withheld(), 0);
    // A signal that comes while the thread is not stopped is taken.
    queue_sampling_signal(victim.pid);
    victim.expect(100);
}
