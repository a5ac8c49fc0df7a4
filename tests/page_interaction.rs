//! How a page looks and is operated: colours, keys, print, and several processes.

use serde_json::json;

use crate::common::{BROWSER, Browser, Maker, has_command, skip};
use crate::page::demo;
use crate::page_shown::{LARGE, click, near, page_of, weight};
use crate::process_exports::three;

/// Returns red, green and blue of a style property.
fn color(browser: &mut Browser, name: &str) -> [u64; 3] {
    let seen = browser.evaluate(&format!(
        "(pen => {{ pen.fillStyle = traceprof.colors.states[STATES.indexOf('{name}')];\
         pen.fillRect(0, 0, 1, 1); return [...pen.getImageData(0, 0, 1, 1).data]; }})\
         (document.createElement('canvas').getContext('2d'))"
    ));
    std::array::from_fn(|at| seen[at].as_u64().expect("a part of a colour"))
}

fn set_dark(browser: &mut Browser, is_dark: bool) {
    let value = if is_dark { "dark" } else { "light" };
    let feature = json!({ "name": "prefers-color-scheme", "value": value });
    browser.call("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
    browser.wait_for(&format!("traceprof.colors.isDark === {is_dark}"));
}

/// Running is green, runnable orange, sleeping blue, and waiting for a disk red.
#[test]
fn states_have_the_colours_and_words_that_are_expected_of_them() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = demo();
    let mut browser = Browser::open(&page_of(&made), "", LARGE);
    for is_dark in [false, true] {
        set_dark(&mut browser, is_dark);
        let [red, green, blue] = color(&mut browser, "running");
        assert!(green > red + 50 && green > blue + 30, "{red} {green} {blue}");
        let [red, green, blue] = color(&mut browser, "runnable");
        assert!(red > green + 40 && green > blue + 60, "{red} {green} {blue}");
        let [red, _, blue] = color(&mut browser, "sleeping");
        assert!(blue > red + 40, "{red} {blue}");
        let [red, green, blue] = color(&mut browser, "disk");
        assert!(red > green + 100 && red > blue + 100, "{red} {green} {blue}");
    }
    let legend = browser.text("#states");
    for part in ["running (on a CPU) ", "runnable (waits for a CPU) ", "disk (waits for a device) "]
    {
        assert!(legend.contains(part), "no {part:?} in {legend}");
    }
    assert!(browser.text("#help").contains("States of threads are strong and striped"));
    browser.evaluate("location.hash = '#mode=cpu'");
    browser.wait_for("document.querySelector('#states') === null");
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn escape_goes_one_step_back() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = demo();
    let mut browser = Browser::open(&page_of(&made), "#mode=cpu&from=0.5&to=1.5", LARGE);
    near(weight(&mut browser), 1000.0);
    // With keys alone: into the graph, down, and zoom in.
    browser.evaluate("document.querySelector('#graph').focus()");
    for key in ["ArrowDown", "ArrowDown", "ArrowDown", "Enter"] {
        browser.key(key);
    }
    browser.wait_for("document.querySelector('#crumbs').textContent === 'all›_start›main'");
    browser.key("/");
    for key in ["p", "a", "r"] {
        browser.key(key);
    }
    browser.wait_for("document.querySelector('#matched').textContent !== ''");
    // The first Escape removes the typed text; the selection stays.
    browser.key("Escape");
    browser.wait_for("document.querySelector('#matched').textContent === ''");
    assert_eq!(browser.text("#crumbs"), "all›_start›main");
    near(weight(&mut browser), 1000.0);
    browser.key("Escape");
    browser.wait_for("document.querySelector('#crumbs').textContent === 'all›_start'");
    // On the time line, Escape removes the window.
    browser.evaluate("document.querySelector('#strip').focus()");
    browser.key("Escape");
    browser.wait_for("traceprof.choice.window === null");
    assert_eq!(browser.text("#crumbs"), "all›_start");
    near(weight(&mut browser), 2001.0);
    browser.evaluate("document.querySelector('#strip').blur()");
    browser.key("Escape");
    browser.wait_for("traceprof.choice.zoom.length === 0");
    click(&mut browser, "#labels .pick");
    browser.wait_for("traceprof.choice.threads !== null");
    browser.key("Escape");
    browser.wait_for("traceprof.choice.threads === null");
    assert_eq!(browser.problems(), [""; 0]);
}

/// Only a button resets everything at once.
#[test]
fn escape_takes_one_thing_at_a_time() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = demo();
    let mut browser = Browser::open(&page_of(&made), "#mode=cpu&from=0.5&to=1.5", LARGE);
    browser.evaluate(
        "traceprof.change({ threads: new Set([0]), context: { kind: 'span', value: NONE },\
         zoom: [traceprof.flame.boxes[1].frame.name] })",
    );
    let chosen = "['zoom', 'window', 'context', 'threads', 'search'].filter(name => {\
        const it = traceprof.choice[name];\
        return Array.isArray(it) ? it.length : it; }).join(' ')";
    assert_eq!(browser.evaluate(chosen), "zoom window context threads");
    // There is no search, so Escape leaves the field.
    browser.key("/");
    assert_eq!(browser.evaluate("document.activeElement.id"), "search");
    browser.key("Escape");
    assert_eq!(browser.evaluate("document.activeElement.id"), "");
    assert_eq!(browser.evaluate(chosen), "zoom window context threads");
    browser.evaluate("traceprof.change({ search: 'main' })");
    for left in [
        "window context threads search",
        "context threads search",
        "threads search",
        "search",
        "",
        "",
    ] {
        browser.key("Escape");
        assert_eq!(browser.evaluate(chosen), left);
    }
    assert_eq!(browser.evaluate("traceprof.choice.write()"), "mode=cpu");
    assert_eq!(browser.problems(), [""; 0]);
}

/// A laptop shows enough of the graph, however many threads there are, and a large screen more of
/// both.
#[test]
fn a_laptop_shows_25_rows_of_the_graph() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let mut maker = Maker::new();
    for number in 1..=60u32 {
        let thread = maker.thread(200 + number, &format!("w{number}x"));
        maker.sample(thread, u64::from(number), "main");
    }
    let made = maker.finish();
    let page = page_of(&made);
    let rows = "Math.floor((at('scroll').clientHeight - 8) / ROW)";
    let lanes = "at('lanes').clientHeight / LANE";
    for (size, lanes_min) in [((1366, 768), 5.0), ((1920, 1080), 16.0)] {
        let mut browser = Browser::open(&page, "", size);
        let (rows, lanes) = (browser.evaluate(rows), browser.evaluate(lanes));
        assert!(rows.as_u64().unwrap() >= 25, "{rows} rows");
        assert!(lanes.as_f64().unwrap() >= lanes_min, "{lanes} lanes");
        // Folded, all threads have one row, and the graph the others.
        browser.key("t");
        browser.wait_for("traceprof.timeline.lanes.length === 1");
        assert_eq!(browser.text("#labels"), "60 threads");
        browser.wait_for("at('scroll').clientHeight > 28 * ROW");
        assert_eq!(browser.problems(), [""; 0]);
    }
}

/// All rows, dark on white, whatever the colours of the screen and the rows that it shows.
#[test]
fn a_page_is_printed_completely_and_in_the_colours_of_paper() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = demo();
    let mut browser = Browser::open(&page_of(&made), "#mode=cpu", (1000, 400));
    set_dark(&mut browser, true);
    browser.evaluate(
        "addEventListener('beforeprint', () => { window.printed = [\
            document.querySelector('#graph').height, traceprof.flame.rows * ROW,\
            traceprof.colors.isDark, traceprof.colors.back,\
        ]; })",
    );
    let height = "document.querySelector('#graph').height";
    let shown = browser.evaluate(height);
    let pdf = browser.call("Page.printToPDF", json!({}));
    assert!(pdf["data"].as_str().is_some_and(|data| data.len() > 1000));
    let printed = browser.evaluate("window.printed");
    let rows = printed[1].as_u64().unwrap();
    assert!(rows > 0 && printed[0].as_u64().unwrap() >= rows, "{printed}");
    assert_eq!((&printed[2], &printed[3]), (&json!(false), &json!("#ffffff")));
    // Afterwards the page is as before.
    browser.wait_for("traceprof.colors.isDark");
    assert_eq!(browser.evaluate(height), shown);
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn stacks_of_several_processes_begin_with_the_process_or_its_program() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = three();
    let mut browser = Browser::open(&page_of(&made), "#mode=cpu&idle=shown", LARGE);
    let frames = "traceprof.flame.boxes.filter(box => box.depth === 1).map(box => \
                  traceprof.flame.nameOf(box)).sort()";
    let sum = "traceprof.flame.boxes.filter(box => box.depth === 1).reduce((sum, box) => sum + \
               box.frame.total, 0)";
    let lanes = "traceprof.timeline.lanes.length";
    let rows = browser.evaluate(lanes);
    let all = weight(&mut browser);
    // Processes of one program are one tree. Each has its rows in the time line.
    assert_eq!(browser.evaluate(frames), json!(["a-long-named-se/300", "front ×2"]));
    near(browser.evaluate(sum).as_f64().unwrap(), all);
    click(&mut browser, "#apart");
    assert_eq!(browser.evaluate(frames), json!(["a-long-named-se/300", "front/100", "front/200"]));
    near(browser.evaluate(sum).as_f64().unwrap(), all);
    assert_eq!(browser.evaluate(lanes), rows);
    assert_eq!(browser.evaluate("location.hash.includes('processes=apart')"), true);
    assert_eq!(browser.problems(), [""; 0]);
}
