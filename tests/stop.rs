//! The ways in which a recording ends early.

use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::common::{
    Recorder, Snapshot, Target, Trace, needs_recording, scratch_dir, together, traced, traceprof,
    wait_until,
};

const LONG: &str = "600";

fn start(target: &Target) -> Recorder {
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "--duration", LONG, "--freq", "499"]);
    recorder.wait_until_attached(target.pid());
    recorder.wait_for_cpu(target.pid(), Duration::from_secs(1));
    recorder
}

fn signal_keeps_the_data(signal: Signal) {
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let mut recorder = start(&target);
    recorder.send(signal);
    let asked = Instant::now();
    let outcome = recorder.finish().expect_code(0);
    assert!(asked.elapsed() < Duration::from_secs(10), "took {:?}", asked.elapsed());
    assert!(outcome.trace.folded().count_of("kernel_alpha") > 100);
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn ctrl_c_keeps_the_data() {
    needs_recording!();
    let _machine = together();
    signal_keeps_the_data(Signal::SIGINT);
}

#[test]
fn sigterm_keeps_the_data() {
    needs_recording!();
    let _machine = together();
    signal_keeps_the_data(Signal::SIGTERM);
}

#[test]
fn a_signal_that_is_sent_twice_at_once_keeps_the_data() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let mut recorder = start(&target);
    recorder.send(Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(1));
    // Sent even if the recorder may have exited, like `timeout`, which does not check either.
    recorder.send(Signal::SIGTERM);
    let outcome = recorder.finish().expect_code(0);
    assert!(outcome.trace.folded().count_of("kernel_alpha") > 100);
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn second_ctrl_c_exits_at_once_and_the_target_is_unharmed() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let mut recorder = start(&target);
    recorder.send(Signal::SIGINT);
    // Any sooner it would count as the same request.
    std::thread::sleep(Duration::from_millis(600));
    if !recorder.has_exited() {
        recorder.send(Signal::SIGINT);
    }
    assert!(wait_until(Duration::from_secs(3), || recorder.has_exited()), "still there");
    let code = recorder.finish().code();
    // On an idle machine the recorder has ended well by then.
    assert!(matches!(code, Some(0 | 130)), "{code:?}");
    let restored = wait_until(Duration::from_secs(5), || {
        before.differences(&Snapshot::take(target.pid())).is_empty()
    });
    assert!(restored, "left: {:#?}", before.differences(&Snapshot::take(target.pid())));
    target.goes_on_and_ends_by_itself();
}

#[test]
fn target_that_ends_during_the_recording_leaves_its_data() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let recorder = start(&target);
    target.goes_on_and_ends_by_itself();
    let ended = Instant::now();
    let outcome = recorder.finish().expect_code(0);
    assert!(ended.elapsed() < Duration::from_secs(10), "took {:?}", ended.elapsed());
    let folded = outcome.trace.folded();
    assert!(folded.count_of("kernel_alpha") > 100, "{} samples", folded.total());
    // Names come from files that were opened while the target lived.
    assert_eq!(folded.count_with_other_caller("kernel_alpha", "caller_alpha"), 0);
}

#[test]
fn target_killed_during_the_recording_leaves_its_data() {
    needs_recording!();
    let _machine = together();
    let target = Target::start("threads", &[]);
    let recorder = start(&target);
    target.send(Signal::SIGKILL);
    let outcome = recorder.finish().expect_code(0);
    assert!(outcome.trace.folded().count_containing("crunch_") > 100);
}

#[test]
fn target_that_executes_another_program_is_no_crash() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let go = dir.path().join("go");
    let mut shell = std::process::Command::new("/bin/sh");
    // Busy in the shell, then another program in the same process.
    shell.args(["-c", "echo ready; while [ ! -e \"$0\" ]; do :; done; exec sleep 1"]).arg(&go);
    let mut target = Target::spawn(shell);
    let recorder = start(&target);
    std::fs::write(&go, "").expect("a file to wait for");
    assert_eq!(target.wait().code(), Some(0), "the executed program ended by itself");
    let outcome = recorder.finish().expect_code(0);
    assert!(outcome.trace.folded().total() > 200, "samples of the shell before the exec");
}

/// Runs a stopped tracee until it has set a handler for this signal, sends the signal, and lets the
/// tracee go.
fn send_at_the_handlers_installation(tracee: Pid, signal: Signal) {
    let mut undelivered = None;
    waitpid(tracee, None).expect("the stop after the exec");
    ptrace::setoptions(tracee, ptrace::Options::PTRACE_O_TRACESYSGOOD).expect("options");
    loop {
        ptrace::syscall(tracee, undelivered.take()).expect("the tracee");
        match waitpid(tracee, None).expect("a stop") {
            WaitStatus::PtraceSyscall(_) => {
                let registers = ptrace::getregs(tracee).expect("registers");
                let is_sigaction = registers.orig_rax == libc::SYS_rt_sigaction as u64
                    && registers.rdi == signal as u64
                    && registers.rsi != 0;
                // The entry of a call has another value there.
                if is_sigaction && registers.rax == 0 {
                    kill(tracee, signal).expect("a signal");
                    ptrace::detach(tracee, None).expect("detach");
                    return;
                }
            }
            WaitStatus::Stopped(_, other) => undelivered = Some(other),
            other => panic!("no handler for {signal}: {other:?}"),
        }
    }
}

/// The recorder went on for ever then.
#[test]
fn signal_that_comes_while_its_handler_is_installed_ends_the_recording() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let command = traced(traceprof(&["record", "--duration", LONG, "--pid", &pid]));
        let mut recorder = Recorder::spawn(command, Trace::new());
        send_at_the_handlers_installation(Pid::from_raw(recorder.pid()), signal);
        let has_ended = wait_until(Duration::from_secs(60), || recorder.has_exited());
        assert!(has_ended, "{signal} is lost");
        recorder.finish();
    }
    target.goes_on_and_ends_by_itself();
}
