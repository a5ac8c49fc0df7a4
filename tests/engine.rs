//! Both engines: which engine the recorder chooses and why, what happens when it cannot go on, and
//! what it leaves behind.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use traceprof::trace::load;
use traceprof_abi::storage::log::flags::KERNEL;

use crate::common::{
    Outcome, Recorder, Snapshot, Target, Trace, alone, as_nobody, as_user, child_named, cpu_clock,
    needs_recording, program, program_for_everyone, record_cpu, scratch_dir, skip, timers,
    together, traceprof, wait_until, with_descriptors, without_perf,
};

const SECOND: Duration = Duration::from_secs(1);
const TIMER: &str = "thread CPU timer";
const PERF: &str = "perf task clock";
const SIGNAL: &str = "perf task clock, ignorable signal";

fn start(target: &Target, options: &[&str]) -> Recorder {
    let pid = target.pid().to_string();
    let mut recorder =
        Recorder::start(&[&["--pid", &pid, "--duration", "600"][..], options].concat());
    recorder.wait_until_attached(target.pid());
    recorder
}

fn end(mut recorder: Recorder) -> Outcome {
    recorder.send(Signal::SIGINT);
    recorder.finish().expect_code(0)
}

#[test]
fn where_perf_events_are_refused_timers_sample() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let before = Snapshot::take(target.pid());
    let record = |engine: &str| {
        let mut command = without_perf(traceprof(&["record", "--engine", engine, "--freq", "499"]));
        command.arg("--pid").arg(target.pid().to_string());
        Recorder::spawn(command, Trace::new())
    };
    let outcome = record("auto").record_cpu(target.pid(), SECOND);
    let text = outcome.text();
    assert!(text.contains(TIMER) && text.contains("refused"), "{text}");
    let folded = outcome.trace.folded();
    assert!(folded.percent_of("main") > 90.0, "{} samples", folded.total());
    assert!(outcome.trace.number("timer_hits") > 50, "{text}");
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);

    let refused = record("perf").finish().expect_code(3);
    assert!(refused.text().contains("--engine timer"), "what to do: {}", refused.text());
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn the_engine_and_its_reason_are_reported_and_kept() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let check_reports = |outcome: &Outcome, engine: &str, why: &str| {
        let text = outcome.text();
        let lines = text.lines().filter(|line| line.contains(engine) && line.contains(why));
        assert_eq!(lines.count(), 2, "at the start and at the end: {text}");
        let dump = outcome.trace.view(&["dump", "--json"]);
        assert!(dump.contains(engine) && dump.contains(why), "in the trace");
    };
    let short = Duration::from_millis(200);
    for (options, engine, why) in [
        (&["--freq", "199"][..], SIGNAL, "safest engine that works"),
        (&["--freq", "999"][..], PERF, "best engine at this rate"),
        (&["--engine", "signal"], SIGNAL, "requested"),
        (&["--engine", "timer"], TIMER, "requested"),
        (&["--engine", "perf"], PERF, "requested"),
    ] {
        check_reports(&record_cpu(target.pid(), short, options), engine, why);
    }
    target.goes_on_and_ends_by_itself();
    let mut target = Target::start("sigtrap_user", &[]);
    check_reports(&record_cpu(target.pid(), short, &[]), SIGNAL, "handles SIGTRAP");
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("raised"), target.fact("handled"), "traps");
}

#[test]
fn started_programs_have_timers_from_their_first_instruction() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--stats", "--engine", "timer", "-F", "997", "-o"]);
    command.arg(trace.path()).arg("--").arg(program("exitcode")).args(["42", "400", "0"]);
    let outcome = Outcome { output: command.output().expect("traceprof"), trace }.expect_code(42);
    let text = outcome.text();
    assert!(text.contains(TIMER), "{text}");
    let sampled_ms = outcome.trace.folded().count_of("first_phase") as f64 / 0.997;
    assert!((360.0..430.0).contains(&sampled_ms), "{sampled_ms:.0} ms of 400 ms");
}

#[test]
fn an_option_that_timers_cannot_follow_is_reported_once() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let notes = |options: &[&str]| {
        let outcome = record_cpu(target.pid(), SECOND / 5, options);
        outcome.text().lines().filter(|line| line.contains("--no-kernel has no effect")).count()
    };
    assert_eq!(notes(&["--engine", "timer", "--no-kernel"]), 1);
    assert_eq!(notes(&["--engine", "timer"]), 0);
    assert_eq!(notes(&["--engine", "perf", "--no-kernel"]), 0);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn timers_leave_nothing() {
    needs_recording!();
    let _machine = together();
    for name in ["split", "threads"] {
        let mut target = Target::start(name, &[]);
        let before = Snapshot::take(target.pid());
        let mut recorder = start(&target, &["--engine", "timer", "--freq", "997"]);
        recorder.wait_for_cpu(target.pid(), SECOND);
        assert!(timers(target.pid()) > 0, "{name} has no timers");
        let outcome = end(recorder);
        assert_eq!(timers(target.pid()), 0, "{name}");
        assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0], "{name}");
        let share = outcome.trace.number("weight_sum") as f64 / 997.0 * 1e9
            / outcome.trace.number("cpu_time_ns") as f64;
        assert!((0.9..1.05).contains(&share), "{name}: {share:.3} of its CPU time");
        target.goes_on_and_ends_by_itself();
    }
}

#[test]
fn timers_end_when_recorder_and_guardian_are_killed() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let before = Snapshot::take(target.pid());
    let mut recorder = start(&target, &["--engine", "timer", "--freq", "997"]);
    recorder.wait_for_cpu(target.pid(), SECOND / 2);
    assert!(timers(target.pid()) > 0, "no timers");
    let guardian = child_named(recorder.pid(), "traceprof-guard").expect("a guardian");
    // Stopped, so that it does not notice the guardian's exit before its own.
    recorder.send(Signal::SIGSTOP);
    let kill = |pid| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
    kill(guardian).expect("a signal");
    recorder.send(Signal::SIGKILL);
    drop(recorder);
    // The lease runs by the clock, and the last expiry runs by the thread's CPU time.
    std::thread::sleep(2 * SECOND);
    let killed = cpu_clock(target.pid());
    let ended = wait_until(Duration::from_secs(120), || timers(target.pid()) == 0);
    let used = cpu_clock(target.pid()) - killed;
    assert!(ended && used < 2 * SECOND, "{} timers after {used:?}", timers(target.pid()));
    // The next recording removes what is left.
    record_cpu(target.pid(), SECOND / 2, &["--engine", "timer"]);
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_recorder_that_was_stopped_goes_on_sampling() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("threads", &[]);
    let mut recorder = start(&target, &["--engine", "timer", "--freq", "997"]);
    recorder.wait_for_cpu(target.pid(), SECOND / 2);
    recorder.send(Signal::SIGSTOP);
    let ended = wait_until(Duration::from_secs(120), || timers(target.pid()) == 0);
    assert!(ended, "timers of a stopped recorder");
    recorder.send(Signal::SIGCONT);
    let armed = wait_until(Duration::from_secs(60), || timers(target.pid()) >= 4);
    assert!(armed, "{} timers after it goes on", timers(target.pid()));
    let before = cpu_clock(target.pid());
    recorder.wait_for_cpu(target.pid(), SECOND);
    let used = cpu_clock(target.pid()) - before;
    let trace = end(recorder).trace;
    assert!(trace.number("timers_expired") >= 4);
    let sampled = Duration::from_secs_f64(trace.number("weight_sum") as f64 / 997.0);
    assert!(sampled > used.mul_f64(0.9), "{sampled:?} sampled, {used:?} since it goes on");
    target.goes_on_and_ends_by_itself();
}

/// Timers let a program change its signal handlers at any time, as often as it likes.
#[test]
fn a_program_that_resets_its_signals_lives_on_timers() {
    needs_recording!();
    let _machine = together();
    for what in ["default", "own", "all"] {
        let mut target = Target::start("trap_reset", &[what]);
        let mut recorder = start(&target, &["--engine", "timer", "--freq", "9999"]);
        recorder.wait_for_cpu(target.pid(), SECOND / 2);
        target.send(Signal::SIGUSR1);
        let before = cpu_clock(target.pid());
        // The recording ends by itself when the program resets all signals.
        let used = || cpu_clock(target.pid()) - before > SECOND;
        assert!(wait_until(Duration::from_secs(120), used), "{what}: it does not run");
        let outcome = match recorder.has_exited() {
            true => recorder.finish().expect_code(0),
            false => end(recorder),
        };
        let folded = outcome.trace.folded();
        assert!(folded.count_of("before_the_reset") > 1000, "{what}");
        if what != "all" {
            assert!(folded.count_of("after_the_reset") > 1000, "{what}: {}", outcome.text());
        }
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("maps");
        assert!(!maps.contains("/SYSV"), "{what}: the agent is left: {}", outcome.text());
        target.goes_on_and_ends_by_itself();
        assert_eq!(target.fact("handled"), 0, "{what}: our signals in its handler");
    }
}

#[test]
fn a_reset_of_the_signal_is_followed_by_timers() {
    needs_recording!();
    let _machine = together();
    for (what, why) in [("default", "reset SIGTRAP"), ("own", "its own handler for SIGTRAP")] {
        let mut target = Target::start("trap_reset", &[what]);
        let mut recorder = start(&target, &["--engine", "perf", "--freq", "499"]);
        recorder.wait_for_cpu(target.pid(), SECOND / 2);
        target.send(Signal::SIGUSR1);
        // Twice the time after which the recorder is sure that no signal arrives.
        recorder.wait_for_cpu(target.pid(), 3 * SECOND);
        let outcome = end(recorder);
        let text = outcome.text();
        let is_reported = text.lines().any(|line| line.starts_with("note:") && line.contains(why));
        assert!(is_reported, "{what}: {text}");
        let engine = text.lines().find(|line| line.starts_with("engine")).expect("a line");
        assert!(engine.contains(TIMER) && engine.contains(why), "{engine}");
        let folded = outcome.trace.folded();
        assert!(folded.count_of("before_the_reset") > 100, "{what}");
        assert!(folded.count_of("after_the_reset") > 100, "{what}: {text}");
        target.goes_on_and_ends_by_itself();
        assert_eq!(target.fact("handled") > 0, what == "own", "{what}");
    }
}

#[test]
fn a_handler_in_place_of_the_timers_is_followed_by_another_signal() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("trap_reset", &["urgent"]);
    let mut recorder = start(&target, &["--engine", "timer", "--freq", "499"]);
    recorder.wait_for_cpu(target.pid(), SECOND / 2);
    target.send(Signal::SIGUSR1);
    recorder.wait_for_cpu(target.pid(), 3 * SECOND);
    let outcome = end(recorder);
    let text = outcome.text();
    let is_notice = |line: &&str| line.starts_with("note:") && line.contains("handler for SIGURG");
    let line = text.lines().find(is_notice).unwrap_or_else(|| panic!("not noticed: {text}"));
    assert!(line.contains("SIGWINCH"), "{line}");
    let folded = outcome.trace.folded();
    assert!(folded.count_of("before_the_reset") > 100, "{text}");
    assert!(folded.count_of("after_the_reset") > 500, "{text}");
    assert_eq!(timers(target.pid()), 0, "timers are left");
    target.goes_on_and_ends_by_itself();
    assert!(
        target.fact("handled") > 0,
        "the program got none of our signals, so there was nothing to notice"
    );
}

#[test]
fn sleepers_get_no_eintr_from_timers() {
    needs_recording!();
    let _machine = together();
    for call in ["nanosleep", "poll", "read", "futex", "sigwait"] {
        let mut target = Target::start("sleeper", &[call, "burn"]);
        let options = ["--engine", "timer", "--freq", "997"];
        let outcome = record_cpu(target.pid(), SECOND / 2, &options);
        assert!(outcome.trace.folded().count_of("burn") > 200, "{call}");
        target.goes_on_and_ends_by_itself();
        assert_eq!((target.fact("eintr"), target.fact("other")), (0, 0), "{call}");
    }
}

/// Threads start all the time, each sleeps every other millisecond, and the recorder must arm the
/// timers of some.
#[test]
fn threads_that_nap_get_timers_and_no_eintr() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("naps", &[]);
    let outcome = record_cpu(target.pid(), 2 * SECOND, &["--engine", "timer", "--freq", "997"]);
    target.goes_on_and_ends_by_itself();
    let text = outcome.text();
    assert!(outcome.trace.folded().count_of("between_naps") > 200, "{text}");
    for kind in 0..3 {
        let eintr = target.fact(&format!("eintr_{kind}"));
        let naps = target.fact(&format!("naps_{kind}"));
        assert_eq!(eintr, 0, "kind {kind}, {naps} naps: {text}");
        assert!(naps > 100, "kind {kind}");
    }
}

#[test]
fn a_user_without_privileges_records_with_timers() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let split = program_for_everyone(&program("split"), trace.dir());
    let ours = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), trace.dir());
    let (Some(target), Some(mut command)) = (as_nobody(&split), as_nobody(&ours)) else {
        skip!("root: needed to act as another user");
    };
    let mut target = Target::spawn(target);
    let before = Snapshot::take(target.pid());
    command.args(["record", "--engine", "timer", "--freq", "997", "--pid"]);
    command.arg(target.pid().to_string());
    let outcome = Recorder::spawn(command, trace).record_cpu(target.pid(), SECOND);
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    target.goes_on_and_ends_by_itself();
    let folded = outcome.trace.folded();
    // The timers start some time after the agent is seen.
    let used = outcome.trace.number("cpu_time_ns") as f64 / 1e9 * 997.0;
    let total = folded.total() as f64;
    assert!(total > 100.0 && (total / used - 1.0).abs() < 0.1, "{total} of {used:.0}");
    assert!(folded.percent_of("timed") > 90.0, "{}", folded.percent_of("timed"));
}

/// Records four threads, some of which get no timer because of the limit of pending signals. The
/// limit belongs to the user, and timers count against it. So the program has a user of its own if
/// that can be.
fn record_limited(mut command: Command, each: Duration) -> (Target, Outcome) {
    let ms = each.as_millis().to_string();
    let dir = scratch_dir();
    let program = program_for_everyone(&program("busy_named"), dir.path());
    let own_user = 50_000 + std::process::id() % 10_000;
    let mut limited = as_user(own_user, &program).unwrap_or_else(|| Command::new(&program));
    limited.args(["4", &ms, "2"]);
    let mut target = Target::spawn(limited);
    command.args(["--freq", "999", "--pid"]).arg(target.pid().to_string());
    let mut recorder = Recorder::spawn(command, Trace::new());
    recorder.wait_until_attached(target.pid());
    std::thread::sleep(SECOND);
    target.send(Signal::SIGUSR1);
    recorder.wait_for_cpu(target.pid(), each * 4);
    std::thread::sleep(SECOND / 2);
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish();
    // Timers of the user's other processes count, too, and may leave this one without any.
    let code = if outcome.trace.number("samples") == 0 { 4 } else { 0 };
    let outcome = outcome.expect_code(code);
    target.goes_on_and_ends_by_itself();
    (target, outcome)
}

/// Returns the standard error of a thread's periods. Samples in user mode and in the kernel are
/// drawn separately: those in the kernel count with their weights, and the others vary by as many
/// periods as the kernel took.
fn error_of(trace: &Trace, name: &str) -> f64 {
    let loaded = load(&trace.path()).expect("a trace");
    let (mut squares, mut in_kernel, mut heaviest) = (0.0, 0.0, 0.0f64);
    for thread in loaded.threads.iter().filter(|it| it.thread().name == name) {
        thread.for_each_sample(&mut |sample, _| {
            let weight = f64::from(sample.weight);
            heaviest = heaviest.max(weight);
            if sample.flags & KERNEL != 0 {
                squares += weight * weight;
                in_kernel += weight;
            }
        });
    }
    // Plus one period of each kind that had begun.
    (squares + in_kernel).sqrt() + heaviest
}

fn events_replace_timers(engine: &str, each: Duration) {
    needs_recording!();
    // Other processes of the same user would use up the remainder of the limit, or free some of it.
    let _machine = alone();
    let mut command = traceprof(&["record", "--engine", engine]);
    if engine == "auto" {
        // Too few descriptors for one event a thread. Only because of that, `auto` does not choose
        // perf events.
        command = with_descriptors((68, 68), command);
    }
    let (target, outcome) = record_limited(command, each);
    let (text, trace) = (outcome.text(), &outcome.trace);
    assert!(text.contains(TIMER), "{text}");
    let (events, armed) = (trace.number("threads_by_events"), trace.number("timers_armed"));
    assert!(events >= 2 && events + armed == 5, "{events} of 5, {armed} armed: {text}");
    assert_eq!(trace.number("threads_without_timer"), 0, "{text}");
    let reported =
        format!("{events} threads sampled by perf events because they could not get a timer");
    assert_eq!(text.matches(&reported).count(), 1, "in the report: {text}");
    // The report says how much a starved recorder missed before a thread had its event.
    let [sampled, used] = ["weight_sum", "cpu_time_ns"].map(|it| trace.number(it) as f64);
    let late = (used * 999.0 / 1e9 - sampled).max(0.0);
    assert!(late < used * 999.0 / 1e9 / 10.0, "{text}");
    for thread in 0..4 {
        let name = format!("busy-{thread}");
        let own = target.fact(&format!("used_{thread}")) as f64 * 999.0 / 1e9;
        let (sampled, error) = (trace.periods(&name) as f64, 5.0 * error_of(trace, &name));
        let is_right = own - error - late < sampled && sampled < own + error;
        assert!(is_right, "{name}: {sampled} of {own} +- {error}, late {late}\n{text}");
    }
}

#[test]
fn threads_that_can_have_no_timer_have_events() {
    events_replace_timers("timer", 5 * SECOND);
}

#[test]
fn threads_that_can_have_no_timer_have_events_by_default() {
    events_replace_timers("auto", SECOND);
}

#[test]
fn threads_that_can_have_neither_timer_nor_event_are_named() {
    needs_recording!();
    let _machine = alone();
    let command = without_perf(traceprof(&["record", "--engine", "timer"]));
    let (_, outcome) = record_limited(command, SECOND / 2);
    let (text, trace) = (outcome.text(), &outcome.trace);
    let (without, armed) = (trace.number("threads_without_timer"), trace.number("timers_armed"));
    assert!(without >= 2 && without + armed == 5, "{without} of 5, {armed} armed: {text}");
    assert!(text.contains("threads without a timer") && text.contains("refused here"), "{text}");
    assert_eq!(trace.number("threads_by_events"), 0, "{text}");
    let line = text.lines().find(|line| line.starts_with("CPU time")).expect("an account");
    assert!(line.contains("in threads without a timer"), "{line}");
}

/// Sets a limit with which the target can create no more timers.
fn leave_no_timer(target: &Target) {
    // Less than is in use already, whatever other processes of the user do.
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call reads the new limit and gets no pointer for the old one.
    let set = unsafe {
        libc::prlimit(target.pid(), libc::RLIMIT_SIGPENDING, &raw const limit, std::ptr::null_mut())
    };
    assert_eq!(set, 0);
}

/// The events of threads without a timer end when another handler owns SIGTRAP. Nothing replaces
/// them.
#[test]
fn a_reset_of_the_signal_ends_the_events_of_threads_without_a_timer() {
    needs_recording!();
    let _machine = alone();
    for (what, why) in [("default", "reset SIGTRAP"), ("own", "its own handler for SIGTRAP")] {
        let mut target = Target::start("trap_reset", &[what]);
        leave_no_timer(&target);
        let mut recorder = start(&target, &["--engine", "timer", "--freq", "499"]);
        recorder.wait_for_cpu(target.pid(), SECOND);
        target.send(Signal::SIGUSR1);
        recorder.wait_for_cpu(target.pid(), SECOND);
        let outcome = end(recorder);
        let text = outcome.text();
        let is_reported =
            text.lines().any(|line| line.contains("no longer sampled") && line.contains(why));
        assert!(is_reported, "{what}: {text}");
        let folded = outcome.trace.folded();
        assert!(folded.count_of("before_the_reset") > 300, "{what}: {text}");
        assert!(folded.count_of("after_the_reset") < 50, "{what}: {text}");
        assert_eq!(outcome.trace.number("threads_by_events"), 1, "{text}");
        assert_eq!(outcome.trace.number("threads_without_timer"), 1, "{text}");
        let line = text.lines().find(|line| line.starts_with("CPU time")).expect("an account");
        assert!(line.contains("in threads without a timer"), "{line}");
        assert!(!text.contains("left behind"), "{what}: {text}");
        target.goes_on_and_ends_by_itself();
        assert_eq!(target.fact("handled") > 0, what == "own", "{what}");
    }
}

/// The program may reset SIGTRAP at any time, so no thread has an event, not even one that needs
/// it.
#[test]
fn a_program_that_handles_sigtrap_has_no_event_even_without_timers() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("sigtrap_user", &[]);
    leave_no_timer(&target);
    let mut recorder = start(&target, &["--engine", "timer"]);
    recorder.wait_for_cpu(target.pid(), SECOND);
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(4);
    let text = outcome.text();
    let why = "s in threads without a timer;";
    assert!(
        text.lines().last().is_some_and(|line| line.contains(why)),
        "a wrong statement: {text}"
    );
    assert!(
        text.contains("no perf events in their place: the application handles SIGTRAP"),
        "{text}"
    );
    assert_eq!(outcome.trace.number("threads_by_events"), 0, "{text}");
    target.goes_on_and_ends_by_itself();
    assert_eq!(target.fact("raised"), target.fact("handled"), "traps");
}
