//! `diff`: changes between two synthetic traces, and between two recordings of a program with known
//! times.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value as Json;
use traceprof::trace::{Sample, TagKey, TagKind, ThreadId, Value};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{
    Maker, Target, Trace, alone, has_command, maker, needs_recording, record_team, skip, traceprof,
};
use crate::snapshot;

use maker::BEGIN_NS;

/// A program that moves between stacks at random, equally in every run.
struct Program {
    maker: Maker,
    random: u64,
    ms: u64,
}

impl Program {
    fn new(seed: u64) -> Self {
        Self { maker: Maker::new(), random: seed, ms: 0 }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }

    /// Adds `seconds` at 1000 Hz. Each stack comes with its share in percent.
    fn runs(&mut self, thread: ThreadId, seconds: u64, stacks: &[(u64, &str)]) {
        let mut stack = stacks[0].1;
        for _ in 0..seconds * 1000 {
            // A stack stays for three samples on average.
            if self.draw(3) == 0 {
                let mut left = self.draw(100);
                let drawn = stacks.iter().find(|(share, _)| {
                    let is_it = left < *share;
                    left = left.saturating_sub(*share);
                    is_it
                });
                stack = drawn.map_or(stack, |(_, stack)| stack);
            }
            self.maker.sample(thread, self.ms, stack);
            self.ms += 1;
        }
    }

    fn finish(mut self) -> Trace {
        let end_ns = Value::Unsigned(BEGIN_NS + self.ms * 1_000_000);
        self.maker.writer.set_metadata("end_monotonic_ns", end_ns).unwrap();
        self.maker.finish()
    }
}

const BEFORE: &[(u64, &str)] = &[
    (40, "_start main serve parse memchr@libc"),
    (20, "_start main serve parse"),
    (25, "_start main serve render"),
    (15, "_start main log"),
];
const AFTER: &[(u64, &str)] = &[
    (30, "_start main serve parse memchr@libc"),
    (20, "_start main serve parse"),
    (25, "_start main serve render"),
    (10, "_start main serve render escape"),
    (15, "_start main log"),
];

fn made(seed: u64, stacks: &[(u64, &str)]) -> Trace {
    let mut program = Program::new(seed);
    let thread = program.maker.thread(100, "server");
    program.runs(thread, 10, stacks);
    program.finish()
}

fn run(traces: &[&Trace], options: &[&str]) -> Output {
    let mut command = traceprof(&["diff"]);
    command.args(traces.iter().map(|trace| trace.path())).args(options);
    command.output().expect("traceprof")
}

/// Returns the output, with the paths of the traces replaced by their names.
fn shown(traces: &[&Trace], options: &[&str]) -> String {
    let output = run(traces, options);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{options:?}: {message}");
    let mut text = String::from_utf8(output.stdout).unwrap();
    for (trace, name) in traces.iter().zip(["one", "other"]) {
        text = text.replace(trace.dir().to_str().unwrap(), name);
    }
    text
}

fn json(traces: &[&Trace], options: &[&str]) -> Json {
    serde_json::from_str(&shown(traces, &[&["--json"], options].concat())).unwrap()
}

fn refused(traces: &[&Trace], options: &[&str]) -> String {
    let output = run(traces, options);
    assert_eq!(output.status.code(), Some(2), "{options:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn function<'a>(json: &'a Json, name: &str) -> &'a Json {
    let functions = json["functions"].as_array().unwrap();
    functions.iter().find(|it| it["function"] == name).unwrap_or_else(|| panic!("no {name}"))
}

fn number(json: &Json) -> f64 {
    json.as_f64().unwrap_or_else(|| panic!("no number: {json}"))
}

#[test]
fn changes_are_ranked_and_noise_is_one_line() {
    let (before, after) = (made(3, BEFORE), made(4, AFTER));
    let text = shown(&[&before, &after], &["--paths"]);
    snapshot::check("tests/snapshots/diff.txt", text.as_bytes());
    for options in [&["--paths", "--top", "2"][..], &["--top", "0"]] {
        let short = shown(&[&before, &after], options);
        assert!(short.contains(" also changed, by up to "), "{short}");
        assert!(short.lines().count() < text.lines().count());
    }
}

#[test]
fn two_recordings_of_the_same_have_no_changes() {
    let mut false_alarms = Vec::new();
    for seed in 10..30 {
        let text = shown(&[&made(seed, BEFORE), &made(seed + 100, BEFORE)], &[]);
        if !text.contains("\nno change beyond noise: 7 functions within noise, ") {
            false_alarms.push(text);
        }
    }
    assert!(false_alarms.len() <= 3, "{false_alarms:?}");
}

#[test]
fn json_has_noise_too_and_every_interval() {
    let json = json(&[&made(3, BEFORE), &made(4, AFTER)], &["--paths"]);
    assert_eq!(json["functions"].as_array().unwrap().len(), 8);
    assert_eq!(json["paths"].as_array().unwrap().len(), 8);
    let memchr = function(&json, "memchr");
    assert_eq!(memchr["module"], "libc.so.6");
    assert_eq!(memchr["noise"], false);
    let own = &memchr["self"];
    assert!(number(&own["low"]) < -10.0 && number(&own["high"]) > -10.0, "{own}");
    assert!(number(&own["high"]) < -5.0 && number(&own["p"]) < 1e-4, "{own}");
    assert_eq!(function(&json, "log")["noise"], true);
    assert_eq!(number(&function(&json, "_start")["total"]["after"]), 100.0);
    let parts = json["functions"].as_array().unwrap();
    for side in ["before", "after"] {
        let sum: f64 = parts.iter().map(|it| number(&it["self"][side])).sum();
        assert!((sum - 100.0).abs() < 1e-9, "{side}: {sum}");
        assert_eq!(json[side]["weight"], 10_000);
    }
    assert_eq!(json["seconds_per_second"]["noise"], true);
}

/// The columns add up to the counts that each side exports.
#[test]
fn folded_columns_are_the_stacks_of_both_sides() {
    let (before, after) = (made(3, BEFORE), made(4, AFTER));
    let text = shown(&[&before, &after], &["--format", "folded"]);
    for (place, trace) in [&before, &after].into_iter().enumerate() {
        let column = text.lines().filter_map(|line| {
            let mut words = line.rsplitn(3, ' ');
            let (second, first) = (words.next()?, words.next()?);
            let count = [first, second][place];
            (count != "0").then(|| format!("{} {count}", words.next().unwrap()))
        });
        let exported = trace.view(&["export", "--format", "folded"]);
        assert_eq!(column.collect::<Vec<_>>(), exported.lines().collect::<Vec<_>>());
    }
    assert!(text.contains("_start;main;serve;render;escape 0 "), "{text}");
}

#[test]
fn windows_threads_and_tags_of_one_trace_are_compared() {
    let mut program = Program::new(3);
    let key = TagKey { name: "status".to_owned(), kind: TagKind::Number };
    let (name, value) = TagKey::metadata(&[key]);
    program.maker.writer.set_metadata(name, value).unwrap();
    let thread = program.maker.thread(100, "server");
    program.runs(thread, 6, BEFORE);
    program.runs(thread, 6, AFTER);
    let end_ms = program.ms;
    program.ms = 0;
    let other = program.maker.thread(101, "other");
    for (stack, tag) in [("main fine", 200), ("main failed", 500)].repeat(1000) {
        let mut sample = Sample { time_ns: BEGIN_NS + program.ms * 1_000_000, ..Sample::default() };
        sample.tags[0] = tag;
        program.maker.full_sample(other, &sample, stack);
        program.ms += 6;
    }
    program.ms = end_ms;
    let made = program.finish();
    let server = ["--thread", "server"];
    let windows = json(&[&made], &[&["--base-to", "50%", "--from", "50%"], &server[..]].concat());
    assert_eq!([&windows["before"]["samples"], &windows["after"]["samples"]], [6001, 6000]);
    assert_eq!(windows["before"]["length_ns"], 6_000_000_000u64);
    assert!(number(&function(&windows, "escape")["self"]["low"]) > 5.0);
    let selection = windows["after"]["selection"].as_str().expect("a selection");
    assert!(selection.contains("\"server\""), "{selection}");
    let threads = json(&[&made], &["--base-thread", "other", "--thread", "server"]);
    assert_eq!(threads["before"]["samples"], 2000);
    assert_eq!(number(&function(&threads, "fine")["self"]["change"]), -50.0);
    let tags = json(&[&made], &["--base-tag", "status=200", "--tag", "status=500"]);
    assert_eq!(number(&function(&tags, "failed")["self"]["change"]), 100.0);
    let text = shown(&[&made], &["--base-tag", "status=200", "--thread", "other"]);
    assert!(text.starts_with("before    one/out.trace, "), "{text}");
    // Half of the thread is one stack and half the other, and `main` is on both.
    let failed = text.lines().find(|line| line.ends_with("  failed (demo)")).expect("a line");
    assert!(failed.starts_with("   0.00   50.00  +50.00 "), "{text}");
}

#[test]
fn everything_slower_is_seen_in_the_head_alone() {
    let slower = |threads: u32| {
        let mut program = Program::new(5);
        for tid in 0..threads {
            program.ms = 0;
            let thread = program.maker.thread(tid + 1, "server");
            program.runs(thread, 10, BEFORE);
        }
        program.finish()
    };
    let text = shown(&[&slower(1), &slower(2)], &[]);
    assert!(text.contains(" samples in 1 thread\n") && text.contains(" samples in 2 threads\n"));
    assert!(text.contains("\ncpu time  1.000 -> 2.000 s per second: +1.000 ± 0."), "{text}");
    assert!(text.contains("\nno change beyond noise"), "{text}");
}

#[test]
fn wall_clock_time_is_compared_in_seconds() {
    let made = |seed, ms: u64| {
        let mut program = Program::new(seed);
        let writer = &mut program.maker.writer;
        writer.set_metadata("mode", Value::Text("cpu,wall".to_owned())).unwrap();
        let thread = program.maker.thread(100, "server");
        program.runs(thread, 4, BEFORE);
        program.ms = 0;
        for turn in 0..200 {
            program.ms += 20;
            let state = if turn % 10 < ms { 2 } else { 0 };
            let time_ns = BEGIN_NS + program.ms * 1_000_000;
            let sample =
                Sample { flags: WALL, weight: 20_000, time_ns, state, ..Sample::default() };
            program.maker.full_sample(thread, &sample, "main wait");
        }
        program.finish()
    };
    let (before, after) = (made(1, 2), made(2, 7));
    let text = shown(&[&before, &after], &[]);
    assert!(text.contains(": 4.000 s, 4.000 s of all threads' time, 200 samples in 1 thread\n"));
    let sleeping = text.lines().find(|line| line.ends_with("  [sleeping]")).expect("a line");
    assert!(sleeping.starts_with("  20.00   70.00  +50.00 "), "{text}");
    assert!(shown(&[&before, &after], &["--mode", "cpu"]).contains("4000 samples in 1 thread"));
    let cpu_only = self::made(1, BEFORE);
    let message = refused(&[&cpu_only, &after], &[]);
    assert!(message.contains("compare CPU time with --mode cpu"), "{message}");
    shown(&[&cpu_only, &after], &["--mode", "cpu"]);
}

#[test]
fn traces_that_cannot_be_compared_are_refused() {
    let (before, after) = (made(3, BEFORE), made(4, AFTER));
    for (traces, options, part) in [
        (&[&before][..], &[][..], "<AFTER>"),
        (&[&before, &after], &["--thread", "nobody"], "no thread is called"),
        (&[&before, &after], &["--span", "1"], "has a span or a tag"),
        (&[&before, &after], &["--format", "png"], "table, json, folded, flamegraph"),
        (&[&before, &after], &["--json", "--format", "folded"], "cannot be used with"),
        (&[&before], &["--base-from", "60%", "--base-to", "50%"], "the first is later"),
        (&[&before], &["--base-from", "100%"], "no sample that matches the selection"),
    ] {
        let message = refused(traces, options);
        assert!(message.contains(part), "{options:?}: {message}");
    }
}

#[test]
fn hostile_names_stay_in_their_line() {
    let hostile = |seed, share| {
        let mut program = Program::new(seed);
        let thread = program.maker.thread(100, "x");
        program.runs(thread, 5, &[(share, "main a\u{1b}[2J\u{202e};7"), (100 - share, "main b")]);
        program.finish()
    };
    let traces = [&hostile(1, 20), &hostile(2, 60)];
    for options in
        [&["--paths"][..], &["--json", "--paths"], &["--format", "folded"], &["--format", "svg"]]
    {
        let text = shown(&traces, options);
        assert!(text.contains("u001b") || text.contains("\\u{1b}[2J"), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'), "{text:?}");
    }
    let folded = shown(&traces, &["--format", "folded"]);
    assert_eq!(folded.lines().count(), 2);
    assert!(folded.lines().all(|line| line.matches(';').count() == 1), "{folded}");
}

/// Widths show the second trace. Changes in the table have a colour, and noise has none.
#[test]
fn a_picture_shows_the_second_trace_coloured_by_changes() {
    let (before, after) = (made(3, BEFORE), made(4, AFTER));
    let svg = shown(&[&before, &after], &["--format", "flamegraph"]);
    let frames: Vec<(&str, &str)> = svg
        .split("<title>")
        .skip(1)
        .map(|part| {
            let (title, rest) = part.split_once("</title>").unwrap();
            (title, rest.split_once("fill=\"").unwrap().1.split_once('"').unwrap().0)
        })
        .collect();
    let weight = |title: &str| -> u64 {
        let number = title.rsplit_once(" (").unwrap().1.split(' ').next().unwrap();
        number.replace(',', "").parse().unwrap()
    };
    assert!(frames.iter().any(|(title, _)| *title == "all (10,000 periods, 100%)"));
    let folded = after.view(&["export", "--format", "folded"]);
    let lines = folded.lines().filter(|line| line.contains("memchr") || line.contains("escape"));
    let now: u64 = lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    let named = |name: &str| *frames.iter().find(|(title, _)| title.starts_with(name)).expect(name);
    let (memchr, escape) = (named("memchr ("), named("escape ("));
    assert_eq!(weight(memchr.0) + weight(escape.0), now);
    assert!(memchr.0.contains("%; -") && escape.0.contains("%; +"), "{memchr:?} {escape:?}");
    assert_eq!([memchr.1, escape.1].map(|color| color.ends_with(",255)")), [true, false]);
    assert!(escape.1.starts_with("rgb(255,"), "{escape:?}");
    for name in ["log (", "_start (", "serve ("] {
        let (title, color) = named(name);
        assert_eq!(color, "rgb(250,250,250)", "{title}");
        assert!(title.ends_with("; 0.00%)"), "{title}");
    }
    assert!(svg.contains("red: more self time, blue: less; "), "{svg}");
    // A picture with only noise, and with names that look like markup.
    let same = shown(&[&before, &made(5, BEFORE)], &["--format", "svg"]);
    assert!(same.contains("no path changed its self time by more than noise"), "{same}");
    if !has_command("xmllint") {
        skip!("xmllint, which reads the pictures");
    }
    let path = before.dir().join("diff.svg");
    std::fs::write(&path, svg).unwrap();
    let output = Command::new("xmllint").args(["--noout", "--nonet"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `ratios` measures with its own clocks how much time each function took.
#[test]
fn a_slower_function_of_a_real_program_is_found_with_its_size() {
    needs_recording!();
    let _machine = alone();
    let budget = Duration::from_secs(5);
    let record = |args: &[&str]| {
        record_team("ratios", &[&["5000"], args].concat(), budget, &["--freq", "999"])
    };
    let ((target, before), (slowed, after)) = (record(&[]), record(&["100"]));
    let share = |target: &Target, name: &str| {
        let kinds =
            ["kernel_1", "kernel_2", "kernel_4", "kernel_8", "parent_50", "parent_30", "parent_20"];
        let all: u64 = kinds.iter().map(|name| target.fact(name)).sum();
        target.fact(name) as f64 * 100.0 / all as f64
    };
    let json = json(&[&before.trace, &after.trace], &[]);
    for name in ["kernel_8", "kernel_4", "parent_50"] {
        let total = &function(&json, name)["total"];
        let truth = share(&slowed, name) - share(&target, name);
        let (low, high) = (number(&total["low"]), number(&total["high"]));
        let margin = (high - low) / 2.0;
        assert!(margin < 5.0, "{name}: {total}");
        // One function in twenty is outside its interval, and nearly none is outside twice the
        // interval.
        assert!((low - margin..high + margin).contains(&truth), "{name}, {truth}: {total}");
    }
    let slower = function(&json, "kernel_8");
    assert_eq!(slower["total"]["noise"], false);
    assert!(number(&slower["total"]["change"]) > 10.0, "{slower}");
    assert_eq!(json["functions"][0]["function"], "kernel_8");
    assert_eq!(json["rebuilt"], Json::Array(Vec::new()));
}
