//! The call tree of a page, callers and callees, and the menu of a frame.

use serde_json::json;

use crate::common::{BROWSER, Browser, Maker, Trace, has_command, skip};
use crate::page::demo;
use crate::page_shown::{LARGE, click, near, page_of, weight};

macro_rules! needs_browser {
    () => {
        if !has_command(BROWSER) {
            skip!("chromium, which shows the page");
        }
    };
}

/// Returns the rows of a table of trees: level, self, total, function.
fn rows(browser: &mut Browser, id: &str) -> Vec<String> {
    let rows = browser.evaluate(&format!(
        "[...document.querySelectorAll('#{id} tbody tr')].map(row => [row.ariaLevel,\
         row.cells[0].textContent, row.cells[2].textContent,\
         row.querySelector('.name').title].join(' '))"
    ));
    rows.as_array().unwrap().iter().map(|row| row.as_str().unwrap().to_owned()).collect()
}

/// A function with two callers, one of which it calls again.
fn recursive() -> Trace {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    for ms in 1..=20 {
        let stack = match ms {
            1..=8 => "main visit visit leaf",
            9..=12 => "main visit visit",
            13..=15 => "main other visit leaf",
            16..=18 => "main other visit",
            _ => "main other",
        };
        maker.sample(thread, ms, stack);
    }
    maker.finish()
}

#[test]
fn the_call_tree_is_walked_sorted_and_filtered() {
    needs_browser!();
    let made = recursive();
    let mut browser = Browser::open(&page_of(&made), "", LARGE);
    browser.key("2");
    browser.wait_for("at('tree').hidden === false");
    // At first the heaviest path is open.
    let open = [
        "1 - 20.0 ms main",
        "2 - 12.0 ms visit",
        "3 4.00 ms 12.0 ms visit",
        "4 8.00 ms 8.00 ms leaf",
        "2 2.00 ms 8.00 ms other",
    ];
    assert_eq!(rows(&mut browser, "tree-table"), open);
    browser.evaluate("at('tree-table').focus()");
    // Down to the first `visit`, close it, down to `other`, open all below it.
    for key in ["ArrowDown", "ArrowLeft", "ArrowDown", "*"] {
        browser.key(key);
    }
    let walked = [
        "1 - 20.0 ms main",
        "2 - 12.0 ms visit",
        "2 2.00 ms 8.00 ms other",
        "3 3.00 ms 6.00 ms visit",
        "4 3.00 ms 3.00 ms leaf",
    ];
    assert_eq!(rows(&mut browser, "tree-table"), walked);
    // By self time, `other` is before `visit`.
    click(&mut browser, "#tree-table th:nth-child(1) button");
    let sorted = rows(&mut browser, "tree-table");
    assert_eq!(sorted[1..3], ["2 2.00 ms 8.00 ms other", "3 3.00 ms 6.00 ms visit"]);
    assert_eq!(browser.evaluate("location.hash"), "#view=tree&tree=own");
    // A search leaves the branches with a match.
    browser.evaluate("traceprof.change({ search: 'other' })");
    let found = rows(&mut browser, "tree-table");
    assert!(!found.iter().any(|row| row == "2 - 12.0 ms visit"), "{found:?}");
    assert!(found.iter().any(|row| row == "4 3.00 ms 3.00 ms leaf"), "{found:?}");
    // Enter shows the chosen row in the flame graph.
    browser.evaluate("at('tree-table').focus()");
    browser.key("Enter");
    browser.wait_for("at('crumbs').textContent === 'all›main›other'");
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn a_function_is_shown_with_its_callers_and_callees() {
    needs_browser!();
    let made = recursive();
    let mut browser = Browser::open(&page_of(&made), "#view=functions", LARGE);
    // A click anywhere in a row.
    click(&mut browser, "#function-table tbody tr:nth-child(2) td:nth-child(7)");
    assert_eq!(browser.text("#of"), "visit");
    // Recursive calls count once: 18 ms, of which 7 ms are its own.
    let callers = rows(&mut browser, "callers-table");
    assert_eq!(callers[0], "1 4.00 ms 12.0 ms main", "{callers:?}");
    assert!(callers.contains(&"1 3.00 ms 6.00 ms other".to_owned()), "{callers:?}");
    let callees = rows(&mut browser, "callees-table");
    assert_eq!(callees[0], "1 4.00 ms 12.0 ms visit", "{callees:?}");
    assert!(callees.contains(&"1 3.00 ms 3.00 ms leaf".to_owned()), "{callees:?}");
    // Keys move in the list, and the callers follow.
    browser.evaluate("at('function-table').focus()");
    browser.key("ArrowUp");
    assert_eq!(browser.text("#of"), "leaf");
    assert_eq!(rows(&mut browser, "callers-table")[0], "1 11.0 ms 11.0 ms visit");
    assert!(browser.text("#callees-table").contains("Callees: none"));
    assert_eq!(browser.problems(), [""; 0]);
}

/// Opens the menu of a frame of the flame graph, and presses one of its buttons.
pub(crate) fn choose(browser: &mut Browser, frame: &str, entry: &str) {
    let place = browser.evaluate(&format!(
        "(box => {{ const {{ x, y, width }} = traceprof.flame.place(box);\
         const corner = at('graph').getBoundingClientRect();\
         return [corner.left + x + width / 2, corner.top + y + ROW / 2]; }})\
         (traceprof.flame.boxes.find(box => traceprof.flame.nameOf(box) === '{frame}'))"
    ));
    browser.press((place[0].as_f64().unwrap(), place[1].as_f64().unwrap()), "right", 1);
    let entry = browser.evaluate(&format!(
        "(found => {{ found.id = 'entry'; return found.textContent; }})\
         ([...document.querySelectorAll('#menu button')].find(it => \
         it.textContent.startsWith('{entry}')))"
    ));
    assert!(entry.is_string(), "{entry}");
    click(browser, "#entry");
}

#[test]
fn the_menu_of_a_frame_focuses_hides_and_copies() {
    needs_browser!();
    let made = demo();
    let mut browser = Browser::open(&page_of(&made), "#mode=cpu", LARGE);
    choose(&mut browser, "parse", "Hide");
    near(weight(&mut browser), 2001.0 - 990.0);
    choose(&mut browser, "main", "Focus");
    near(weight(&mut browser), 990.0);
    assert!(browser.text("#chips").contains("focus: main"));
    assert!(browser.text("#chips").contains("hidden: parse"));
    // The address has both, and Escape takes them back one at a time.
    let address = browser.evaluate("location.hash").as_str().unwrap().to_owned();
    browser.evaluate("location.hash = '#mode=cpu'");
    browser.wait_for("document.querySelector('#total').dataset.weight === '2001'");
    browser.evaluate(&format!("location.hash = '{address}'"));
    browser.wait_for("document.querySelector('#total').dataset.weight === '990'");
    browser.key("Escape");
    near(weight(&mut browser), 1980.0);
    browser.key("Escape");
    near(weight(&mut browser), 2001.0);
    let grant = json!({ "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"] });
    browser.call("Browser.grantPermissions", grant);
    choose(&mut browser, "parse", "Copy the stack");
    browser.wait_for("at('said').textContent.startsWith('copied: parse')");
    let copied = "navigator.clipboard.readText()";
    assert_eq!(browser.evaluate(copied), "parse\nmain\n_start");
    choose(&mut browser, "render", "Copy the name");
    browser.wait_for("at('said').textContent === 'copied: render'");
    assert_eq!(browser.evaluate(copied), "render");
    choose(&mut browser, "parse", "Callers");
    assert_eq!(browser.text("#of"), "parse");
    assert_eq!(rows(&mut browser, "callers-table")[0], "1 990 ms 990 ms main");
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn common_roots_are_one_row() {
    needs_browser!();
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    for ms in 1..=10 {
        maker.sample(thread, ms, if ms < 5 { "_start libc main left" } else { "_start libc main" });
    }
    let made = maker.finish();
    let mut browser = Browser::open(&page_of(&made), "", LARGE);
    let frames = "traceprof.graph.drawing.boxes.map(box => traceprof.graph.drawing.nameOf(box))";
    assert_eq!(browser.evaluate(frames), json!(["all › _start › libc", "main", "left"]));
    click(&mut browser, "#roots");
    assert_eq!(browser.evaluate(frames), json!(["all", "_start", "libc", "main", "left"]));
    assert_eq!(browser.evaluate("location.hash"), "#roots=shown");
    click(&mut browser, "#roots");
    // The same over time: below the name of the thread, and with a click on the row.
    click(&mut browser, "#order-time");
    let over_time = ["x, thread 1", "_start › libc", "left", "main"];
    assert_eq!(browser.evaluate(frames), json!(over_time));
    let [left, top, ..] = browser.place("#graph");
    browser.press((left + 100.0, top + 4.0 + 19.0 * 1.5), "left", 1);
    browser.wait_for("traceprof.choice.roots");
    assert_eq!(browser.evaluate("traceprof.chart.boxes.length"), 5);
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn reset_shows_everything_as_it_was_at_first() {
    needs_browser!();
    let made = demo();
    let mut browser = Browser::open(&page_of(&made), "", LARGE);
    let whole = weight(&mut browser);
    let state = "[at('labels').textContent, at('chips').textContent, location.hash,\
                 document.querySelector('[role=tab][aria-selected=true]').id,\
                 traceprof.flame.rows].join('|')";
    let first = browser.evaluate(state);
    click(&mut browser, "#labels .fold");
    browser.evaluate(
        "traceprof.change({ mode: 1, tab: 'tree', order: 'callees', flipped: true, focus: 1,\
         hidden: [2], search: 'x', roots: true, threads: new Set([0]), treeSort: 'name' });\
         traceprof.zoomTo(1e6, 2e6); traceprof.change({ window: { from: 1.2e6, to: 1.5e6 } })",
    );
    assert_ne!(browser.evaluate(state), first);
    click(&mut browser, "#reset");
    assert_eq!(browser.evaluate(state), first);
    near(weight(&mut browser), whole);
    assert_eq!(browser.evaluate("at('search').value"), "");
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn keys_are_listed_and_spans_have_a_tab_where_there_are_spans() {
    needs_browser!();
    let tabs = "[...document.querySelectorAll('#tabs button:not([hidden])')].map(it => \
                it.textContent).join('|')";
    let made = demo();
    let mut browser = Browser::open(&page_of(&made), "", LARGE);
    assert_eq!(browser.evaluate(tabs), "Flame graph|Call tree|Functions|Spans");
    browser.key("?");
    browser.wait_for("at('help').open");
    assert!(browser.evaluate("at('help').innerText").as_str().unwrap().contains("Backspace"));
    browser.key("Escape");
    browser.wait_for("!at('help').open");
    let made = recursive();
    let mut browser = Browser::open(&page_of(&made), "#view=spans", LARGE);
    assert_eq!(browser.evaluate(tabs), "Flame graph|Call tree|Functions");
    assert_eq!(browser.evaluate("at('flame').hidden"), false);
    assert_eq!(browser.problems(), [""; 0]);
}
