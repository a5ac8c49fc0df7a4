//! Sums that a page computes in the browser, where a sample crosses a window's edge, has a
//! recursive stack, or is one of many.

use std::path::PathBuf;

use traceprof::trace::{Sample, ThreadId, Value};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{BROWSER, Browser, Maker, Trace, has_command, maker, skip, traceprof};

use maker::BEGIN_NS;

const SIZE: (u32, u32) = (1200, 800);

macro_rules! needs_browser {
    () => {
        if !has_command(BROWSER) {
            skip!("chromium, which shows the page");
        }
    };
}

fn page_of(made: &Trace, options: &[&str]) -> PathBuf {
    let path = made.dir().join("page.html");
    let mut command = traceprof(&["view", "--output"]);
    let output = command.arg(&path).arg(made.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

fn waits(maker: &mut Maker, thread: ThreadId, end_ms: u64, ms: u32) {
    let time_ns = BEGIN_NS + end_ms * 1_000_000;
    let sample = Sample { flags: WALL, weight: ms * 1000, time_ns, state: 2, ..Sample::default() };
    maker.full_sample(thread, &Sample { syscall: Some(202), ..sample }, "main wait");
}

/// A thread that waits for two seconds and then for one.
fn waiting() -> Trace {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", Value::Text("wall".to_owned())).unwrap();
    maker
        .writer
        .set_metadata("end_monotonic_ns", Value::Unsigned(BEGIN_NS + 3_000_000_000))
        .unwrap();
    let thread = maker.thread(1, "x");
    waits(&mut maker, thread, 2000, 2000);
    waits(&mut maker, thread, 3000, 1000);
    maker.finish()
}

/// Returns the weight that the page shows for an address.
fn weight_at(browser: &mut Browser, fragment: &str) -> f64 {
    browser.evaluate(&format!("location.hash = '#{fragment}'"));
    // The page reads the address when the browser sends its event.
    browser.wait_for(&format!("traceprof.choice.write() === '{fragment}'"));
    browser.number("#total", "weight")
}

#[test]
fn windows_of_a_page_that_begins_in_the_middle_of_a_wait_add_up() {
    needs_browser!();
    let made = waiting();
    let mut browser = Browser::open(&page_of(&made, &["--from", "1500ms"]), "#idle=shown", SIZE);
    let whole = browser.number("#total", "weight");
    // A wait that was reported in the window belongs to it, however long it was, as in every other
    // view.
    assert!((whole - 3_000_000.0).abs() < 1e-3, "{whole}");
    let parts =
        ["from=1.5&to=1.75&idle=shown", "from=1.75&to=2.5&idle=shown", "from=2.5&to=3&idle=shown"];
    let sum: f64 = parts.iter().map(|part| weight_at(&mut browser, part)).sum();
    assert!((sum - whole).abs() < 1e-3, "{sum}, not {whole}");
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn a_sample_at_the_very_end_is_in_the_last_window() {
    needs_browser!();
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    for ms in 0..10 {
        maker.sample(thread, ms, "main");
    }
    let mut browser = Browser::open(&page_of(&maker.finish(), &[]), "", SIZE);
    assert_eq!(browser.number("#total", "weight"), 10.0);
    let parts = ["to=0.004&from=0", "from=0.004&to=0.009"].map(|part| {
        let [from, to] = ["from", "to"].map(|name| {
            let value = part.split('&').find_map(|it| it.strip_prefix(&format!("{name}=")));
            value.expect(name).to_owned()
        });
        weight_at(&mut browser, &format!("from={from}&to={to}"))
    });
    assert_eq!(parts, [4.0, 6.0]);
}

/// A merged sample is longer than the others and ends after one that begins later.
#[test]
fn a_long_sample_counts_in_a_window_that_a_short_one_ends_behind() {
    needs_browser!();
    let mut browser = Browser::open(&page_of(&waiting(), &[]), "#idle=shown", SIZE);
    let sum = "(() => {
        let sum = 0;
        const mode = {
            isWall: true, first: [0, 2], time: [300, 1000], since: [290, 0], weight: [10, 1000], longest: [1000],
        };
        eachInWindow({ toUs: 1000 }, mode, 0, { from: 0, to: 200 }, (row, part) => { sum += part; });
        return sum;
    })()";
    assert_eq!(browser.evaluate(sum), 200.0);
}

#[test]
fn a_function_that_calls_itself_counts_once_and_a_match_counts_with_its_callees() {
    needs_browser!();
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    for ms in 0..10 {
        maker.sample(thread, ms, if ms < 8 { "main fib fib fib leaf" } else { "main other" });
    }
    let mut browser =
        Browser::open(&page_of(&maker.finish(), &[]), "#view=functions&search=fib", SIZE);
    // `leaf` does not match, but its caller does.
    assert_eq!(browser.number("#matched", "weight"), 8.0);
    let rows =
        "[...document.querySelectorAll('#function-table tbody tr')].map(row => row.textContent)";
    let rows = browser.evaluate(rows);
    let fib = rows
        .as_array()
        .unwrap()
        .iter()
        .find_map(|row| row.as_str()?.contains("fib").then(|| row.to_string()));
    let fib = fib.unwrap_or_else(|| panic!("{rows}"));
    assert!(fib.contains("80.0 %") && !fib.contains("240"), "{fib}");
    // A text that is not a valid expression is searched for literally, and no name contains it.
    browser.evaluate("location.hash = '#search=((' ");
    browser.wait_for("document.querySelector('#matched').textContent.includes('as plain text')");
    assert_eq!(browser.number("#matched", "weight"), 0.0);
    assert_eq!(browser.problems(), [""; 0]);
}

/// Pools and their threads are sorted by weight, and those without a row of their own share the
/// last row.
#[test]
fn the_heaviest_threads_of_a_large_pool_have_rows_and_the_others_share_one() {
    needs_browser!();
    let mut maker = Maker::new();
    let lone = maker.thread(1000, "light");
    maker.sample(lone, 1, "main");
    for number in 1..=120u32 {
        let thread = maker.thread(200 + number, &format!("worker-{number}"));
        let sample = Sample { time_ns: BEGIN_NS + 1_000_000, weight: number, ..Sample::default() };
        maker.full_sample(thread, &sample, "main");
    }
    let mut browser = Browser::open(&page_of(&maker.finish(), &[]), "", SIZE);
    let labels =
        "[...document.querySelectorAll('#labels .pick')].map(it => it.textContent).join('|')";
    assert_eq!(browser.evaluate(labels), "worker ×120|light");
    browser.evaluate("document.querySelector('#labels .fold').click()");
    let rows = browser.evaluate(labels).as_str().unwrap().to_owned();
    let rows: Vec<&str> = rows.split('|').collect();
    assert_eq!(rows[..3], ["worker ×120", "worker-120", "worker-119"]);
    assert_eq!(rows[rows.len() - 2..], ["21 others", "light"]);
}

#[test]
fn arrows_move_the_window_as_they_point() {
    needs_browser!();
    let mut browser = Browser::open(&page_of(&waiting(), &[]), "#idle=shown", SIZE);
    weight_at(&mut browser, "from=1&to=2&idle=shown");
    browser.evaluate("document.querySelector('#strip').focus()");
    let from = |browser: &mut Browser| browser.evaluate("traceprof.choice.window.from").as_f64();
    browser.key("ArrowRight");
    assert_eq!(from(&mut browser), Some(1_060_000.0), "a fiftieth of all");
    browser.key("ArrowLeft");
    browser.key("ArrowLeft");
    assert_eq!(from(&mut browser), Some(940_000.0));
}
