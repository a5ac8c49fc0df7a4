//! The tables of a Firefox profile beside names and weights: threads, libraries, categories and
//! tags.

use serde_json::{Value, json};

use traceprof::trace::{self, Sample, TagKey, TagKind};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Trace, maker, traceprof};

use maker::BEGIN_NS;

fn exported(made: &Trace) -> Value {
    let mut command = traceprof(&["export", "--format", "firefox"]);
    let output = command.arg(made.path()).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the row of the frame table whose function has this name.
fn frame_of(thread: &Value, name: &str) -> usize {
    let strings = thread["stringArray"].as_array().unwrap();
    let string = strings.iter().position(|text| text == name).expect(name);
    let is_it = |of: &Value, number: usize| of.as_u64() == Some(number as u64);
    let functions = thread["funcTable"]["name"].as_array().unwrap();
    let function = functions.iter().position(|it| is_it(it, string)).expect(name);
    let frames = thread["frameTable"]["func"].as_array().unwrap();
    frames.iter().position(|it| is_it(it, function)).expect(name)
}

#[test]
fn threads_have_their_begin_their_end_and_their_kind() {
    let mut maker = Maker::new();
    let thread = |maker: &mut Maker, tid, ms: u64| {
        let first_seen_ns = BEGIN_NS + ms * 1_000_000;
        let thread = trace::Thread {
            pid: 100,
            tid,
            name: "x".to_owned(),
            first_seen_ns,
            ..Default::default()
        };
        maker.writer.thread(&thread).unwrap()
    };
    let main = thread(&mut maker, 100, 0);
    maker.sample(main, 1, "main");
    let brief = thread(&mut maker, 101, 5);
    maker.sample(brief, 6, "main");
    maker.writer.thread_exit(brief, BEGIN_NS + 22_000_000).unwrap();
    let profile = exported(&maker.finish());
    let times = |at: usize| {
        let thread = &profile["threads"][at];
        [&thread["isMainThread"], &thread["registerTime"], &thread["unregisterTime"]]
            .map(Value::clone)
    };
    assert_eq!(times(0), [json!(true), json!(0.0), json!(null)]);
    assert_eq!(times(1), [json!(false), json!(5.0), json!(22.0)]);
}

#[test]
fn functions_lead_to_their_library_and_frames_to_their_address() {
    let mut maker = Maker::new();
    let thread = maker.thread(100, "x");
    maker.sample(thread, 1, "main:10 memcpy@libc");
    maker.inlined_sample(thread);
    let made = maker.finish();
    let profile = exported(&made);
    let thread = &profile["threads"][0];
    let library = |name: &str| {
        let frame = frame_of(thread, name);
        let function = thread["frameTable"]["func"][frame].as_u64().unwrap() as usize;
        let resource = thread["funcTable"]["resource"][function].as_u64().expect("a resource");
        let lib = thread["resourceTable"]["lib"][resource as usize].as_u64().unwrap();
        profile["libs"][lib as usize]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!([library("main"), library("memcpy")], ["demo", "libc.so.6"]);
    // Addresses are those of the trace. An inlined function has the address of the code that
    // contains it.
    let trace = trace::load(&made.path()).unwrap();
    let svma = |name: &str| {
        let is_it = |it: &&trace::Location| {
            trace.methods[it.method.0 as usize].name == name && it.inline_parent.is_none()
        };
        trace.locations.iter().find(is_it).expect(name).svma
    };
    let address = |name: &str| thread["frameTable"]["address"][frame_of(thread, name)].as_u64();
    for name in ["main", "memcpy"] {
        assert_eq!(address(name), Some(svma(name)), "{name}");
    }
    assert_eq!(address("inlined_part"), Some(svma("main")));
}

#[test]
fn waiting_is_a_category_of_its_own() {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", trace::Value::Text("wall".to_owned())).unwrap();
    let thread = maker.thread(1, "sleeper");
    let sample = Sample { time_ns: BEGIN_NS + 9_000_000, weight: 9_000, ..Sample::default() };
    let sample = Sample { flags: WALL, state: 2, syscall: Some(202), ..sample };
    maker.full_sample(thread, &sample, "main wait");
    let profile = exported(&maker.finish());
    let thread = &profile["threads"][0];
    let category = |name: &str| {
        let category = thread["frameTable"]["category"][frame_of(thread, name)].as_u64().unwrap();
        profile["meta"]["categories"][category as usize]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(category("[sleeping in futex]"), "Idle");
    assert_eq!(category("wait"), "User");
}

#[test]
fn a_tag_keeps_its_name_where_one_before_it_is_missing() {
    let mut maker = Maker::new();
    let key = |name: &str| TagKey { name: name.to_owned(), kind: TagKind::Number };
    let (name, value) = TagKey::metadata(&[key("route"), key("status")]);
    maker.writer.set_metadata(name, value).unwrap();
    let thread = maker.thread(1, "x");
    let mut sample = Sample { time_ns: BEGIN_NS + 1_000_000, span: 7, ..Sample::default() };
    sample.tags[1] = 503;
    maker.full_sample(thread, &sample, "main");
    let profile = exported(&maker.finish());
    let data = &profile["threads"][0]["markers"]["data"][0];
    assert_eq!((&data["tag1"], &data["tag0"]), (&json!("503"), &json!(null)), "{data}");
    let fields = profile["meta"]["markerSchema"][0]["fields"].as_array().unwrap();
    let label = fields.iter().find(|field| field["key"] == "tag1").map(|field| &field["label"]);
    assert_eq!(label, Some(&json!("status")));
}
