//! Spans and tags in views of synthetic traces.

use std::process::Output;

use traceprof::trace::{Sample, TagKey, TagKind, TextId, ThreadId, Value};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Trace, maker, traceprof};
use crate::snapshot;

use maker::BEGIN_NS;

const W3C_TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;

/// A context: span, root, route, status.
#[derive(Clone, Copy)]
struct Context(u64, u128, &'static str, u32);

const NOTHING: Context = Context(0, 0, "", 0);

/// Makes a trace of a program that publishes its spans.
struct Service {
    maker: Maker,
    ms: u64,
}

impl Service {
    fn new() -> Self {
        let mut maker = Maker::new();
        let key = |name: &str, kind| TagKey { name: name.to_owned(), kind };
        let keys = [key("status", TagKind::Number), key("route", TagKind::Text)];
        let (name, value) = TagKey::metadata(&keys);
        maker.writer.set_metadata(name, value).unwrap();
        Self { maker, ms: 0 }
    }

    fn thread(&mut self, tid: u32, name: &str) -> ThreadId {
        self.ms = 0;
        self.maker.thread(tid, name)
    }

    /// Adds `ms` milliseconds of run time, one sample each.
    fn runs(&mut self, thread: ThreadId, ms: u64, stack: &str, context: Context) {
        for _ in 0..ms {
            self.ms += 1;
            let sample = self.sample(context);
            self.maker.full_sample(thread, &sample, stack);
        }
    }

    fn sample(&mut self, context: Context) -> Sample {
        let Context(span, root, route, status) = context;
        let route = match route {
            "" => 0,
            route => self.maker.writer.text(route).unwrap().0 + 1,
        };
        Sample {
            time_ns: BEGIN_NS + self.ms * 1_000_000,
            trace_id: 1 << 32 | 5,
            span,
            root_span: root as u64,
            root_high: (root >> 64) as u64,
            tags: [status, route, 0, 0, 0, 0, 0, 0, 0, 0],
            ..Sample::default()
        }
    }
}

/// Two threads that work on three requests. One request is on both threads, and some samples have
/// none.
fn demo() -> Trace {
    let mut service = Service::new();
    let main = "_start main serve";
    let front = service.thread(100, "front");
    let checkout = Context(0x11, 0x1000, "/checkout", 200);
    service.runs(front, 10, &format!("{main} parse"), checkout);
    service.runs(front, 5, &format!("{main} render"), checkout);
    service.runs(front, 3, "_start main accept", NOTHING);
    service.runs(front, 7, &format!("{main} parse"), Context(0x22, W3C_TRACE, "/cart", 500));
    let back = service.thread(101, "back");
    service.runs(back, 20, "start_thread query", Context(0x33, 0x1000, "/checkout", 200));
    service.runs(back, 5, "start_thread idle", NOTHING);
    service.maker.finish()
}

fn run(action: &str, made: &Trace, options: &[&str]) -> Output {
    traceprof(&[action]).arg(made.path()).args(options).output().expect("traceprof")
}

/// Runs a view that must succeed and returns its output.
fn shown(action: &str, made: &Trace, options: &[&str]) -> String {
    let output = run(action, made, options);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{options:?}: {message}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a view that must refuse and returns its message.
fn refused(action: &str, made: &Trace, options: &[&str]) -> String {
    let output = run(action, made, options);
    assert_eq!(output.status.code(), Some(2), "{options:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn folded(made: &Trace, options: &[&str]) -> Vec<String> {
    let text = shown("export", made, &[&["--format", "folded"], options].concat());
    text.lines().map(str::to_owned).collect()
}

/// Returns the number of periods in the selection.
fn periods(made: &Trace, options: &[&str]) -> u64 {
    let count = |line: String| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    folded(made, options).into_iter().map(count).sum()
}

#[test]
fn samples_say_their_span_and_their_tags_by_name() {
    let text = shown("print", &demo(), &["--timeline", "--verbose", "--min-percent", "0"]);
    for part in [
        ", span 0000000000000011, root span 0000000000001000, status = 200, route = /checkout\n",
        ", span 0000000000000022, root span 4bf92f3577b34da6a3ce929d0e0e4736, status = 500, ",
        "weight 1, running, trace 0x100000005\n",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn verbose_leaves_show_the_contexts_of_their_samples() {
    let text = shown("print", &demo(), &["--verbose", "--min-percent", "0"]);
    let after = |leaf: &str| -> String {
        let mut lines = text.lines().skip_while(|line| !line.contains(leaf));
        lines.by_ref().take(2).collect::<Vec<_>>().join("\n")
    };
    // The samples belong to the call itself, and the line below shows their context.
    let query = after("query at");
    assert!(query.contains("    80.0    80.0    40.0        20        20     0.020"), "{query}");
    assert!(
        query.ends_with(
            "[span 0000000000000033, root span 0000000000001000, status = 200, route = /checkout]"
        ),
        "{query}"
    );
    let line = query.lines().last().unwrap();
    assert!(line.starts_with("    80.0       -    40.0        20         -     0.020"), "{line}");
    let parse: Vec<_> =
        text.lines().filter(|line| line.contains("[span 000000000000002")).collect();
    assert_eq!(parse.len(), 1, "{text}");
    assert!(parse[0].contains("4bf92f3577b34da6a3ce929d0e0e4736, status = 500"), "{parse:?}");
    assert!(!after("idle at").contains('['), "{text}");
    assert!(
        !shown("print", &demo(), &["--tree"]).contains("[span"),
        "without grouping, stacks have no first frame"
    );
}

#[test]
fn print_by_span_is_one_tree_of_all_threads() {
    let text = shown("print", &demo(), &["--by", "span"]);
    snapshot::check("tests/snapshots/by-span.txt", text.as_bytes());
}

#[test]
fn print_by_root_and_by_tag_join_what_belongs_together() {
    let roots = shown("print", &demo(), &["--by", "root-span"]);
    assert!(roots.contains("2 threads by root span: 100.0 % of all"), "{roots}");
    // Both threads work on it.
    let heaviest = roots.lines().find(|line| line.contains("root-span=")).unwrap();
    assert!(heaviest.contains("    70.0 "), "{heaviest}");
    assert!(heaviest.ends_with("├─ root-span=0000000000001000"), "{heaviest}");
    let tags = shown("print", &demo(), &["--by", "tag:route"]);
    snapshot::check("tests/snapshots/by-tag.txt", tags.as_bytes());
    let numbers = shown("print", &demo(), &["--by", "tag:status", "--depth", "1"]);
    assert!(numbers.contains("status=200\n") && numbers.contains("status=500\n"), "{numbers}");
}

#[test]
fn filters_keep_the_samples_of_the_contexts_that_are_asked_for() {
    let made = demo();
    for (options, expected) in [
        (&["--span", "11"][..], 15),
        (&["--span", "0x11", "--span", "dec:51"], 35),
        (&["--root-span", "1000"], 35),
        (&["--root-span", "4bf92f3577b34da6a3ce929d0e0e4736"], 7),
        // The lower half of an id is a different id.
        (&["--root-span", "a3ce929d0e0e4736"], 0),
        (&["--root-span", "1000", "--span", "22"], 0),
        (&["--root-span", "1000", "--thread", "front"], 15),
        (&["--tag", "route=/checkout"], 35),
        (&["--tag", "route=/checkout", "--tag", "route=/cart"], 42),
        (&["--tag", "route=/checkout", "--tag", "status=500"], 0),
        (&["--tag", "route=/cart", "--tag", "status=500"], 7),
        (&["--tag", "route=/nowhere"], 0),
        (&["--span", "11", "--from", "12ms"], 4),
        (&[], 50),
    ] {
        assert_eq!(periods(&made, options), expected, "{options:?}");
        if expected > 0 {
            let head = format!("samples   {expected} for {expected} periods in ");
            for timeline in [&[][..], &["--timeline"]] {
                let text = shown("print", &made, &[options, timeline].concat());
                assert!(text.contains(&head), "{options:?}: {text}");
            }
        }
    }
}

/// In this process one library uses a name for numbers and another library uses it for texts, and
/// names contain `=`.
#[test]
fn a_name_for_numbers_and_texts_is_one_tag_in_filters() {
    let mut maker = Maker::new();
    let key = |name: &str, kind| TagKey { name: name.to_owned(), kind };
    let keys = [
        key("code", TagKind::Number),
        key("code", TagKind::Text),
        key("a", TagKind::Number),
        key("a=b", TagKind::Number),
    ];
    let (name, value) = TagKey::metadata(&keys);
    maker.writer.set_metadata(name, value).unwrap();
    let thread = maker.thread(100, "both");
    let text = |maker: &mut Maker, text| maker.writer.text(text).unwrap().0 + 1;
    let (missing, number) = (text(&mut maker, "missing"), text(&mut maker, "404"));
    let tag_values = [[404, 0, 0, 0], [0, missing, 0, 0], [0, number, 0, 0], [7, 0, 5, 6], [0; 4]];
    for (ms, [code, text, a, a_is_b]) in (0..).zip(tag_values) {
        let tags = [code, text, a, a_is_b, 0, 0, 0, 0, 0, 0];
        let sample = Sample { time_ns: BEGIN_NS + ms * 1_000_000, tags, ..Sample::default() };
        maker.full_sample(thread, &sample, "main");
    }
    let made = maker.finish();
    let by = folded(&made, &["--by", "tag:code"]);
    for group in ["(none)", "code=404", "code=7", "code=missing"] {
        assert!(by.iter().any(|line| line.starts_with(&format!("{group};"))), "{group}: {by:?}");
    }
    assert_eq!(periods(&made, &["--tag", "code=404"]), 2);
    assert_eq!(periods(&made, &["--tag", "code=missing"]), 1);
    assert_eq!(periods(&made, &["--tag", "a=b=6"]), 1);
    assert_eq!(periods(&made, &["--tag", "a=5"]), 1);
    let error = refused("print", &made, &["--tag", "a=x"]);
    assert!(error.contains("a=x: the values of this tag are numbers"), "{error}");
}

#[test]
fn a_timeline_of_a_span_has_only_its_samples() {
    let text = shown("print", &demo(), &["--timeline", "--span", "11", "--min-percent", "0"]);
    assert!(text.contains("window    span 0000000000000011\n"), "{text}");
    assert!(text.contains("demo.render(): 5 samples"), "{text}");
    assert!(!text.contains("accept") && !text.contains("(back"), "{text}");
}

#[test]
fn the_group_is_the_first_frame_and_the_thread_the_second() {
    let lines = folded(&demo(), &["--by", "tag:route", "--threads"]);
    assert_eq!(
        lines,
        [
            "(none);back;start_thread;idle 5",
            "(none);front;_start;main;accept 3",
            "route=/cart;front;_start;main;serve;parse 7",
            "route=/checkout;back;start_thread;query 20",
            "route=/checkout;front;_start;main;serve;parse 10",
            "route=/checkout;front;_start;main;serve;render 5",
        ]
    );
    let by_span = folded(&demo(), &["--by", "span", "--span", "33"]);
    assert_eq!(by_span, ["span=0000000000000033;start_thread;query 20"]);
}

#[test]
fn impossible_selections_are_refused_with_the_possible_ones() {
    let made = demo();
    for (action, options, part) in [
        ("print", &["--tag", "rout=/cart"][..], "the trace has 2 tags: \"status\", \"route\""),
        ("export", &["--format", "folded", "--by", "tag:x"], "no tag is called \"x\""),
        ("print", &["--tag", "status=fine"], "the values of this tag are numbers"),
        ("print", &["--span", "span-1"], "hexadecimal digits"),
        ("print", &["--span", "0"], "0 is not an id"),
        ("print", &["--tag", "route"], "expected NAME=VALUE"),
        ("print", &["--by", "route"], "thread, process, span, root-span, task or tag:NAME"),
        ("print", &["--by", "span", "--timeline"], "--by cannot be used with --timeline: "),
    ] {
        let message = refused(action, &made, options);
        assert!(message.contains(part), "{options:?}: {message}");
    }
}

#[test]
fn an_id_that_no_sample_has_selects_nothing_and_is_reported() {
    let made = demo();
    for action in ["print", "export"] {
        let mut options = vec!["--span", "99"];
        options.extend((action == "export").then_some("--format=folded"));
        let output = run(action, &made, &options);
        assert_eq!(output.status.code(), Some(0));
        let message = String::from_utf8(output.stderr).unwrap();
        let expected = "note: no sample matches the selection: span 0000000000000099\n";
        assert_eq!(message, expected, "{action}");
    }
}

#[test]
fn a_trace_without_contexts_says_how_they_get_into_one() {
    let mut maker = Maker::new();
    let thread = maker.thread(1, "x");
    maker.sample(thread, 1, "main run");
    let made = maker.finish();
    for options in [
        &["--span", "1"][..],
        &["--root-span", "1"],
        &["--tag", "a=b"],
        &["--by", "span"],
        &["--span", "1", "--timeline"],
    ] {
        let message = refused("print", &made, options);
        assert!(message.contains("traceprof-context library"), "{options:?}: {message}");
    }
    let message = refused("export", &made, &["--format", "folded", "--by", "root-span"]);
    assert!(message.contains("no selected sample has a span"), "{message}");
}

#[test]
fn many_spans_are_one_line_but_for_the_heaviest() {
    let mut service = Service::new();
    let thread = service.thread(1, "server");
    for request in 1..=2_000 {
        let weight = if request == 1_234 { 3 } else { 1 };
        service.runs(thread, weight, "main handle", Context(request, request.into(), "", 0));
    }
    let made = service.maker.finish();
    let text = shown("print", &made, &["--by", "span"]);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("span=")).collect();
    assert_eq!(lines.len(), 10, "{text}");
    assert!(lines[0].ends_with("├─ span=00000000000004d2"), "{text}");
    assert!(text.contains("... 1990 other spans below 0.5 %, 1990 samples\n"), "{text}");
    let all = shown("print", &made, &["--by", "span", "--min-percent", "0"]);
    assert_eq!(all.matches("span=").count(), 2_000);
    assert_eq!(periods(&made, &["--by", "span"]), 2_002);
}

/// More spans than the view keeps. The others are counted together, and are the heaviest row of
/// all.
#[test]
fn spans_beyond_any_number_need_no_trees() {
    let mut service = Service::new();
    let thread = service.thread(1, "server");
    for request in 1..=12_000 {
        let weight = if request == 7_777 { 3 } else { 1 };
        service.runs(thread, weight, "main handle", Context(request, 1, "", 0));
    }
    let made = service.maker.finish();
    let text = shown("print", &made, &["--by", "span"]);
    assert!(text.contains("... 11990 other spans below 0.5 %, 11990 samples\n"), "{text}");
    assert!(text.contains("├─ span=0000000000001e61\n"), "{text}");
    assert_eq!(text.matches("span=").count(), 10);
    let all = shown("print", &made, &["--by", "span", "--min-percent", "0"]);
    assert_eq!(all.matches("span=").count(), 12_000);
    assert_eq!(folded(&made, &["--by", "span"]).len(), 12_000);
    // A table keeps as many spans apart as it has rows.
    for (most, shown, others) in [("3", 3, 11_997), ("11999", 11_999, 1), ("20000", 12_000, 0)] {
        let all = self::shown("print", &made, &["--by", "span", "--top", most, "--json"]);
        let top = &serde_json::from_str::<serde_json::Value>(&all).unwrap()["top"];
        let rows = top["rows"].as_array().unwrap();
        let are_spans = rows.iter().all(|row| row["name"].as_str().unwrap().starts_with("span="));
        assert!(rows.len() == shown && are_spans, "{most}: {} rows", rows.len());
        assert_eq!(
            (&top["others"]["number"], &top["rows"][0]["self"]["weight"]),
            (&others.into(), &3.into())
        );
        let text = self::shown("print", &made, &["--by", "span", "--top", most]);
        let noun = if others == 1 { "span" } else { "spans" };
        let line = format!("... {others} other {noun}, {others} sample{}\n", &noun[4..]);
        assert_eq!(text.contains(&line), others > 0, "{line}");
    }
}

#[test]
fn wall_clock_time_is_grouped_and_filtered_too() {
    let mut service = Service::new();
    service.maker.writer.set_metadata("mode", Value::Text("cpu,wall".to_owned())).unwrap();
    let thread = service.thread(1, "server");
    service.runs(thread, 4, "main compute", Context(5, 5, "/a", 0));
    for (span, ms) in [(5, 300), (6, 100), (0, 600)] {
        service.ms += ms;
        let context = Context(span, span.into(), if span == 5 { "/a" } else { "" }, 0);
        let sample = service.sample(context);
        let sample = Sample {
            flags: WALL,
            weight: ms as u32 * 1000,
            state: 2,
            syscall: Some(202),
            ..sample
        };
        service.maker.full_sample(thread, &sample, "main wait");
    }
    let made = service.maker.finish();
    assert_eq!(
        folded(&made, &["--by", "span"]),
        [
            "(none);main;wait;[sleeping in futex] 600000",
            "span=0000000000000005;main;wait;[sleeping in futex] 300000",
            "span=0000000000000006;main;wait;[sleeping in futex] 100000",
        ]
    );
    assert_eq!(periods(&made, &["--tag", "route=/a"]), 300_000);
    assert_eq!(periods(&made, &["--tag", "route=/a", "--mode", "cpu"]), 4);
    assert_eq!(periods(&made, &["--span", "6", "--state", "sleeping"]), 100_000);
    let text = shown("print", &made, &["--by", "span"]);
    assert!(text.contains("\n1 thread by span: 100.0 % of all, 1.000 s in 3 samples\n"), "{text}");
}

/// Hostile names and values: tags that the metadata does not name, and texts that do not exist.
#[test]
fn odd_tags_are_shown_and_cannot_move_the_cursor() {
    let mut maker = Maker::new();
    let odd = [
        Value::Unsigned(7),
        Value::List(vec![Value::Text("a\u{1b}[2J".to_owned()), Value::Text("text".to_owned())]),
    ];
    maker.writer.set_metadata("tags", Value::List(odd.into())).unwrap();
    let thread = maker.thread(1, "x");
    let escape = maker.writer.text("b\nc\u{9b}").unwrap();
    for (ms, text) in (0..).zip([escape, TextId(4_000_000_000)]) {
        let tags = [9, text.0 + 1, 0, 0, 0, 0, 0, 0, 0, 3];
        let sample = Sample { time_ns: BEGIN_NS + ms, tags, ..Sample::default() };
        maker.full_sample(thread, &sample, "main");
    }
    let made = maker.finish();
    let text = shown("print", &made, &["--timeline", "--verbose"]);
    assert!(text.contains(", tag 0 = 9, a\\u{1b}[2J = b\\nc\\u{9b}, tag 9 = 3\n"), "{text}");
    assert!(text.contains(", a\\u{1b}[2J = [lost], tag 9 = 3\n"), "{text}");
    let grouped = shown("print", &made, &["--by", "tag:a\u{1b}[2J"]);
    assert!(grouped.contains("a\\u{1b}[2J=b\\nc\\u{9b}\n"), "{grouped}");
    for text in [text, grouped] {
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}
