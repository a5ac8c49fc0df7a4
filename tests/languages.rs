//! Languages, files and lines of managed code in summaries, exports and the page.

use std::collections::BTreeMap;
use std::io::Read;

use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use prost::Message;
use serde_json::Value as Json;

use crate::common::{BROWSER, Browser, Maker, Trace, has_command, skip, traceprof};
use crate::exports::exported;
use crate::managed::printed;
use crate::page_shown::{LARGE, page_of};

/// Functions in four languages that call each other, in each tier.
fn in_all_languages() -> Trace {
    let mut maker = Maker::new();
    let thread = maker.thread(100, "server");
    for (ms, stack) in (0..20).zip(
        [
            "main:1 serve:21~python scan@libc",
            "main:1 serve:22~python",
            "main:1 run:31~java-interpreted step:41~java-c1 hash:52~java-c2",
            "main:1 handle:61~javascript-interpreted reply:71~javascript-optimized",
            "main:1 read@libc vfs_read~kernel",
        ]
        .into_iter()
        .cycle(),
    ) {
        maker.sample(thread, ms, stack);
    }
    maker.finish()
}

#[test]
fn pprof_has_files_and_first_lines_and_no_addresses_of_managed_code() {
    let bytes = exported(&in_all_languages(), "pprof", &[]);
    let mut message = Vec::new();
    flate2::read::GzDecoder::new(&*bytes).read_to_end(&mut message).unwrap();
    let profile = Pprof::decode(&*message).unwrap();
    let text = |at: i64| profile.strings[at as usize].as_str();
    let function = |id: u64| profile.functions.iter().find(|it| it.id == id).unwrap();
    let mut places = BTreeMap::new();
    for location in &profile.locations {
        let [line] = &location.lines[..] else { panic!("{location:?}") };
        let of = function(line.function_id);
        let place = (text(of.filename), of.start_line, line.line, location.mapping_id > 0);
        places.insert((text(of.name), line.line), (place, location.address > 0));
    }
    assert_eq!(places[&("serve", 21)], (("/srv/app.python", 20, 21, false), false));
    assert_eq!(places[&("serve", 22)], (("/srv/app.python", 20, 22, false), false));
    assert_eq!(places[&("hash", 52)], (("/srv/app.java", 50, 52, false), false));
    assert_eq!(places[&("main", 1)], (("src/demo.c", 0, 1, true), true));
    let serve = profile.functions.iter().filter(|it| text(it.name) == "serve");
    assert_eq!(serve.count(), 1);
    let files: Vec<&str> = profile.mappings.iter().map(|it| text(it.filename)).collect();
    assert!(files.iter().all(|file| !file.starts_with("/srv")), "{files:?}");
}

/// The parts of a pprof profile that say where code is.
#[derive(Clone, PartialEq, Message)]
struct Pprof {
    #[prost(message, repeated, tag = "3")]
    mappings: Vec<PprofMapping>,
    #[prost(message, repeated, tag = "4")]
    locations: Vec<PprofLocation>,
    #[prost(message, repeated, tag = "5")]
    functions: Vec<PprofFunction>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct PprofMapping {
    #[prost(int64, tag = "5")]
    filename: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PprofLocation {
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    lines: Vec<PprofLine>,
}

#[derive(Clone, PartialEq, Message)]
struct PprofLine {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PprofFunction {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
    #[prost(int64, tag = "5")]
    start_line: i64,
}

#[test]
fn otlp_says_the_type_of_each_frame() {
    let bytes = exported(&in_all_languages(), "otlp", &[]);
    let words = ProfilesData::decode(&*bytes).unwrap().dictionary.unwrap();
    let text = |at: i32| words.string_table[at as usize].as_str();
    let mut types = BTreeMap::new();
    for location in &words.location_table[1..] {
        let function = &words.function_table[location.lines[0].function_index as usize];
        let attributes = location.attribute_indices.iter();
        let of: Vec<String> = attributes
            .map(|at| {
                let attribute = &words.attribute_table[*at as usize];
                assert_eq!(text(attribute.key_strindex), "profile.frame.type");
                let Some(any_value::Value::StringValue(value)) =
                    attribute.value.as_ref().and_then(|value| value.value.clone())
                else {
                    panic!("{attribute:?}")
                };
                value
            })
            .collect();
        types.insert(text(function.name_strindex), (of.join(","), function.start_line));
    }
    for (name, kind, line) in [
        ("main", "native", 0),
        ("scan", "native", 0),
        ("vfs_read", "kernel", 0),
        ("serve", "cpython", 20),
        ("run", "jvm", 30),
        ("hash", "jvm", 50),
        ("handle", "v8js", 60),
    ] {
        assert_eq!(types[name], (kind.to_owned(), line), "{name}");
    }
}

#[test]
fn firefox_has_a_category_for_each_language_and_tier() {
    let bytes = exported(&in_all_languages(), "firefox", &[]);
    let profile: Json = serde_json::from_slice(&bytes).unwrap();
    let thread = &profile["threads"][0];
    let number = |of: &Json, at: usize| of[at].as_u64().map(|it| it as usize);
    let string = |at: usize| thread["stringArray"][at].as_str().unwrap();
    let (frames, functions) = (&thread["frameTable"], &thread["funcTable"]);
    let mut found = BTreeMap::new();
    for at in 0..frames["length"].as_u64().unwrap() as usize {
        let function = number(&frames["func"], at).unwrap();
        let category = &profile["meta"]["categories"][number(&frames["category"], at).unwrap()];
        let tier = &category["subcategories"][number(&frames["subcategory"], at).unwrap()];
        let file = number(&functions["fileName"], function).map(string);
        found.insert(
            string(number(&functions["name"], function).unwrap()),
            (
                category["name"].as_str().unwrap(),
                tier.as_str().unwrap(),
                file,
                functions["lineNumber"][function].as_u64(),
                functions["isJS"][function].as_bool().unwrap(),
                frames["address"][at].as_i64() == Some(-1),
            ),
        );
    }
    let of = |name: &str| found[name];
    let (python, java, js) = ("/srv/app.python", "/srv/app.java", "/srv/app.javascript");
    assert_eq!(of("serve"), ("Python", "Other", Some(python), Some(20), false, true));
    assert_eq!(of("run"), ("Java", "Interpreted", Some(java), Some(30), false, true));
    assert_eq!(of("hash"), ("Java", "C2", Some(java), Some(50), false, true));
    assert_eq!(of("handle"), ("JavaScript", "Interpreted", Some(js), Some(60), true, true));
    assert_eq!(of("reply"), ("JavaScript", "Optimized", Some(js), Some(70), true, true));
    assert_eq!(of("main"), ("User", "Other", Some("src/demo.c"), None, false, false));
    assert_eq!(of("vfs_read").0, "Kernel");
    assert_eq!(profile["meta"]["usesOnlyOneStackType"], false);
}

#[test]
fn speedscope_has_files_and_lines() {
    let bytes = exported(&in_all_languages(), "speedscope", &[]);
    let file: Json = serde_json::from_slice(&bytes).unwrap();
    let frames = file["shared"]["frames"].as_array().unwrap();
    let serve: Vec<_> = frames.iter().filter(|frame| frame["name"] == "serve").collect();
    assert_eq!(serve.len(), 2);
    assert!(serve.iter().all(|frame| frame["file"] == "/srv/app.python"));
    assert_eq!((&serve[0]["line"], &serve[1]["line"]), (&21.into(), &22.into()));
}

#[test]
fn languages_are_in_the_summary_and_in_tables() {
    let made = in_all_languages();
    let summary = printed(&made, &["print", "--tree"]);
    let shares = "java 20.0 %, javascript 20.0 %, kernel 20.0 %, native 20.0 %, python 20.0 %";
    let summary = summary.lines().find(|line| line.starts_with("languages")).unwrap().to_owned();
    let shares: Vec<&str> = shares.split(", ").collect();
    assert!(shares.iter().all(|share| summary.contains(share)), "{summary}");
    let json: Json = serde_json::from_str(&printed(&made, &["print", "--json"])).unwrap();
    assert_eq!(json["languages"]["python"]["weight"], 4);
    assert_eq!(json["languages"].as_object().unwrap().len(), 5);
    assert_eq!(json["interpreters_left_out"], true);
    let table = printed(&made, &["print", "--by", "language", "--top", "9"]);
    let row = |name: &str| {
        let line = table.lines().find(|line| line.trim_end().ends_with(name)).unwrap();
        line.split_whitespace().take(4).map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert!(row("python").starts_with("20.0 40.0"), "{table}");
    assert!(row("native").starts_with("20.0 100.0"), "{table}");
    let tree = printed(&made, &["print", "--by", "language"]);
    assert!(tree.contains("─ javascript") && tree.contains("native"), "{tree}");
    let folded = String::from_utf8(exported(&made, "folded", &[])).unwrap();
    assert!(folded.contains("main;serve;scan 4\n"), "{folded}");
}

/// The innermost managed function counts, whatever is native around it.
#[test]
fn the_summary_has_the_share_of_samples_with_names() {
    let mut maker = Maker::new();
    let thread = maker.thread(100, "server");
    for (ms, stack) in (0..20).zip(
        [
            "main:1 serve:21~python scan@libc",
            "main:1 serve:21~python [unknown]:1~python scan@libc",
            "main:1 [unknown]:1~python serve:21~python",
            "main:1 run:31~java-interpreted serve:21~python step:41~java-c1",
            "main:1 read@libc",
        ]
        .into_iter()
        .cycle(),
    ) {
        maker.sample(thread, ms, stack);
    }
    let made = maker.finish();
    let summary = printed(&made, &["print", "--tree"]);
    let names = summary.lines().find(|line| line.starts_with("names")).unwrap();
    let shares = "66.7 % of 12 samples with a function in python, \
                  100.0 % of 4 samples with a function in java";
    assert!(names.ends_with(shares), "{names}");
    let json: Json = serde_json::from_str(&printed(&made, &["print", "--json"])).unwrap();
    let named = &json["quality"]["named"];
    assert_eq!(
        (&named["python"]["samples"], &named["python"]["named_samples"]),
        (&12.into(), &8.into())
    );
    assert_eq!(named["java"]["named_percent"], 100.0);
    assert_eq!(named.as_object().unwrap().len(), 2);
}

#[test]
fn folded_stacks_have_marks_on_request() {
    let made = in_all_languages();
    let folded = String::from_utf8(exported(&made, "folded", &["--annotate"])).unwrap();
    for line in [
        "main;serve_[p];scan 4\n",
        "main;run_[0];step_[1];hash_[j] 4\n",
        "main;handle_[0];reply_[j] 4\n",
        "main;read;vfs_read_[k] 4\n",
    ] {
        assert!(folded.contains(line), "{line}{folded}");
    }
    let plain = String::from_utf8(exported(&made, "folded", &[])).unwrap();
    assert!(!plain.contains("_["), "{plain}");
    let mut command = traceprof(&["export", "--annotate", "--format", "pprof"]);
    let output = command.arg(made.path()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && message.contains("folded"), "{message}");
}

#[test]
fn flame_graphs_have_a_colour_for_each_language() {
    let svg = String::from_utf8(exported(&in_all_languages(), "flamegraph", &[])).unwrap();
    for legend in
        ["salmon native", "yellow python", "teal java", "pink javascript", "violet kernel"]
    {
        assert!(svg.contains(legend), "{legend}");
    }
    let color = |name: &str| {
        let after = svg.split_once(&format!("<title>{name} (")).unwrap().1;
        let fill = after.split_once("fill=\"rgb(").unwrap().1.split_once(')').unwrap().0;
        let parts: Vec<i32> = fill.split(',').map(|it| it.trim().parse().unwrap()).collect();
        (parts[0], parts[1], parts[2])
    };
    let (r, g, b) = color("serve");
    assert!(r > b + 60 && g > b + 60, "yellow: {r} {g} {b}");
    let (r, g, b) = color("hash");
    assert!(g > r + 30 && b > r + 30, "teal: {r} {g} {b}");
}

#[test]
fn the_page_has_a_legend_of_languages() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = in_all_languages();
    let mut browser = Browser::open(&page_of(&made), "", LARGE);
    for (language, weight) in
        [("python", 4.0), ("java", 4.0), ("javascript", 4.0), ("kernel", 4.0), ("native", 4.0)]
    {
        let shown = browser.number(&format!("[data-language={language}]"), "weight");
        assert!((shown - weight).abs() < 1e-3, "{language}: {shown}");
    }
    assert_eq!(browser.problems(), [""; 0]);
    // A trace of native code only has no languages.
    let mut maker = Maker::new();
    let thread = maker.thread(100, "native");
    maker.sample(thread, 1, "main:1");
    let mut browser = Browser::open(&page_of(&maker.finish()), "", LARGE);
    assert_eq!(browser.evaluate("document.querySelector('#languages') === null"), true);
}
