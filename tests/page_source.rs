//! Source lines in a page, from a directory that the user names.

use crate::common::{BROWSER, Browser, Maker, Trace, has_command, skip, traceprof};
use crate::page_shown::{LARGE, click};

/// Ten samples in lines of one file: `work` calls itself, and `leaf` is in a file that is missing.
fn with_lines() -> Trace {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    for ms in 1..=10 {
        let stack = match ms {
            1..=6 => "main:10 work:21 work:21 work:22",
            7..=9 => "main:10 work:21 leaf",
            _ => "main:11",
        };
        maker.sample(thread, ms, stack);
    }
    maker.finish()
}

/// Returns the page of a trace with the sources in a directory beside it.
fn page(made: &Trace, options: &[&str]) -> std::path::PathBuf {
    let dir = made.dir().join("source/src");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::create_dir_all(made.dir().join("source/other")).unwrap();
    let lines: Vec<String> =
        (1..=900).map(|line| format!("\tline_{line}(\"</script>\");")).collect();
    std::fs::write(dir.join("demo.c"), lines.join("\n")).unwrap();
    let path = made.dir().join("page.html");
    let mut command = traceprof(&["view", "--output"]);
    command.arg(&path).arg(made.path()).args(options).current_dir(made.dir());
    let output = command.output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

#[test]
fn lines_have_their_weights_where_the_source_is_at_hand() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = with_lines();
    let mut browser = Browser::open(&page(&made, &["--source", "source"]), "", LARGE);
    let tabs = "[...document.querySelectorAll('#tabs button:not([hidden])')].map(it => \
                it.textContent).join('|')";
    assert_eq!(browser.evaluate(tabs), "Flame graph|Call tree|Functions|Source");
    click(&mut browser, "#tab-source");
    let rows = "[...document.querySelectorAll('#source-table tbody tr')].map(row => \
                [...row.cells].map(it => it.textContent).join(' ').trim())\
                .filter(row => /ms/.test(row)).join('|')";
    // Recursion counts once: nine of ten samples are in line 21 or below it.
    let expected = [
        "-  9.00 ms 90.0 %  10 \tline_10(\"</script>\");",
        "1.00 ms 10.0 % 1.00 ms 10.0 %  11 \tline_11(\"</script>\");",
        "-  9.00 ms 90.0 %  21 \tline_21(\"</script>\");",
        "6.00 ms 60.0 % 6.00 ms 60.0 %  22 \tline_22(\"</script>\");",
    ];
    assert_eq!(browser.evaluate(rows), expected.join("|"));
    assert!(browser.text("#source-table").starts_with("work, lines 1 to 500 of 900"));
    let hottest = "#source-table [aria-selected=true] td:nth-child(6)";
    assert_eq!(browser.text(hottest), "21");
    // The function that was chosen elsewhere, and its line.
    browser.evaluate(
        "traceprof.change({ function: traceprof.trace.texts.functions.indexOf('main') })",
    );
    assert_eq!(browser.text(hottest), "10");
    assert_eq!(browser.problems(), [""; 0]);
}

/// Source is often secret, so a page has none unless the user asks.
#[test]
fn a_page_has_no_source_unless_it_is_asked_for() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = with_lines();
    let mut command = traceprof(&["view", "--output", "-", "--source"]);
    let output = command.arg(made.dir().join("none")).arg(made.path()).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    for options in [&[][..], &["--source", "source/other"]] {
        let mut browser = Browser::open(&page(&made, options), "#view=source", LARGE);
        assert_eq!(browser.evaluate("at('tab-source').hidden && !at('flame').hidden"), true);
        assert_eq!(browser.evaluate("Object.keys(traceprof.trace.sources ?? {}).length"), 0);
        assert_eq!(browser.problems(), [""; 0]);
    }
}
