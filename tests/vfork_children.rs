//! Children that use their parent's memory for long: the recorder does not wait for them, and
//! reports what became of them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use traceprof::trace::{self, Value};

use crate::common::{Outcome, Recorder, Target, Trace, needs_recording, scratch_dir, together};

/// The shell opens the descriptor and becomes the recorder, which writes its readiness there.
fn start(pid: i32, fifo: &Path) -> Recorder {
    mkfifo(fifo, Mode::from_bits_truncate(0o600)).expect("a fifo");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "exec \"$@\" 9>\"$0\""]).arg(fifo).arg(env!("CARGO_BIN_EXE_traceprof"));
    let pid = pid.to_string();
    command.args(["record", "-s", "--freq", "997", "--ready-fd", "9", "--pid", &pid]);
    Recorder::spawn(command, Trace::new())
}

/// Starts the target and a child in its memory, and a recorder that has stopped waiting for the
/// child.
fn start_beside_a_guest() -> (Target, i32, Recorder) {
    let target = Target::start("guest", &[]);
    let guest = target.fact("guest") as i32;
    let dir = scratch_dir();
    let fifo = dir.path().join("fifo");
    let recorder = start(target.pid(), &fifo);
    let (sender, receiver) = channel();
    // Reads up to the end of the file, which must come after the line, or the test would hang.
    std::thread::spawn(move || sender.send(fs::read_to_string(fifo)));
    let line = receiver.recv_timeout(Duration::from_secs(60)).expect("the child is waited for");
    assert_eq!(line.expect("the fifo"), "READY=1\n");
    (target, guest, recorder)
}

fn end(mut recorder: Recorder) -> Outcome {
    recorder.send(Signal::SIGINT);
    recorder.finish().expect_code(0)
}

/// Whether a process has samples in this function.
fn is_sampled(outcome: &Outcome, pid: i32, function: &str) -> bool {
    let trace = trace::load(&outcome.trace.path()).expect("a trace");
    let mut is_there = false;
    for thread in trace.threads.iter().filter(|it| it.thread().pid == pid as u32) {
        thread.for_each_sample(&mut |_, stack| {
            is_there |= stack.iter().any(|location| {
                let method = trace.locations[location.0 as usize].method;
                trace.methods[method.0 as usize].name == function
            });
        });
    }
    is_there
}

#[test]
fn a_child_that_stays_in_its_parents_memory_is_left_out_and_reported() {
    needs_recording!();
    let _machine = together();
    let (mut target, guest, mut recorder) = start_beside_a_guest();
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(100));
    let outcome = end(recorder);
    let text = outcome.text();
    let child = format!("guest ({guest})");
    let is_reported = |label: &str, what: &str| {
        text.lines().any(|it| it.contains(label) && it.contains(&child) && it.contains(what))
    };
    assert!(is_reported("", "is not recorded yet: it shares the memory of process"), "{text}");
    assert!(is_reported("not recorded", "until the recording ended"), "{text}");
    assert!(is_sampled(&outcome, target.pid(), "burn_beside"), "{text}");
    let refused = trace::load(&outcome.trace.path()).expect("a trace").metadata;
    let refused = refused.get("process_refused.1").expect("it is in the trace");
    assert!(
        matches!(refused, Value::List(fields) if fields[0] == Value::Unsigned(guest as u64)),
        "{refused:?}"
    );
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_child_that_leaves_its_parents_memory_late_is_recorded_and_reported() {
    needs_recording!();
    let _machine = together();
    let (mut target, guest, mut recorder) = start_beside_a_guest();
    kill(Pid::from_raw(guest), Signal::SIGUSR1).expect("a signal to the child");
    recorder.wait_until_attached(guest);
    recorder.wait_for_cpu(guest, Duration::from_millis(200));
    let outcome = end(recorder);
    let text = outcome.text();
    let late = text.lines().find(|it| it.starts_with("late"));
    assert!(late.is_some_and(|it| it.contains(&guest.to_string())), "{text}");
    assert!(is_sampled(&outcome, guest, "burn_executed"), "{text}");
    target.goes_on_and_ends_by_itself();
}
