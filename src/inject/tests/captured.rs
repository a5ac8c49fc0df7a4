//! Threads that are captured: their copies, and what they notice of it.

use std::sync::atomic::{AtomicBool, Ordering};

use super::agent::until;
use super::owed::{hit, sleeper};
use super::*;
use crate::inject::{Capture, Captures, Missed, Portrait, capture};

fn take(pid: i32) -> Result<Vec<Capture<()>>, InjectError> {
    let mappings = proc::mappings(pid).unwrap_or_default();
    let start_time = proc::start_time(pid).unwrap_or_default();
    capture(pid, start_time, &mappings, |_| ()).map(|all| all.threads)
}

/// All threads, each with its portrait.
fn portraits(pid: i32) -> Vec<Portrait> {
    let all = take(pid).unwrap().into_iter();
    all.map(|Capture { tid, outcome, .. }| outcome.unwrap_or_else(|e| panic!("{tid}: {e:?}")))
        .collect()
}

#[test]
fn no_blocking_call_returns_from_a_capture() {
    let _alone = alone();
    let victim = Victim::start(Command::new(build("blockers", BLOCKERS, &[])));
    std::thread::sleep(Duration::from_millis(50));
    let before = Look::at(victim.pid, true);
    let sleeps = |tid| proc::task_stat(victim.pid, tid).is_ok_and(|stat| stat.state == 'S');
    for _ in 0..10 {
        // One that waits for a processor since the last time is not yet back in its call.
        until("their sleep", || proc::tasks(victim.pid).unwrap().into_iter().all(sleeps));
        let portraits = portraits(victim.pid);
        assert_eq!(portraits.len(), 20);
        for portrait in portraits {
            let Portrait { registers, call, stack_avma, stack, .. } = &portrait;
            assert!(call.is_some(), "{portrait:?}");
            let leaf = registers.sp - stack_avma;
            assert!((128..136).contains(&leaf) && stack.len() as u64 > leaf + 8, "{portrait:?}");
        }
        assert_eq!(look_again(victim.pid, true, &before), before);
    }
    victim.expect(0);
}

#[test]
fn signals_that_arrive_during_a_capture_do_no_harm() {
    let _alone = alone();
    for (name, source) in [("spinner", SPINNER), ("fiber", FIBER)] {
        let victim = Victim::start(Command::new(build(name, source, &["-DTICKING"])));
        for _ in 0..50 {
            assert_eq!(portraits(victim.pid).len(), 1);
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
        let gone = all.iter().filter(|it| it.outcome == Err(Missed::Gone)).count();
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
                    all.iter().all(|it| matches!(it.outcome, Ok(_) | Err(Missed::Gone))),
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
fn process_that_is_another_by_now_is_left_alone() {
    let _alone = alone();
    let victim = spinner();
    let mappings = proc::mappings(victim.pid).unwrap();
    let start_time = proc::start_time(victim.pid).unwrap() + 1;
    let outcome = capture(victim.pid, start_time, &mappings, |_| panic!("it was looked at"));
    assert_eq!(outcome.map(|all: Captures<()>| all.threads.len()), Err(InjectError::Gone));
    victim.expect(7);
}

#[test]
fn caller_has_its_signals_back() {
    let _alone = alone();
    let victim = spinner();
    let mask = || nix::sys::signal::SigSet::thread_get_mask().unwrap();
    let before = mask();
    assert_eq!(portraits(victim.pid).len(), 1);
    assert_eq!(mask(), before);
    victim.expect(7);
}

/// Hits of a recording that come to a thread all the time: some come when it is stopped in its call.
#[test]
fn hits_that_a_capture_keeps_from_a_thread_are_told_of() {
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
        // Relaxed: nothing else is handed over.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                hit(victim.pid);
                std::thread::sleep(Duration::from_micros(1));
            }
        });
        until("a hit that is withheld", || withheld() > 0);
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(withheld(), 0);
    // One that comes when it is not stopped is taken.
    hit(victim.pid);
    victim.expect(100);
}
