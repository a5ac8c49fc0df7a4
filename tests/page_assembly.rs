//! The assembly of functions in a page.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use traceprof::trace::{Location, LocationId, Method, Module, Sample};
use traceprof_elf::{Definitions, Elf};

use crate::common::maker::BEGIN_NS;
use crate::common::{
    BROWSER, Browser, Maker, Page, Trace, has_command, needs_recording, program, record_command,
    skip, traceprof,
};
use crate::page_shown::{LARGE, click};
use crate::page_trees::choose;

/// The bytes of the instruction that jumps to itself.
const LOOP: [u8; 2] = [0xe2, 0xfe];
/// The first byte of a call.
const CALL: u8 = 0xe8;

/// Writes the page of a trace with assembly, and returns what the command said.
fn page(made: &Trace, options: &[&str]) -> (PathBuf, String) {
    let path = made.dir().join("page.html");
    let mut command = traceprof(&["view", "--output"]);
    let output = command.arg(&path).arg(made.path()).args(options).output().expect("traceprof");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (path, said)
}

#[test]
fn the_hot_instruction_of_a_recording_has_its_weight() {
    needs_recording!();
    let recorded = record_command(&["--freq", "997"], "one_instruction", &["400"]).expect_code(0);
    let (path, said) = page(&recorded.trace, &["--assembly", "--mode", "cpu"]);
    let page = Page::parse(&fs::read_to_string(path).unwrap());
    let listings = page.head["assembly"]["listings"].as_array().expect(&said);
    let hot = listings.iter().position(|it| it["name"] == "turn_around").expect("a listing");
    let column = |name: &str| &page.columns[name];
    let (mut weights, mut all) = (HashMap::new(), 0u64);
    for (call, weight) in column("cpu.call").iter().zip(column("cpu.weight")) {
        let frame = column("call.frame")[*call as usize] as usize;
        let row = (column("frame.listing")[frame], column("frame.row")[frame]);
        *weights.entry(row).or_insert(0u64) += weight;
        all += weight;
    }
    let (row, weight) = weights.iter().max_by_key(|(_, weight)| **weight).unwrap();
    assert_eq!(row.0, hot as u64 + 1);
    let (listing, row) = (&listings[hot], row.1 as usize - 1);
    let text = listing["texts"][row].as_str().unwrap();
    assert!(text.starts_with("loop "), "{text}: {listing}");
    // It jumps to itself, and its line is that of the source.
    let row_text = row.to_string();
    assert_eq!(listing["jumps"][&row_text], listing["offsets"][row]);
    let line = &listing["lines"][&row_text];
    let file = page.head["assembly"]["files"][line[0].as_u64().unwrap() as usize].as_str();
    assert!(file.unwrap().ends_with("one_instruction.c") && line[1] == 8, "{file:?} {line}");
    assert!(all > 200 && *weight * 100 > all * 80, "{weight} of {all}");
}

/// A program on this system, whose function calls another one.
struct Known {
    path: PathBuf,
    build_id: Vec<u8>,
    main: Range<u64>,
    hot: Range<u64>,
    /// The last byte of the call.
    call: u64,
    /// The hot instruction.
    at: u64,
}

impl Known {
    fn new(dir: &Path) -> Self {
        let path = dir.join("known");
        fs::copy(program("one_instruction"), &path).unwrap();
        let bytes = fs::read(&path).unwrap();
        let elf = Elf::parse(&bytes).unwrap();
        let range = |name| Definitions::of(&elf).functions_named(name).remove(0);
        let (main, hot) = (range("main"), range("turn_around"));
        let find = |range: &Range<u64>, is_it: &dyn Fn(u64, &[u8]) -> bool| {
            let code = elf.data(range.start).unwrap();
            let found = (range.start..range.end).zip(code.windows(5)).find(|it| is_it(it.0, it.1));
            found.expect("the instruction").0
        };
        let at = find(&hot, &|_, code| code.starts_with(&LOOP));
        let call = find(&main, &|svma, code| {
            let distance = i32::from_le_bytes(code[1..].try_into().unwrap());
            code[0] == CALL && (svma + 5).checked_add_signed(distance.into()) == Some(hot.start)
        });
        let build_id = elf.build_id().expect("a build id").to_vec();
        Self { path, build_id, main, hot, call: call + 4, at }
    }
}

/// Ten samples: six in the hot instruction, one before it, and three in code that is not at hand.
fn made_of_known(known: impl FnOnce(&Path) -> Known) -> (Trace, Known) {
    let mut maker = Maker::new();
    let known = known(maker.trace().dir());
    let module =
        Module { path: known.path.to_str().unwrap().to_owned(), build_id: known.build_id.clone() };
    let module = Some(maker.writer.module(&module).unwrap());
    let mut location = |name: &str, start_svma: u64, svma: u64| -> LocationId {
        let method = Method { module, start_svma, ..Method::named(name) };
        let method = maker.writer.method(&method).unwrap();
        let (file, line) = (Some("/src/one.c".to_owned()), 8);
        maker.writer.location(&Location { file, line, ..Location::at(method, svma) }).unwrap()
    };
    let main = location("main", known.main.start, known.call);
    let hot = location("turn_around", known.hot.start, known.at);
    let entry = location("turn_around", known.hot.start, known.hot.start);
    let thread = maker.thread(1, "x");
    for ms in 1..=10 {
        let time_ns = BEGIN_NS + ms * 1_000_000;
        let stack = match ms {
            1..=6 => vec![main, hot],
            7 => vec![main, entry],
            8 => vec![main, maker.location("enter~kernel")],
            9 => vec![main, maker.location("step:12~python")],
            _ => vec![main, maker.location("work")],
        };
        let sample = Sample { time_ns, trace_id: ms, ..Sample::default() };
        maker.writer.sample(thread, &sample, &stack).unwrap();
    }
    (maker.finish(), known)
}

#[test]
fn instructions_have_their_weights_or_the_page_says_why_not() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let (made, _) = made_of_known(Known::new);
    let mut browser = Browser::open(&page(&made, &["--assembly"]).0, "", LARGE);
    let tabs = "[...document.querySelectorAll('#tabs button:not([hidden])')].map(it => \
                it.textContent).join('|')";
    assert_eq!(browser.evaluate(tabs), "Flame graph|Call tree|Functions|Assembly");
    click(&mut browser, "#tab-assembly");
    let selected = "[...document.querySelector('#assembly-table [aria-selected=true]').cells]\
                    .map(it => it.textContent).join(' ')";
    let row = browser.evaluate(selected).as_str().unwrap().to_owned();
    assert!(row.starts_with("6.00 ms 60.0 % 6.00 ms 60.0 % "), "{row}");
    // The line is that of the instruction before.
    assert!(row.contains("  loop ") && row.ends_with('↑'), "{row}");
    assert!(browser.text("#assembly-table").contains("one.c:8"));
    assert!(browser.text("#assembly-table caption").contains("7.00 ms in its"));
    // A caller has the weight at its call, which has the name of what it calls.
    let choose_function = |name: &str| {
        format!(
            "traceprof.change({{ function: traceprof.trace.texts.functions.indexOf('{name}') }})"
        )
    };
    browser.evaluate(&choose_function("main"));
    let row = browser.evaluate(selected).as_str().unwrap().to_owned();
    assert!(row.starts_with("  10.0 ms 100.0 % "), "{row}");
    assert!(row.ends_with("call turn_around"), "{row}");
    for (name, why) in [
        ("work", "/usr/bin/demo is not on this system"),
        ("enter", "the code of the kernel"),
        ("step", "a runtime runs it"),
    ] {
        browser.evaluate(&choose_function(name));
        let text = browser.text("#assembly-table");
        assert!(text.starts_with(&format!("{name} has no assembly here: ")), "{text}");
        assert!(text.contains(why), "{text}");
    }
    // A part of the time has its own weights.
    browser.evaluate("traceprof.change({ function: null, window: { from: 500, to: 3500 } })");
    let row = browser.evaluate(selected).as_str().unwrap().to_owned();
    assert!(row.starts_with("3.00 ms 100.0 % "), "{row}");
    // The menu of a frame leads there.
    browser.evaluate("traceprof.reset()");
    choose(&mut browser, "main", "Assembly");
    assert!(browser.text("#assembly-table caption").starts_with("main, /"));
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn code_is_only_shown_of_the_recorded_file() {
    let (made, known) = made_of_known(Known::new);
    let shown = |options: &[&str]| {
        let (path, said) = page(&made, options);
        let head = Page::parse(&fs::read_to_string(path).unwrap()).head;
        (head["assembly"]["listings"].as_array().map_or(0, Vec::len), said)
    };
    assert_eq!(shown(&[]), (0, String::new()));
    assert_eq!(shown(&["--assembly"]), (2, String::new()));
    let mut bytes = fs::read(&known.path).unwrap();
    let id = bytes.windows(20).position(|it| it == known.build_id).expect("its build id");
    bytes[id] ^= 1;
    fs::write(&known.path, bytes).unwrap();
    let (listings, said) = shown(&["--assembly"]);
    assert_eq!(listings, 0);
    assert!(said.contains("the page has no assembly: ") && said.contains("another file"), "{said}");
}
