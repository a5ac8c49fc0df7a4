//! Complete texts and JSON of `print`: the summary, the trees and the tables, from synthetic
//! traces.

use std::process::{Command, Output, Stdio};

use serde_json::Value as Json;
use traceprof::trace::{LazyTrace, Sample, ThreadId, Value};
use traceprof::view::print::tree::{self, TreeOptions};
use traceprof::view::{self, PrintLimits, Selection, TextStyle};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::maker::{BEGIN_NS, GAP};
use crate::common::{Maker, Trace, traceprof};
use crate::snapshot;

const MAIN: &str = "_start __libc_start_main@libc main:10";
const WORK: &str = "clone3@libc start_thread@libc work:70";
/// Longer than the column of any terminal.
const LONG: &str = "std::collections::hash::map::HashMap<alloc::string::String,alloc::vec::Vec<u8>>::\
                    insert_unique_and_grow_if_there_is_no_room:90";

/// A server of 0.4 s, whose pool works in the second half.
fn demo() -> Trace {
    let mut made = Maker::new();
    let words = ["/usr/bin/server", "--listen", "0.0.0.0:8080", "--config", "/etc/server/a.conf"];
    let words = words.map(|word| Value::Text(word.to_owned())).to_vec();
    let (host, kernel) = (Value::Text("example".into()), Value::Text("Linux 6.12.0".into()));
    for (key, value) in [
        ("command_line", Value::List(words)),
        ("host", host),
        ("kernel", kernel),
        ("pid", Value::Unsigned(100)),
        ("cpus", Value::Unsigned(4)),
        ("freq_hz", Value::Unsigned(1000)),
        ("start_realtime_ns", Value::Unsigned(1_795_260_153_000_000_000)),
        ("end_monotonic_ns", Value::Unsigned(BEGIN_NS + 400_000_000)),
        ("cpu_time_ns", Value::Unsigned(230_000_000)),
        ("kernel_included", Value::Unsigned(1)),
        ("lost.ring_full", Value::Unsigned(2)),
        ("attach_stops_ns", Value::List(vec![Value::Unsigned(41_000)])),
        ("detach_stopped_ns", Value::Unsigned(120_000)),
    ] {
        made.writer.set_metadata(key, value).expect("metadata");
    }
    let main = made.thread(100, "server");
    for ms in 0..100u64 {
        let at = 4 * ms;
        match ms % 10 {
            0..5 => made.sample(main, at, &format!("{MAIN} serve:20 parse:30 lex:40")),
            5..8 => made.sample(main, at, &format!("{MAIN} serve:21 render:50 memcpy@libc")),
            8 => made.sample(main, at, &format!("{MAIN} serve:22 eval:60 eval:61 eval:61")),
            _ => made.sample_ending(main, at, "lex:41", GAP),
        }
    }
    for (worker, samples) in [(1, 60), (2, 40), (3, 20)] {
        let thread = made.thread(200 + worker, &format!("worker-{worker}"));
        for ms in 0..samples {
            let leaf = if ms % 4 == 0 { LONG } else { "hash:80 mix:81" };
            made.sample(thread, 200 + 3 * ms, &format!("{WORK} {leaf}"));
        }
    }
    let lone = made.thread(300, "logger");
    made.sample(lone, 250, "clone3@libc start_thread@libc log:95");
    made.sample(lone, 350, "clone3@libc start_thread@libc log:95");
    for (tid, name) in [(208, "worker-8"), (209, "worker-9"), (301, "gc"), (302, "gc"), (303, "x1")]
    {
        made.thread(tid, name);
    }
    made.finish()
}

/// Half a second of three threads. One runs, waits and is idle; two only wait for work.
fn wall() -> Trace {
    let mut made = Maker::new();
    made.writer.set_metadata("mode", Value::Text("wall".to_owned())).expect("metadata");
    let end = Value::Unsigned(BEGIN_NS + 500_000_000);
    made.writer.set_metadata("end_monotonic_ns", end).expect("metadata");
    let add = |made: &mut Maker, thread: ThreadId, (end_ms, ms): (u64, u32), wait, stack| {
        let (state, syscall) = wait;
        let time_ns = BEGIN_NS + end_ms * 1_000_000;
        let kind = Sample { flags: WALL, state, syscall, ..Sample::default() };
        let sample = Sample { time_ns, trace_id: 1 << 32 | 6, weight: ms * 1000, ..kind };
        made.full_sample(thread, &sample, stack);
    };
    let main = made.thread(100, "server");
    for ms in 1..=100 {
        add(&mut made, main, (ms, 1), (0, None), "_start main compute");
    }
    add(&mut made, main, (500, 400), (2, Some(35)), "_start main nap nanosleep@libc");
    for worker in 1..=2 {
        let thread = made.thread(200 + worker, &format!("worker-{worker}"));
        let stack = "start_thread@libc work pthread_cond_wait@libc";
        add(&mut made, thread, (500, 500), (2, Some(202)), stack);
    }
    made.finish()
}

fn run(made: &Trace, options: &[&str]) -> Output {
    // Without an option that asks for trees.
    let asks = ["--top", "--by", "--timeline", "--summary", "--follow", "--json", "--tree"];
    let tree = !options.iter().any(|option| asks.contains(option));
    let mut command = traceprof(if tree { &["print", "--tree"] } else { &["print"] });
    command.arg(made.path()).args(options).env("LC_ALL", "C.UTF-8").env("COLUMNS", "40");
    command.output().expect("traceprof")
}

fn shown(made: &Trace, options: &[&str]) -> String {
    let output = run(made, options);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), &*message), (Some(0), ""), "{options:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the text after the summary.
fn below(text: &str) -> &str {
    let (_, below) = text.split_once("\ntotal %").unwrap_or(("", text));
    below.split_once("\n\n").expect("an empty line").1
}

fn json(made: &Trace, options: &[&str]) -> Json {
    serde_json::from_str(&shown(made, &[&["--json"], options].concat())).unwrap()
}

fn weight(count: &Json) -> u64 {
    count["weight"].as_u64().unwrap_or_else(|| panic!("no weight in {count}"))
}

fn sum<'a>(rows: impl IntoIterator<Item = &'a Json>, of: &str) -> u64 {
    rows.into_iter().map(|row| weight(&row[of])).sum()
}

fn list(json: &Json) -> &Vec<Json> {
    json.as_array().unwrap_or_else(|| panic!("no list: {json}"))
}

#[test]
fn the_summary_is_one_screen_and_can_be_printed_alone() {
    let made = demo();
    let summary = shown(&made, &["--summary"]);
    snapshot::check("tests/snapshots/print-summary.txt", summary.as_bytes());
    assert!(summary.lines().count() <= 40, "{summary}");
    let (header, _) = summary.split_once("\n\n").unwrap();
    assert!(shown(&made, &[]).starts_with(header));
    let wall = shown(&wall(), &["--summary"]);
    snapshot::check("tests/snapshots/print-summary-wall.txt", wall.as_bytes());
}

/// Returns the text for a terminal, with the control sequences of its colours.
fn on_terminal(made: &Trace, style: TextStyle) -> String {
    let trace = LazyTrace::open(&made.path()).unwrap();
    let selected = Selection::default().resolve(&trace).unwrap();
    let profile = view::load(&trace, &selected).unwrap();
    let limits = PrintLimits { min_percent: 0.5, depth: None };
    let options = TreeOptions { limits, style, ..TreeOptions::default() };
    let mut out = Vec::new();
    tree::write(&profile, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn on_a_terminal_no_line_is_longer_than_it_and_the_summary_fits_on_it() {
    let made = demo();
    let style = TextStyle { bars: true, width: Some(80), ..TextStyle::default() };
    let plain = on_terminal(&made, style);
    for line in plain.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let summary = plain.split("\n\npool").next().unwrap();
    assert!(summary.lines().count() <= 22, "{summary}");
    assert!(plain.contains('…'), "{plain}");
    let colored = on_terminal(&made, TextStyle { color: true, ..style });
    snapshot::check("tests/snapshots/print-terminal.txt", colored.as_bytes());
    let mut bare = String::new();
    for (place, part) in colored.split('\u{1b}').enumerate() {
        bare.push_str(if place == 0 { part } else { part.split_once('m').unwrap().1 });
    }
    assert_eq!(bare, plain, "colours move nothing");
    let wide = on_terminal(&made, TextStyle { width: Some(140), ..style });
    snapshot::check("tests/snapshots/print-wide.txt", wide.as_bytes());
}

#[test]
fn threads_whose_names_differ_by_digits_are_a_pool() {
    let made = demo();
    let pools = shown(&made, &[]);
    snapshot::check("tests/snapshots/print-pools.txt", pools.as_bytes());
    assert!(pools.contains("\npool \"worker-*\" (3 threads) of process 100: 54.1 % of all"));
    let apart = shown(&made, &["--threads"]);
    for tid in 201..=203 {
        assert!(apart.contains(&format!("\nthread {tid} \"worker-")), "{apart}");
    }
    assert!(!apart.contains("pool"), "{apart}");
    assert!(apart.ends_with("5 threads without a sample: \"gc\" x2 \"worker-*\" x2 \"x1\"\n"));
    let one = shown(&made, &["--aggregate"]);
    assert!(one.contains("\n5 threads together: 100.0 % of all"), "{one}");
    assert_eq!(one.matches(" total %  self %").count(), 1, "{one}");
}

#[test]
fn a_pool_is_of_one_process_and_without_its_main_thread() {
    let mut made = Maker::new();
    for (tid, name) in [(100, "app"), (101, "app"), (102, "app"), (103, "app2"), (104, "7")] {
        let thread = made.thread(tid, name);
        made.sample(thread, u64::from(tid), "main");
    }
    let text = shown(&made.finish(), &[]);
    assert!(text.contains("\nthread 100 \"app\": 20.0 %"), "{text}");
    assert!(text.contains("\npool \"app*\" (3 threads) of process 100: 60.0 %"), "{text}");
    assert!(text.contains("\nthread 104 \"7\" of process 100: 20.0 %"), "{text}");
}

#[test]
fn trees_are_of_callers_modules_lines_or_threads() {
    let made = demo();
    for (name, options) in [
        ("inverted", &["--inverted", "--min-percent", "2"][..]),
        ("module", &["--by", "module"]),
        ("line", &["--by", "line", "--aggregate"]),
        ("thread", &["--by", "thread"]),
    ] {
        let text = shown(&made, options);
        snapshot::check(&format!("tests/snapshots/print-{name}.txt"), below(&text).as_bytes());
    }
    let apart = shown(&made, &["--inverted", "--threads"]);
    assert_eq!(apart.matches("  call, then its callers\n").count(), 5, "{apart}");
}

#[test]
fn the_first_level_of_an_inverted_tree_is_self_time() {
    for made in [demo(), wall()] {
        let options = ["--min-percent", "0", "--idle"];
        let tree = json(&made, &[&["--inverted"], &options[..]].concat());
        let calls = list(&tree["trees"][0]["calls"]);
        let first = calls.iter().filter(|call| call["caller"].is_null());
        let top = json(&made, &["--top", "1000", "--idle"]);
        let mut level: Vec<_> =
            first.map(|call| (call["name"].clone().to_string(), weight(&call["total"]))).collect();
        let rows = list(&top["top"]["rows"]).iter().filter(|row| weight(&row["self"]) > 0);
        let mut rows: Vec<_> =
            rows.map(|row| (row["name"].clone().to_string(), weight(&row["self"]))).collect();
        level.sort();
        rows.sort();
        assert_eq!(level, rows);
        // For a line and those below it, the callers add up to the callee.
        for (place, call) in calls.iter().enumerate() {
            let below: Vec<_> = calls.iter().filter(|other| other["caller"] == place).collect();
            assert!(below.is_empty() || sum(below, "total") == weight(&call["total"]), "{call}");
        }
    }
}

#[test]
fn a_table_has_the_heaviest_rows_and_sums_up_the_others() {
    let made = demo();
    let mut text = shown(&made, &["--top", "3"]);
    for options in [
        &["--top", "2", "--by", "module"][..],
        &["--top", "3", "--by", "line"],
        &["--top", "2", "--by", "thread"],
        &["--top", "1", "--thread", "worker-*"],
    ] {
        text.push_str(below(&shown(&made, options)));
    }
    text.push_str(below(&shown(&wall(), &["--top", "2"])));
    snapshot::check("tests/snapshots/print-top.txt", text.as_bytes());
}

#[test]
fn rows_of_tables_and_the_other_row_add_up_to_all() {
    for made in [demo(), wall()] {
        for by in ["function", "module", "line", "thread"] {
            for idle in [&["--idle"][..], &[]] {
                let all = json(&made, &[&["--by", by, "--top", "2"], idle].concat());
                let top = &all["top"];
                let rest = weight(&top["others"]["self"]) + weight(&top["idle"]["self"]);
                assert_eq!(sum(list(&top["rows"]), "self") + rest, weight(&all["all"]), "{top}");
                assert!(list(&top["rows"]).len() <= 2, "{top}");
            }
        }
    }
    let most = "1000000000000000000";
    assert_eq!(json(&demo(), &["--top", most])["top"]["others"]["number"], 0);
}

#[test]
fn light_rows_are_left_out_of_tables_and_counted_with_a_minimum_share() {
    for made in [demo(), wall()] {
        for by in ["function", "module", "thread"] {
            let all = json(&made, &["--by", by, "--top", "99", "--idle"]);
            let least = ["--by", by, "--top", "99", "--idle", "--min-percent", "10"];
            let some = json(&made, &least);
            let (before, rows) = (list(&all["top"]["rows"]), list(&some["top"]["rows"]));
            let is_heavy = |row: &&Json| row["self"]["percent"].as_f64().unwrap() >= 10.0;
            assert_eq!(
                before.iter().filter(is_heavy).collect::<Vec<_>>(),
                rows.iter().collect::<Vec<_>>()
            );
            let others = &some["top"]["others"];
            assert_eq!(others["number"], before.len() - rows.len());
            assert_eq!(sum(rows, "self") + weight(&others["self"]), weight(&some["all"]), "{by}");
        }
    }
    let made = demo();
    assert!(shown(&made, &["--top", "99"]).contains("  log"), "no share, no limit");
    let text = shown(&made, &["--top", "99", "--min-percent", "20"]);
    snapshot::check("tests/snapshots/print-top-percent.txt", below(&text).as_bytes());
    let summary = shown(&made, &["--summary", "--min-percent", "20"]);
    let (_, functions) = summary.split_once("\n\n").unwrap();
    snapshot::check("tests/snapshots/print-summary-percent.txt", functions.as_bytes());
    let (header, _) = summary.split_once("\n\n").unwrap();
    let (_, functions) = summary.split_once(" self %  function").unwrap();
    let (functions, _) = functions.split_once("\n\n").unwrap();
    let trees = shown(&made, &["--min-percent", "20"]);
    assert!(trees.starts_with(header) && trees.contains(functions), "{trees}");
    // There is room for both kinds of omitted rows on one line.
    let both = [("NO_COLOR", "1"), ("COLUMNS", "80")];
    let text = typed(&wall(), &both, "--summary --min-percent 50");
    let heads = "\n self %  function (2 idle left out)     total %  function (1 < 50 % left out)";
    assert!(text.contains(heads), "{text}");
}

#[test]
fn a_trace_without_a_sample_says_why_and_has_no_empty_table() {
    let mut made = Maker::new();
    made.thread(100, "sleep");
    let made = made.finish();
    for options in [&["--top", "3"][..], &["--summary"], &["--top", "3", "--by", "process"]] {
        let text = shown(&made, options);
        assert!(text.contains("\nsamples   none; --mode wall records what"), "{text}");
        assert!(text.contains("threads wait for\n") && !text.contains("function"), "{text}");
        assert!(!text.contains("total %"), "{text}");
    }
}

#[test]
fn the_object_equals_the_text_and_adds_up() {
    let object = json(&demo(), &[]);
    let pretty = format!("{}\n", serde_json::to_string_pretty(&object).unwrap());
    snapshot::check("tests/snapshots/print.json", pretty.as_bytes());
    for (made, options) in [
        (demo(), &["--threads", "--min-percent", "20"][..]),
        (demo(), &["--aggregate", "--depth", "2"]),
        (demo(), &["--by", "thread"]),
        (wall(), &[]),
    ] {
        let object = json(&made, options);
        let all = weight(&object["all"]);
        let idle = weight(&object["idle"]["self"]);
        assert_eq!(sum(list(&object["trees"]), "total") + idle, all, "{options:?}");
        for tree in list(&object["trees"]) {
            let calls = list(&tree["calls"]);
            let roots = calls.iter().filter(|call| call["caller"].is_null());
            assert_eq!(sum(roots, "total"), weight(&tree["total"]), "{tree}");
        }
        let strip = list(&object["strip"]["weights"]).iter();
        assert_eq!(strip.map(|it| it.as_u64().unwrap()).sum::<u64>(), all);
        let functions = &object["functions"];
        let own = sum(list(&functions["rows"]), "self") + weight(&functions["others"]["self"]);
        assert_eq!(own, all);
    }
    let summary = json(&demo(), &["--summary"]);
    assert!(summary.get("trees").is_none() && summary["functions"]["rows"].is_array());
}

#[test]
fn a_finished_trace_that_is_followed_has_a_table_too() {
    let output = run(&demo(), &["--follow", "--top", "2"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("... 15 other functions, "), "{text}");
}

/// Returns what a terminal of 60 columns shows.
fn typed(made: &Trace, environment: &[(&str, &str)], options: &str) -> String {
    let (binary, path) = (env!("CARGO_BIN_EXE_traceprof"), made.path());
    // After the shell started, because it may set COLUMNS itself.
    let set: Vec<_> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let (set, path) = (set.join(" "), path.display());
    let line = format!("stty cols 60 rows 24; env {set} '{binary}' print {options} '{path}'");
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
    command.env_remove("NO_COLOR").env_remove("COLUMNS").env("TERM", "xterm");
    command.env("LC_ALL", "C.UTF-8");
    let output = command.output().expect("script, of bsdutils");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_terminal_gets_colours_and_a_pipe_does_not() {
    const ESCAPE: char = '\u{1b}';
    let made = demo();
    let widest = |text: &str| text.lines().map(|line| line.trim_end().chars().count()).max();
    let colored = typed(&made, &[], "--tree");
    assert!(colored.contains(ESCAPE) && colored.contains('…') && colored.contains('█'));
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = typed(&made, &[(name, value)], "--tree");
        assert!(!plain.contains(ESCAPE) && plain.contains('…'), "{name}: {plain}");
        assert!(widest(&plain) <= Some(60), "{name}: {plain}");
    }
    assert!(!typed(&made, &[], "--tree --color never").contains(ESCAPE));
    assert!(typed(&made, &[("NO_COLOR", "1")], "--tree --color always").contains(ESCAPE));
    let asked = typed(&made, &[("NO_COLOR", "1"), ("COLUMNS", "75")], "--tree");
    assert!(widest(&asked) > Some(60) && widest(&asked) <= Some(75), "{asked}");
    let c = typed(&made, &[("NO_COLOR", "1"), ("LC_ALL", "C")], "--summary");
    assert!(c.is_ascii(), "{c}");
    let piped = shown(&made, &[]);
    assert!(!piped.contains(ESCAPE) && !piped.contains('…'), "{piped}");
    assert!(piped.contains(LONG.trim_end_matches(":90")), "no name is shortened");
    assert!(shown(&made, &["--color", "always"]).contains(ESCAPE));
}

#[test]
fn a_sleep_that_the_kernel_resumes_is_the_same_sleep() {
    let mut made = Maker::new();
    made.writer.set_metadata("mode", Value::Text("wall".to_owned())).expect("metadata");
    let add = |made: &mut Maker, tid: u32, name: &str, times: &[(u64, u8, u32, &str)]| {
        let thread = made.thread(tid, name);
        let mut end_ms = 0;
        for (ms, state, call, stack) in times {
            end_ms += ms;
            let time_ns = BEGIN_NS + end_ms * 1_000_000;
            let kind =
                Sample { flags: WALL, state: *state, syscall: Some(*call), ..Sample::default() };
            made.full_sample(thread, &Sample { time_ns, weight: *ms as u32 * 1000, ..kind }, stack);
        }
    };
    let (waits, resumed) =
        ("work pthread_cond_wait@libc", "work pthread_cond_wait@libc syscall@libc");
    add(&mut made, 100, "main", &[(1000, 0, 0, "main compute")]);
    // More time in the call that resumes the sleep than in the sleep itself.
    add(&mut made, 101, "sleeper", &[(300, 2, 202, waits), (700, 2, 219, resumed)]);
    add(&mut made, 102, "elsewhere", &[(300, 2, 202, waits), (700, 2, 202, "rest poll@libc")]);
    let text = shown(&made.finish(), &[]);
    let idle = "\n1 idle thread: 33.3 % of all, 1.000 s (--idle shows their trees)\n    \
                in futex below work: 1 thread, 1.000 s\n";
    assert!(text.contains(idle) && text.contains("\"elsewhere\""), "{text}");
}
