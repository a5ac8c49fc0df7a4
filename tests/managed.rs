//! Views without the frames of interpreters, from synthetic traces.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value as Json;
use traceprof::trace::{FrameKind, LazyTrace, Location, LocationId, Method, Sample, Window};
use traceprof::view::timeline::{self, TimelineOptions};
use traceprof::view::{self, PrintLimits, Selection};

use crate::common::maker::{BEGIN_NS, GAP, ROOT};
use crate::common::{Maker, Trace, traceprof};
use crate::exports::exported;

/// Native frames around those of an interpreter.
const START: &str = "_start main:1~interpreter run:2~interpreter loop:3~interpreter";

/// Stacks of a program with functions in Python, extensions in C above and below them, recursion,
/// and nothing but the interpreter.
const STACKS: [(&str, u16); 9] = [
    ("<module>:5~python serve:21~python parse:30~python", ROOT),
    ("<module>:5~python serve:21~python parse:32~python call:7~interpreter scan@libc", ROOT),
    ("<module>:5~python serve:22~python render:40~python render:41~python", ROOT),
    (
        "<module>:5~python serve:23~python call:7~interpreter sort@libc back:8~interpreter \
         loop:3~interpreter key:50~python",
        ROOT,
    ),
    ("<module>:5~python serve:24~python alloc:9~interpreter free:9~interpreter", ROOT),
    ("", ROOT),
    ("loop:3~interpreter key:50~python", GAP),
    ("alloc:9~interpreter", GAP),
    ("<module>:6~python <lambda>:60~python <lambda>:70~python", ROOT),
];

/// Writes the stacks. Without `with_interpreter`, the frames of the interpreter are not written,
/// but in stacks of nothing else.
fn made(with_interpreter: bool) -> Trace {
    made_of(with_interpreter, &STACKS)
}

fn made_of(with_interpreter: bool, stacks: &[(&str, u16)]) -> Trace {
    let mut maker = Maker::new();
    // All ids are the same in both traces.
    for (stack, _) in stacks {
        let all = format!("{START} {stack}");
        for place in all.split_whitespace() {
            maker.location(place);
        }
    }
    let threads = [maker.thread(100, "server"), maker.thread(101, "worker")];
    for (ms, (stack, end_reason)) in (0..90).zip(stacks.iter().cycle()) {
        let start = if *end_reason == ROOT { START } else { "" };
        let whole = format!("{start} {stack}");
        let places: Vec<&str> = whole.split_whitespace().collect();
        let shown: Vec<&str> =
            places.iter().copied().filter(|place| !place.ends_with("~interpreter")).collect();
        let shown = if shown.is_empty() { places[places.len() - 1..].to_vec() } else { shown };
        let written = if with_interpreter { places } else { shown };
        maker.sample_ending(threads[ms as usize % 2], ms, &written.join(" "), *end_reason);
    }
    maker.finish()
}

pub(crate) fn printed(made: &Trace, words: &[&str]) -> String {
    let mut command = traceprof(&words[..1]);
    let output = command.arg(made.path()).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const PRINTS: [&[&str]; 8] = [
    &["print", "--tree"],
    &["print", "--verbose", "--min-percent", "0"],
    &["print", "--top", "20"],
    &["print", "--inverted"],
    &["print", "--by", "line"],
    &["print", "--by", "module"],
    &["print", "--json", "--threads"],
    &["print", "--include", "render|alloc|loop", "--exclude", "key"],
];

const FORMATS: [&str; 8] =
    ["folded", "speedscope", "firefox", "perf-script", "flamegraph", "pprof", "otlp", "html"];

#[test]
fn frames_of_an_interpreter_are_as_if_they_were_not_there() {
    let [with, without] = [made(true), made(false)];
    for words in PRINTS {
        let [one, other] = [&with, &without].map(|made| printed(made, words));
        assert_eq!(one, other, "{words:?}");
        assert!(!one.contains("run ("), "{words:?}: {one}");
    }
    // These formats have stacks in the order of the file, which may differ for truncated ones.
    let rooted: Vec<_> = STACKS.into_iter().filter(|(_, end_reason)| *end_reason == ROOT).collect();
    let in_file_order = [made_of(true, &rooted), made_of(false, &rooted)];
    for format in FORMATS {
        let pair = match format {
            "pprof" | "otlp" | "html" => [&in_file_order[0], &in_file_order[1]],
            _ => [&with, &without],
        };
        let [one, other] = pair.map(|made| exported(made, format, &["--output", "-"]));
        assert!(one == other, "{format}");
    }
    let [before, after] = [&without, &with].map(|made| made.path().display().to_string());
    let output = traceprof(&["diff", &before, &after, "--json"]).output().unwrap();
    let diff: Json = serde_json::from_slice(&output.stdout).unwrap();
    let text = diff.to_string();
    assert!(!text.contains("\"loop\"") && text.contains("\"parse\""), "{text}");
}

#[test]
fn native_frames_are_shown_on_request() {
    let [with, without] = [made(true), made(false)];
    for words in PRINTS {
        let shown = printed(&with, &[words, &["--native-frames"]].concat());
        assert_ne!(shown, printed(&with, words), "{words:?}");
    }
    for format in FORMATS {
        let arguments = ["--output", "-", "--native-frames"];
        assert!(exported(&with, format, &arguments) != exported(&with, format, &arguments[..2]));
    }
    let folded = String::from_utf8(exported(&with, "folded", &["--native-frames"])).unwrap();
    assert!(folded.contains("_start;main;run;loop;<module>;serve;parse "), "{folded}");
    let folded = String::from_utf8(exported(&with, "folded", &[])).unwrap();
    assert!(folded.contains("_start;<module>;serve;parse "), "{folded}");
    assert!(folded.contains("_start;<module>;serve;sort;key "), "{folded}");
    assert!(folded.contains("[truncated];alloc "), "{folded}");
    assert!(folded.contains("_start 10"), "{folded}");
    drop(without);
}

/// Returns the lines of a timeline that are calls, without their numbers.
fn calls(made: &Trace, native_frames: bool, depth: Option<usize>) -> Vec<String> {
    let mut trace = LazyTrace::open(&made.path()).unwrap();
    if !native_frames {
        trace.leave_out_interpreters();
    }
    let selected = Selection::default().resolve(&trace).unwrap();
    let limits = PrintLimits { min_percent: 0.0, depth };
    let options = TimelineOptions { limits, json: true, ..TimelineOptions::default() };
    let mut out = Vec::new();
    timeline::write(&trace, &selected, &options, &mut out).unwrap();
    let lines = String::from_utf8(out).unwrap();
    let objects = lines.lines().skip(1).map(|line| serde_json::from_str::<Json>(line).unwrap());
    let text = |object: Json| {
        let depth = object["depth"].as_u64().unwrap_or(0) as usize;
        let name = object["name"].as_str().unwrap_or(object["kind"].as_str().unwrap());
        format!("{}{name} {}", " ".repeat(depth), object["weight"])
    };
    objects.map(text).collect()
}

#[test]
fn a_timeline_has_the_calls_without_those_of_the_interpreter() {
    let mut maker = Maker::new();
    let thread = maker.thread(100, "server");
    let stacks = [
        "<module>:5~python serve:21~python",
        "<module>:5~python serve:21~python parse:30~python",
        "<module>:5~python serve:21~python call:7~interpreter scan@libc",
        "<module>:5~python serve:21~python call:7~interpreter",
        "",
    ];
    for (ms, stack) in (0u64..).zip(stacks) {
        maker.sample(thread, ms, &format!("loop:{}~interpreter {stack}", 3 + ms % 2));
    }
    let made = maker.finish();
    let expected = [
        "server 5",
        " <module> 4",
        "  serve 4",
        "   self 1",
        "   parse 1",
        "    self 1",
        "   scan 1",
        "    self 1",
        "   self 1",
        " self 1",
    ];
    assert_eq!(calls(&made, false, None), expected);
    let shown = calls(&made, true, None);
    assert_eq!(shown[..4], ["server 5", " loop 5", "  <module> 4", "   serve 4"]);
    assert!(shown.iter().any(|line| line == "    call 2"), "{shown:?}");
    let limited = calls(&made, false, Some(2));
    assert_eq!(limited[..4], ["server 5", " <module> 4", "  serve 4", "   others 4"]);
}

#[test]
fn weights_of_a_timeline_add_up() {
    let made = made(true);
    let mut open = Vec::<(usize, i64)>::new();
    let mut sums = BTreeMap::<usize, i64>::new();
    for line in calls(&made, false, None) {
        let depth = line.len() - line.trim_start().len();
        let (name, weight) = line.trim().rsplit_once(' ').unwrap();
        let weight: i64 = weight.parse().unwrap();
        while open.last().is_some_and(|(outer, _)| *outer >= depth) {
            let (outer, weight) = open.pop().unwrap();
            assert_eq!(sums.remove(&(outer + 1)).unwrap_or(0), weight, "{line}");
        }
        *sums.entry(depth).or_default() += weight;
        if !["self", "others"].contains(&name) {
            open.push((depth, weight));
        }
    }
    assert!(sums[&0] == 90, "{sums:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Stacks of any frames, read in both orders and one by one.
    #[test]
    fn each_stack_loses_exactly_the_frames_of_interpreters(
        stacks in prop::collection::vec(prop::collection::vec((0u8..4, any::<bool>()), 1..8), 1..40),
        roots in prop::collection::vec(any::<bool>(), 40),
    ) {
        let mut maker = Maker::new();
        let thread = maker.thread(100, "any");
        let mut expected: Vec<Vec<LocationId>> = Vec::new();
        for ((ms, stack), is_root) in (0..).zip(&stacks).zip(&roots) {
            let place = |(name, is_interpreter): &(u8, bool)| {
                format!("f{name}:{name}{}", if *is_interpreter { "~interpreter" } else { "" })
            };
            let places: Vec<String> = stack.iter().map(place).collect();
            maker.sample_ending(thread, ms, &places.join(" "), if *is_root { ROOT } else { GAP });
            let shown: Vec<&String> =
                places.iter().filter(|place| !place.ends_with('r')).collect();
            let shown = if shown.is_empty() { vec![places.last().unwrap()] } else { shown };
            expected.push(shown.into_iter().map(|place| maker.location(place)).collect());
        }
        let made = maker.finish();
        let mut trace = LazyTrace::open(&made.path()).unwrap();
        trace.leave_out_interpreters();
        let at = |sample: &Sample| ((sample.time_ns - BEGIN_NS) / 1_000_000) as usize;
        let mut found = vec![Vec::new(); expected.len()];
        trace.for_each_sample(&Window::default(), &mut |_, sample, stack| {
            found[at(sample)] = stack.to_vec();
        }).unwrap();
        prop_assert_eq!(&found, &expected);
        found.iter_mut().for_each(Vec::clear);
        trace.for_each_sample_as_written(&Window::default(), &mut |_, sample, stack| {
            found[at(sample)] = stack.to_vec();
        }).unwrap();
        prop_assert_eq!(&found, &expected);
        for (ms, stack) in expected.iter().enumerate() {
            let time_ns = BEGIN_NS + ms as u64 * 1_000_000;
            let (_, last) = trace.stack_at(thread, time_ns).unwrap().unwrap();
            prop_assert_eq!(&last, stack);
        }
        let selected = Selection::default().resolve(&trace).unwrap();
        let profile = view::load(&trace, &selected).unwrap();
        prop_assert_eq!(profile.count().samples, expected.len() as u64);
    }
}

#[test]
fn what_is_inlined_into_an_interpreter_is_a_part_of_it() {
    let mut maker = Maker::new();
    let thread = maker.thread(100, "any");
    let [main, run, serve] =
        ["main:1", "loop:3~interpreter", "serve:21~python"].map(|place| maker.location(place));
    let mut inlined = |into: LocationId, kind: FrameKind| {
        let method = maker.writer.method(&Method::named("inlined")).unwrap();
        let place = Location { inline_parent: Some(into), kind, ..Location::at(method, 0) };
        maker.writer.location(&place).unwrap()
    };
    let in_run = inlined(run, FrameKind::Native);
    let deeper = inlined(in_run, FrameKind::Native);
    let in_main = inlined(main, FrameKind::Native);
    let carries = inlined(in_main, FrameKind::Interpreter);
    let stacks = [
        (vec![main, run, in_run, deeper, serve], vec![main, serve]),
        (vec![main, in_main, carries, serve], vec![main, in_main, serve]),
        (vec![run, in_run, deeper], vec![deeper]),
    ];
    for (ms, (stack, _)) in (0u64..).zip(&stacks) {
        let sample = Sample { time_ns: BEGIN_NS + ms, ..Sample::default() };
        maker.writer.sample(thread, &sample, stack).unwrap();
    }
    let made = maker.finish();
    let mut trace = LazyTrace::open(&made.path()).unwrap();
    let read = |trace: &LazyTrace| {
        let mut found = Vec::new();
        let mut add = |_, _: &Sample, stack: &[LocationId]| found.push(stack.to_vec());
        trace.for_each_sample(&Window::default(), &mut add).unwrap();
        found
    };
    assert_eq!(read(&trace), stacks.clone().map(|(stack, _)| stack));
    assert!(!trace.leaves_frames_out());
    trace.leave_out_interpreters();
    assert_eq!(read(&trace), stacks.map(|(_, shown)| shown));
    assert!(trace.leaves_frames_out() && trace.is_left_out(deeper).unwrap());
}
