//! Profiles for OpenTelemetry, read with the Python messages that OpenTelemetry publishes.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value as Json;

use traceprof::trace::{Sample, Value};

use crate::common::{Maker, Trace, maker, skip, traceprof};
use crate::process_exports::three;

use maker::{BEGIN_NS, GAP, SPAN, SPAN_ROOT};

const REALTIME_NS: u64 = 1_700_000_000_000_000_000;

/// Reads a request, checks what the format demands of each message, and prints the contents.
const READER: &str = r#"
import json, sys
from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2 as service
request = service.ExportProfilesServiceRequest()
request.ParseFromString(open(sys.argv[1], "rb").read())
words, contents = request.dictionary, {}
def unknown(message):
    from google.protobuf.unknown_fields import UnknownFieldSet
    assert len(UnknownFieldSet(message)) == 0, "fields that the format does not have"
unknown(request)
for name in ["mapping", "location", "function", "link", "attribute", "stack"]:
    table = getattr(words, name + "_table")
    assert table[0] == type(table[0])(), name + ": the first is not empty"
    keys = [one.SerializeToString(deterministic=True) for one in table]
    assert len(set(keys)) == len(keys), name + ": one is there twice"
    for one in table: unknown(one)
assert words.string_table[0] == "" and len(set(words.string_table)) == len(words.string_table)
def attributes(of):
    all = [words.attribute_table[at] for at in of.attribute_indices]
    keys = [words.string_table[one.key_strindex] for one in all]
    assert len(set(keys)) == len(keys), keys
    value = lambda one: getattr(one.value, one.value.WhichOneof("value"))
    return {key: value(one) for key, one in zip(keys, all)}
def line(of):
    function = words.function_table[of.function_index]
    file = words.string_table[function.filename_strindex]
    place = f" {file}:{of.line}" if file else ""
    return words.string_table[function.name_strindex] + place
def location(at):
    of = words.location_table[at]
    mapping = words.mapping_table[of.mapping_index]
    assert of.mapping_index == 0 or mapping.memory_start <= of.address < mapping.memory_limit
    return " < ".join(line(one) for one in of.lines)
def sample(of):
    link = words.link_table[of.link_index]
    assert len(of.values) == 1 and not of.timestamps_unix_nano
    return {
        "stack": [location(at) for at in words.stack_table[of.stack_index].location_indices],
        "attributes": attributes(of), "value": of.values[0],
        "trace": link.trace_id.hex(), "span": link.span_id.hex(),
    }
def kind(of): return [words.string_table[of.type_strindex], words.string_table[of.unit_strindex]]
def profile(of):
    return {"type": kind(of.sample_type), "period": of.period, "period_type": kind(of.period_type),
            "time": of.time_unix_nano, "duration": of.duration_nano,
            "samples": [sample(one) for one in of.samples]}
def resource_pid(of):
    return next(one.value.int_value for one in of.resource.attributes if one.key == "process.pid")
for of in request.resource_profiles:
    def value(one):
        value = getattr(one.value, one.value.WhichOneof("value"))
        return [it.string_value for it in value.values] if one.value.HasField("array_value") else value
    assert len({one.key for one in of.resource.attributes}) == len(of.resource.attributes)
    assert resource_pid(of) not in contents, "two resources of one process"
    resource = {one.key: value(one) for one in of.resource.attributes}
    (scope,) = of.scope_profiles
    contents[resource["process.pid"]] = {"resource": resource, "scope": scope.scope.name,
        "profiles": [profile(one) for one in scope.profiles]}
contents["modules"] = [[words.string_table[one.filename_strindex], attributes(one)]
                   for one in words.mapping_table[1:]]
print(json.dumps(contents))
"#;

/// Two threads; a span with a trace and one without; tags with the names of our attributes; an
/// inlined function; a truncated stack; names that must be escaped.
fn demo() -> Trace {
    let mut maker = Maker::new();
    maker.writer.set_metadata("start_realtime_ns", Value::Unsigned(REALTIME_NS)).unwrap();
    let front = maker.thread_with_tags("thread.id");
    let inlined = maker.inlined_stack();
    let time_ns = BEGIN_NS + 11_000_000;
    let sample = Sample { time_ns, span: 7, ..Sample::default() };
    maker.writer.sample(front, &sample, &inlined).unwrap();
    let back = maker.thread(101, "back");
    maker.sample_ending(back, 3, "memcpy@libc", GAP);
    maker.finish()
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("tools")
}

/// Returns what the reader prints for an export.
fn read(made: &Trace, options: &[&str]) -> Json {
    let path = made.path().with_extension("otlp");
    let mut command = traceprof(&["export", "--force", "--output"]);
    let output = command.arg(&path).arg(made.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let modules = ["opentelemetry-proto", "protobuf"].map(|it| tools().join(it));
    let mut python = Command::new("python3");
    python
        .args(["-c", READER])
        .arg(&path)
        .env("PYTHONPATH", std::env::join_paths(modules).unwrap());
    let output = python.output().expect("python3");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options:?}: {message}");
    serde_json::from_slice(&output.stdout).unwrap()
}

macro_rules! needs_messages {
    () => {
        if ["opentelemetry-proto", "protobuf"].iter().any(|it| !tools().join(it).exists()) {
            skip!("the messages of OpenTelemetry for Python: not installed");
        }
    };
}

fn total(profile: &Json) -> i64 {
    let samples = profile["samples"].as_array().unwrap();
    samples.iter().map(|sample| sample["value"].as_i64().unwrap()).sum()
}

#[test]
fn a_request_holds_stacks_threads_and_times() {
    needs_messages!();
    let contents = read(&demo(), &[]);
    let process = &contents["100"];
    assert_eq!(process["scope"], "traceprof");
    assert_eq!(process["resource"]["os.type"], "linux");
    let [time, samples] = &process["profiles"].as_array().unwrap()[..] else {
        panic!("{contents}")
    };
    assert_eq!(time["type"], serde_json::json!(["cpu", "nanoseconds"]));
    assert_eq!((time["period"].as_i64(), total(time)), (Some(1_000_000), 22_000_000));
    assert_eq!(samples["type"], serde_json::json!(["samples", "count"]));
    assert_eq!(total(samples), 12);
    let stacks: Vec<_> =
        time["samples"].as_array().unwrap().iter().map(|it| &it["stack"]).collect();
    let expected = serde_json::json!([
        ["serve src/demo.c:20", "main src/demo.c:10", "_start"],
        ["inlined_part src/part.h:7 < main src/demo.c:10"],
        ["memcpy", "[truncated]"],
    ]);
    assert_eq!(serde_json::json!(stacks), expected);
    let back = &time["samples"][2]["attributes"];
    assert_eq!(*back, serde_json::json!({ "thread.name": "back", "thread.id": 101 }));
    let libc =
        contents["modules"].as_array().unwrap().iter().find(|it| it[0] == "/usr/lib/libc.so.6");
    assert!(libc.is_some(), "{}", contents["modules"]);
}

#[test]
fn spans_are_links_and_tags_are_attributes() {
    needs_messages!();
    let contents = read(&demo(), &[]);
    let samples = contents["100"]["profiles"][0]["samples"].as_array().unwrap();
    assert_eq!(samples[0]["trace"], format!("{SPAN_ROOT:032x}"));
    assert_eq!(samples[0]["span"], format!("{SPAN:016x}"));
    let expected = serde_json::json!({
        "thread.name": "front", "thread.id": 100, "route": "/check\\u{1b}out", "tag.thread.id": 503,
    });
    assert_eq!(samples[0]["attributes"], expected);
    assert_eq!((&samples[1]["trace"], &samples[1]["span"]), (&"".into(), &"".into()));
    assert_eq!(samples[1]["attributes"]["span_id"], "0000000000000007", "a span without its trace");
}

#[test]
fn each_process_has_a_resource_and_its_own_samples() {
    needs_messages!();
    let contents = read(&three(), &["--mode", "cpu"]);
    for (pid, name, words) in [
        ("100", "front", ["/usr/bin/front", "--all"]),
        ("200", "front", ["/usr/bin/front", "--none"]),
    ] {
        let resource = &contents[pid]["resource"];
        assert_eq!(resource["process.executable.name"], name);
        assert_eq!(resource["service.name"], "unknown_service:front");
        assert_eq!(resource["process.command"], words[0]);
        assert_eq!(resource["process.command_args"], serde_json::json!(words));
        assert_eq!(resource["process.command_line"], words.join(" "));
    }
    let server = &contents["300"]["resource"];
    let name = "a-long-named-server";
    assert_eq!(server["process.executable.name"], name, "the kernel has but its begin");
    assert_eq!(server["process.command_line"], format!("/opt/{name} -p 8\\u{{1b}}0"));
    // A sample carries the name of its thread, and no attribute of a sample has the process.
    let samples = contents["300"]["profiles"][0]["samples"].as_array().unwrap();
    let threads = samples.iter().map(|it| &it["attributes"]);
    let threads: Vec<String> = threads.map(Json::to_string).collect();
    let expected = ["a-long-named-se", "sh", "worker"].map(|thread| {
        let id = if thread == "worker" { 301 } else { 300 };
        serde_json::json!({ "thread.name": thread, "thread.id": id }).to_string()
    });
    let distinct: std::collections::BTreeSet<String> = threads.into_iter().collect();
    assert_eq!(distinct, expected.into());
    let total_ns: i64 =
        ["100", "200", "300"].map(|pid| total(&contents[pid]["profiles"][0])).iter().sum();
    let all = crate::exports::weight(&three(), |_, sample| !crate::exports::is_wall(sample));
    assert_eq!(total_ns as f64, all * 1e6);
}

#[test]
fn a_service_is_called_as_it_calls_itself() {
    needs_messages!();
    let mut maker = Maker::new();
    let text = |text: &str| Value::Text(text.to_owned());
    for (key, value) in [
        ("otel.service.name", text("shop")),
        ("otel.deployment.zones", Value::List(vec![text("a"), text("b")])),
        ("otel.process.pid", text("1")),
        ("otel.process.executable.name", text("other")),
        ("otel.process.runtime.name", text("nodejs")),
        ("otel.process.owner", text("shop")),
        ("pid", Value::Unsigned(100)),
        ("command_line", Value::List(vec![text("/usr/bin/node"), text("shop.js")])),
    ] {
        maker.writer.set_metadata(key, value).unwrap();
    }
    let main = maker.thread(100, "node-MainThread");
    maker.sample(main, 1, "_start main");
    let resource = &read(&maker.finish(), &[])["100"]["resource"];
    assert_eq!(resource["process.runtime.name"], "nodejs");
    assert_eq!(resource["process.owner"], "shop");
    assert_eq!(resource["service.name"], "shop");
    assert_eq!(resource["deployment.zones"], serde_json::json!(["a", "b"]));
    assert_eq!(resource["process.executable.name"], "node");
    assert_eq!(resource["process.pid"], 100);
}

#[test]
fn an_executable_is_the_program_that_runs_whatever_its_thread_is_called() {
    needs_messages!();
    let text = |text: &str| Value::Text(text.to_owned());
    let name = |word: &str, executed: &[(&str, bool)]| {
        let mut maker = Maker::new();
        let mut set = |key: &str, value| maker.writer.set_metadata(key, value).unwrap();
        set("pid", Value::Unsigned(100));
        set("command_line", Value::List(vec![text(word), text("-x")]));
        for (number, (path, sampled)) in (1..).zip(executed) {
            let fate = if *sampled { Value::Unsigned(BEGIN_NS) } else { text("too short") };
            let program = vec![text(path), Value::Unsigned(BEGIN_NS + number), fate];
            set(&format!("executed.{number}"), Value::List(program));
        }
        let main = maker.thread(100, "MainThread");
        maker.sample(main, 1, "_start main");
        read(&maker.finish(), &[])["100"]["resource"]["process.executable.name"].clone()
    };
    assert_eq!(name("/usr/bin/python3", &[]), "python3");
    assert_eq!(name("server: master process", &[]), "MainThread", "that is only a title");
    let executed = [("/bin/env", true), ("/usr/bin/ruby (deleted)", true), ("/bin/true", false)];
    assert_eq!(name("/bin/sh", &executed), "ruby");
}

#[test]
fn a_window_has_its_own_times() {
    needs_messages!();
    let made = demo();
    let parts = [["--to", "4.5ms"], ["--from", "4.5ms"]].map(|options| read(&made, &options));
    let times = parts.each_ref().map(|contents| total(&contents["100"]["profiles"][0]));
    assert_eq!(times.iter().sum::<i64>(), 22_000_000);
    assert!(times.iter().all(|time| *time > 0), "{times:?}");
    let of = |contents: &Json, what: &str| contents["100"]["profiles"][0][what].as_u64().unwrap();
    let [first, second] = &parts;
    assert_eq!((of(first, "time"), of(first, "duration")), (REALTIME_NS, 4_000_000));
    assert_eq!((of(second, "time"), of(second, "duration")), (REALTIME_NS + 5_000_000, 6_000_000));
}

#[test]
fn a_terminal_is_not_filled_with_it() {
    let made = demo();
    let mut command = Command::new("script");
    let line = format!(
        "{} export --format otlp {}",
        env!("CARGO_BIN_EXE_traceprof"),
        made.path().display()
    );
    let output = command.args(["-qec", &line, "/dev/null"]).output().expect("script");
    let message = String::from_utf8_lossy(&output.stdout);
    assert!(message.contains("otlp is binary and cannot go to a terminal"), "{message}");
    assert_eq!(output.status.code(), Some(2));
}
