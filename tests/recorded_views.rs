//! The views of a recorded trace.

use std::fs;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use inferno::collapse::{Collapse, perf};

use crate::common::{
    Folded, Recorder, Target, Trace, has_command, needs_recording, skip, together, traceprof,
};

/// One recording of `split`, shared by the tests of this file.
static SPLIT: LazyLock<Trace> = LazyLock::new(|| {
    Trace::shared("split", |trace| {
        let mut target = Target::start("split", &[]);
        let pid = target.pid().to_string();
        let recorder = Recorder::start_into(trace, &["--pid", &pid, "--freq", "997"]);
        let outcome = recorder.record_cpu(target.pid(), Duration::from_secs(2));
        target.goes_on_and_ends_by_itself();
        outcome.trace
    })
});

#[test]
fn tree_shows_the_split_under_its_thread() {
    needs_recording!();
    let _machine = together();
    let tree = SPLIT.view(&["print", "--tree"]);
    for name in ["split", "main", "caller_alpha", "kernel_alpha", "kernel_beta", "kernel_gamma"] {
        assert!(tree.contains(name), "{name} in:\n{tree}");
    }
    let (_, tree) = tree.split_once(" total %  self %").expect("a tree below the summary");
    let line = |name: &str| tree.lines().position(|line| line.contains(name)).expect("a line");
    assert!(line("main") < line("caller_alpha"), "root first");
    assert!(line("kernel_alpha") < line("kernel_gamma"), "largest first");
    assert!(tree.contains('%'), "percentages");
}

#[test]
fn verbose_tree_has_a_location_on_every_line() {
    needs_recording!();
    let _machine = together();
    let text = SPLIT.view(&["print", "--verbose"]);
    let (_, tree) = text.split_once(" total %  self %").expect("a tree below the summary");
    let kernel = tree.lines().find(|line| line.contains("kernel_alpha")).expect("a line");
    assert!(kernel.contains("split.c:"), "file and line: {kernel}");
    for line in tree.lines().filter(|line| line.contains("_start")) {
        assert!(line.contains("+0x") || line.contains(':'), "module and offset: {line}");
    }
}

#[test]
fn data_file_alone_is_enough() {
    needs_recording!();
    let _machine = together();
    let with_index = SPLIT.view(&["print", "--tree"]);
    let alone = Trace::new();
    fs::copy(SPLIT.path(), alone.path()).expect("copy of the data file");
    assert!(SPLIT.index_path().exists() && !alone.index_path().exists());
    let without_index = alone.view(&["print", "--tree"]);
    let body = |text: &str| -> Vec<String> {
        let named = text.lines().filter(|line| !line.contains("out.trace"));
        named.map(str::to_owned).collect()
    };
    assert_eq!(body(&with_index), body(&without_index));
    assert!(alone.folded().count_of("kernel_alpha") > 100);
}

#[test]
fn foreign_index_is_not_believed() {
    needs_recording!();
    let _machine = together();
    let trace = Trace::new();
    fs::copy(SPLIT.path(), trace.path()).expect("copy of the data file");
    fs::write(trace.index_path(), vec![0xa5; 4096]).expect("an index of something else");
    let output = traceprof(&["print", "--tree"]).arg(trace.path()).output().expect("traceprof");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("kernel_alpha"), "{text}");
}

#[test]
fn dump_has_one_object_per_line() {
    needs_recording!();
    let _machine = together();
    let text = SPLIT.view(&["dump"]);
    assert!(text.lines().count() > 100, "{} lines", text.lines().count());
    assert!(text.contains("kernel_alpha"));
}

#[test]
fn json_dump_is_one_object_per_line() {
    needs_recording!();
    let _machine = together();
    let text = SPLIT.view(&["dump", "--json"]);
    let mut objects = 0;
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(value.is_object(), "{line}");
        objects += 1;
    }
    assert!(objects > 100, "{objects} objects");
}

#[test]
fn folded_stacks_sum_up_to_the_tree() {
    needs_recording!();
    let _machine = together();
    let folded = SPLIT.folded();
    assert!(folded.total() > 1000, "{} samples", folded.total());
    assert!(folded.percent_of("main") > 95.0, "{:.1} % reach main", folded.percent_of("main"));
}

/// What other tools read adds up to what is printed.
#[test]
fn exports_of_all_formats_sum_up_to_the_folded_stacks() {
    needs_recording!();
    let _machine = together();
    let total = SPLIT.folded().total();
    let profile = SPLIT.view(&["export", "--format", "firefox"]);
    let profile: serde_json::Value = serde_json::from_str(&profile).expect("JSON");
    let threads = profile["threads"].as_array().expect("threads");
    let weights = threads.iter().flat_map(|thread| thread["samples"]["weight"].as_array().unwrap());
    assert_eq!(weights.map(|weight| weight.as_f64().unwrap() as u64).sum::<u64>(), total);
    let picture = SPLIT.view(&["export", "--format", "flamegraph"]);
    assert!(picture.contains(&format!(" total_samples=\"{total}\"")), "{total} periods");
    let file = SPLIT.view(&["export", "--format", "speedscope"]);
    let file: serde_json::Value = serde_json::from_str(&file).expect("JSON");
    let profiles = file["profiles"].as_array().expect("profiles");
    let ns: f64 = profiles.iter().map(|profile| profile["endValue"].as_f64().unwrap()).sum();
    assert!((ns / 1_003_009.0 - total as f64).abs() < 0.1, "{ns} ns of {total} periods");
    let script = SPLIT.view(&["export", "--format", "perf-script"]);
    let mut folded = Vec::new();
    perf::Folder::default().collapse(script.as_bytes(), &mut folded).expect("stacks");
    let folded = Folded::parse(&String::from_utf8(folded).expect("text"));
    assert_eq!(folded.total(), total);
    assert_eq!(folded.count_of("kernel_alpha"), SPLIT.folded().count_of("kernel_alpha"));
    if !has_command("go") {
        skip!("go, whose pprof reads the profile");
    }
    let path = SPLIT.path().with_extension("pb.gz");
    let mut command = traceprof(&["export", "--force", "--output"]);
    let output = command.arg(&path).arg(SPLIT.path()).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut pprof = Command::new("go");
    let output = pprof.args(["tool", "pprof", "-top", "-unit=ns"]).arg(&path).output().expect("go");
    let top = String::from_utf8_lossy(&output.stdout).into_owned();
    let period_ns = 1_003_009;
    let (_, rest) = top.split_once("% of ").unwrap_or_else(|| panic!("{top}"));
    let sum: u64 = rest.split("ns").next().unwrap().parse().expect(rest);
    let off = sum.abs_diff(total * period_ns);
    assert!(off < total * 2, "{sum} of {total} periods: {top}");
    assert!(top.contains("kernel_alpha"), "{top}");
}

#[test]
fn export_to_an_existing_file_needs_force() {
    needs_recording!();
    let _machine = together();
    let file = SPLIT.dir().join("in-the-way");
    fs::write(&file, "precious").expect("a file in the way");
    let mut command = traceprof(&["export"]);
    command.arg(SPLIT.path()).args(["--format", "folded", "--output"]).arg(&file);
    let output = command.output().expect("traceprof");
    assert_eq!(output.status.code(), Some(6), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(&file).expect("the file"), b"precious");
}

#[test]
fn closed_pipe_is_no_error() {
    needs_recording!();
    let _machine = together();
    let script = "\"$0\" dump \"$1\" | head -n 1; echo ${PIPESTATUS[0]}";
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_traceprof")]).arg(SPLIT.path());
    let output = shell.output().expect("bash");
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines.last()), (2, Some(&"0")), "one object, then the code: {text}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
