//! Exports of several processes that were recorded together: no process is confused with another.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Word;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use prost::Message;
use serde_json::Value as Json;

use traceprof::trace::{Sample, Value};
use traceprof::view::export::Format;
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Page, Trace, maker};
use crate::exports::{exported, is_wall};

use maker::BEGIN_NS;

/// Three processes, each with a worker that works and waits: two of the same name, and a shell that
/// executed a server during the recording.
pub(crate) fn three() -> Trace {
    let mut maker = Maker::new();
    let text = |text: &str| Value::Text(text.to_owned());
    for (key, value) in [
        ("mode", text("cpu,wall")),
        ("pid", Value::Unsigned(100)),
        ("command_line", Value::List(vec![text("/usr/bin/front"), text("--all")])),
        ("processes", Value::Unsigned(3)),
        ("end_monotonic_ns", Value::Unsigned(BEGIN_NS + 1_000_000_000)),
    ] {
        maker.writer.set_metadata(key, value).unwrap();
    }
    let lines: [(&str, &[&str]); 3] = [
        ("front", &["/usr/bin/front", "--all"]),
        ("front", &["/usr/bin/front", "--none"]),
        ("a-long-named-se", &["/opt/a-long-named-server", "-p", "8\u{1b}0"]),
    ];
    for ((number, pid), (name, words)) in [(1, 100), (2, 200), (3, 300)].into_iter().zip(lines) {
        let words = Value::List(words.iter().copied().map(text).collect());
        let fields = [Value::Unsigned(pid), Value::Unsigned(pid * 7), text(name), words];
        maker
            .writer
            .set_metadata(&format!("process.{number}"), Value::List(fields.into()))
            .unwrap();
    }
    let executed = Value::List(vec![text("a-long-named-server"), Value::Unsigned(BEGIN_NS)]);
    maker.writer.set_metadata("process.3.executed.1", executed).unwrap();
    for (pid, tid, name) in [
        (100, 100, "front"),
        (200, 200, "front"),
        (300, 300, "sh"),
        (300, 300, "a-long-named-se"),
        (100, 101, "worker"),
        (200, 201, "worker"),
        (300, 301, "worker"),
    ] {
        let thread = maker.thread_of(pid, tid, name);
        for turn in 1..=u64::from(pid / 20 + tid % 2) {
            let time_ns = BEGIN_NS + turn * 1_000_000;
            let cpu = Sample { time_ns, weight: 1 + turn as u32 % 3, ..Sample::default() };
            maker.full_sample(thread, &cpu, "_start main:10 serve:20");
            let state = turn as u8 % 3;
            let weight = 1_000 * (1 + turn as u32 % 2);
            let wall = Sample { flags: WALL, state, weight, ..cpu };
            maker.full_sample(thread, &wall, "_start main:10 serve:20");
        }
    }
    maker.finish()
}

/// Returns the weight of each process, from the trace.
fn weights(made: &Trace, wall: bool) -> BTreeMap<u32, f64> {
    let mut weights = BTreeMap::new();
    for thread in &traceprof::trace::load(&made.path()).unwrap().threads {
        let pid = thread.thread().pid;
        thread.for_each_sample(&mut |sample, _| {
            if is_wall(sample) == wall {
                *weights.entry(pid).or_default() += f64::from(sample.weight);
            }
        });
    }
    weights
}

#[derive(Clone, PartialEq, Message)]
struct Pprof {
    #[prost(message, repeated, tag = "2")]
    samples: Vec<PprofSample>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct PprofSample {
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    labels: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
    #[prost(int64, tag = "3")]
    number: i64,
}

impl Pprof {
    fn of(bytes: &[u8]) -> Self {
        let mut message = Vec::new();
        GzDecoder::new(bytes).read_to_end(&mut message).unwrap();
        Self::decode(&*message).unwrap()
    }

    fn label<'a>(&self, sample: &'a PprofSample, key: &str) -> Option<&'a Label> {
        sample.labels.iter().find(|label| self.strings[label.key as usize] == key)
    }
}

/// Returns the id at the end of `front/100`.
fn pid_of(label: &str) -> u32 {
    label.rsplit_once('/').unwrap().1.parse().unwrap()
}

fn of_otlp(bytes: &[u8], ns: f64) -> Vec<(u32, f64)> {
    let processes = ProfilesData::decode(bytes).unwrap().resource_profiles;
    let part = |pid: u32, sample: &[i64]| (pid, sample[0] as f64 / ns);
    let of = |it: &opentelemetry_proto::tonic::profiles::v1development::ResourceProfiles| {
        let resource = it.resource.as_ref().unwrap();
        let pid = resource.attributes.iter().find(|it| it.key == "process.pid").unwrap();
        let Some(Word::IntValue(pid)) = pid.value.as_ref().unwrap().value else { panic!() };
        let samples = it.scope_profiles[0].profiles[0].samples.iter();
        samples.map(|it| part(pid as u32, &it.values)).collect::<Vec<_>>()
    };
    processes.iter().flat_map(of).collect()
}

fn of_perf_script(text: &str) -> Vec<(u32, f64)> {
    let heads = text.lines().filter(|line| line.ends_with(':'));
    let part = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let pid = words.next().unwrap().split('/').next().unwrap().parse().unwrap();
        (pid, words.nth(1).unwrap().parse().unwrap())
    };
    heads.map(part).collect()
}

/// Returns the weight of each process in an export: CPU time in periods of a millisecond, wall
/// clock time in microseconds.
fn of_processes(format: Format, bytes: &[u8], wall: bool) -> BTreeMap<u32, f64> {
    let text = || std::str::from_utf8(bytes).unwrap();
    let json = || serde_json::from_slice::<Json>(bytes).unwrap();
    let ns = if wall { 1e3 } else { 1e6 };
    let sum = |json: &Json| -> f64 {
        json.as_array().unwrap().iter().map(|weight| weight.as_f64().unwrap()).sum()
    };
    let parts: Vec<(u32, f64)> = match format {
        Format::Folded => {
            let line = |line: &str| {
                let process = line.split(';').next().unwrap();
                (pid_of(process), line.rsplit_once(' ').unwrap().1.parse().unwrap())
            };
            text().lines().map(line).collect()
        }
        Format::Flamegraph => {
            let titles = text().split("<title>").skip(1).map(|it| it.split_once(" (").unwrap());
            let processes = titles.filter(|(name, _)| name.contains('/'));
            let weight = |rest: &str| rest.split(' ').next().unwrap().replace(',', "").parse();
            processes.map(|(name, rest)| (pid_of(name), weight(rest).unwrap())).collect()
        }
        Format::Pprof => {
            let profile = Pprof::of(bytes);
            let pid = |sample| profile.label(sample, "pid").unwrap().number as u32;
            profile.samples.iter().map(|it| (pid(it), it.values[1] as f64 / ns)).collect()
        }
        Format::Otlp => of_otlp(bytes, ns),
        Format::Firefox => {
            let file = json();
            let unit = if wall { 1e3 } else { 1.0 };
            let part = |it: &Json| {
                let pid = it["pid"].as_str().unwrap().parse().unwrap();
                (pid, sum(&it["samples"]["weight"]) * unit)
            };
            file["threads"].as_array().unwrap().iter().map(part).collect()
        }
        Format::Speedscope => {
            let file = json();
            let unit = if wall { 1.0 } else { ns };
            let part =
                |it: &Json| (pid_of(it["name"].as_str().unwrap()), sum(&it["weights"]) / unit);
            file["profiles"].as_array().unwrap().iter().map(part).collect()
        }
        Format::Html => {
            let page = Page::parse(text());
            let samples = page.samples(if wall { "wall" } else { "cpu" });
            let pid = |thread: usize| page.head["threads"][thread]["pid"].as_u64().unwrap() as u32;
            samples.iter().map(|it| (pid(it.thread), it.weight as f64)).collect()
        }
        Format::PerfScript => of_perf_script(text()),
    };
    let mut sums = BTreeMap::new();
    for (pid, weight) in parts {
        *sums.entry(pid).or_default() += weight;
    }
    sums
}

#[test]
fn the_numbers_of_each_process_add_up_in_every_format() {
    let made = three();
    for (mode, wall) in [("cpu", false), ("wall", true)] {
        let expected = weights(&made, wall);
        assert_eq!(expected.len(), 3);
        for format in Format::ALL {
            let bytes = exported(&made, format.name(), &["--mode", mode]);
            let found = of_processes(format, &bytes, wall);
            assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
            for (pid, weight) in &expected {
                let difference = (found[pid] - weight).abs();
                assert!(difference < 1e-6 * weight, "{format} {mode}: {found:?}, not {expected:?}");
            }
        }
    }
}

#[test]
fn processes_have_names_and_threads_of_one_name_stay_apart() {
    let made = three();
    let long = "a-long-named-se";
    let folded = String::from_utf8(exported(&made, "folded", &["--threads"])).unwrap();
    for first in ["front/100;worker;", "front/200;worker;", "a-long-named-se/300;sh;"] {
        assert!(folded.lines().any(|line| line.starts_with(first)), "no {first} in {folded}");
    }
    let profile = Pprof::of(&exported(&made, "pprof", &[]));
    let text =
        |sample, key| profile.strings[profile.label(sample, key).unwrap().text as usize].as_str();
    for sample in &profile.samples {
        let name = if profile.label(sample, "pid").unwrap().number == 300 { long } else { "front" };
        assert_eq!(text(sample, "process"), name);
    }
    let of_shell = profile.samples.iter().filter(|sample| text(sample, "thread") == "sh");
    assert!(of_shell.count() > 0);
    let file: Json = serde_json::from_slice(&exported(&made, "firefox", &[])).unwrap();
    let threads = file["threads"].as_array().unwrap();
    let ids: std::collections::BTreeSet<&str> =
        threads.iter().map(|it| it["tid"].as_str().unwrap()).collect();
    assert_eq!(
        (threads.len(), ids.len()),
        (7, 7),
        "the executed program's first thread is another"
    );
    assert!(threads.iter().all(|it| it["isMainThread"] == (it["name"] != "worker")));
}

/// One of several processes is exported as if it had been recorded alone.
#[test]
fn one_of_them_alone_has_no_frame_of_its_own() {
    let made = three();
    for options in [["--process", "200"], ["--thread", "201"]] {
        let folded = String::from_utf8(exported(&made, "folded", &options)).unwrap();
        assert!(folded.lines().all(|line| line.starts_with("_start;main;serve")), "{folded}");
    }
}
