//! `stacks`, the stacks of all threads at once: compared with the target's own account and with
//! gdb. The target must not notice.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::{
    Recorder, Snapshot, Target, announce_skip, child_named, is_long_run, is_root, needs_recording,
    program_for_everyone, scratch_dir, skip, together, traceprof, wait_until,
};

fn run(pid: i32, args: &[&str]) -> Output {
    let mut command = traceprof(&["stacks", "--pid"]);
    command.arg(pid.to_string()).args(args).output().expect("traceprof")
}

fn text_of(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The stacks of a process as `--json` prints them.
struct Stacks(Value);

impl Stacks {
    fn of(pid: i32) -> Self {
        Self::with(pid, &[])
    }

    fn with(pid: i32, args: &[&str]) -> Self {
        let output = run(pid, &[&["--json"], args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text_of(&output));
        assert_eq!(output.stderr, b"", "{}", text_of(&output));
        let all: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert_eq!(all["pid"], pid);
        Self(all)
    }

    fn threads(&self) -> &[Value] {
        self.0["threads"].as_array().expect("threads")
    }

    fn named(&self, name: &str) -> &Value {
        let mut found = self.threads().iter().filter(|thread| thread["name"] == name);
        found.next().unwrap_or_else(|| panic!("no thread {name}: {}", self.0))
    }

    fn tid(&self, tid: i32) -> &Value {
        let mut found = self.threads().iter().filter(|thread| thread["tid"] == tid);
        found.next().unwrap_or_else(|| panic!("no thread {tid}: {}", self.0))
    }
}

/// Returns the names of the functions, innermost first.
fn functions(thread: &Value) -> Vec<&str> {
    let frames = thread["frames"].as_array().expect("frames");
    frames.iter().map(|frame| frame["function"].as_str().expect("a name")).collect()
}

/// Checks that these functions call each other in this order, innermost first, and that the stack
/// reaches its root.
fn assert_calls(thread: &Value, expected: &[&str]) {
    let found = functions(thread);
    assert!(found.windows(expected.len()).any(|part| part == expected), "{expected:?}: {thread}");
    assert_eq!(thread["end"], "root", "{thread}");
}

/// Returns the states of a process's threads.
fn states(pid: i32) -> Vec<char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads of the target");
    let stats =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    stats.filter_map(|stat| stat.rsplit_once(") ")?.1.chars().next()).collect()
}

/// Thread, state and system call in `tests/targets/asleep.c`.
const ASLEEP: [(&str, &str, Option<&str>); 8] = [
    ("on_mutex", "S", Some("futex")),
    ("in_read", "S", Some("read")),
    ("in_sleep", "S", Some("clock_nanosleep")),
    ("in_epoll", "S", Some("epoll_wait")),
    ("in_sigwait", "S", Some("rt_sigtimedwait")),
    ("in_semop", "S", Some("semtimedop")),
    ("is_deep", "S", Some("pause")),
    ("runs", "R", None),
];

/// Starts `tests/targets/asleep.c` and waits until all threads but one sleep.
fn asleep() -> Target {
    let target = Target::start("asleep", &[]);
    let rests = || {
        let states = states(target.pid());
        let asleep = states.iter().filter(|state| **state == 'S').count();
        (states.len(), asleep) == (ASLEEP.len() + 1, ASLEEP.len())
    };
    assert!(wait_until(Duration::from_secs(60), rests), "{:?}", states(target.pid()));
    target
}

#[test]
fn every_thread_is_shown_in_its_call_and_none_notices() {
    let _machine = together();
    let mut target = asleep();
    let before = Snapshot::take(target.pid());
    for round in 0..8 {
        let stacks = Stacks::of(target.pid());
        assert_eq!(stacks.threads().len(), ASLEEP.len() + 1);
        for (name, state, call) in ASLEEP {
            let thread = stacks.named(name);
            let (inner, outer) = (format!("{name}_inner"), format!("{name}_outer"));
            assert_calls(thread, &[&inner, &outer, name, "start_thread"]);
            assert_eq!(thread["state"], state, "{thread}");
            let found = thread["call"]["name"].as_str();
            // After a stop the kernel continues an interrupted sleep with another system call.
            let goes_on = name == "in_sleep" && found == Some("restart_syscall") && round > 0;
            assert!(found == call || goes_on, "{thread}");
            assert!(thread["stopped_ns"].as_u64().is_some_and(|ns| ns > 0), "{thread}");
        }
        assert_calls(stacks.tid(target.pid()), &["main"]);
        assert_eq!(stacks.tid(target.pid())["call"]["name"], "rt_sigsuspend");
    }
    let differences = before.differences(&Snapshot::take(target.pid()));
    assert!(differences.is_empty(), "left in the target: {differences:#?}");
    target.goes_on_and_ends_by_itself();
    assert_eq!((target.fact("eintr"), target.fact("other")), (0, 0));
}

/// The part of the stack beyond the copy is read from the running thread.
#[test]
fn stack_that_is_longer_than_its_copy_is_followed_to_its_root() {
    let _machine = together();
    let target = asleep();
    let stacks = Stacks::of(target.pid());
    let thread = stacks.named("is_deep");
    let functions = functions(thread);
    assert_eq!(functions.iter().filter(|name| **name == "dig").count(), 4001);
    let late = |at: usize| thread["frames"][at]["read_later"].as_bool().expect("a flag");
    let root = functions.len() - 1;
    assert!(!late(0) && !late(1000) && late(root - 5) && late(root));
    let text = text_of(&run(target.pid(), &[]));
    let marked = text.lines().filter(|line| line.ends_with(" [read later]")).count();
    assert!((500..3500).contains(&marked), "{marked}");
}

#[test]
fn text_names_files_and_lines_only_if_asked_to() {
    let _machine = together();
    let target = asleep();
    let text = text_of(&run(target.pid(), &[]));
    let head = "\"in_read\": S (asleep) in read(";
    let paragraph = text.split("\n\n").find(|part| part.contains(head));
    let paragraph = paragraph.unwrap_or_else(|| panic!("{text}"));
    assert!(paragraph.contains("<pipe:["), "{paragraph}");
    assert!(paragraph.contains("in_read_inner (asleep)\n"), "{paragraph}");
    assert!(!text.contains("asleep.c:") && !text.contains("stopped for"), "{text}");
    let text = text_of(&run(target.pid(), &["--verbose"]));
    assert!(text.contains(" in_read_outer (asleep+0x"), "{text}");
    assert!(text.contains("asleep.c:") && text.contains("longest stop of a thread: "), "{text}");
}

#[test]
fn kernel_functions_are_shown_to_root() {
    if !is_root() {
        skip!("root: needed for the kernel's functions");
    }
    let _machine = together();
    let target = asleep();
    let stacks = Stacks::with(target.pid(), &["--kernel"]);
    let kernel = stacks.named("on_mutex")["kernel"].to_string();
    assert!(kernel.contains("futex"), "{kernel}");
    assert_eq!(stacks.named("runs")["kernel"], Value::Null);
}

#[test]
fn stopped_process_is_shown_and_stays_stopped() {
    let _machine = together();
    let mut target = asleep();
    target.send(Signal::SIGSTOP);
    let is_stopped = || states(target.pid()).iter().all(|state| *state == 'T');
    assert!(wait_until(Duration::from_secs(20), is_stopped), "the target does not stop");
    for _ in 0..5 {
        let stacks = Stacks::of(target.pid());
        for (name, _, _) in ASLEEP {
            assert_eq!(stacks.named(name)["state"], "T");
            assert_calls(stacks.named(name), &[&format!("{name}_inner"), &format!("{name}_outer")]);
        }
        assert!(is_stopped(), "it goes on");
    }
    target.send(Signal::SIGCONT);
    target.goes_on_and_ends_by_itself();
    assert_eq!((target.fact("eintr"), target.fact("other")), (0, 0));
}

#[test]
fn interpreter_is_followed_to_its_root() {
    let _machine = together();
    const SCRIPT: &str = "
import signal, sys, threading
done = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: done.set())
def waits(): done.wait()
worker = threading.Thread(target=waits)
worker.start()
print('ready', flush=True)
done.wait()
worker.join()
sys.exit(17)
";
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT]);
    let mut target = Target::spawn(command);
    let stacks = Stacks::with(target.pid(), &["--native-frames"]);
    assert_eq!(stacks.threads().len(), 2);
    for thread in stacks.threads() {
        assert_eq!(thread["end"], "root", "{thread}");
        assert!(functions(thread).len() > 10, "{thread}");
        assert_eq!(thread["call"]["name"], "futex", "{thread}");
    }
    target.goes_on_and_ends_by_itself();
}

#[test]
fn thread_that_no_stop_reaches_is_shown_without_its_stack() {
    let _machine = together();
    let mut target = Target::start("vforker", &[]);
    let is_forking = || states(target.pid()).contains(&'D');
    assert!(wait_until(Duration::from_secs(20), is_forking), "no vfork");
    let stacks = Stacks::of(target.pid());
    let parent = stacks.tid(target.pid());
    assert_eq!((parent["state"].as_str(), functions(parent).len()), (Some("D"), 0), "{parent}");
    assert_eq!(parent["call"]["name"], "vfork", "{parent}");
    let why = parent["no_stack"].as_str().expect("a reason");
    assert!(why.contains("did not stop"), "{why}");
    assert!(parent["wait_channel"].as_str().is_some_and(|it| !it.is_empty()), "{parent}");
    let mut others = stacks.threads().iter().filter(|thread| thread["tid"] != target.pid());
    assert_calls(others.next().expect("another thread"), &["naps", "start_thread"]);
    let child = child_named(target.pid(), "vforker").expect("the child");
    assert_calls(Stacks::of(child).tid(child), &["forks", "main"]);
    kill(Pid::from_raw(child), Signal::SIGTERM).expect("a signal to the child");
    assert_eq!(target.wait().code(), Some(17));
}

/// Returns the addresses of each thread's frames as gdb reports them. Inlined frames have no
/// address of their own.
fn by_gdb(pid: i32) -> Option<Vec<(i32, Vec<u64>)>> {
    let mut gdb = Command::new("gdb");
    gdb.args(["-batch", "-nx", "-ex", "set print address on", "-ex", "set debuginfod enabled off"]);
    gdb.args(["-ex", "set backtrace past-main on", "-ex", "set backtrace past-entry on"]);
    gdb.args(["-ex", "set print frame-info short-location", "-ex", "thread apply all bt"]);
    let output = gdb.arg("-p").arg(pid.to_string()).output().ok()?;
    let text = text_of(&output);
    let mut threads: Vec<(i32, Vec<u64>)> = Vec::new();
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("(LWP ").filter(|_| line.starts_with("Thread ")) {
            let tid = rest.split(')').next()?.parse().ok()?;
            threads.push((tid, Vec::new()));
        }
        let address = line.split_once(" 0x").filter(|_| line.starts_with('#'));
        let address = address.and_then(|(_, rest)| rest.split(' ').next());
        if let (Some(address), Some((_, frames))) = (address, threads.last_mut()) {
            frames.push(u64::from_str_radix(address, 16).ok()?);
        }
    }
    Some(threads)
}

#[test]
fn gdb_sees_the_same_frames() {
    let _machine = together();
    let target = asleep();
    // Before gdb, which makes some of the calls end with EINTR.
    let stacks = Stacks::of(target.pid());
    let Some(expected) = by_gdb(target.pid()) else { skip!("gdb is not installed") };
    let mut compared = 0;
    for (tid, frames) in expected {
        let thread = stacks.tid(tid);
        if thread["name"] == "runs" {
            continue;
        }
        let own = thread["frames"].as_array().expect("frames").iter();
        let own = own.filter(|frame| frame["inlined"] == false);
        let mut own: Vec<u64> = own.filter_map(|frame| frame["address"].as_u64()).collect();
        // gdb prints the address of the first frame only if it is not at the start of a line, or is
        // inlined.
        let leaf = own.remove(0);
        let frames = frames.strip_prefix(&[leaf]).unwrap_or(&frames);
        assert_eq!(own, frames, "{thread}");
        compared += 1;
    }
    assert_eq!(compared, ASLEEP.len(), "threads that gdb knows");
}

/// A thread inside our own handler is shown with the code that the signal interrupted.
#[test]
fn recorded_process_is_shown_through_the_signal_frame() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    let args = ["--pid", &pid, "--duration", "600", "--freq", "max"];
    let mut recorder = Recorder::start(&args);
    recorder.wait_until_attached(target.pid());
    let mut in_handler = 0;
    let found = wait_until(Duration::from_secs(60), || {
        let stacks = Stacks::of(target.pid());
        let thread = stacks.tid(target.pid());
        let names = functions(thread);
        assert!(names.contains(&"main") && thread["end"] == "root", "{thread}");
        in_handler += usize::from(names.contains(&"traceprof_handler"));
        in_handler >= 5
    });
    assert!(found, "seen in the handler: {in_handler} times");
    recorder.send(Signal::SIGINT);
    recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
}

#[test]
fn killed_in_the_middle_it_leaves_nothing() {
    let _machine = together();
    // A thread whose sleep ends early exits.
    let mut target = Target::start("many_threads", &["100"]);
    let before = Snapshot::take(target.pid());
    let pid = target.pid().to_string();
    let (kills, mut in_the_middle) = (if is_long_run() { 500 } else { 30 }, 0);
    for kill in 0..kills {
        let mut command = traceprof(&["stacks", "--pid", &pid]);
        let mut child = command.stdout(Stdio::null()).spawn().expect("traceprof");
        // The leader is the first thread that is stopped.
        let is_traced = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            !status.expect("status").contains("TracerPid:\t0\n")
        };
        while !is_traced() && child.try_wait().expect("its state").is_none() {
            std::thread::sleep(Duration::from_micros(10));
        }
        std::thread::sleep(Duration::from_micros(kill * 211 % 10_000));
        child.kill().expect("a kill");
        in_the_middle += u32::from(!child.wait().expect("its end").success());
    }
    assert!(in_the_middle > 0, "every kill came too late");
    let is_restored = || before.differences(&Snapshot::take(target.pid())).is_empty();
    assert!(wait_until(Duration::from_secs(20), is_restored), "left in the target");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn refusals_are_those_of_a_recording() {
    let _machine = together();
    let check = |output: Output, code: i32, part: &str| {
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(part) && text.starts_with("traceprof: "), "{text}");
    };
    let mut ended = Command::new("true").spawn().expect("true");
    ended.wait().expect("end of true");
    check(run(ended.id() as i32, &[]), 7, "no process has pid");
    let mut target = asleep();
    let stacks = Stacks::of(target.pid());
    let tid = stacks.named("runs")["tid"].as_i64().expect("a tid") as i32;
    check(run(tid, &[]), 1, "give the process: --pid");
    let pid = Pid::from_raw(target.pid());
    ptrace::seize(pid, ptrace::Options::empty()).expect("seize");
    check(run(target.pid(), &[]), 3, "is already traced by ");
    ptrace::interrupt(pid).expect("interrupt");
    nix::sys::wait::waitpid(pid, None).expect("a stop");
    ptrace::detach(pid, None).expect("detach");
    let scratch = scratch_dir();
    let program = program_for_everyone(env!("CARGO_BIN_EXE_traceprof").as_ref(), scratch.path());
    match crate::common::as_nobody(&program) {
        Some(mut command) => {
            let output = command.args(["stacks", "--pid"]).arg(target.pid().to_string()).output();
            check(output.expect("traceprof"), 3, ") belongs to uid ");
        }
        None => announce_skip("root: needed to act as two users"),
    }
    target.goes_on_and_ends_by_itself();
}

#[test]
fn several_processes_are_printed_one_after_the_other_and_those_that_are_gone_get_a_note() {
    needs_recording!();
    let _machine = together();
    let mut targets = [Target::start("split", &[]), Target::start("split", &[])];
    let pids = targets.each_ref().map(Target::pid);
    let list = format!("{},{},2147483647", pids[0], pids[1]);
    let output = traceprof(&["stacks", &list]).output().expect("traceprof");
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{out}\n{err}");
    let heads: Vec<&str> = out.lines().filter(|line| line.starts_with("process ")).collect();
    let expected = pids.map(|pid| format!("process {pid}: "));
    assert_eq!(heads.len(), 2, "{out}");
    assert!(heads.iter().zip(&expected).all(|(head, start)| head.starts_with(start)), "{out}");
    assert!(out.contains(&format!("\n\nprocess {}: ", pids[1])), "{out}");
    assert!(err.starts_with("note: process 2147483647: ") && err.lines().count() == 1, "{err}");
    let output = traceprof(&["stacks", "--json", &list]).output().expect("traceprof");
    let objects = String::from_utf8(output.stdout).unwrap();
    let found: Vec<Value> =
        objects.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!(found.iter().map(|it| it["pid"].clone()).collect::<Vec<_>>(), pids);
    // By name, which only these two have.
    let folder = scratch_dir();
    let own = folder.path().join("printed-by-name");
    std::fs::copy(crate::common::program("split"), &own).expect("a copy");
    let mut named = Target::spawn(Command::new(&own));
    let output = traceprof(&["stacks", "--name", "printed-by-n"]).output().expect("traceprof");
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.starts_with(&format!("process {}: ", named.pid())), "{out}");
    named.goes_on_and_ends_by_itself();
    targets.iter_mut().for_each(Target::goes_on_and_ends_by_itself);
}
