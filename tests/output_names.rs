//! How the output of a recording is named, limited and reported.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use traceprof::trace;

use crate::common::{
    Recorder, Target, Trace, needs_recording, program, scratch_dir, together, traceprof, wait_until,
};

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `traceprof record ARGS -- exitcode 0 MS` in a directory.
pub(crate) fn record_in(dir: &Path, args: &[&str]) -> Output {
    let mut command = traceprof(&[&["record"], args].concat());
    command.arg("--").arg(program("exitcode")).args(["0", "50", "50"]);
    command.current_dir(dir).output().expect("traceprof")
}

pub(crate) fn names_in(dir: &Path) -> Vec<String> {
    let names =
        fs::read_dir(dir).expect("directory").map(|entry| entry.expect("entry").file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().expect("a name")).collect();
    names.sort();
    names
}

#[test]
fn names_have_placeholders_for_the_target() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    for _ in 0..2 {
        let output = record_in(dir.path(), &["-o", "svc-%n.trace"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let numbered = ["svc-1.trace", "svc-1.trace.idx", "svc-2.trace", "svc-2.trace.idx"];
    assert_eq!(names_in(dir.path()), numbered);
    let dir = scratch_dir();
    let output = record_in(dir.path(), &["-o", "%p-%t-100%%.trace", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    let names = names_in(dir.path());
    let [pid, time, rest] = names[0].split('-').collect::<Vec<_>>()[..] else {
        panic!("{names:?}")
    };
    assert_eq!((summary["pid"].to_string().as_str(), rest), (pid, "100%.trace"), "{names:?}");
    assert!(time.len() == 16 && time.starts_with("20") && time.ends_with('Z'), "{time}");
    assert_eq!(summary["output"], names[0].as_str());
}

#[test]
fn a_program_whose_trace_cannot_be_named_never_runs() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    // The id is known when the program is started, and the directory is searched then.
    let marker = dir.path().join("ran");
    let mut command = traceprof(&["record", "-o", "no-such-directory/%p.trace", "--", "touch"]);
    let output = command.arg(&marker).current_dir(dir.path()).output().expect("traceprof");
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("create it first"), "{}", text(&output.stderr));
    assert!(!marker.exists(), "the program ran unrecorded");
}

#[test]
fn the_summary_for_scripts_is_one_object_also_when_quiet() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    let mut command = traceprof(&["record", "--json", "-q", "--freq", "997", "--output"]);
    command.arg(trace.path()).arg("--").arg(program("exitcode")).args(["3", "100", "100"]);
    let output = command.output().expect("traceprof");
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(3), ""));
    let stdout = text(&output.stdout);
    let summary: serde_json::Value =
        serde_json::from_str(stdout.lines().last().expect("a line")).expect("one object");
    assert_eq!((&summary["exit_code"], &summary["reason"]), (&3.into(), &serde_json::Value::Null));
    assert_eq!(summary["command_status"]["code"], 3);
    for (key, path) in [("data_bytes", trace.path()), ("index_bytes", trace.index_path())] {
        assert_eq!(summary[key], fs::metadata(path).expect("a file").len(), "{key}");
    }
    for key in ["samples", "weight_sum", "cpu_time_ns", "rooted", "elapsed_ns", "puts"] {
        assert_eq!(summary["figures"][key], trace.number(key), "{key}");
    }
    assert_eq!(summary["samples_in_file"], trace.number("samples"));
}

#[test]
fn a_refused_recording_is_reported_to_scripts() {
    let mut child = Command::new("true").spawn().expect("true");
    let pid = child.id().to_string();
    child.wait().expect("end of true");
    let output = traceprof(&["record", "--json", "-d", "1", "-p", &pid, "-o", "/tmp/%p-none"]);
    let output = { output }.output().expect("traceprof");
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(summary["exit_code"], 7);
    assert!(text(&output.stderr).contains(summary["reason"].as_str().expect("a reason")));
}

/// Returns a command in which the shell opens the descriptor and becomes the recorder.
fn with_descriptor(number: u32, path: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("exec \"$@\" {number}>\"$0\"")]).arg(path);
    command.arg(env!("CARGO_BIN_EXE_traceprof")).arg("record").args(args).stdin(Stdio::null());
    command
}

#[test]
fn readiness_is_written_and_the_descriptor_is_closed() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let fifo = dir.path().join("fifo");
    mkfifo(&fifo, Mode::from_bits_truncate(0o600)).expect("a fifo");
    let mut target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    let pidfile = dir.path().join("pid");
    let pidfile_name = pidfile.to_string_lossy().into_owned();
    let args = ["--pid", &pid, "--ready-fd", "9", "--pidfile", &pidfile_name];
    let mut recorder = Recorder::spawn(with_descriptor(9, &fifo, &args), Trace::new());
    // Returns at the end of the file, while the recording goes on.
    assert_eq!(fs::read_to_string(&fifo).expect("the fifo"), "READY=1\n");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    assert!(maps.contains("/SYSV") || maps.contains("memfd:"), "reported before the attach");
    assert!(!recorder.has_exited());
    let pid_text = fs::read_to_string(&pidfile).expect("a pid file");
    assert_eq!(pid_text.trim(), recorder.pid().to_string());
    let mut second = traceprof(&["record", "-d", "1", "--pidfile", &pidfile_name, "-p", &pid]);
    let second = second.arg("-o").arg(dir.path().join("x")).output().expect("traceprof");
    assert_eq!(second.status.code(), Some(6), "{}", text(&second.stderr));
    recorder.wait_for_cpu(target.pid(), Duration::from_millis(200));
    recorder.send(Signal::SIGINT);
    recorder.finish().expect_code(0);
    assert!(!pidfile.exists(), "the pid file outlives the recording");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn arguments_of_other_profilers_work_as_expected() {
    needs_recording!();
    let _machine = together();
    let check = |args: &[&str], expected: &[(&str, &str)]| {
        let dir = scratch_dir();
        let output = record_in(dir.path(), &[args, &["-o", "x.trace", "--json"]].concat());
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        let dump = traceprof(&["dump", "--json"]).arg(dir.path().join("x.trace")).output();
        let dump = text(&dump.expect("traceprof").stdout);
        for (key, value) in expected {
            let line = dump.lines().find(|line| line.contains(&format!("\"key\":\"{key}\"")));
            let line = line.unwrap_or_else(|| panic!("no {key}"));
            assert!(line.contains(&format!("\"value\":{value}")), "{args:?}: {line}");
        }
    };
    check(&["-r", "997", "-l", "30"], &[("freq_hz", "997"), ("mode", "\"cpu\"")]);
    check(&["--frequency", "99", "-e", "task-clock"], &[("freq_hz", "99"), ("mode", "\"cpu\"")]);
    check(
        &["-i", "4ms", "-e", "cpu", "--wall=10ms"],
        &[("freq_hz", "250"), ("mode", "\"cpu,wall\""), ("wall_interval_ns", "10000000")],
    );
    check(&["--idle", "--time-limit", "1h30m"], &[("mode", "\"wall\"")]);
    check(&["-e", "cycles:P", "-x", "10"], &[("mode", "\"cpu\"")]);
}

#[test]
fn a_sleep_behind_a_process_says_for_how_long() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("split", &[]);
    let pid = target.pid().to_string();
    let dir = scratch_dir();
    let mut command = traceprof(&["record", "-F", "99", "-p", &pid, "-o", "x.trace"]);
    command.args(["--", "sleep", "0.5"]).current_dir(dir.path());
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("traceprof");
    let has_exited = || child.try_wait().expect("a child").is_some();
    let ends = wait_until(Duration::from_secs(120), has_exited);
    if !ends {
        child.kill().expect("a kill");
    }
    let output = child.wait_with_output().expect("its end");
    assert!(ends, "it goes on");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let trace = trace::load(&dir.path().join("x.trace")).expect("a trace");
    let number = |key: &str| match trace.metadata[key] {
        trace::Value::Unsigned(number) => number,
        ref other => panic!("{key}: {other:?}"),
    };
    assert_eq!(number("pid"), target.pid() as u64);
    let length_ns = number("end_monotonic_ns") - number("start_monotonic_ns");
    assert!(length_ns >= 500_000_000, "{length_ns} ns");
    target.goes_on_and_ends_by_itself();
}

/// Returns the weight and the number of samples of a data file.
pub(crate) fn weight_of(path: &Path) -> (u64, u64) {
    let trace = trace::load(path).expect("a trace");
    assert!(trace.closed && trace.notices.is_empty(), "{path:?}: {:?}", trace.notices);
    let (mut weight, mut samples) = (0, 0);
    for thread in &trace.threads {
        thread.for_each_sample(&mut |sample, _| {
            weight += u64::from(sample.weight);
            samples += 1;
        });
    }
    (weight, samples)
}

/// Runs a recorder of the program `threads` until the recorder exits.
fn record_threads(dir: &Path, args: &[&str]) -> (Output, serde_json::Value) {
    let mut target = Target::start("threads", &[]);
    let pid = target.pid().to_string();
    let mut command = traceprof(&["record", "--json", "--compress", "none", "--pid", &pid]);
    let output = command.args(args).current_dir(dir).output().expect("traceprof");
    target.goes_on_and_ends_by_itself();
    let summary = serde_json::from_slice(&output.stdout);
    let summary = summary.unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
    (output, summary)
}

#[test]
fn a_recording_ends_in_good_order_at_its_size_limit() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let args = ["--max-size", "1M", "-F", "20000", "-d", "120", "-o", "x.trace"];
    let (output, summary) = record_threads(dir.path(), &args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("--max-size"), "{}", text(&output.stderr));
    assert!(summary["ended"].as_str().expect("a reason").contains("--max-size"), "{summary}");
    let path = dir.path().join("x.trace");
    let bytes: u64 = names_in(dir.path())
        .iter()
        .map(|name| fs::metadata(dir.path().join(name)).expect("a file").len())
        .sum();
    assert!((500_000..=1 << 20).contains(&bytes), "{bytes} bytes");
    let (_, samples) = weight_of(&path);
    assert_eq!(summary["samples_in_file"], samples);
    assert_eq!(summary["figures"]["samples"], samples, "{summary}");
}

/// Records the program `threads` until `is_enough` holds for the names in the recording's
/// directory. Returns the directory and the report.
fn record_until(
    args: &[&str],
    is_enough: impl Fn(&[String]) -> bool,
) -> (Trace, serde_json::Value) {
    let mut target = Target::start("threads", &[]);
    let pid = target.pid().to_string();
    let options = ["--json", "--compress", "none", "--pid", &pid];
    let mut recorder = Recorder::start(&[&options, args].concat());
    let dir = recorder.trace().dir().to_owned();
    // This takes long on a busy machine.
    let enough = wait_until(Duration::from_secs(180), || is_enough(&names_in(&dir)));
    assert!(enough && !recorder.has_exited(), "{:?}", names_in(&dir));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    let summary = serde_json::from_slice(&outcome.output.stdout).expect("one object");
    (outcome.trace, summary)
}

#[test]
fn parts_of_a_recording_add_up_to_what_was_sampled() {
    needs_recording!();
    let _machine = together();
    let args = ["--rotate", "64K", "-F", "20000"];
    let (trace, summary) = record_until(&args, |names| names.len() >= 6);
    let parts = summary["parts"].as_array().expect("parts");
    assert!(parts.len() >= 3, "{summary}");
    assert_eq!(summary["parts_written"], parts.len());
    assert_eq!(names_in(trace.dir()).len(), 2 * parts.len());
    let (mut weight, mut samples) = (0, 0);
    for (place, part) in parts.iter().enumerate() {
        let path = Path::new(part.as_str().expect("a name"));
        assert_eq!(path, trace.dir().join(format!("out-{:04}.trace", place + 1)));
        let (more, count) = weight_of(path);
        (weight, samples) = (weight + more, samples + count);
        let verified = traceprof(&["verify"]).arg(path).output().expect("traceprof");
        assert!(verified.status.success(), "{part}: {}", text(&verified.stdout));
        let printed = traceprof(&["print", "--tree"]).arg(path).output().expect("traceprof");
        let printed = text(&printed.stdout);
        // A part of a busy machine may have samples of one thread only, and the last one of none.
        let is_named = printed.contains("threads::crunch_") || count == 0;
        assert!(is_named, "{part} is incomplete: {printed}");
    }
    let figures = &summary["figures"];
    assert_eq!((&figures["samples"], &figures["weight_sum"]), (&samples.into(), &weight.into()));
    assert_eq!(summary["samples_in_file"], samples);
}

#[test]
fn the_oldest_parts_make_room() {
    needs_recording!();
    let _machine = together();
    let args = ["--rotate", "1s", "--rotate-keep", "2", "-F", "997"];
    let is_turned = |names: &[String]| names.iter().any(|name| name.contains("0003.trace"));
    let (trace, summary) = record_until(&args, is_turned);
    let begun = summary["parts_written"].as_u64().expect("a number");
    let last = [begun - 1, begun].map(|number| format!("out-{number:04}.trace"));
    let expected = last.iter().flat_map(|it| [it.clone(), format!("{it}.idx")]);
    assert!(names_in(trace.dir()).into_iter().eq(expected), "{:?}", names_in(trace.dir()));
    let kept = last.iter().map(|name| weight_of(&trace.dir().join(name)).1);
    assert!(kept.sum::<u64>() > 0, "the kept parts are empty");
    // What is left of it prevents another recording with this name.
    let output = record_in(trace.dir(), &["--rotate", "1s", "-o", "out.trace"]);
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("a part of another recording"));
}

#[test]
fn little_room_is_reported_before_it_is_used_up() {
    needs_recording!();
    let _machine = together();
    let dir = scratch_dir();
    let output = record_in(dir.path(), &["--max-size", "900T", "-o", "x.trace"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("MiB are free in ."), "{}", text(&output.stderr));
}
