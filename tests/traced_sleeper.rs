//! A sleeping thread whose stack cannot be read at first, since another process traces it.

use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::common::{
    Recorder, Target, Trace, needs_fault_points, needs_recording, scratch_dir, together, traceprof,
    wait_until,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// For how long the thread is traced while the recorder looks for its stack.
const TRACED: Duration = Duration::from_millis(500);

#[test]
fn a_stack_that_could_not_be_read_is_read_later() {
    needs_fault_points!();
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("variable_sleeper", &[]);
    let folder = scratch_dir();
    let (pid, log) = (target.pid(), folder.path().join("log"));
    let mut command = traceprof(&["record", "--mode", "wall", "--duration", "6"]);
    command.args(["--pid", &pid.to_string()]);
    command.env("TRACEPROF_FAULT", "RecordSampling=stall").env("TRACEPROF_FAULT_LOG", &log);
    let recorder = Recorder::spawn(command, Trace::new());
    let reached = |line: &str| fs::read_to_string(&log).is_ok_and(|log| log.contains(line));
    assert!(wait_until(PATIENCE, || reached("RecordSampling=stall")));
    let (over, is_over) = mpsc::channel::<()>();
    let tracer = thread::spawn(move || {
        ptrace::seize(Pid::from_raw(pid), ptrace::Options::empty()).expect("a tracer");
        // A tracer that exits releases its threads, and they sleep on.
        is_over.recv().expect("the end");
    });
    assert!(wait_until(PATIENCE, || reached("RecordLooped")));
    thread::sleep(TRACED);
    over.send(()).expect("a tracer");
    tracer.join().expect("a tracer");
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    let [missed, stopped, unplaced, asleep] =
        ["stacks_missed", "stacks_by_stop", "unplaced_us", "sleeping_us"]
            .map(|key| outcome.trace.number(&format!("wall.{key}")));
    let text = outcome.text();
    assert!(missed > 0 && stopped == 1, "{missed} missed, {stopped} stopped\n{text}");
    assert!(unplaced * 2 < asleep, "{unplaced} of {asleep}\n{text}");
    let folded = outcome.trace.folded();
    assert!(folded.stacks().any(|(stack, _)| stack.iter().any(|it| it == "sleeps")), "{text}");
}
