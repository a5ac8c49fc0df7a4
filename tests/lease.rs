//! The lease of the timers, while the recorder's loop is stopped.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::{
    Recorder, Target, Trace, needs_fault_points, needs_recording, timers, together, traceprof,
    wait_until,
};

/// Starts a recording on timers and waits until its loop stops. Returns the recorder and the number
/// of timers.
fn still(target: &Target, deed: &str) -> (Recorder, usize) {
    let trace = Trace::new();
    let log = trace.dir().join("faults");
    let mut command = traceprof(&["record", "--engine", "timer", "--freq", "997", "--pid"]);
    command.arg(target.pid().to_string());
    // Not in the first rounds: by then the threads have their timers.
    command.env("TRACEPROF_FAULT", format!("RecordDrained={deed}"));
    command.env("TRACEPROF_FAULT_LOG", &log);
    let recorder = Recorder::spawn(command, trace);
    let begun = || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.contains(&format!("RecordDrained={deed}"))
    };
    assert!(wait_until(Duration::from_secs(60), begun), "the loop never stops");
    let count = timers(target.pid());
    assert!(count > 0, "no timers");
    (recorder, count)
}

#[test]
fn timers_go_on_while_the_recorder_is_late_by_seconds() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let (mut recorder, count) = still(&target, "stall");
    let start = Instant::now();
    // The loop is stopped for five seconds.
    while start.elapsed() < Duration::from_secs(4) {
        let now = timers(target.pid());
        assert!(now >= count, "{now} of {count} timers after {:?}", start.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    recorder.wait_for_cpu(target.pid(), Duration::from_secs(2));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    assert_eq!(outcome.trace.number("timers_expired"), 0, "{}", outcome.text());
    target.goes_on_and_ends_by_itself();
}

#[test]
fn timers_end_when_the_recorder_hangs() {
    needs_recording!();
    needs_fault_points!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let (recorder, _) = still(&target, "hang");
    let ended = wait_until(Duration::from_secs(120), || timers(target.pid()) == 0);
    assert!(ended, "{} timers of a recorder that hangs", timers(target.pid()));
    // Kills the recorder; its guardian restores the target.
    drop(recorder);
    target.goes_on_and_ends_by_itself();
}
