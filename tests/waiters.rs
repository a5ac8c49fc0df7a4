//! Programs that wait for signals instead of handling them: a sampling signal must never be taken
//! for one of theirs.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{
    Recorder, Snapshot, Target, cpu_clock, needs_recording, record_cpu, together, wait_until,
};
use crate::doctor::{doctor, examined, finding};

const SECOND: Duration = Duration::from_secs(1);
const TIMER: &str = "thread CPU timer";
/// Engines whose signals nobody takes for SIGTRAP.
const SAFE: [&str; 2] = ["perf task clock, ignorable signal", TIMER];

/// Checks that the target got what it was sent, and nothing else.
fn assert_undisturbed(mut target: Target, what: &str) {
    // Sends the target a signal now and then.
    let (pid, begin) = (target.pid(), cpu_clock(target.pid()));
    assert!(wait_until(60 * SECOND, || cpu_clock(pid) > begin + SECOND), "{what}");
    target.goes_on_and_ends_by_itself();
    assert!(target.fact("sent") > 1, "{what}");
    assert_eq!((target.fact("arrived"), target.fact("wrong")), (target.fact("sent"), 0), "{what}");
}

#[test]
fn a_program_that_waits_for_sigtrap_is_sampled_by_another_signal() {
    needs_recording!();
    let _machine = together();
    for (how, why) in [("sigwait", "waits for"), ("signalfd", "a signalfd of the")] {
        // A thread that computes between two waits is not seen to wait.
        let target = Target::start("trap_waiter", &[how, "quiet"]);
        let (pid, before) = (target.pid(), Snapshot::take(target.pid()));
        let args = ["--pid", &pid.to_string(), "--freq", "997", "--duration", "3600"];
        let mut recorder = Recorder::start(&args);
        recorder.wait_until_attached(pid);
        target.send(Signal::SIGUSR1);
        recorder.wait_for_cpu(pid, SECOND);
        recorder.send(Signal::SIGINT);
        let outcome = recorder.finish().expect_code(0);
        let text = outcome.text();
        let is_safe = SAFE.into_iter().any(|engine| text.contains(engine));
        assert!(is_safe && text.contains(why), "{how}: {text}");
        let folded = outcome.trace.folded();
        for function in ["between_waits", "beside_waits"] {
            assert!(folded.count_of(function) > 10, "{how}: {function} {text}");
        }
        let differences = || before.differences(&Snapshot::take(target.pid()));
        let is_back = wait_until(2 * SECOND, || differences().is_empty());
        assert!(is_back, "{how}: {:#?}", differences());
        assert_undisturbed(target, how);
    }
}

#[test]
fn perf_events_are_refused_where_sigtrap_is_waited_for() {
    needs_recording!();
    let _machine = together();
    for how in ["sigwait", "signalfd", "all"] {
        // A thread that computes between two waits is not seen to wait.
        let target = Target::start("trap_waiter", &[how, "quiet"]);
        let pid = target.pid().to_string();
        let args = ["--pid", &pid, "--engine", "perf", "--duration", "1"];
        let text = Recorder::start(&args).finish().expect_code(1).text();
        let is_reported = text.contains("waits for SIGTRAP and would receive sampling signals");
        assert!(is_reported && text.contains("--engine timer"), "{how}: {text}");
        let (all, code) = examined(doctor(target.pid()));
        assert_eq!(code, 0, "{all}");
        for text in [&finding(&all, "target", "waiting")["seen"], &all["prospect"]["why"]] {
            assert!(text.as_str().is_some_and(|it| it.contains("SIGTRAP")), "{how}: {all}");
        }
        let engine = all["prospect"]["engine"].as_str().expect("a name");
        assert!(SAFE.contains(&engine), "{how}: {all}");
        target.send(Signal::SIGUSR1);
        assert_undisturbed(target, how);
    }
}

/// The target waits for every signal, so its thread has no timer. The other threads have one.
#[test]
fn a_thread_that_waits_for_every_signal_is_left_out() {
    needs_recording!();
    let _machine = together();
    let target = Target::start("trap_waiter", &["all"]);
    let options = ["--freq", "997", "--engine", "timer"];
    let outcome = record_cpu(target.pid(), SECOND, &options);
    let text = outcome.text();
    assert!(text.contains("(trap_waiter) is not sampled: it waits for signals"), "{text}");
    assert_eq!(outcome.trace.number("timers_armed"), 1, "{text}");
    let folded = outcome.trace.folded();
    assert_eq!(folded.count_of("between_waits"), 0, "{text}");
    assert!(folded.count_of("beside_waits") > 50, "{text}");
    assert_undisturbed(target, "all");
}

/// Signals that arrive before the recorder notices cannot be prevented.
#[test]
fn a_program_that_starts_to_wait_for_sigtrap_goes_on_with_timers() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("trap_waiter", &["late"]);
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "--freq", "499", "--engine", "perf"]);
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), SECOND / 2);
    target.send(Signal::SIGUSR1);
    recorder.wait_for_cpu(target.pid(), 3 * SECOND);
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    let text = outcome.text();
    let is_reported =
        |line: &str| line.contains(TIMER) && line.contains("a signalfd of the application");
    assert!(text.lines().any(|line| line.starts_with("note:") && is_reported(line)), "{text}");
    assert!(outcome.trace.number("timers_armed") >= 2, "{text}");
    target.goes_on_and_ends_by_itself();
    eprintln!(
        "measured: {} sampling signals were taken for the program's own",
        target.fact("wrong")
    );
}
