//! A page over time: the stack chart, and zooming in time.

use std::io::Write;

use serde_json::json;
use traceprof::trace::{Sample, ThreadId, Value};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{BROWSER, Browser, Maker, Trace, has_command, maker, skip};
use crate::page::demo;
use crate::page_shown::{LARGE, click, near, page_of, weight};

use maker::BEGIN_NS;

/// The bars of the chart: name, begin and end in milliseconds, row.
const BARS: &str = "traceprof.chart.boxes.filter(box => box.node)
    .sort((one, other) => one.row - other.row || one.x - other.x)
    .map(box => { const { from, to } = traceprof.chart.spanOf(box); return [
        traceprof.chart.nameOf(box), Math.round(from / 1000), Math.round(to / 1000), box.row,
    ].join(' '); })";

/// A thread whose calls change, and which does nothing for a while.
fn working() -> Trace {
    let mut maker = Maker::new();
    let end = Value::Unsigned(BEGIN_NS + 30_000_000);
    maker.writer.set_metadata("end_monotonic_ns", end).unwrap();
    let thread = maker.thread(1, "x");
    for ms in 1..=9 {
        let stack = ["main alpha", "main beta", "main alpha:7 gamma"][(ms as usize - 1) / 3];
        maker.sample(thread, ms, stack);
    }
    maker.sample(thread, 20, "main alpha");
    maker.finish()
}

/// Presses in the middle of the bar of a function, the first one.
fn press_bar(browser: &mut Browser, name: &str) {
    let place = format!(
        "(box => {{ const {{ x, y, width }} = traceprof.chart.place(box);\
         const corner = at('graph').getBoundingClientRect();\
         return [corner.left + x + width / 2, corner.top + y + ROW / 2]; }})\
         (traceprof.chart.boxes.find(box => box.node && traceprof.chart.nameOf(box) === '{name}'))"
    );
    let place = browser.evaluate(&place);
    let place = (place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    browser.mouse("mouseMoved", place);
    browser.press(place, "left", 1);
}

#[test]
fn calls_are_bars_in_time_order_down_to_single_samples() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = working();
    let mut browser = Browser::open(&page_of(&made), "", LARGE);
    click(&mut browser, "#order-time");
    let bars = [
        "main 0 9 1",
        "main 19 20 1",
        "alpha 0 3 2",
        "beta 3 6 2",
        "alpha 6 9 2",
        "alpha 19 20 2",
        "gamma 6 9 3",
    ];
    assert_eq!(browser.evaluate(BARS), json!(bars));
    // A bar is where its time is: a thirtieth of the width is a millisecond.
    let beta = browser.evaluate(
        "(box => [box.x, box.width].map(it => it / traceprof.chart.room * 30))\
         (traceprof.chart.boxes.find(box => traceprof.chart.nameOf(box) === 'beta'))",
    );
    for (found, expected) in [(&beta[0], 3.0), (&beta[1], 3.0)] {
        assert!((found.as_f64().unwrap() - expected).abs() < 0.1, "{beta}");
    }
    press_bar(&mut browser, "gamma");
    assert_eq!(browser.evaluate("location.hash"), "#range=0.006-0.009&order=time");
    near(weight(&mut browser), 3.0);
    assert_eq!(browser.evaluate(BARS), json!(["main 0 9 1", "alpha 6 9 2", "gamma 6 9 3"]));
    let tooltip = browser.evaluate(
        "traceprof.chart.describe(traceprof.chart.boxes.find(box => box.row === 2)).join('|')",
    );
    let expected =
        "alpha|3.00 ms, from 6.00 ms to 9.00 ms, 3 samples|src/demo.c:7|demo|x, thread 1";
    assert_eq!(tooltip, expected);
    // Each sample has a mark where it was taken.
    let marks = "traceprof.chart.boxes[0].marks.map(x => (x - INSET) / traceprof.chart.room * 3)";
    let marks = browser.evaluate(marks);
    let marks: Vec<f64> = marks.as_array().unwrap().iter().filter_map(|it| it.as_f64()).collect();
    assert_eq!(marks.iter().map(|it| it.round()).collect::<Vec<_>>(), [0.0, 1.0, 2.0, 3.0]);
    browser.key("Backspace");
    browser.wait_for("traceprof.choice.ranges.length === 0");
    assert_eq!(browser.evaluate(BARS), json!(bars));
    // Keys alone: to the second row, and to the next bar.
    browser.evaluate("document.querySelector('#graph').focus()");
    for key in ["ArrowDown", "ArrowDown", "ArrowRight"] {
        browser.key(key);
    }
    assert!(browser.text("#focused").starts_with("beta, 3.00 ms"), "{}", browser.text("#focused"));
    browser.key("Enter");
    browser.wait_for("location.hash === '#range=0.003-0.006&order=time'");
    assert_eq!(browser.problems(), [""; 0]);
}

fn wait(maker: &mut Maker, thread: ThreadId, end_ms: u64, ms: u32, state: u8) {
    let time_ns = BEGIN_NS + end_ms * 1_000_000;
    let sample = Sample { flags: WALL, weight: ms * 1000, time_ns, state, ..Sample::default() };
    let syscall = (state == 2).then_some(202);
    maker.full_sample(thread, &Sample { syscall, ..sample }, "main step");
}

/// What is reported at once was one after the other, and nothing is hidden by what came later.
#[test]
fn waits_that_are_reported_together_have_their_times_one_after_the_other() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", Value::Text("wall".to_owned())).unwrap();
    let end = Value::Unsigned(BEGIN_NS + 60_000_000);
    maker.writer.set_metadata("end_monotonic_ns", end).unwrap();
    let thread = maker.thread(1, "x");
    wait(&mut maker, thread, 10, 10, 0);
    wait(&mut maker, thread, 30, 5, 1);
    wait(&mut maker, thread, 30, 15, 2);
    // Reported after a sample that was taken within it.
    wait(&mut maker, thread, 45, 5, 0);
    wait(&mut maker, thread, 60, 25, 2);
    let made = maker.finish();
    let mut browser = Browser::open(&page_of(&made), "#order=time&idle=shown", LARGE);
    let bars = browser.evaluate(BARS);
    let states: Vec<&str> = bars
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|bar| bar.as_str().filter(|bar| bar.starts_with('[') || bar.ends_with(" 3")))
        .collect();
    assert_eq!(
        states,
        [
            "[sleeping in futex] 10 25 3",
            "[runnable] 25 30 3",
            "[sleeping in futex] 30 40 3",
            "[sleeping in futex] 45 60 3",
        ],
        "{bars}"
    );
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn a_window_is_zoomed_into_and_backspace_leads_back() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = demo();
    let page = page_of(&made);
    let mut browser = Browser::open(&page, "#mode=cpu", LARGE);
    let [left, top, width, _] = browser.place("#strip");
    let at = |share: f64| (left + width * share, top + 5.0);
    let drag = |browser: &mut Browser| browser.drag(at(0.25), at(0.5));
    drag(&mut browser);
    let inside = weight(&mut browser);
    assert!((inside - 1000.0).abs() < 10.0, "{inside}");
    browser.key("w");
    browser.wait_for("traceprof.choice.window === null && traceprof.choice.ranges.length === 1");
    near(weight(&mut browser), inside);
    // The time line shows the part of the time from the first to the last pixel.
    let ends = "[0, traceprof.timeline.width].map(x => traceprof.timeline.timeOf(x) / 1e6)";
    let shown = browser.evaluate(ends);
    assert!((shown[0].as_f64().unwrap() - 1.0).abs() < 0.01, "{shown}");
    assert!((shown[1].as_f64().unwrap() - 2.0).abs() < 0.01, "{shown}");
    // A window in it, and a double click.
    drag(&mut browser);
    browser.press(at(0.3), "left", 2);
    browser.wait_for("traceprof.choice.ranges.length === 2");
    let part = weight(&mut browser);
    assert!((part - 250.0).abs() < 5.0, "{part}");
    // The address leads to the same.
    let address = browser.evaluate("location.hash").as_str().unwrap().to_owned();
    let mut again = Browser::open(&page, &address, LARGE);
    near(weight(&mut again), part);
    assert_eq!(again.evaluate("location.hash"), address);
    drop(again);
    // One turn of the wheel is one step, however long.
    for _ in 0..3 {
        browser.zoom_wheel(at(0.5), -100.0);
    }
    browser.wait_for("traceprof.choice.ranges.length === 3");
    browser.wait_for("traceprof.choice.range.to - traceprof.choice.range.from < 200_000");
    for (ranges, expected) in [(2, part), (1, inside), (0, 2001.0), (0, 2001.0)] {
        browser.key("Backspace");
        browser.wait_for(&format!("traceprof.choice.ranges.length === {ranges}"));
        near(weight(&mut browser), expected);
    }
    assert_eq!(browser.problems(), [""; 0]);
}

/// Makes the samples of the page a million, in the browser: a frame's cost depends on their number.
pub(crate) const MILLION: &str = "(() => {
    const { trace } = traceprof, [mode] = trace.modes, count = 1_000_000;
    const threads = trace.threads.length, calls = mode.call;
    const of = (Kind, value) => Kind.from({ length: count }, (_, row) => value(row));
    const first = Uint32Array.from({ length: threads + 1 }, (_, at) => count * at / threads);
    const end = row => (row % (count / threads) + 1) / (count / threads) * trace.toUs;
    Object.assign(mode, {
        first, time: of(Float64Array, end), since: of(Float64Array, row => end(row) - 10),
        weight: new Float64Array(count).fill(0.01), longest: new Float64Array(threads).fill(10),
        weightOf: new Float64Array(threads).fill(count * 0.01 / threads),
        call: of(Uint32Array, row => calls[row * 7919 % calls.length]),
        context: new Uint32Array(count), samplesOf: new Uint32Array(count).fill(1),
    });
    traceprof.ranksOf.clear();
    traceprof.chart.segments.clear();
    traceprof.chart.extents.clear();
    traceprof.relayout();
})()";

/// Prints rows of a table: what, value.
#[test]
#[ignore = "a measurement: scripts/bench page"]
fn longest_tasks_with_a_million_samples() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let mut maker = Maker::new();
    for number in 0..4 {
        let thread = maker.thread(100 + number, &format!("worker{number}x"));
        for ms in 1..=1000 {
            let [a, b, c] = [ms % 5, ms % 37, ms % 199];
            let stack = format!("_start main a{a} b{a} c{a} d{b} e{b} f{b} g{c} h{c} i{c} j{ms}");
            maker.sample(thread, ms, &stack);
        }
    }
    let made = maker.finish();
    let page = page_of(&made);
    for order in ["callers", "time"] {
        let mut browser = Browser::open(&page, &format!("#order={order}"), LARGE);
        browser.evaluate(MILLION);
        browser.wait_for("!traceprof.slices.isBusy && traceprof.sum.samples === 1_000_000");
        let [left, top, width, _] = browser.place("#strip");
        let at = |share: f64| (left + width * share, top + 5.0);
        let tasks = browser.tasks_during(|browser| {
            for delta in [-100.0, 100.0] {
                for _ in 0..10 {
                    browser.zoom_wheel(at(0.4), delta);
                }
            }
            browser.drag(at(0.1), at(0.9));
            browser.wait_for("!traceprof.slices.isBusy && traceprof.choice.window !== null");
        });
        assert!(tasks.len() > 20, "{tasks:?}");
        let name = if order == "time" { "stack chart" } else { "flame graph" };
        let cpu_ms = tasks.iter().map(|[_, cpu_ms]| *cpu_ms).fold(0.0, f64::max);
        let row = format!(
            "row|page of a million samples, {name}: longest task while zooming, elapsed / CPU \
             time|{:.1} / {cpu_ms:.1} ms\n",
            tasks[0][0]
        );
        std::io::stdout().write_all(row.as_bytes()).unwrap();
        assert_eq!(browser.problems(), [""; 0]);
    }
}
