//! The text of rows, head and foot of the table beside the numbers.

use std::time::Duration;

use traceprof::view::live::{
    DisplayState, LineStyle, LiveCounts, LiveStatus, RowKind, ScreenSize, UnreadSamples, plain,
    screen,
};
use traceprof::view::{SampleFilter, Selected, load};

use traceprof::trace::LazyTrace;

use crate::common::Maker;

/// Returns one interval with a sample of each of these stacks.
fn board(stacks: &[&str]) -> LiveCounts {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    for (ms, stack) in (0..).zip(stacks) {
        maker.sample(thread, ms, stack);
    }
    let trace = maker.finish();
    let trace = LazyTrace::open(&trace.path()).expect("a trace");
    let mut board = LiveCounts::new(&[DisplayState::default().mode]);
    let windows = UnreadSamples::default().windows(&trace, u64::MAX);
    assert!(!windows.is_empty());
    let selected = Selected { windows, filter: SampleFilter::default(), by: None, text: None };
    board.add(&load(&trace, &selected).expect("a profile"));
    board
}

fn head() -> LiveStatus {
    LiveStatus { pid: 1, interval: Duration::from_secs(4), samples: 200, ..LiveStatus::default() }
}

fn lines(stacks: &[&str], look: &mut DisplayState, size: ScreenSize) -> Vec<String> {
    let lines = screen(&board(stacks), &head(), look, size);
    lines.into_iter().map(|line| line.text).collect()
}

/// Returns the names of twenty functions, in the order of their rows.
fn twenty() -> Vec<String> {
    (10..30).map(|number| format!("f{number}")).collect()
}

#[test]
fn a_table_is_not_scrolled_beyond_its_end() {
    let names = twenty();
    let stacks: Vec<&str> = names.iter().map(String::as_str).collect();
    let size = ScreenSize { width: 80, height: 12 };
    let mut look = DisplayState { scroll: 1000, ..DisplayState::default() };
    let shown = lines(&stacks, &mut look, size);
    assert_eq!(look.scroll, 20 - size.rows());
    let rows: Vec<&String> = shown.iter().filter(|line| line.ends_with("  demo")).collect();
    assert_eq!(rows.len(), size.rows(), "{shown:#?}");
    assert!(rows.last().is_some_and(|row| row.contains(" f29 ")), "{shown:#?}");
    assert!(!shown.iter().any(|line| line.contains(" more")), "none is left out: {shown:#?}");
}

#[test]
fn the_end_of_a_lines_path_is_kept() {
    let mut look = DisplayState { kind: RowKind::Line, ..DisplayState::default() };
    let long = "a_function_of_some_length:70";
    let shown = lines(&[long], &mut look, ScreenSize { width: 80, height: 10 });
    let row = shown.iter().find(|line| line.contains("a_function")).expect("a row");
    // The location is `src/demo.c:70`.
    assert!(row.contains("a_function_of_some_length at …") && row.contains("c:70"), "{row}");
    // If there is no room for a location, only the name is shown.
    let shown = lines(&[long], &mut look, ScreenSize { width: 60, height: 10 });
    assert!(shown.iter().any(|line| line.contains("a_function_of_som…")), "{shown:#?}");
}

#[test]
fn a_process_that_uses_no_time_gets_a_hint_about_the_other_mode() {
    let hint = "--mode wall shows what it waits for";
    let nothing = LiveCounts::new(&[DisplayState::default().mode]);
    for (cpu_percent, has_hint) in [(Some(0.2), true), (Some(40.0), false), (None, false)] {
        let head = LiveStatus { cpu_percent, ..head() };
        let text = plain(&nothing, &head, &DisplayState::default(), 20);
        assert!(text.contains("no sample yet"), "{text}");
        assert_eq!(text.contains(hint), has_hint, "{text}");
    }
}

#[test]
fn a_notice_replaces_the_keys_and_cannot_move_the_cursor() {
    let foot = |notice: Option<&str>, paused| {
        let head = LiveStatus { notice: notice.map(str::to_owned), ..head() };
        let mut look = DisplayState { paused, ..DisplayState::default() };
        let size = ScreenSize { width: 90, height: 8 };
        let last = screen(&board(&["main"]), &head, &mut look, size).pop().expect("a foot");
        assert_eq!(last.style, LineStyle::Dim);
        last.text
    };
    assert!(foot(None, false).starts_with("q quit"));
    assert_eq!(foot(Some("threads\x1b[2J are gone"), false), "note: threads\\u{1b}[2J are gone");
    assert_eq!(foot(Some("x"), true), "PAUSED  note: x");
}

#[test]
fn samples_are_shown_as_a_rate() {
    let text = plain(&board(&["main"]), &head(), &DisplayState::default(), 20);
    assert!(text.lines().nth(1).is_some_and(|line| line.contains("  50 samples/s  ")), "{text}");
    assert!(text.contains("last 4.0 s"), "{text}");
}
