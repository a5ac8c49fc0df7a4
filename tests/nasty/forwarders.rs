//! Programs that put a handler over ours, and forward to ours what they get.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{Recorder, Target, needs_recording, together};

/// Its own traps reach its handlers once each, during the recording and after it. The default
/// action, which our handler would forward to, is for nobody.
#[test]
fn traps_reach_the_programs_own_handlers_and_end_nothing() {
    needs_recording!();
    let _machine = together();
    for args in [&["call"][..], &["call", "handled"], &["bare"], &["bare", "handled"]] {
        let mut target = Target::start("trap_forwarder", args);
        let pid = target.pid();
        let pid_text = pid.to_string();
        let options = ["--pid", &pid_text, "--freq", super::HZ, "--engine", "perf"];
        let mut recorder = Recorder::start(&options);
        recorder.wait_until_attached(pid);
        recorder.wait_for_cpu(pid, super::CPU_AT_LEAST);
        target.send(Signal::SIGUSR1);
        recorder.wait_for_cpu(pid, super::CPU_AT_LEAST);
        recorder.send(Signal::SIGINT);
        let text = recorder.finish().expect_code(11).text();
        assert!(text.contains("may still call ours"), "{args:?}: {text}");
        std::thread::sleep(Duration::from_millis(200));
        target.goes_on_and_ends_by_itself();
        let raised = target.fact("raised");
        assert!(raised > 10, "{args:?}: {raised}");
        assert_eq!(target.fact("handled"), raised, "{args:?}");
        let below = if args.len() > 1 { raised } else { 0 };
        assert_eq!(target.fact("below"), below, "{args:?}");
    }
}
