//! Complete screens of the table, from a synthetic trace.

use std::time::Duration;

use traceprof::trace::{LazyTrace, RunState, Sample};
use traceprof::view::live::{
    DisplayState, LiveCounts, LiveStatus, Order, RowKind, ScreenSize, UnreadSamples, plain, screen,
};
use traceprof::view::{Mode, SampleFilter, Selected, load};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, maker};
use crate::snapshot;

/// Two intervals: the samples up to 1000 ms, and the others.
fn board(modes: &[Mode]) -> LiveCounts {
    let mut maker = Maker::new();
    let main = maker.thread(101, "main");
    let worker = maker.thread(102, "worker\x1b[2J");
    for ms in 0..30 {
        maker.sample(main, ms, "main parse parse parse");
    }
    for ms in 30..40 {
        maker.sample(main, ms, "main write@libc");
        maker.sample(
            worker,
            ms,
            "start a_function_whose_name_is_so_long_that_it_does_not_fit_anywhere:7",
        );
    }
    maker.wait_sample(worker);
    let long = Sample { time_ns: maker::BEGIN_NS + 2_000_000_000, weight: 30, ..Sample::default() };
    maker.full_sample(main, &long, "main parse");
    maker.sample_ending(worker, 2001, "lost", maker::GAP);
    let trace = maker.finish();
    let trace = LazyTrace::open(&trace.path()).expect("a trace");
    let mut board = LiveCounts::new(modes);
    for mode in modes {
        let mut pace = UnreadSamples::default();
        for until_ns in [maker::BEGIN_NS + 1_000_000_000, u64::MAX] {
            board.begin();
            let windows = pace.windows(&trace, until_ns);
            let filter = SampleFilter { mode: *mode, ..SampleFilter::default() };
            let selected = Selected { windows, filter, by: None, text: None };
            board.add(&load(&trace, &selected).expect("a profile"));
        }
    }
    board
}

fn head() -> LiveStatus {
    LiveStatus {
        pid: 100,
        others: 0,
        cpu_history: vec![0.0, 30.0, 131.25],
        command: "/usr/bin/demo --level \x1b[31m9".to_owned(),
        elapsed: Duration::from_millis(3200),
        interval: Duration::from_secs(1),
        threads: 2,
        cpu_percent: Some(131.25),
        samples: 2,
        lost: 0,
        own_percent: Some(0.8),
        engine: "perf at 199 Hz".to_owned(),
        notice: None,
    }
}

/// Returns the lines of a screen, each with a bar at its end.
fn drawn(look: DisplayState, size: ScreenSize) -> String {
    let mut look = look;
    let lines = screen(&board(&[Mode::Cpu]), &head(), &mut look, size);
    assert_eq!(lines.len(), size.height);
    assert!(lines.iter().all(|line| line.text.chars().count() <= size.width), "{lines:?}");
    lines.iter().map(|line| format!("{:6}|{}|\n", format!("{:?}", line.style), line.text)).collect()
}

#[test]
fn screens_of_each_kind_are_unchanged() {
    let size = ScreenSize { width: 80, height: 12 };
    let mut text = String::new();
    for kind in RowKind::ALL {
        text.push_str(&drawn(DisplayState { kind, ..DisplayState::default() }, size));
    }
    let look = DisplayState {
        since_start: true,
        order: Order::Total,
        scroll: 2,
        ..DisplayState::default()
    };
    text.push_str(&drawn(look.clone(), ScreenSize { width: 60, height: 9 }));
    text.push_str(&drawn(look.clone(), ScreenSize { width: 40, height: 9 }));
    text.push_str(&drawn(DisplayState::default(), ScreenSize { width: 40, height: 10 }));
    text.push_str(&drawn(
        DisplayState { help: true, paused: true, ..look },
        ScreenSize { width: 90, height: 22 },
    ));
    let filter = "LIBC".to_owned();
    let look = DisplayState { filter, has_several: true, ..DisplayState::default() };
    text.push_str(&drawn(look.clone(), ScreenSize { width: 80, height: 8 }));
    text.push_str(&drawn(DisplayState { typing: true, ..look }, size));
    snapshot::check("tests/snapshots/top-screens.txt", text.as_bytes());
}

#[test]
fn a_table_for_a_pipe_is_unchanged_and_sums_up_omitted_rows() {
    let board = board(&Mode::ALL);
    let mut text = plain(&board, &head(), &DisplayState::default(), 20);
    text.push('\n');
    text.push_str(&plain(
        &board,
        &head(),
        &DisplayState { since_start: true, ..DisplayState::default() },
        1,
    ));
    text.push('\n');
    text.push_str(&plain(
        &board,
        &head(),
        &DisplayState { mode: Mode::Wall, ..DisplayState::default() },
        20,
    ));
    text.push('\n');
    let nothing = LiveCounts::new(&[Mode::Cpu]);
    text.push_str(&plain(&nothing, &head(), &DisplayState::default(), 20));
    assert!(!text.contains('\x1b'), "{text}");
    snapshot::check("tests/snapshots/top.txt", text.as_bytes());
}

/// A server for two seconds: one thread works, one waits for a lock, and others wait for work.
fn server() -> LiveCounts {
    let mut maker = Maker::new();
    let busy = maker.thread(101, "main");
    let stuck = maker.thread(102, "stuck");
    let idle: Vec<_> = (0..3).map(|n| maker.thread(110 + n, &format!("idle-{n}"))).collect();
    let mut wait = |thread, ms: u64, weight, state: RunState, stack: &str| {
        let (state, time_ns) = (state as u8, maker::BEGIN_NS + ms * 1_000_000);
        let flags = WALL;
        let sample = Sample { time_ns, weight, state, flags, ..Sample::default() };
        maker.full_sample(thread, &sample, stack);
    };
    for ms in [500, 1000, 1500, 2000] {
        wait(busy, ms - 1, 100_000, RunState::Running, "main work");
        wait(busy, ms, 400_000, RunState::Sleeping, "main serve");
        wait(stuck, ms, 500_000, RunState::Sleeping, "main pthread_mutex_lock@libc");
        // Sleeping threads are sampled rarely: not at all in the last interval.
        if ms == 1000 {
            idle.iter().for_each(|it| wait(*it, ms, 1_000_000, RunState::Sleeping, "start next"));
        }
    }
    let trace = maker.finish();
    let trace = LazyTrace::open(&trace.path()).expect("a trace");
    let (mut board, mut pace) = (LiveCounts::new(&[Mode::Wall]), UnreadSamples::default());
    for until_ns in [maker::BEGIN_NS + 1_000_000_000, u64::MAX] {
        board.begin();
        let windows = pace.windows(&trace, until_ns);
        let filter = SampleFilter { mode: Mode::Wall, ..SampleFilter::default() };
        let selected = Selected { windows, filter, by: None, text: None };
        board.add(&load(&trace, &selected).expect("a profile"));
    }
    board
}

#[test]
fn idle_threads_are_summed_up_unless_they_are_asked_for() {
    let board = server();
    let look = DisplayState { mode: Mode::Wall, kind: RowKind::Thread, ..DisplayState::default() };
    let mut text = String::new();
    for look in [
        look.clone(),
        DisplayState { since_start: true, kind: RowKind::Function, ..look.clone() },
        DisplayState { idle: true, since_start: true, ..look.clone() },
    ] {
        text.push_str(&plain(&board, &head(), &look, 20));
        text.push('\n');
    }
    let mut look = look;
    for line in screen(&board, &head(), &mut look, ScreenSize { width: 80, height: 9 }) {
        text.push_str(&format!("{:6}|{}|\n", format!("{:?}", line.style), line.text));
    }
    snapshot::check("tests/snapshots/top-idle.txt", text.as_bytes());
}

#[test]
fn the_smallest_terminals_are_filled_and_nothing_more() {
    for (width, height) in [(1, 1), (1, 24), (20, 2), (34, 5), (35, 6), (200, 3)] {
        drawn(DisplayState::default(), ScreenSize { width, height });
        drawn(DisplayState { help: true, ..DisplayState::default() }, ScreenSize { width, height });
    }
}

/// A sample that is written late belongs to a later interval, and none belongs to two.
#[test]
fn every_sample_is_in_one_interval() {
    let mut maker = Maker::new();
    let (one, two) = (maker.thread(1, "one"), maker.thread(2, "two"));
    maker.sample(one, 10, "main first");
    maker.sample(two, 500, "main second");
    maker.flush();
    let mut trace = LazyTrace::open(&maker.trace().path()).expect("a trace");
    let mut pace = UnreadSamples::default();
    let mut came = Vec::new();
    let mut take = |trace: &LazyTrace, until_ms: u64| {
        let until_ns = maker::BEGIN_NS + until_ms * 1_000_000;
        let mut count = 0;
        for window in pace.windows(trace, until_ns) {
            trace.for_each_sample(&window, &mut |_, _, _| count += 1).expect("samples");
        }
        came.push(count);
    };
    take(&trace, 100);
    take(&trace, 400);
    // They were taken earlier and waited for a name.
    maker.sample(one, 20, "main late");
    maker.sample(one, 600, "main third");
    maker.flush();
    assert!(trace.refresh().expect("more"));
    take(&trace, 599);
    take(&trace, 10_000);
    take(&trace, 20_000);
    assert_eq!(came, [1, 0, 2, 1, 0]);
}
