//! A page in a browser: its numbers after each selection, and that it makes no request.

use std::path::PathBuf;

use crate::common::{BROWSER, Browser, Trace, has_command, skip, traceprof};
use crate::page::{HOSTILE, demo};

pub(crate) const LARGE: (u32, u32) = (1400, 900);

/// Returns a page in a file, which is removed with the trace.
pub(crate) fn page_of(made: &Trace) -> PathBuf {
    let path = made.dir().join("page.html");
    let output =
        traceprof(&["view", "--output"]).arg(&path).arg(made.path()).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

pub(crate) fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-3, "{found}, not {expected}");
}

/// Clicks in the middle of an element.
pub(crate) fn click(browser: &mut Browser, selector: &str) {
    let [x, y, width, height] = browser.place(selector);
    let place = (x + width / 2.0, y + height / 2.0);
    browser.mouse("mousePressed", place);
    browser.mouse("mouseReleased", place);
}

pub(crate) fn weight(browser: &mut Browser) -> f64 {
    browser.number("#total", "weight")
}

fn state(browser: &mut Browser, name: &str) -> f64 {
    browser.number(&format!("[data-state={name}]"), "weight")
}

#[test]
fn windows_threads_and_states_are_added_up_as_they_are_chosen() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = demo();
    let mut browser = Browser::open(&page_of(&made), "", LARGE);
    // The page leaves idle threads out at first, and says so.
    near(weight(&mut browser), 12_000_000.0);
    assert!(browser.text("#chips").contains("without 1 idle thread"));
    for (name, weight) in
        [("running", 2.4e6), ("runnable", 2.4e6), ("sleeping", 4.8e6), ("disk", 2.4e6)]
    {
        near(state(&mut browser, name), weight);
    }
    click(&mut browser, "#chips button");
    near(weight(&mut browser), 15_900_000.0);
    // Selects windows by dragging: adjacent windows add up.
    let [left, top, width, _] = browser.place("#strip");
    let mut sum = 0.0;
    for (from, to) in [(0.0, 0.3), (0.3, 0.71), (0.71, 1.0)] {
        let at = |share: f64| (left + (width - 1.0) * share, top + 5.0);
        let (begin, end) = (at(from), at(to));
        browser.drag(begin, end);
        let part = weight(&mut browser);
        assert!((part / 15_900_000.0 - (to - from)).abs() < 0.01, "{from} to {to}: {part}");
        sum += part;
    }
    assert!((sum - 15_900_000.0).abs() < 60_000.0, "{sum}: a pixel is some milliseconds");
    // The rows: a pool of three, expanded with its button, and one of its threads.
    assert!(browser.text("#labels").contains("worker ×3"));
    click(&mut browser, "#labels .fold");
    assert!(browser.text("#labels").contains("worker-2"));
    browser.evaluate("location.hash = '#from=1&to=2&thread=102'");
    browser.wait_for("document.querySelector('#total').dataset.weight === '1000000'");
    near(state(&mut browser, "disk"), 200_000.0);
    assert!(browser.text("#chips").contains("worker-2 (102)"));
    click(&mut browser, "#reset");
    near(weight(&mut browser), 12_000_000.0);
    assert_eq!(browser.problems(), [""; 0]);
}

/// The address holds the complete state: adjacent windows add up exactly.
#[test]
fn an_address_restores_its_selection() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = demo();
    let mut browser =
        Browser::open(&page_of(&made), "#mode=cpu&from=0.5&to=1.2&search=par%5Bs%5De", LARGE);
    near(weight(&mut browser), 700.0);
    near(browser.number("#matched", "weight"), 495.0);
    assert_eq!(browser.text("#matched"), "70.7 % matches");
    for mode in ["cpu", "wall"] {
        let mut sum = 0.0;
        for (from, to) in
            [("0", "0.9997"), ("0.9997", "2.5"), ("2.5", "3.333333"), ("3.333333", "4")]
        {
            let fragment = format!("mode={mode}&idle=shown&from={from}&to={to}");
            browser.evaluate(&format!("location.hash = '#{fragment}'"));
            browser.wait_for(&format!("document.querySelector('#chips').textContent.startsWith(({from} > 0) ? '{}' : '0 µs')", time(from)));
            sum += weight(&mut browser);
        }
        let whole = if mode == "cpu" { 2001.0 } else { 15_900_000.0 };
        near(sum, whole);
    }
    // Spans and tags. Having none is a value, too.
    for (fragment, weight) in [
        ("span=0000000000000022", 500.0),
        ("tag%3A%3Cb%3Estatus=200", 1000.0),
        ("span=%28none%29", 501.0),
        ("zoom=0&view=functions&span=0000000000000011", 1000.0),
    ] {
        browser.evaluate(&format!("location.hash = '#mode=cpu&{fragment}'"));
        browser
            .wait_for(&format!("document.querySelector('#total').dataset.weight === '{weight}'"));
    }
    assert!(browser.text("#function-table").contains("parse"));
    // Values that make no sense are ignored, and nothing breaks.
    browser.evaluate(
        "location.hash = '#mode=x&from=zz&to=-1&thread=9&zoom=99999.x&view=y&sort=z&search=(('",
    );
    browser.wait_for("document.querySelector('#matched').textContent.includes('as plain text')");
    near(weight(&mut browser), 12_000_000.0);
    assert_eq!(browser.problems(), [""; 0]);
}

/// Returns a time as the page writes it.
fn time(seconds: &str) -> String {
    match seconds {
        "0.9997" => "1000 ms".to_owned(),
        seconds => format!("{:.3} s", seconds.parse::<f64>().unwrap()),
    }
}

#[test]
fn the_flame_graph_is_searched_zoomed_and_walked_by_keys() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = demo();
    let mut browser = Browser::open(&page_of(&made), "#mode=cpu", LARGE);
    let frames = "traceprof.flame.boxes.map(box => traceprof.flame.nameOf(box) + ' ' + \
        box.frame.total).sort()";
    let drawn = browser.evaluate(frames);
    let expected = [
        &*format!("{HOSTILE} 20"),
        "[truncated] 1",
        "_start 1980",
        "all 2001",
        "main 1980",
        "memcpy 1",
        "parse 990",
        "render 990",
    ];
    assert_eq!(drawn.as_array().unwrap().len(), expected.len(), "{drawn}");
    for name in expected {
        assert!(drawn.as_array().unwrap().iter().any(|it| it == name), "{name}: {drawn}");
    }
    // `/` searches, without the pointer.
    browser.key("/");
    for key in ["m", "e", "m"] {
        browser.key(key);
    }
    browser.wait_for("document.querySelector('#matched').dataset.weight === '1'");
    browser.key("Escape");
    browser.wait_for("document.querySelector('#matched').textContent === ''");
    // A click zooms in; the breadcrumbs lead back.
    let [left, top, width, _] = browser.place("#graph");
    let third_row = (left + width / 4.0, top + 4.0 + 19.0 * 3.5);
    browser.mouse("mouseMoved", third_row);
    let tooltip = browser.text("#tooltip");
    assert!(tooltip.starts_with("parse") && tooltip.contains("990 ms (49.5 %)"), "{tooltip}");
    assert!(tooltip.contains("src/demo.c:20") && tooltip.contains("demo"), "{tooltip}");
    browser.mouse("mousePressed", third_row);
    browser.mouse("mouseReleased", third_row);
    assert!(browser.text("#crumbs").ends_with("parse"));
    assert_eq!(browser.evaluate("location.hash.startsWith('#mode=cpu&zoom=')"), true);
    click(&mut browser, "#crumbs button");
    assert!(!browser.text("#crumbs").contains("parse"));
    // Callees first: functions that ran, and their callers.
    click(&mut browser, "#order-callees");
    let inverted = browser.evaluate(frames).to_string();
    for name in ["parse 990", "main 990", "_start 990", "[truncated] 1"] {
        assert!(inverted.contains(name), "{inverted}");
    }
    assert!(!inverted.contains("main 1980"), "{inverted}");
    click(&mut browser, "#flipped");
    browser.evaluate("document.querySelector('#graph').focus()");
    for key in ["ArrowDown", "ArrowUp", "ArrowUp"] {
        browser.key(key);
    }
    let focused = browser.text("#focused");
    assert!(focused.contains("called") && focused.starts_with("main"), "{focused}");
    browser.key("Enter");
    assert!(browser.text("#crumbs").ends_with("main"), "{}", browser.text("#crumbs"));
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn tables_are_sorted_and_spans_chosen_and_names_stay_text() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = demo();
    let mut browser = Browser::open(&page_of(&made), "#mode=cpu&view=functions", (700, 500));
    let column = "[...document.querySelectorAll('#function-table td.name')].map(it => \
        it.textContent).join('|')";
    assert_eq!(
        browser.evaluate(column),
        format!("parse|render|{HOSTILE}|memcpy|_start|main|[truncated]")
    );
    click(&mut browser, "#function-table th:nth-child(4) button");
    assert_eq!(
        browser.evaluate(column),
        format!("_start|main|parse|render|{HOSTILE}|[truncated]|memcpy")
    );
    assert_eq!(browser.evaluate("document.querySelector('th[aria-sort]').textContent"), "Total");
    click(&mut browser, "#tab-spans");
    assert!(browser.text("#span-kinds").contains("<b>status"));
    click(&mut browser, "#span-kinds button:nth-child(4)");
    let rows = "[...document.querySelectorAll('#span-table tbody tr')].map(it => \
        it.textContent).join('|')";
    assert_eq!(browser.evaluate(rows), "1.000 s50.0 %200|500 ms25.0 %500|501 ms25.0 %(none)");
    click(&mut browser, "#span-table tbody tr:nth-child(2) button");
    near(weight(&mut browser), 500.0);
    // Nothing in the trace became an element, ran, or caused a request.
    assert_eq!(
        browser.evaluate(
            "document.querySelectorAll('img, i:not(.states i, .spot), b:not(#tooltip b)').length"
        ),
        0
    );
    assert_eq!(
        browser.text("#title"),
        "demo</title><script>alert(2)</script>".rsplit('/').next().unwrap()
    );
    assert_eq!(browser.problems(), [""; 0]);
    // If markup still got in, the policy would stop it.
    browser.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=\"http://127.0.0.1:9/x\" \
         onerror=\"window.ran = 1\">')",
    );
    browser.wait_for("document.images[0].complete");
    assert_eq!(browser.evaluate("window.ran === undefined"), true);
    assert!(browser.problems().iter().any(|it| it.contains("Content Security Policy")));
}
