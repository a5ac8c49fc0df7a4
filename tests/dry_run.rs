//! `record --dry-run`: the steps of a recording, that none is taken, and the refusals of a
//! recording.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{
    Recorder, Snapshot, Target, Trace, as_nobody, needs_recording, program, program_for_everyone,
    record_cpu, scratch_dir, skip, together, traceprof,
};

/// Returns what a dry run prints, by label, after checking that the target and the files did not
/// change.
fn steps(target: &Target, options: &[&str]) -> Vec<(String, String)> {
    let trace = Trace::new();
    let before = Snapshot::take(target.pid());
    let mut command = traceprof(&["record", "--dry-run", "--output"]);
    command.arg(trace.path()).args(options).arg("--pid").arg(target.pid().to_string());
    let output = command.output().expect("traceprof");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    assert_eq!(before.differences(&Snapshot::take(target.pid())), [""; 0]);
    let left = std::fs::read_dir(trace.dir()).expect("the directory of the trace").count();
    assert_eq!(left, 0, "a file of a dry run");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains(&trace.path().display().to_string()), "{text}");
    let lines = text.lines().map(|line| line.split_once("  ").expect("a label and a text"));
    lines.map(|(label, text)| (label.trim().to_owned(), text.trim().to_owned())).collect()
}

fn text_of<'a>(steps: &'a [(String, String)], label: &str) -> &'a str {
    let found = steps.iter().find(|(it, _)| it == label);
    &found.unwrap_or_else(|| panic!("no {label} in {steps:?}")).1
}

#[test]
fn steps_are_listed_and_none_is_taken() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let listed = steps(&target, &["--duration", "2"]);
    assert!(text_of(&listed, "stop").contains(&format!("thread {}", target.pid())), "{listed:?}");
    assert!(text_of(&listed, "signals").contains("SIGURG"), "{listed:?}");
    assert!(text_of(&listed, "end").contains("2.000 s"), "{listed:?}");
    for part in ["code 0x", "tables 0x", "data 0x"] {
        assert!(text_of(&listed, "map").contains(part), "{listed:?}");
    }
    // The recording takes the same steps.
    let outcome = record_cpu(target.pid(), Duration::from_millis(200), &[]);
    let engine = text_of(&listed, "engine").split(':').next().expect("a name");
    assert!(outcome.text().contains(engine), "{engine}: {}", outcome.text());
    let events = steps(&target, &["--engine", "perf"]);
    assert!(text_of(&events, "signals").contains("SIGTRAP"), "{events:?}");
    let timers = steps(&target, &["--engine", "timer"]);
    assert!(text_of(&timers, "engine").contains("requested"), "{timers:?}");
    assert!(text_of(&timers, "signals").contains("SIGURG"), "{timers:?}");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn refusals_are_those_of_the_recording() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let mut first = Recorder::start(&["--pid", &target.pid().to_string(), "--duration", "600"]);
    first.wait_until_attached(target.pid());
    first.wait_for_cpu(target.pid(), Duration::from_millis(200));
    let refused = |extra: &[&str], trace: Trace| {
        let pid = target.pid().to_string();
        let mut command = traceprof(&["record", "--duration", "1", "--pid", &pid]);
        command.args(extra);
        let outcome = Recorder::spawn(command, trace).finish();
        (outcome.code(), outcome.text().replace(&outcome.trace.path().display().to_string(), ""))
    };
    let found = refused(&["--dry-run"], Trace::new());
    assert_eq!(found.0, Some(3), "{}", found.1);
    assert_eq!(found, refused(&[], Trace::new()));
    first.send(Signal::SIGINT);
    first.finish().expect_code(0);
    let existing = || {
        let trace = Trace::new();
        std::fs::write(trace.path(), "precious").expect("a file in the way");
        trace
    };
    let found = refused(&["--dry-run"], existing());
    assert_eq!(found.0, Some(6), "{}", found.1);
    assert_eq!(found, refused(&[], existing()));
    target.goes_on_and_ends_by_itself();
}

#[test]
fn program_is_searched_and_not_started() {
    needs_recording!();
    let trace = Trace::new();
    let made = trace.dir().join("made");
    let run = |program: &str| {
        let mut command = traceprof(&["record", "--dry-run", "--output"]);
        command.arg(trace.path()).args(["--", program]).arg(&made).output().expect("traceprof")
    };
    let output = run("touch");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("/touch, held before its first instruction"), "{text}");
    assert!(text.contains("a perf event of its own"), "{text}");
    assert!(!made.exists(), "the program ran");
    assert!(Command::new("touch").arg(&made).status().expect("touch").success() && made.exists());
}

/// Returns the steps of a dry run of a program in a directory, with `{dir}` for the directory.
fn steps_in(dir: &Path, options: &[&str]) -> Vec<(String, String)> {
    let mut command = traceprof(&[&["record", "--dry-run"], options].concat());
    let output = command.args(["--", "true"]).current_dir(dir).output().expect("traceprof");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = text.replace(&*dir.canonicalize().expect("a path").to_string_lossy(), "{dir}");
    let lines = text.lines().map(|line| line.split_once("  ").expect("a label and a text"));
    lines.map(|(label, text)| (label.trim().to_owned(), text.trim().to_owned())).collect()
}

#[test]
fn an_impossible_output_directory_is_refused_before_the_program_is_started() {
    let run = |directory: &str| {
        let output = format!("{directory}/%p/x.trace");
        let output = traceprof(&["record", "--dry-run", "-o", &output, "--", "true"]).output();
        let output = output.expect("traceprof");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = run("/no-such-directory");
    assert_eq!(code, Some(6), "{text}");
    assert!(text.contains("/no-such-directory is not a directory: create it first"), "{text}");
    needs_recording!();
    assert_eq!(run(&scratch_dir().path().display().to_string()).0, Some(0));
}

#[test]
fn waiting_and_names_add_to_the_steps() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    // No other process has this name.
    let name = format!("dry{}", std::process::id());
    let path = folder.path().join(&name);
    std::fs::copy(program("prey"), &path).expect("a copy");
    let mut command = Command::new(&path);
    command.arg("spin");
    let target = Target::spawn(command);
    let mut command = traceprof(&["record", "--dry-run", "--mode", "cpu,wall", "--ring", "1m"]);
    command.args(["--wall-interval", "50ms", "--name", &name, "-o", "y-%p.trace"]);
    let output = command.current_dir(folder.path()).output().expect("traceprof");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let pid = target.pid();
    assert!(text.contains(&format!("y-{pid}-1.trace and the next free ones")), "{text}");
    assert!(text.contains(&format!("at the end to {}", folder.path().display())), "{text}");
    assert!(!text.contains("%p"), "{text}");
    let waiting = text.lines().find(|line| line.starts_with("waiting  "));
    assert!(waiting.is_some_and(|line| line.contains("every 50.000 ms")), "{text}");
    assert!(text.contains("twice for about a tenth of a millisecond"), "{text}");
}

#[test]
fn names_of_all_files_and_their_limits_are_listed() {
    needs_recording!();
    let dir = scratch_dir();
    let check = |options: &[&str], expected: &[(&str, &str)]| {
        let listed = steps_in(dir.path(), options);
        for (label, text) in expected {
            assert_eq!(text_of(&listed, label), *text, "{options:?}");
        }
    };
    let pair = "{dir}/x-1.trace and {dir}/x-1.trace.idx, written while it is recorded";
    check(&["-o", "x-%n.trace"], &[("files", pair)]);
    std::fs::write(dir.path().join("x-1.trace"), "precious").expect("a file");
    let second = "{dir}/x-2.trace and {dir}/x-2.trace.idx, written while it is recorded";
    check(&["-o", "x-%n.trace"], &[("files", second)]);
    let replaced = format!("{pair}, in place of what is there");
    check(&["-o", "x-1.trace", "--force"], &[("files", &replaced)]);
    check(
        &["-o", "y%p.trace", "--max-size", "3M"],
        &[
            ("files", "{dir}/y%p.trace and {dir}/y%p.trace.idx, written while it is recorded"),
            ("limit", "the recording ends when both together reach 3.0 MiB"),
            ("name", "%p is the program's process id"),
        ],
    );
    check(
        &["-o", "y.trace", "--rotate", "64K", "--rotate-keep", "2"],
        &[
            (
                "files",
                "{dir}/y-0001.trace, {dir}/y-0002.trace and so on, each with its index, .idx",
            ),
            ("parts", "the next one starts at 64.0 KiB; the last 2 are kept"),
        ],
    );
    let age = "the next one starts after 90.000 s; all are kept";
    check(&["-o", "y.trace", "--rotate", "1m30s"], &[("parts", age)]);
    let ring = "the last 60.000 s, in parts in {dir}/y.trace.ring";
    let saved = "saved by SIGUSR2, cpu>80%, file:now to {dir}/y-1.trace and the next free ones, at \
        the \
                 end to {dir}/y.trace";
    let triggers = ["--trigger", "cpu>80%", "--trigger", "file:now"];
    check(
        &[&["-o", "y.trace", "--ring", "1m"], &triggers[..]].concat(),
        &[("ring", ring), ("files", saved)],
    );
    let saved = "saved by SIGUSR2 to {dir}/y-1.trace and the next free ones, not at the end";
    check(&["-o", "y.trace", "--ring", "1m", "--ring-save", "trigger"], &[("files", saved)]);
}

/// A dry run and a recording, in one directory.
#[test]
fn outputs_that_a_recording_would_refuse_are_refused() {
    needs_recording!();
    let dir = scratch_dir();
    let ours = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), dir.path());
    let check = |as_other: bool, options: &[&str], words: &str| {
        let run = |dry: &[&str]| {
            let mut command = match as_other {
                true => as_nobody(&ours)?,
                false => Command::new(&ours),
            };
            command.arg("record").args(dry).args(options).args(["--", "true"]);
            Some(command.current_dir(dir.path()).output().expect("traceprof"))
        };
        let Some(output) = run(&["--dry-run"]) else { skip!("root: needed to act as two users") };
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(6), "{options:?}: {text}");
        assert!(text.contains(words), "{options:?}: {text}");
        let output = run(&[]).expect("a user");
        assert_eq!(
            (output.status.code(), &*String::from_utf8_lossy(&output.stderr)),
            (Some(6), &*text)
        );
    };
    check(false, &["-o", "no/x.trace"], "create it first");
    check(false, &["-o", "no/x%p.trace"], "create it first");
    std::os::unix::fs::symlink("elsewhere", dir.path().join("link")).expect("a link");
    check(false, &["-o", "link"], "link exists: choose another name");
    check(false, &["-o", "link", "--force"], "not a regular file");
    std::fs::write(dir.path().join("x-0003.trace"), "precious").expect("a file");
    check(false, &["-o", "x.trace", "--rotate", "1m"], "x-0003.trace exists, a part");
    std::fs::create_dir(dir.path().join("x.trace.ring")).expect("a directory");
    check(false, &["-o", "x.trace", "--ring", "1m"], "x.trace.ring exists, with");
    std::fs::write(dir.path().join("pid"), "1").expect("a file");
    check(false, &["-o", "x.trace", "--pidfile", "pid"], "process 1 is running");
    check(false, &["-o", "x.trace", "--pidfile", "no/pid"], "create it first");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), mode).expect("a directory for others to read");
    check(true, &["-o", "y.trace"], "a directory of your own");
    check(true, &["-o", "x-0003.trace", "--force"], "a directory of your own");
    std::fs::create_dir(dir.path().join("open")).expect("a directory");
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(dir.path().join("open"), mode).expect("a directory to write to");
    let pidfile = ["-o", "open/x.trace", "--pidfile", "other.pid"];
    check(true, &pidfile, "in a directory that you may write to");
}

#[test]
fn own_files_are_replaced_in_the_directory_of_another_user() {
    const NOBODY: u32 = 65534;
    needs_recording!();
    let dir = scratch_dir();
    let ours = program_for_everyone(Path::new(env!("CARGO_BIN_EXE_traceprof")), dir.path());
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), mode).expect("a directory for others to read");
    let [data, index] = ["x.trace", "x.trace.idx"].map(|name| dir.path().join(name));
    let own = |path: &Path, owner| {
        std::fs::write(path, "").expect("a file");
        std::os::unix::fs::chown(path, Some(owner), None)
    };
    let check = |expected: i32| {
        let mut command = as_nobody(&ours)?;
        command.args(["record", "--dry-run", "--force", "-o", "x.trace", "--", "true"]);
        let output = command.current_dir(dir.path()).output().expect("traceprof");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(expected), "{text}");
        Some(text)
    };
    if own(&data, NOBODY).is_err() {
        skip!("root: needed to act as two users");
    }
    let Some(text) = check(6) else { skip!("root: needed to act as two users") };
    assert!(text.contains("a directory of your own"), "its index would be made: {text}");
    own(&index, NOBODY).expect("root");
    check(0);
    own(&index, 0).expect("root");
    let text = check(6).expect("root");
    assert!(text.contains("x.trace.idx cannot be written"), "{text}");
}
