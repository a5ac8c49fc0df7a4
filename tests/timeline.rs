//! The timeline as whole texts, from traces made by hand.

use traceprof::trace::{LazyTrace, Sample};
use traceprof::view::timeline::{self, TimelineOptions};
use traceprof::view::{Limits, Selection};

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
    TimelineOptions { verbose, limits: Limits { min_percent, depth } }
}

/// A server that waits for requests, another thread with everything that a sample can have, a
/// third one without any.
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
    maker.writer.state_change(worker, times(42), 2, Some(202)).unwrap();
    maker.writer.state_change(worker, times(60), 0, None).unwrap();
    let waiting = Sample { time_ns: times(61), state: 2, syscall: Some(202), ..Sample::default() };
    maker.full_sample(worker, &waiting, "start_thread wait");
    maker.writer.gap(worker, times(61), times(1461)).unwrap();
    maker.full_sample(worker, &Sample { time_ns: times(1461), ..Sample::default() }, "");
    maker.writer.thread_exit(worker, times(1462)).unwrap();
    maker.finish()
}

#[test]
fn timeline_is_a_summary_and_the_calls_in_order() {
    snapshot::check("tests/snapshots/timeline.txt", all(&demo(), false).as_bytes());
}

#[test]
fn verbose_timeline_has_places_and_samples() {
    snapshot::check("tests/snapshots/timeline-verbose.txt", all(&demo(), true).as_bytes());
}

#[test]
fn what_is_light_or_deep_is_counted() {
    let text = print(&demo(), &Selection::default(), &options(false, 12.0, Some(4)));
    snapshot::check("tests/snapshots/timeline-folded.txt", text.as_bytes());
}

#[test]
fn only_what_is_selected_is_shown() {
    let moment = |text: &str| Some(text.parse().unwrap());
    let (from, to) = (moment("120ms"), moment("200ms"));
    let selection =
        Selection { threads: vec!["serv*".to_owned()], from, to, ..Selection::default() };
    let text = print(&demo(), &selection, &options(true, 0.0, None));
    snapshot::check("tests/snapshots/timeline-window.txt", text.as_bytes());
}

#[test]
fn every_sample_is_printed_once_or_counted() {
    let text = all(&demo(), true);
    assert_eq!(text.matches("sample at ").count(), 66, "{text}");
    let own = |line: &str| {
        let rest = line.trim_start().strip_prefix("... <")?;
        rest.strip_suffix(" in self>")?.split(' ').next()?.parse::<u64>().ok()
    };
    assert_eq!(all(&demo(), false).lines().filter_map(own).sum::<u64>(), 66);
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
    assert!(text.contains("  demo.main(): 2 samples, ~2.00 ms <unfinished>\n"), "{text}");
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
    assert_eq!(text.lines().filter(|line| line.ends_with("(): 1 sample, ~1.00 ms")).count(), 3_499);
    let folded = print(&made, &Selection::default(), &options(false, 1.0, None));
    assert!(
        folded.contains("    ... <3500 unloaded children>: 3500 samples, 100.0 %\n"),
        "{folded}"
    );
}
