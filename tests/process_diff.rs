//! `diff` of recordings of several processes, from synthetic traces.

use serde_json::Value as Json;

use traceprof::trace::Value;

use crate::common::{Maker, Trace, traceprof};

/// A process of a recording: its name, its id, when it began, and its number of samples of each of
/// two stacks.
type Process = (&'static str, u32, u64, [u64; 2]);

const STACKS: [&str; 2] = ["_start main parse", "_start main render"];

fn made(processes: &[Process]) -> Trace {
    let mut maker = Maker::new();
    for (number, (name, pid, started, counts)) in processes.iter().enumerate() {
        let text = Value::Text((*name).to_owned());
        let fields = vec![Value::Unsigned(u64::from(*pid)), Value::Unsigned(*started), text];
        let key = format!("process.{}", number + 1);
        maker.writer.set_metadata(&key, Value::List(fields)).unwrap();
        let thread = maker.thread_of(*pid, *pid, name);
        let mut left = *counts;
        for ms in 0..left.iter().sum() {
            // The stacks alternate in their proportion, so every part of the time is alike.
            let at = (left[0] * counts[1] < left[1] * counts[0]) as usize;
            left[at] -= 1;
            maker.sample(thread, ms, STACKS[at]);
        }
    }
    maker.finish()
}

fn run(traces: &[&Trace], options: &[&str]) -> String {
    let mut command = traceprof(&["diff"]);
    command.args(traces.iter().map(|trace| trace.path())).args(options);
    let output = command.output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn lines(traces: &[&Trace], options: &[&str]) -> Vec<String> {
    let text = run(traces, &[&["--format", "folded"], options].concat());
    text.lines().map(str::to_owned).collect()
}

/// `front` goes on, `back` is restarted, and one of the traces has another `worker`.
fn two() -> [Trace; 2] {
    let before =
        [("front", 7, 1, [400, 200]), ("back", 8, 2, [100, 300]), ("worker", 9, 3, [10, 0])];
    let after = [
        ("front", 7, 1, [400, 200]),
        ("back", 18, 52, [300, 100]),
        ("worker", 19, 53, [10, 0]),
        ("worker", 20, 53, [20, 0]),
    ];
    [made(&before), made(&after)]
}

#[test]
fn stacks_of_several_processes_are_kept_apart() {
    let [before, after] = &two();
    let expected = [
        "back;_start;main;parse 100 300",
        "back;_start;main;render 300 100",
        "front/7;_start;main;parse 400 400",
        "front/7;_start;main;render 200 200",
        "worker/*;_start;main;parse 10 30",
    ];
    assert_eq!(lines(&[before, after], &[]), expected);
    let svg = run(&[before, after], &["--format", "flamegraph"]);
    for title in ["<title>front/7 (600 ", "<title>back (400 ", "<title>worker/* (30 "] {
        assert!(svg.contains(title), "no {title} in {svg}");
    }
    // Only the function of one process changed, although the other process has the same functions.
    let colors = svg.split("<title>").filter(|part| part.starts_with("parse (")).map(|part| {
        let title = part.split_once("</title>").unwrap().0;
        (title.split(' ').nth(1).unwrap(), title.ends_with("; 0.00%)"))
    });
    let mut colors: Vec<_> = colors.collect();
    colors.sort();
    assert_eq!(colors, [("(30", true), ("(300", false), ("(400", true)], "{svg}");
}

#[test]
fn parts_of_one_recording_have_the_processes_of_its_export() {
    let [trace, _] = &two();
    let exported = trace.view(&["export", "--format", "folded"]);
    let both = lines(&[trace], &["--base-to", "100%"]);
    let expected =
        exported.lines().map(|line| format!("{line} {}", line.rsplit_once(' ').unwrap().1));
    assert_eq!(both, expected.collect::<Vec<_>>());
}

/// A program that the process ran before an exec has the same first thread.
#[test]
fn a_process_that_is_not_listed_has_the_name_of_its_last_program_every_time() {
    let mut maker = Maker::new();
    for (pid, name) in [(7, "bash"), (7, "python3"), (8, "other")] {
        let thread = maker.thread_of(pid, pid, name);
        maker.sample(thread, 1, "_start main");
    }
    let made = maker.finish();
    for _ in 0..8 {
        let expected = ["other/8;_start;main 1 1", "python3/7;_start;main 2 2"];
        assert_eq!(lines(&[&made, &made], &[]), expected);
    }
}

#[test]
fn one_process_against_another_meets_it_by_its_functions() {
    let [before, after] = &two();
    let options = ["--base-process", "front", "--process", "back"];
    let expected = ["_start;main;parse 400 300", "_start;main;render 200 100"];
    assert_eq!(lines(&[before, after], &options), expected);
    // One process against several: both sides name the process.
    let options = ["--base-process", "front"];
    assert!(lines(&[before, after], &options).contains(&"back;_start;main;parse 0 300".to_owned()));
}

#[test]
fn tables_name_processes_and_functions_keep_their_names() {
    let [before, after] = &two();
    let json: Json = serde_json::from_str(&run(&[before, after], &["--json", "--paths"])).unwrap();
    assert_eq!([&json["before"]["processes"], &json["after"]["processes"]], [3, 4]);
    let functions = json["functions"].as_array().unwrap();
    let mut names: Vec<&str> =
        functions.iter().map(|it| it["function"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["_start", "main", "parse", "render"]);
    let sum =
        |side: &str| -> f64 { functions.iter().map(|it| it["self"][side].as_f64().unwrap()).sum() };
    assert!((sum("before") - 100.0).abs() < 1e-9 && (sum("after") - 100.0).abs() < 1e-9);
    let path = json["paths"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["process"] == "back" && it["stack"].as_array().unwrap().len() == 3);
    assert!(path.unwrap()["stack"][2]["function"].is_string());
    let text = run(&[before, after], &["--paths"]);
    assert!(text.contains(" samples in 4 threads of 4 processes\n"), "{text}");
    assert!(text.contains("  back;_start;main;parse\n"), "{text}");
}
