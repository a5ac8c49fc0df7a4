//! The contents of a page for a browser, compared with its trace.

use std::collections::BTreeMap;

use traceprof::trace::{LazyTrace, Sample, TagKey, TagKind, Value};
use traceprof::view::html::{self, PageOptions};
use traceprof::view::{Mode, Selection, load};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Page, PageSample, Trace, maker, traceprof};

use maker::{BEGIN_NS, GAP};

/// A name that would be markup if it were not escaped.
pub(crate) const HOSTILE: &str = "</script><img/src=x/onerror=alert(1)>";
const ROOT_SPAN: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;

/// Four seconds of both kinds of time: a thread that works for two requests, a pool of three that
/// sleeps and runs in turns, a thread that only waits for work, and names that look like markup.
pub(crate) fn demo() -> Trace {
    let mut maker = Maker::new();
    let writer = &mut maker.writer;
    let command = ["/usr/bin/demo</title><script>alert(2)</script>", "--all"];
    let command = command.map(|word| Value::Text(word.to_owned()));
    writer.set_metadata("command_line", Value::List(command.into())).unwrap();
    writer.set_metadata("mode", Value::Text("cpu,wall".to_owned())).unwrap();
    writer.set_metadata("end_monotonic_ns", Value::Unsigned(BEGIN_NS + 4_000_000_000)).unwrap();
    let key = |name: &str, kind| TagKey { name: name.to_owned(), kind };
    let keys = [key("route", TagKind::Text), key("<b>status", TagKind::Number)];
    let (name, value) = TagKey::metadata(&keys);
    writer.set_metadata(name, value).unwrap();
    let route = writer.text("/cart<script>").unwrap().0 + 1;
    let main = maker.thread(100, "main<i>");
    for ms in 1..=2000 {
        let first = ms <= 1000;
        let stack = if first { "_start main:10 parse:20" } else { "_start main:11 render" };
        let stack = if ms % 100 == 0 { HOSTILE } else { stack };
        let mut sample = Sample { time_ns: BEGIN_NS + ms * 1_000_000, ..Sample::default() };
        if ms <= 1500 {
            sample.span = if first { 0x11 } else { 0x22 };
            (sample.root_span, sample.root_high) = (ROOT_SPAN as u64, (ROOT_SPAN >> 64) as u64);
            sample.tags[0] = route;
            sample.tags[1] = if first { 200 } else { 500 };
        }
        maker.full_sample(main, &sample, stack);
    }
    for tid in 101..=103 {
        let worker = maker.thread(tid, &format!("worker-{}", tid - 100));
        for turn in 1..=400u64 {
            let state = [0, 2, 2, 1, 3][turn as usize % 5];
            let syscall = (state > 1).then_some(if state == 2 { 202 } else { 0 });
            let time_ns = BEGIN_NS + turn * 10_000_000;
            let sample = Sample {
                flags: WALL,
                weight: 10_000,
                time_ns,
                state,
                syscall,
                ..Sample::default()
            };
            maker.full_sample(worker, &sample, "start_thread work:7 step");
        }
    }
    maker.sample_ending(main, 2500, "memcpy@libc", GAP);
    let idle = maker.thread(104, "idle");
    let sample = Sample {
        flags: WALL,
        weight: 3_900_000,
        state: 2,
        syscall: Some(232),
        ..Sample::default()
    };
    let sample = Sample { time_ns: BEGIN_NS + 3_950_000_000, ..sample };
    maker.full_sample(idle, &sample, "start_thread epoll_wait@libc");
    maker.finish()
}

/// Returns the text of the trace's page.
fn written(made: &Trace, options: &[&str]) -> String {
    let mut command = traceprof(&["view", "--output", "-"]);
    let output = command.arg(made.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the selected samples of the trace, in the form of a page.
fn expected(
    made: &Trace,
    is_wall: bool,
    is_meant: impl Fn(&Sample) -> bool,
) -> Vec<(u64, u64, String)> {
    let trace = traceprof::trace::load(&made.path()).unwrap();
    let mut samples = Vec::new();
    for thread in &trace.threads {
        thread.for_each_sample(&mut |sample, _| {
            if (sample.flags & WALL != 0) == is_wall && is_meant(sample) {
                let us = (sample.time_ns - BEGIN_NS) / 1000;
                samples.push((us, sample.weight.into(), thread.thread().name.clone()));
            }
        });
    }
    samples.sort();
    samples
}

fn found(page: &Page, mode: &str) -> Vec<(u64, u64, String)> {
    let name = |sample: &PageSample| {
        page.head["threads"][sample.thread]["name"].as_str().unwrap().to_owned()
    };
    let mut samples: Vec<_> =
        page.samples(mode).iter().map(|it| (it.time_us, it.weight, name(it))).collect();
    samples.sort();
    samples
}

#[test]
fn it_has_every_sample_with_its_time_weight_and_thread() {
    let made = demo();
    let page = Page::parse(&written(&made, &[]));
    assert_eq!(found(&page, "wall"), expected(&made, true, |_| true));
    assert_eq!(found(&page, "cpu"), expected(&made, false, |_| true));
    for (mode, weight) in [("wall", 3 * 4_000_000 + 3_900_000), ("cpu", 2001)] {
        assert_eq!(page.weight(mode), weight, "{mode}");
        assert_eq!(page.mode(mode).unwrap()["weight"], weight, "{mode}");
    }
    assert_eq!((&page.head["fromUs"], &page.head["toUs"]), (&0.into(), &4_000_000.into()));
    let threads = page.head["threads"].as_array().unwrap();
    let idle: Vec<_> =
        threads.iter().filter(|it| it["idle"] == true).map(|it| &it["name"]).collect();
    assert_eq!(idle, ["idle"]);
}

#[test]
fn it_has_the_stacks_with_their_locations_and_states() {
    let page = Page::parse(&written(&demo(), &[]));
    let mut stacks: BTreeMap<String, u64> = BTreeMap::new();
    for sample in page.samples("wall").iter().chain(&page.samples("cpu")) {
        *stacks.entry(sample.stack.join(";")).or_default() += sample.weight;
    }
    let expected = [
        ("_start;main;parse", 990),
        ("_start;main;render", 990),
        ("[truncated];memcpy", 1),
        (HOSTILE, 20),
        ("start_thread;epoll_wait;[sleeping in epoll_wait]", 3_900_000),
        ("start_thread;work;step", 2_400_000),
        ("start_thread;work;step;[disk in read]", 2_400_000),
        ("start_thread;work;step;[runnable]", 2_400_000),
        ("start_thread;work;step;[sleeping in futex]", 4_800_000),
    ];
    let expected: BTreeMap<String, u64> =
        expected.into_iter().map(|(stack, weight)| (stack.to_owned(), weight)).collect();
    assert_eq!(stacks, expected);
    let texts = &page.head["texts"];
    let kinds: BTreeMap<&str, u64> = (0..)
        .zip(&page.columns["function.kind"])
        .map(|(at, kind): (usize, _)| (texts["functions"][at].as_str().unwrap(), *kind))
        .collect();
    for (name, kind) in [
        ("main", 0),
        ("[truncated]", 1),
        ("[runnable]", 3),
        ("[sleeping in futex]", 4),
        ("[disk in read]", 5),
    ] {
        assert_eq!(kinds[name], kind, "{name}");
    }
    let lines: Vec<u64> =
        page.columns["frame.line"].iter().copied().filter(|line| *line > 0).collect();
    assert_eq!(lines, [7, 10, 20, 11]);
    assert_eq!(texts["files"], serde_json::json!(["src/demo.c"]));
}

#[test]
fn it_has_what_threads_worked_on() {
    let page = Page::parse(&written(&demo(), &["--mode", "cpu"]));
    assert!(page.mode("wall").is_none());
    let mut weights: BTreeMap<u64, u64> = BTreeMap::new();
    for sample in page.samples("cpu") {
        *weights.entry(sample.context).or_default() += sample.weight;
    }
    assert_eq!(weights, [(0, 501), (1, 1000), (2, 500)].into());
    let contexts = page.head["contexts"].as_array().unwrap();
    assert_eq!(contexts.len(), 3, "one context for all others");
    assert_eq!(contexts[0]["span"], "0000000000000011");
    assert_eq!(contexts[1]["root"], format!("{ROOT_SPAN:032x}"));
    let tags = serde_json::json!([["route", "/cart<script>"], ["<b>status", "500"]]);
    assert_eq!(contexts[1]["tags"], tags);
}

#[test]
fn selections_apply_to_both_kinds_of_time() {
    let made = demo();
    let page = Page::parse(&written(&made, &["--from", "1s", "--to", "2s"]));
    let is_in = |it: &Sample| (1_000_000_000..=2_000_000_000).contains(&(it.time_ns - BEGIN_NS));
    assert_eq!(found(&page, "wall"), expected(&made, true, is_in));
    assert_eq!(found(&page, "cpu"), expected(&made, false, is_in));
    assert_eq!((&page.head["fromUs"], &page.head["toUs"]), (&1_000_000.into(), &2_000_000.into()));
    let page = Page::parse(&written(&made, &["--span", "22"]));
    assert!(page.mode("wall").is_none(), "the thread has no sample in that span");
    assert_eq!(page.weight("cpu"), 500);
    let page = Page::parse(&written(&made, &["--state", "disk"]));
    assert!(page.mode("cpu").is_none());
    assert_eq!(page.weight("wall"), 2_400_000);
    assert_eq!(Page::parse(&written(&made, &["--no-idle"])).weight("wall"), 12_000_000);
    let page = Page::parse(&written(&made, &["--thread", "idle", "--mode", "cpu"]));
    assert_eq!((page.weight("cpu"), page.head["threads"].as_array().unwrap().len()), (0, 0));
}

/// Returns the page of both kinds of time.
fn page_with(made: &Trace, options: PageOptions<'_>) -> Page {
    let trace = LazyTrace::open(&made.path()).unwrap();
    let sides = [Mode::Wall, Mode::Cpu].map(|mode| {
        let selection = Selection { mode: Some(mode), ..Selection::default() };
        let selected = selection.resolve(&trace).unwrap();
        let profile = load(&trace, &selected).unwrap();
        (selected, profile)
    });
    let sides: Vec<_> = sides.iter().map(|(selected, profile)| (selected, profile)).collect();
    let mut text = Vec::new();
    let notes = html::write(&trace, &sides, &options, &mut text).unwrap();
    let page = Page::parse(&String::from_utf8(text).unwrap());
    let modes = page.head["modes"].as_array().unwrap().iter();
    let expected: Vec<String> = modes
        .filter_map(|mode| Some(format!("the page has {}", mode["large"].as_str()?)))
        .collect();
    assert_eq!(notes, expected, "the page has the same notes");
    page
}

/// Merging keeps the sums by stack, thread and context, and nearly keeps the times.
#[test]
fn samples_that_are_too_many_are_merged_and_their_sums_stay() {
    let made = demo();
    let page =
        |entries_max| page_with(&made, PageOptions { entries_max, ..PageOptions::default() });
    let (whole, thinned) = (page(1_000_000), page(150));
    for mode in ["cpu", "wall"] {
        let sums = |page: &Page| {
            let mut sums: BTreeMap<(usize, String, u64), (u64, u64)> = BTreeMap::new();
            for it in page.samples(mode) {
                let sum = sums.entry((it.thread, it.stack.join(";"), it.context)).or_default();
                *sum = (sum.0 + it.weight, sum.1 + it.samples);
            }
            sums
        };
        assert_eq!(sums(&whole), sums(&thinned), "{mode}");
        let (all, few) = (whole.samples(mode).len(), thinned.samples(mode).len());
        assert!(few <= 160 && all > 1000, "{mode}: {few} of {all}");
        assert_eq!(whole.mode(mode).unwrap()["cellUs"], 0);
        assert!(thinned.mode(mode).unwrap()["cellUs"].as_u64().unwrap() >= 1000);
    }
}

/// Stacks that occur once cannot be merged, so longer time cells would gain nothing.
#[test]
fn a_page_of_too_many_stacks_keeps_their_times_and_says_so() {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", Value::Text("cpu,wall".to_owned())).unwrap();
    let main = maker.thread(100, "main");
    for ms in 0..300 {
        maker.sample(main, ms * 10, &format!("main f{ms}"));
    }
    let made = maker.finish();
    let page =
        |entries_max| page_with(&made, PageOptions { entries_max, ..PageOptions::default() });
    let large = page(100);
    let mode = large.mode("cpu").unwrap();
    assert_eq!((large.samples("cpu").len(), &mode["cellUs"]), (300, &1000.into()));
    let large = mode["large"].as_str().unwrap();
    assert!(large.starts_with("300 entries of cpu time instead of 100"), "{large}");
    assert!(page(200).mode("cpu").unwrap()["large"].is_null());
}

/// The heaviest context begins when there are too many already.
#[test]
fn a_heavy_span_that_comes_late_keeps_its_own_number() {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", Value::Text("cpu,wall".to_owned())).unwrap();
    let main = maker.thread(100, "main");
    for ms in 1..=100 {
        let span = if ms <= 20 { ms } else { 0x99 };
        let sample = Sample { time_ns: BEGIN_NS + ms * 1_000_000, span, ..Sample::default() };
        maker.full_sample(main, &sample, "_start main");
    }
    let made = maker.finish();
    let page = page_with(&made, PageOptions { contexts_max: 2, ..PageOptions::default() });
    let contexts = page.head["contexts"].as_array().unwrap();
    let mut weights: BTreeMap<String, u64> = BTreeMap::new();
    for it in page.samples("cpu") {
        // Contexts that are merged have the highest number.
        let place = it.context.min(contexts.len() as u64) as usize - 1;
        let span = contexts[place]["span"].as_str().unwrap_or("others").to_owned();
        *weights.entry(span).or_default() += it.weight;
    }
    let span = |id: &str| format!("{id:0>16}");
    let expected = [(span("99"), 80), (span("1"), 1), ("others".to_owned(), 19)];
    assert_eq!(weights, expected.into());
}

#[test]
fn no_name_is_markup() {
    let page = written(&demo(), &[]);
    for text in ["onerror", "alert(", "<img", "<i>", "/cart", "worker-", "memcpy"] {
        assert!(!page.contains(text), "{text}");
    }
    assert_eq!(page.matches("<script").count(), 2, "the data, and what reads them");
    assert_eq!(page.matches("</title>").count(), 1);
    // The page loads nothing from elsewhere.
    for text in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(text), "{text}");
    }
    assert!(page.contains("default-src 'none'; script-src 'sha256-"));
    assert_eq!(page, written(&demo(), &[]), "equal traces make equal pages");
}

/// A page of a trace of this name is replaced, and nothing else without --force.
#[test]
fn the_page_is_beside_the_trace_and_replaces_no_other_file() {
    let made = demo();
    let page = made.dir().join("out.html");
    let run =
        |options: &[&str]| traceprof(&["view"]).arg(made.path()).args(options).output().unwrap();
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n", page.display()));
    let before = std::fs::read_to_string(&page).unwrap();
    assert_eq!(run(&["--from", "1s"]).status.code(), Some(0));
    assert_ne!(std::fs::read_to_string(&page).unwrap(), before);
    // The page of a trace of another name, and a file that is no page.
    let other = made.dir().join("other.trace");
    for suffix in ["", ".idx"] {
        let [from, to] = [&made.path(), &other].map(|path| format!("{}{suffix}", path.display()));
        std::fs::copy(from, to).unwrap();
    }
    let output = traceprof(&["view", "-o"]).args([&page, &other]).output().unwrap();
    assert_eq!(output.status.code(), Some(6), "{output:?}");
    std::fs::write(&page, "mine").unwrap();
    let output = run(&[]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(6), "{message}");
    assert!(message.contains("exists") && message.contains("--force"), "{message}");
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "mine");
    assert_eq!(run(&["--force"]).status.code(), Some(0));
    assert_eq!(std::fs::read_to_string(&page).unwrap(), before);
    let output = run(&["--open", "-o", "-"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{message}");
    assert!(message.contains("--open needs a file"), "{message}");
}
