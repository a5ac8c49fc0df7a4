//! The assembly of functions in a page.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use traceprof::trace::{Location, LocationId, Method, Module, Sample};
use traceprof_elf::{Definitions, Elf};

use crate::common::maker::BEGIN_NS;
use crate::common::{
    BROWSER, Browser, Maker, Page, Trace, has_command, needs_recording, program, record_command,
    skip, traceprof,
};
use crate::page_shown::{LARGE, click};
use crate::page_time::MILLION;
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

/// The locations of the program in a trace: the call in `main`, the hot instruction, and the first
/// one of its function.
fn located(maker: &mut Maker, known: &Known) -> [LocationId; 3] {
    let path = known.path.to_str().unwrap().to_owned();
    let module = Module { path, build_id: known.build_id.clone() };
    let module = Some(maker.writer.module(&module).unwrap());
    let mut location = |name: &str, start_svma: u64, svma: u64| {
        let method = Method { module, start_svma, ..Method::named(name) };
        let method = maker.writer.method(&method).unwrap();
        let (file, line) = (Some("/src/one.c".to_owned()), 8);
        maker.writer.location(&Location { file, line, ..Location::at(method, svma) }).unwrap()
    };
    [
        location("main", known.main.start, known.call),
        location("turn_around", known.hot.start, known.at),
        location("turn_around", known.hot.start, known.hot.start),
    ]
}

/// Makes a trace with one sample per millisecond.
fn made_of<'a>(mut maker: Maker, stacks: impl IntoIterator<Item = &'a [LocationId]>) -> Trace {
    let thread = maker.thread(1, "x");
    for (ms, stack) in (1..).zip(stacks) {
        let time_ns = BEGIN_NS + ms * 1_000_000;
        let sample = Sample { time_ns, trace_id: ms, ..Sample::default() };
        maker.writer.sample(thread, &sample, stack).unwrap();
    }
    maker.finish()
}

/// Ten samples: six in the hot instruction, one before it, and three in code that is not at hand.
fn made_of_known() -> (Trace, Known) {
    let mut maker = Maker::new();
    let known = Known::new(maker.trace().dir());
    let [main, hot, entry] = located(&mut maker, &known);
    let [kernel, python, work] =
        ["enter~kernel", "step:12~python", "work"].map(|place| maker.location(place));
    let mut stacks = vec![vec![main, hot]; 6];
    // Recursion counts once.
    stacks.push(vec![main, main, entry]);
    stacks.extend([kernel, python, work].map(|it| vec![main, it]));
    (made_of(maker, stacks.iter().map(Vec::as_slice)), known)
}

#[test]
fn instructions_have_their_weights_or_the_page_says_why_not() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let (made, _) = made_of_known();
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

fn shown(made: &Trace, options: &[&str]) -> (usize, String) {
    let (path, said) = page(made, options);
    let head = Page::parse(&fs::read_to_string(path).unwrap()).head;
    (head["assembly"]["listings"].as_array().map_or(0, Vec::len), said)
}

/// Gives the file another build id.
fn rebuild(known: &Known) {
    let mut bytes = fs::read(&known.path).unwrap();
    let id = bytes.windows(20).position(|it| it == known.build_id).expect("its build id");
    bytes[id] ^= 1;
    fs::write(&known.path, bytes).unwrap();
}

#[test]
fn code_is_only_shown_of_the_recorded_file() {
    let (made, known) = made_of_known();
    assert_eq!(shown(&made, &[]), (0, String::new()));
    let gone = "the code of /usr/bin/demo (10 % of cpu time) is not shown: it is not on this \
                system\n";
    let (listings, said) = shown(&made, &["--assembly"]);
    assert_eq!(listings, 2);
    assert!(said.ends_with(gone) && said.lines().count() == 1, "{said}");
    rebuild(&known);
    let (listings, said) = shown(&made, &["--assembly"]);
    assert_eq!(listings, 0);
    let other = format!(
        "the code of {} (70 % of cpu time) is not shown: it is another file now: its build id is ",
        known.path.display()
    );
    let lines: Vec<_> = said.lines().collect();
    assert!(lines[0].contains(&other) && said.ends_with(gone) && lines.len() == 2, "{said}");
}

#[test]
fn code_that_is_in_no_file_or_in_one_without_a_build_id_is_named() {
    let mut maker = Maker::new();
    let mut location = |path: &str| {
        let module = Module { path: path.to_owned(), build_id: Vec::new() };
        let module = Some(maker.writer.module(&module).unwrap());
        let method = maker.writer.method(&Method { module, ..Method::named(path) }).unwrap();
        maker.writer.location(&Location::at(method, 4)).unwrap()
    };
    let places = ["[vdso]", "/usr/bin/true", "/nowhere/a", "/nowhere/b"].map(&mut location);
    let counts = [40, 30, 20, 6];
    let stacks = places.iter().zip(counts).flat_map(|(it, count)| vec![vec![*it]; count]);
    let mut stacks: Vec<_> = stacks.collect();
    stacks.extend(vec![vec![location("/nowhere/little")]; 4]);
    let made = made_of(maker, stacks.iter().map(Vec::as_slice));
    let said = shown(&made, &["--assembly"]).1;
    let expected = [
        "the code of [vdso] (40 % of cpu time) is not shown: it is in no file",
        "the code of /usr/bin/true (30 % of cpu time) is not shown: it has no build id, so nothing \
         tells whether it is the recorded file; link it with -Wl,--build-id and record again",
        "the code of /nowhere/a (20 % of cpu time) is not shown: it is not on this system",
    ];
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(lines.iter().zip(expected).all(|(line, end)| line.ends_with(end)), "{said}");
    // Without code of any file, the heaviest function is named.
    let mut maker = Maker::new();
    let step = maker.location("step:12~python");
    let made = made_of(maker, [&[step][..]]);
    let said = shown(&made, &["--assembly"]).1;
    let none = "the page has no assembly, not even of its heaviest function, step: a runtime runs";
    assert!(said.contains(none), "{said}");
}

/// Otherwise the page would show the little that it has, and say nothing of the rest.
#[test]
fn the_heaviest_native_function_comes_first_even_without_its_code() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let mut maker = Maker::new();
    let known = Known::new(maker.trace().dir());
    let [main, hot, _] = located(&mut maker, &known);
    let [work, python] = ["work", "step:12~python"].map(|place| maker.location(place));
    let stacks = [[main, hot], [main, work], [main, work], [main, python], [main, python]];
    let made = made_of(maker, stacks.iter().chain(&stacks[3..]).map(|it| &it[..]));
    let mut browser = Browser::open(&page(&made, &["--assembly"]).0, "", LARGE);
    click(&mut browser, "#tab-assembly");
    let none = "work has no assembly here: /usr/bin/demo is not on this system.";
    assert_eq!(browser.text("#assembly-table"), none);
    // The tab is there as well if there is no listing at all.
    rebuild(&known);
    let mut browser = Browser::open(&page(&made, &["--assembly"]).0, "", LARGE);
    click(&mut browser, "#tab-assembly");
    assert_eq!(browser.text("#assembly-table"), none);
    assert_eq!(browser.problems(), [""; 0]);
}

#[test]
fn functions_without_samples_have_their_names_from_the_debug_file() {
    let mut maker = Maker::new();
    let known = Known::new(maker.trace().dir());
    let dir = maker.trace().dir().to_owned();
    let run = |program: &str, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).current_dir(&dir).status();
        assert!(status.expect("binutils").success(), "{program} {arguments:?}");
    };
    run("objcopy", &["--only-keep-debug", "known", "known.debug"]);
    run("strip", &["known"]);
    run("objcopy", &["--add-gnu-debuglink=known.debug", "known"]);
    // The trace has the name of `main` alone.
    let path = known.path.to_str().unwrap().to_owned();
    let module = maker.writer.module(&Module { path, build_id: known.build_id }).unwrap();
    let start_svma = known.main.start;
    let main = Method { module: Some(module), start_svma, ..Method::named("main") };
    let main = maker.writer.method(&main).unwrap();
    let main = maker.writer.location(&Location::at(main, known.call)).unwrap();
    let made = made_of(maker, [&[main][..]]);
    let (path, said) = page(&made, &["--assembly"]);
    let head = Page::parse(&fs::read_to_string(path).unwrap()).head;
    let texts = head["assembly"]["listings"][0]["texts"].as_array().expect(&said);
    assert!(texts.iter().any(|it| it == "call turn_around"), "{texts:?}");
}

/// Without a bound, each entry would open a file and read its symbols.
#[test]
fn few_files_are_opened_however_many_a_trace_names() {
    let mut maker = Maker::new();
    let stacks = (0..1000).map(|number| {
        let path = format!("/nowhere/{number}");
        let module = Module { path, build_id: Vec::new() };
        let module = Some(maker.writer.module(&module).unwrap());
        let method = maker.writer.method(&Method { module, ..Method::named("work") }).unwrap();
        [maker.writer.location(&Location::at(method, 4)).unwrap()]
    });
    let stacks: Vec<_> = stacks.collect();
    let made = made_of(maker, stacks.iter().map(|it| &it[..]));
    let (path, said) = page(&made, &["--assembly"]);
    let head = Page::parse(&fs::read_to_string(path).unwrap()).head;
    let whys = head["assembly"]["whys"].as_array().unwrap();
    assert_eq!(whys.len(), 201);
    assert!(whys[200].as_str().unwrap().contains("200 files with the most time"), "{said}");
}

/// Deep stacks and a million samples.
#[test]
fn the_tab_of_a_large_page_opens_at_once() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let mut maker = Maker::new();
    let known = Known::new(maker.trace().dir());
    let [main, hot, _] = located(&mut maker, &known);
    let deep: Vec<_> = (0..50).map(|number| maker.location(&format!("f{number}"))).collect();
    let stacks = (0..2000).map(|number: usize| {
        let parts = (0..11).flat_map(|bit| [deep[bit * 4 + (number >> bit & 1)]; 10]);
        [main].into_iter().chain(parts).chain([main, hot]).collect::<Vec<_>>()
    });
    let stacks: Vec<_> = stacks.collect();
    let made = made_of(maker, stacks.iter().map(Vec::as_slice));
    let mut browser = Browser::open(&page(&made, &["--assembly"]).0, "", LARGE);
    browser.evaluate(MILLION);
    browser.wait_for("!traceprof.slices.isBusy && traceprof.sum.samples === 1_000_000");
    click(&mut browser, "#tab-assembly");
    browser.wait_for("!traceprof.slices.isBusy && at('assembly-table').offsetHeight > 0");
    let opening = "(() => {
        delete traceprof.sum.callTotal;
        const begin = performance.now();
        showAssembly(traceprof);
        return at('assembly-table').offsetHeight && performance.now() - begin;
    })()";
    let ms = browser.evaluate(opening).as_f64().unwrap();
    eprintln!("the tab of a million samples: {ms:.1} ms");
    assert!(0.0 < ms && ms < 250.0, "{ms}");
    // A call is not compared with each of its callers.
    let weighing = "(() => {
        const depth = 3000, leaves = 300_000, count = 1 + depth + leaves;
        const caller = Uint32Array.from({ length: count }, (_, at) =>
          at === 0 ? 0 : Math.min(at - 1, depth));
        const frame = caller.map((_, at) => at > depth ? 1 : 0);
        const frames = { listing: [0, 1], row: [0, 3] };
        const tree = { of: new Uint32Array(count), name: [7] };
        const sum = { own: new Float64Array(count).fill(1) };
        const begin = performance.now();
        rowWeights({ trace: { calls: { caller, frame }, frames }, tree, sum }, 1, 7);
        return performance.now() - begin;
    })()";
    let ms = browser.evaluate(weighing).as_f64().unwrap();
    eprintln!("300,000 calls below a deep stack: {ms:.1} ms");
    assert!(ms < 500.0, "{ms}");
    assert_eq!(browser.problems(), [""; 0]);
}
