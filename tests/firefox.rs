//! Profiles of the Firefox Profiler, checked against the rules of the format.

use serde_json::Value;

use traceprof::trace::{self, Sample, TagKey, TagKind};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Trace, maker, traceprof};

use maker::{BEGIN_NS, GAP};

const ROOT: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;

fn tagged(maker: &mut Maker) -> u32 {
    let key = |name: &str, kind| TagKey { name: name.to_owned(), kind };
    let keys = [key("route", TagKind::Text), key("status", TagKind::Number)];
    let (name, value) = TagKey::metadata(&keys);
    maker.writer.set_metadata(name, value).unwrap();
    maker.writer.text("/check\u{1b}out").unwrap().0 + 1
}

/// Two threads with the same id, successive spans, an inlined function, and a truncated stack.
pub(crate) fn demo() -> Trace {
    let mut maker = Maker::new();
    let route = tagged(&mut maker);
    let front = maker.thread(100, "front");
    let base = Sample {
        span: 0x11,
        root_span: ROOT as u64,
        root_high: (ROOT >> 64) as u64,
        tags: [route, 503, 0, 0, 0, 0, 0, 0, 0, 0],
        ..Sample::default()
    };
    for ms in 1..=20 {
        let span = if ms <= 10 { 0x11 } else { 0x22 };
        let sample = Sample { time_ns: BEGIN_NS + ms * 1_000_000, span, ..base.clone() };
        maker.full_sample(front, &sample, "_start main:10 serve:20");
    }
    maker.inlined_sample(front);
    maker.writer.thread_exit(front, BEGIN_NS + 22_000_000).unwrap();
    let again = maker.thread(100, "again");
    maker.sample_ending(again, 30, "memcpy@libc", GAP);
    maker.thread(102, "never ran");
    maker.finish()
}

fn exported(made: &Trace, options: &[&str]) -> Value {
    let mut command = traceprof(&["export", "--format", "firefox"]);
    let output = command.arg(made.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stdout.contains(&0x1b));
    let profile: Value = serde_json::from_slice(&output.stdout).unwrap();
    check(&profile);
    profile
}

/// Returns a column of a table and checks that it has the table's length.
fn column<'a>(table: &'a Value, name: &str) -> &'a [Value] {
    let values = table[name].as_array().unwrap_or_else(|| panic!("no {name} in {table}"));
    assert_eq!(values.len() as u64, table["length"].as_u64().unwrap(), "{name}");
    values
}

/// Returns indices into a table and checks that none is -1.
fn indices<'a>(table: &'a Value, name: &str) -> impl Iterator<Item = Option<usize>> + use<'a> {
    column(table, name).iter().map(|value| match value.as_i64() {
        Some(-1) => None,
        Some(index) => Some(usize::try_from(index).unwrap()),
        None => {
            assert!(value.is_null(), "{value}");
            None
        }
    })
}

/// Checks that every column has its length and that every index is in range.
fn check(profile: &Value) {
    assert_eq!(profile["meta"]["preprocessedProfileVersion"], 55);
    let categories = profile["meta"]["categories"].as_array().unwrap().len();
    let libs = profile["libs"].as_array().unwrap().len();
    let mut tids = std::collections::BTreeSet::new();
    for thread in profile["threads"].as_array().unwrap() {
        assert!(tids.insert(thread["tid"].as_str().unwrap().to_owned()), "two threads with one id");
        assert!(thread["pid"].is_string());
        let length = |name: &str| thread[name]["length"].as_u64().unwrap() as usize;
        let strings = thread["stringArray"].as_array().unwrap().len();
        let lengths = [
            ("stacks", length("stackTable")),
            ("frames", length("frameTable")),
            ("funcs", length("funcTable")),
            ("resources", length("resourceTable")),
            ("strings", strings),
            ("libs", libs),
            ("categories", categories),
        ];
        for (table, name, to) in [
            ("samples", "stack", "stacks"),
            ("stackTable", "prefix", "stacks"),
            ("stackTable", "frame", "frames"),
            ("frameTable", "func", "funcs"),
            ("frameTable", "category", "categories"),
            ("frameTable", "nativeSymbol", "none"),
            ("frameTable", "line", "any"),
            ("frameTable", "column", "any"),
            ("frameTable", "address", "any"),
            ("frameTable", "inlineDepth", "any"),
            ("frameTable", "subcategory", "any"),
            ("frameTable", "innerWindowID", "any"),
            ("funcTable", "name", "strings"),
            ("funcTable", "fileName", "strings"),
            ("funcTable", "resource", "resources"),
            ("funcTable", "lineNumber", "any"),
            ("funcTable", "columnNumber", "any"),
            ("resourceTable", "lib", "libs"),
            ("resourceTable", "name", "strings"),
            ("resourceTable", "type", "any"),
            ("markers", "name", "strings"),
            ("markers", "category", "categories"),
            ("markers", "phase", "any"),
        ] {
            let limit = lengths.iter().find(|(known, _)| *known == to).map(|(_, length)| *length);
            let limit = limit.unwrap_or(if to == "any" { usize::MAX } else { 0 });
            let outside = indices(&thread[table], name).flatten().find(|index| *index >= limit);
            assert_eq!(outside, None, "{table}.{name}");
        }
        // A stack comes after its prefix.
        let prefixes = indices(&thread["stackTable"], "prefix").enumerate();
        assert!(prefixes.into_iter().all(|(at, prefix)| prefix.is_none_or(|it| it < at)));
        for name in ["timeDeltas", "weight", "threadCPUDelta"] {
            let values = column(&thread["samples"], name);
            assert!(values.iter().all(|value| value.as_f64().unwrap() >= 0.0), "{name}");
        }
        let starts = column(&thread["markers"], "startTime").iter();
        for (start, end) in starts.zip(column(&thread["markers"], "endTime")) {
            assert!(start.as_f64() <= end.as_f64(), "{start} {end}");
        }
        let schema = &profile["meta"]["markerSchema"][0];
        let fields = schema["fields"].as_array().unwrap();
        for data in column(&thread["markers"], "data") {
            let data = data.as_object().unwrap();
            assert_eq!(data["type"], schema["name"]);
            let known = |key: &String| key == "type" || fields.iter().any(|it| it["key"] == **key);
            assert!(data.keys().all(known), "{data:?}");
        }
    }
}

/// Returns the names of a sample's stack, root first, with file and line.
fn stack_of(thread: &Value, sample: usize) -> Vec<String> {
    let at = |table: &str, name: &str, index: usize| thread[table][name][index].as_u64();
    let text = |index: u64| thread["stringArray"][index as usize].as_str().unwrap();
    let mut names = Vec::new();
    let mut stack = at("samples", "stack", sample);
    while let Some(index) = stack {
        let frame = at("stackTable", "frame", index as usize).unwrap() as usize;
        let func = at("frameTable", "func", frame).unwrap() as usize;
        let name = text(at("funcTable", "name", func).unwrap());
        let depth = at("frameTable", "inlineDepth", frame).unwrap();
        let file = at("funcTable", "fileName", func).map_or("", text);
        let line = at("frameTable", "line", frame).unwrap_or(0);
        names.push(format!("{name} {file}:{line} {depth}"));
        stack = at("stackTable", "prefix", index as usize);
    }
    names.reverse();
    names
}

#[test]
fn every_sample_has_its_stack_and_its_weight() {
    let made = demo();
    let profile = exported(&made, &[]);
    let threads = profile["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 2, "a thread without samples is left out");
    let ids: Vec<_> = threads.iter().map(|thread| thread["tid"].as_str().unwrap()).collect();
    assert_eq!(ids, ["100", "100.1"]);
    let weights: f64 = threads
        .iter()
        .flat_map(|thread| thread["samples"]["weight"].as_array().unwrap())
        .map(|weight| weight.as_f64().unwrap())
        .sum();
    let mut periods = 0;
    for thread in &trace::load(&made.path()).unwrap().threads {
        thread.for_each_sample(&mut |sample, _| periods += sample.weight);
    }
    assert_eq!(weights, f64::from(periods));
    let front = &threads[0];
    assert_eq!(
        stack_of(front, 0),
        ["_start :0 0", "main src/demo.c:10 0", "serve src/demo.c:20 0"]
    );
    assert_eq!(stack_of(front, 20), ["main src/demo.c:10 0", "inlined_part src/part.h:7 1"]);
    assert_eq!(stack_of(&threads[1], 0), ["[truncated] :0 0", "memcpy :0 0"]);
    let samples = &front["samples"];
    assert_eq!(samples["weightType"], "samples");
    assert_eq!(samples["timeDeltas"][0], 1.0, "milliseconds since the begin");
    assert_eq!(samples["timeDeltas"][1], 1.0, "since the previous sample");
    assert_eq!(
        (&samples["weight"][20], &samples["threadCPUDelta"][20]),
        (&3.0.into(), &3000.0.into())
    );
}

#[test]
fn spans_are_markers_with_their_root_and_tags() {
    let profile = exported(&demo(), &[]);
    let markers = &profile["threads"][0]["markers"];
    assert_eq!(markers["length"], 2);
    let row = |at: usize| {
        let data = &markers["data"][at];
        let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
        (
            [text("span"), text("root"), text("tag0"), text("tag1")],
            [&markers["startTime"][at], &markers["endTime"][at]].map(|time| time.as_f64().unwrap()),
        )
    };
    let texts_of = |span: &str| {
        let texts = [span, "4bf92f3577b34da6a3ce929d0e0e4736", "/check\\u{1b}out", "503"];
        texts.map(str::to_owned)
    };
    // Each sample covers the millisecond before it.
    assert_eq!(row(0), (texts_of("0000000000000011"), [0.0, 10.0]));
    assert_eq!(row(1), (texts_of("0000000000000022"), [10.0, 20.0]));
    let fields = profile["meta"]["markerSchema"][0]["fields"].as_array().unwrap();
    let labels: Vec<_> = fields.iter().map(|field| field["label"].as_str().unwrap()).collect();
    assert_eq!(labels[..5], ["Span", "Root span", "route", "status", "tag 2"]);
}

#[test]
fn filters_and_windows_hold() {
    let profile = exported(&demo(), &["--span", "22", "--from", "15ms"]);
    let threads = profile["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 1);
    assert_eq!(threads[0]["samples"]["length"], 6);
    assert_eq!(threads[0]["markers"]["length"], 1);
}

#[test]
fn wall_clock_time_is_in_milliseconds_and_sleepers_use_no_processor() {
    let mut maker = Maker::new();
    let mode = trace::Value::Text("wall".to_owned());
    maker.writer.set_metadata("mode", mode).unwrap();
    let thread = maker.thread(1, "sleeper");
    for (ms, state, weight) in [(300, 2, 300_000), (310, 0, 10_000)] {
        let sample = Sample {
            time_ns: BEGIN_NS + ms * 1_000_000,
            flags: WALL,
            weight,
            state,
            syscall: (state == 2).then_some(202),
            span: 5,
            ..Sample::default()
        };
        maker.full_sample(thread, &sample, "main wait");
    }
    let profile = exported(&maker.finish(), &[]);
    let thread = &profile["threads"][0];
    assert_eq!(thread["samples"]["weightType"], "tracing-ms");
    assert_eq!(thread["samples"]["weight"], serde_json::json!([300.0, 10.0]));
    assert_eq!(thread["samples"]["threadCPUDelta"], serde_json::json!([0.0, 10_000.0]));
    assert_eq!(stack_of(thread, 0).last().unwrap(), "[sleeping in futex] :0 0");
    assert_eq!(thread["markers"]["startTime"][0], 0.0);
    assert_eq!(thread["markers"]["endTime"][0], 310.0);
}

/// Modules have the ids by which symbol servers know them.
#[test]
fn modules_are_libraries() {
    let profile = exported(&demo(), &[]);
    let libs = profile["libs"].as_array().unwrap();
    let names: Vec<_> = libs.iter().map(|lib| lib["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["demo", "libc.so.6"]);
    assert_eq!(libs[1]["path"], "/usr/lib/libc.so.6");
}
