//! The complete text of timelines, from synthetic traces.

use serde_json::Value as Json;
use traceprof::trace::{LazyTrace, Sample, Value};
use traceprof::view::timeline::{self, TimelineOptions};
use traceprof::view::{Mode, PrintLimits, Selection, TextStyle};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Trace, maker};
use crate::snapshot;

use maker::{BEGIN_NS, GAP};

fn print(made: &Trace, selection: &Selection, options: &TimelineOptions) -> String {
    let trace = LazyTrace::open(&made.path()).unwrap();
    let selected = selection.resolve(&trace).unwrap();
    let mut out = Vec::new();
    timeline::write(&trace, &selected, options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn all(made: &Trace, verbose: bool) -> String {
    print(made, &Selection::default(), &options(verbose, 0.0, None))
}

fn options(verbose: bool, min_percent: f64, depth: Option<usize>) -> TimelineOptions {
    TimelineOptions {
        verbose,
        limits: PrintLimits { min_percent, depth },
        ..TimelineOptions::default()
    }
}

/// A server that waits for requests, a thread with everything that a sample can have, and a thread
/// without samples.
fn demo() -> Trace {
    let mut maker = Maker::new();
    let server = maker.thread(100, "server");
    maker.thread(102, "idle");
    let start = "_start main:10";
    for request in 0..3 {
        let begin = 10 + request * 100;
        for step in 0..20 {
            let rest = match step {
                0..=4 => "serve:20 parse:30",
                5 => "serve:21",
                6..=16 => "serve:22 render:40 escape:50",
                17 => "serve:22 render:41 log:60",
                _ => "serve:22 render:42",
            };
            maker.sample(server, begin + step, &format!("{start} {rest}"));
        }
    }
    maker.sample_ending(server, 230, "memcpy", GAP);
    maker.sample(server, 231, start);
    let worker = maker.thread(101, "wor\u{1b}ker");
    let times = |ms: u64| BEGIN_NS + ms * 1_000_000;
    let plain = Sample { time_ns: times(40), ..Sample::default() };
    maker.full_sample(worker, &plain, "start_thread work(int)");
    let tags = [0, 7, 0, 0, 0, 0, 0, 0, 0, 9];
    let rich = Sample { time_ns: times(41), weight: 3, span: 12, root_span: 11, tags, ..plain };
    maker.full_sample(worker, &rich, "start_thread work(int)");
    let waiting = Sample { time_ns: times(61), state: 2, syscall: Some(202), ..Sample::default() };
    maker.full_sample(worker, &waiting, "start_thread wait");
    let running = |ms: u64| Sample { time_ns: times(ms), ..Sample::default() };
    maker.full_sample(worker, &running(62), "start_thread wait");
    maker.full_sample(worker, &running(1460), "start_thread");
    maker.full_sample(worker, &running(1461), "");
    maker.writer.thread_exit(worker, times(1462)).unwrap();
    maker.finish()
}

#[test]
fn timeline_is_a_summary_and_the_calls_in_order() {
    snapshot::check("tests/snapshots/timeline.txt", all(&demo(), false).as_bytes());
}

#[test]
fn verbose_timeline_has_locations_and_samples() {
    snapshot::check("tests/snapshots/timeline-verbose.txt", all(&demo(), true).as_bytes());
}

#[test]
fn light_and_deep_calls_are_counted() {
    let text = print(&demo(), &Selection::default(), &options(false, 12.0, Some(4)));
    snapshot::check("tests/snapshots/timeline-folded.txt", text.as_bytes());
}

#[test]
fn only_the_selection_is_shown() {
    let moment = |text: &str| Some(text.parse().unwrap());
    let (from, to) = (moment("120ms"), moment("200ms"));
    let selection =
        Selection { threads: vec!["serv*".to_owned()], from, to, ..Selection::default() };
    let text = print(&demo(), &selection, &options(true, 0.0, None));
    snapshot::check("tests/snapshots/timeline-window.txt", text.as_bytes());
}

/// Returns the same timeline as JSON Lines.
fn objects(made: &Trace, options: &TimelineOptions) -> Vec<Json> {
    let text = print(made, &Selection::default(), &TimelineOptions { json: true, ..*options });
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn number(object: &Json, key: &str) -> u64 {
    object[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {object}"))
}

fn of_kind<'a>(objects: &'a [Json], kind: &str) -> impl Iterator<Item = &'a Json> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

#[test]
fn objects_of_a_timeline_equal_its_text() {
    for (verbose, path) in [
        (false, "tests/snapshots/timeline.jsonl"),
        (true, "tests/snapshots/timeline-verbose.jsonl"),
    ] {
        let options = TimelineOptions { json: true, ..options(verbose, 0.0, None) };
        let text = print(&demo(), &Selection::default(), &options);
        snapshot::check(path, text.as_bytes());
    }
}

/// CPU time whose rate was halved twice, and wall clock time, with some truncated stacks.
fn thinned() -> Trace {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", Value::Text("cpu,wall".to_owned())).unwrap();
    let thread = maker.thread(1, "x");
    for ms in 1..=200 {
        let stack = ["main a", "main b f", "main b g", "main a f h"][(ms / 7 % 4) as usize];
        let plain = Sample { time_ns: BEGIN_NS + ms * 1_000_000, ..Sample::default() };
        let plain =
            Sample { end_reason: if ms % 9 == 0 { GAP } else { plain.end_reason }, ..plain };
        let wall = Sample { flags: WALL, weight: 1000 + ms as u32, ..plain.clone() };
        maker.full_sample(thread, &Sample { weight: 1 << (ms / 70), ..plain }, stack);
        maker.full_sample(thread, &wall, stack);
    }
    maker.finish()
}

/// Checks that calls, threads and the total equal the sum of their contents, in samples and in
/// weight.
fn weights_add_up(made: &Trace, selection: &Selection) {
    for (min_percent, depth) in [(0.0, None), (12.0, Some(2)), (0.0, Some(1)), (30.0, None)] {
        let options = TimelineOptions { json: true, ..options(false, min_percent, depth) };
        let text = print(made, selection, &options);
        let all: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let is_wall = all[0]["mode"] == "wall";
        for key in ["samples", "weight"] {
            let sum = |objects: &mut dyn Iterator<Item = &Json>| -> u64 {
                let rows =
                    objects.filter(|it| ["self", "others"].contains(&it["kind"].as_str().unwrap()));
                rows.map(|object| number(object, key)).sum()
            };
            let threads: u64 = of_kind(&all, "thread").map(|object| number(object, key)).sum();
            assert!(threads > 0 && threads == number(&all[0]["all"], key), "{key} {text}");
            assert_eq!(sum(&mut all.iter()), threads, "{key} {text}");
            for (place, call) in all.iter().enumerate().filter(|(_, it)| it["kind"] == "call") {
                let deeper = |it: &&Json| {
                    it["kind"] != "thread" && number(it, "depth") > number(call, "depth")
                };
                let below = sum(&mut all[place + 1..].iter().take_while(deeper));
                assert_eq!(below, number(call, key), "{key} of {call} in {text}");
            }
        }
        for object in all.iter().filter(|it| !it["wall_us"].is_null()) {
            assert!(is_wall && object["wall_us"] == object["weight"], "{object}");
        }
        for kind in ["self", "others", "call"] {
            let has_right_unit = |object: &Json| object["wall_us"].is_u64() == is_wall;
            assert!(of_kind(&all, kind).all(has_right_unit), "{text}");
        }
        // Shares of omitted rows are shares of the thread, in any window.
        for others in of_kind(&all, "others") {
            let of_thread = |it: &&Json| it["thread"] == others["thread"];
            let thread = of_kind(&all, "thread").find(of_thread).unwrap();
            let share = number(others, "weight") as f64 * 100.0 / number(thread, "weight") as f64;
            assert!(
                (others["percent"].as_f64().unwrap() - share).abs() < 1e-9,
                "{others} {thread}"
            );
        }
    }
}

#[test]
fn objects_of_a_timeline_add_up_to_its_samples() {
    for (min_percent, depth) in [(0.0, None), (12.0, Some(4)), (0.0, Some(1)), (60.0, None)] {
        let all = objects(&demo(), &options(false, min_percent, depth));
        let rows = of_kind(&all, "self").chain(of_kind(&all, "others"));
        let sum: u64 = rows.map(|object| number(object, "samples")).sum();
        assert_eq!(sum, number(&all[0]["all"], "samples"), "{min_percent} {depth:?}");
        let threads = of_kind(&all, "thread").map(|object| number(object, "samples"));
        assert_eq!(threads.sum::<u64>(), sum);
        let strip = all[0]["strip"]["weights"].as_array().unwrap().iter();
        assert_eq!(strip.map(|it| it.as_u64().unwrap()).sum::<u64>(), 70, "periods");
    }
    for (mode, made) in [(Mode::Cpu, demo()), (Mode::Cpu, thinned()), (Mode::Wall, thinned())] {
        let whole = Selection { mode: Some(mode), ..Selection::default() };
        weights_add_up(&made, &whole);
        let moment = |text: &str| Some(text.parse().unwrap());
        weights_add_up(&made, &Selection { from: moment("12ms"), to: moment("118ms"), ..whole });
    }
    let all = objects(&demo(), &options(true, 0.0, None));
    assert_eq!((of_kind(&all, "sample").count(), of_kind(&all, "self").count()), (68, 0));
    // A call has its own samples and those of the deeper calls that follow it.
    for (place, call) in all.iter().enumerate().filter(|(_, object)| object["kind"] == "call") {
        let deeper = |object: &&Json| number(object, "depth") > number(call, "depth");
        let below = all[place + 1..].iter().take_while(|it| it["kind"] != "thread");
        let below = below.take_while(deeper).filter(|object| object["kind"] == "sample");
        assert_eq!(below.count() as u64, number(call, "samples"), "{call}");
    }
}

#[test]
fn on_a_terminal_a_timeline_has_its_width_and_the_strip() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    let name = "std::collections::hash::map::HashMap<alloc::string::String>::insert_unique:9";
    for ms in 0..200 {
        maker.sample(thread, ms, &format!("main {}", format!("{name} ").repeat(30)));
    }
    maker.sample(thread, 200, "main");
    let style = TextStyle { width: Some(80), ..TextStyle::default() };
    let plain = TimelineOptions { style, ..options(false, 0.0, None) };
    let (made, all) = (maker.finish(), Selection::default());
    let text = print(&made, &all, &plain);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("\nactivity  0.000 s |") && text.contains("[21] "), "{text}");
    assert!(
        text.contains("\n    std::collections::hash::ma…g::String>::insert_unique(): 200 samples"),
        "{text}"
    );
    let verbose = print(&made, &all, &TimelineOptions { verbose: true, ..plain });
    assert!(verbose.lines().all(|line| line.chars().count() <= 80), "{verbose}");
    assert!(verbose.contains("(): 200 samples, ~200 ms\n        at src/demo.c:9\n"), "{verbose}");
    let sample = "[32] sample at 0.000000 s: weight 1, running, trace 0x100000005\n";
    assert!(verbose.contains(sample), "{verbose}");
    let style = TextStyle { color: true, ..style };
    let colored = print(&made, &all, &TimelineOptions { style, ..plain });
    assert!(colored.contains("\u{1b}[1m# Thread 1 (x, tid 1)\u{1b}[0m\n"), "{colored}");
    let mut bare = String::new();
    for (place, part) in colored.split('\u{1b}').enumerate() {
        bare.push_str(if place == 0 { part } else { part.split_once('m').unwrap().1 });
    }
    assert_eq!(bare, text, "colours move nothing");
}

#[test]
fn deep_calls_keep_their_names_on_a_terminal() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    let names = ["reader", "writer"].map(|what| {
        format!("pyarrow::internal::{what}::VectorKernel::run_on_every_selected_vector:1200")
    });
    let callers = "_PyEval_EvalFrameDefault:10 _PyObject_Vectorcall:20 ".repeat(20);
    for ms in 0..40 {
        maker.sample(thread, ms, &format!("main {callers} {}", names[(ms / 20) as usize]));
    }
    maker.sample_ending(thread, 41, &format!("{callers} {}", names[0]), GAP);
    let made = maker.finish();
    let style = TextStyle { width: Some(80), ..TextStyle::default() };
    for verbose in [false, true] {
        let options = TimelineOptions { style, ..options(verbose, 0.0, None) };
        let text = print(&made, &Selection::default(), &options);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for what in ["reader", "writer"] {
            let name = format!("[42] pyarrow::internal::{what}::V…");
            let lines = text.lines().filter(|line| line.contains(&name) && line.ends_with("():"));
            assert_eq!(lines.count(), 1, "{what} in {text}");
        }
        // The part of the name that fits beside the numbers stays, without the module.
        assert!(text.contains("[39] _PyObject_Vectorcall(): 41 samples, ~42.0 ms <"), "{text}");
        assert_eq!(text.contains("at src/demo.c:1200\n"), verbose, "{text}");
        if verbose {
            let samples = text.matches(": weight 1, running, trace").count();
            assert_eq!(samples, 41, "{text}");
        }
    }
}

#[test]
fn every_sample_is_printed_once_or_counted() {
    let text = all(&demo(), true);
    assert_eq!(text.matches("sample at ").count(), 68, "{text}");
    let own = |line: &str| {
        let rest = line.trim_start().strip_prefix("... <")?;
        rest.strip_suffix(" in self>")?.split(' ').next()?.parse::<u64>().ok()
    };
    assert_eq!(all(&demo(), false).lines().filter_map(own).sum::<u64>(), 68);
}

#[test]
fn names_from_the_target_cannot_move_the_cursor_or_break_a_line() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "\u{1b}[2Jx\ny");
    maker.sample(thread, 1, "f\u{7}\u{202e} g\u{9b}");
    let text = all(&maker.finish(), true);
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(text.contains("# Thread 1 (\\u{1b}[2Jx\\ny, tid 1)\n"), "{text}");
    assert!(text.contains("demo.f\\u{7}\\u{202e}():"), "{text}");
}

#[test]
fn calls_of_an_unfinished_trace_are_marked() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    maker.sample(thread, 1, "main run");
    maker.sample(thread, 2, "main");
    let text = all(&maker.finish(), false);
    assert!(
        text.contains("  demo.main(): 2 samples, ~2.00 ms at 0.001 s <unfinished>\n"),
        "{text}"
    );
    assert!(text.contains("    demo.run(): 1 sample, ~1.00 ms\n"), "{text}");
}

#[test]
fn a_stack_of_many_thousand_frames_needs_no_wide_lines() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    maker.sample(thread, 1, &"f ".repeat(20_000));
    let text = all(&maker.finish(), false);
    assert_eq!(text.lines().filter(|line| line.contains("demo.f(): 1 sample")).count(), 20_000);
    assert!(text.lines().all(|line| line.len() < 330), "the lines grow");
    assert!(text.contains("[20000] demo.f(): 1 sample"), "the depth of a deep call");
}

#[test]
fn a_call_with_many_children_is_walked_in_parts() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    for ms in 0..3_500 {
        maker.sample(thread, ms, if ms % 2 == 0 { "main:1 f" } else { "main:2 g" });
    }
    let made = maker.finish();
    let text = all(&made, false);
    assert_eq!(
        text.lines().filter(|line| line.contains("(): 1 sample, ~1.00 ms at ")).count(),
        3_499
    );
    let folded = print(&made, &Selection::default(), &options(false, 1.0, None));
    assert!(folded.contains("    ... <3500 calls left out>: 3500 samples, 100.0 %\n"), "{folded}");
}

#[test]
fn a_timeline_of_a_screen_leaves_nothing_out() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    for ms in 0..400 {
        let stack = if ms == 200 { "main rare deep" } else { "main often" };
        maker.sample(thread, ms, stack);
    }
    let made = maker.finish();
    let folded = print(&made, &Selection::default(), &options(false, 0.5, None));
    assert!(folded.contains("... <1 call left out>: 1 sample, 0.2 %\n"), "{folded}");
    let whole = TimelineOptions { whole_lines: 40, ..options(false, 0.5, None) };
    let text = print(&made, &Selection::default(), &whole);
    assert_eq!(text, print(&made, &Selection::default(), &options(false, 0.0, None)));
    assert!(text.contains("    demo.rare(): 1 sample, ~1.00 ms at 0.200 s\n"), "{text}");
    let lines = text.lines().count();
    let exactly = TimelineOptions { whole_lines: lines, ..whole };
    assert_eq!(print(&made, &Selection::default(), &exactly), text);
    let less = TimelineOptions { whole_lines: lines - 1, ..whole };
    assert_eq!(print(&made, &Selection::default(), &less), folded);
}
