//! Threads whose stack has no room for a signal.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{Recorder, Target, needs_recording, skip, together};

const CPU: Duration = Duration::from_millis(300);

fn start(engine: &str) -> (Target, Recorder) {
    let target = Target::start("small_stacks", &[]);
    let pid = target.pid();
    let args = ["--pid", &pid.to_string(), "--freq", "997", "--engine", engine];
    let mut recorder = Recorder::start(&args);
    recorder.wait_until_attached(pid);
    recorder.wait_for_cpu(pid, CPU);
    recorder.send(Signal::SIGINT);
    (target, recorder)
}

/// Events without a signal sample them, in user mode and in kernel mode.
#[test]
fn stacks_of_a_page_are_sampled_from_outside() {
    needs_recording!();
    let _machine = together();
    let (mut target, recorder) = start("perf");
    let outcome = recorder.finish();
    let text = outcome.text();
    target.goes_on_and_ends_by_itself();
    assert_eq!(outcome.trace.number("threads_with_little_stack"), 2, "{text}");
    if outcome.trace.number("kernel_included") == 0 {
        skip!("perf_event_paranoid: events without a signal are not permitted here");
    }
    let outcome = outcome.expect_code(0);
    assert!(text.contains("sampled without one: "), "{text}");
    let folded = outcome.trace.folded();
    let (small, all) = (folded.count_of("in_small"), folded.total());
    assert!(all >= 100 && small * 4 >= all * 3, "{small} of {all}: {text}");
    let (sampled, used) =
        (outcome.trace.number("weight_sum") * 1_003_009, outcome.trace.number("cpu_time_ns"));
    assert!(sampled.abs_diff(used) * 10 < used, "{sampled} of {used}: {text}");
}

/// Every timer sends a signal. The program's main thread has one, and may have samples.
#[test]
fn stacks_of_a_page_get_no_timer() {
    needs_recording!();
    let _machine = together();
    let (mut target, recorder) = start("timer");
    let outcome = recorder.finish();
    let text = outcome.text();
    target.goes_on_and_ends_by_itself();
    assert_eq!(outcome.trace.number("threads_with_little_stack"), 2, "{text}");
    assert!(text.contains("in threads that have too little stack for a signal"), "{text}");
    assert_eq!(text.matches("is not sampled: a signal would not fit").count(), 2, "{text}");
}
