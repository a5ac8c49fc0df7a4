//! Totals that all export formats must agree on.

use std::io::Read;

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use prost::Message;
use serde_json::Value as Json;

use traceprof::trace::{Sample, Value};
use traceprof::view::export::Format;
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Page, Trace, maker, traceprof};

use maker::{BEGIN_NS, GAP};

/// A recording of both kinds of time: threads that run, wait, or only wait for work; truncated
/// stacks, and one without a frame.
pub(crate) fn demo() -> Trace {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", Value::Text("cpu,wall".to_owned())).unwrap();
    let names = ["front", "front", "back", "idle"];
    let threads = [100, 101, 102, 103].map(|tid| maker.thread(tid, names[tid as usize - 100]));
    let stacks =
        ["_start main:10 serve:20", "_start main:11", "memcpy@libc", "", "main(int) (x) serve"];
    for (ms, stack) in (0..60).zip(stacks.into_iter().cycle()) {
        let thread = threads[ms as usize % 3];
        let end_reason = if ms % 7 == 0 { GAP } else { maker::ROOT };
        let weight = 1 + ms as u32 % 4;
        let time_ns = BEGIN_NS + ms * 1_000_000;
        let span = ms / 20;
        let sample = Sample { time_ns, weight, end_reason, span, ..Sample::default() };
        maker.full_sample(thread, &sample, stack);
        let state = ms as u8 % 4;
        let syscall = (state == 2).then_some(202);
        let sample = Sample { flags: WALL, weight: weight * 1_000, state, syscall, ..sample };
        maker.full_sample(thread, &sample, stack);
    }
    let sample = Sample { time_ns: BEGIN_NS, flags: WALL, state: 2, ..Sample::default() };
    let sample = Sample { weight: 60_000, syscall: Some(232), ..sample };
    maker.full_sample(threads[3], &sample, "start_thread epoll_wait");
    maker.finish()
}

/// Returns what the command writes.
pub(crate) fn exported(made: &Trace, format: &str, options: &[&str]) -> Vec<u8> {
    let mut command = traceprof(&["export", "--format", format]);
    let output = command.arg(made.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The numeric part of a pprof profile.
#[derive(Clone, PartialEq, Message)]
struct Pprof {
    #[prost(message, repeated, tag = "2")]
    samples: Vec<PprofSample>,
}

#[derive(Clone, PartialEq, Message)]
struct PprofSample {
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
}

/// Returns the sum of all numbers of an export: CPU time in periods of a millisecond, wall clock
/// time in microseconds.
fn total(format: Format, bytes: &[u8], is_wall: bool) -> f64 {
    let text = || std::str::from_utf8(bytes).unwrap();
    let json = || serde_json::from_slice::<Json>(bytes).unwrap();
    let ns = if is_wall { 1e3 } else { 1e6 };
    match format {
        Format::Folded => text()
            .lines()
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
            .sum(),
        Format::Flamegraph => {
            let all = text().split_once("<title>all (").unwrap().1;
            all.split_once(' ').unwrap().0.replace(',', "").parse().unwrap()
        }
        Format::Pprof => {
            let mut message = Vec::new();
            GzDecoder::new(bytes).read_to_end(&mut message).unwrap();
            let profile = Pprof::decode(&*message).unwrap();
            profile.samples.iter().map(|sample| sample.values[1] as f64).sum::<f64>() / ns
        }
        Format::Otlp => {
            let profiles = ProfilesData::decode(bytes).unwrap().resource_profiles;
            let scopes = profiles.iter().flat_map(|of_process| &of_process.scope_profiles);
            // The first profile of each scope is that of time.
            let samples = scopes.flat_map(|scope| &scope.profiles[0].samples);
            samples.map(|sample| sample.values[0] as f64).sum::<f64>() / ns
        }
        Format::Firefox => {
            let file = json();
            let threads = file["threads"].as_array().unwrap();
            let weights = threads.iter().flat_map(|it| it["samples"]["weight"].as_array().unwrap());
            let unit = if is_wall { 1e3 } else { 1.0 };
            weights.map(|weight| weight.as_f64().unwrap()).sum::<f64>() * unit
        }
        Format::Speedscope => {
            let file = json();
            let profiles = file["profiles"].as_array().unwrap();
            let weights = profiles.iter().flat_map(|it| it["weights"].as_array().unwrap());
            let unit = if is_wall { 1.0 } else { ns };
            weights.map(|weight| weight.as_f64().unwrap()).sum::<f64>() / unit
        }
        Format::Html => Page::parse(text()).weight(if is_wall { "wall" } else { "cpu" }) as f64,
        Format::PerfScript => {
            let heads = text().lines().filter(|line| line.ends_with(':'));
            heads.map(|line| line.split(' ').nth_back(1).unwrap().parse::<f64>().unwrap()).sum()
        }
    }
}

/// Whether a sample is one of wall clock time.
pub(crate) fn is_wall(sample: &Sample) -> bool {
    sample.flags & WALL != 0
}

/// Returns the weight of the samples for which `is_meant` holds, from the trace.
pub(crate) fn weight(made: &Trace, is_meant: impl Fn(u32, &Sample) -> bool) -> f64 {
    let mut total = 0;
    for thread in &traceprof::trace::load(&made.path()).unwrap().threads {
        let tid = thread.thread().tid;
        thread.for_each_sample(&mut |sample, _| {
            if is_meant(tid, sample) {
                total += u64::from(sample.weight);
            }
        });
    }
    total as f64
}

#[test]
fn the_numbers_of_every_format_add_up_to_those_of_the_trace() {
    type Meant = fn(u32, &Sample) -> bool;
    let made = demo();
    let cases: [(&[&str], Meant); 8] = [
        (&[], |_, it| it.flags & WALL != 0),
        (&["--mode", "cpu"], |_, it| it.flags & WALL == 0),
        (&["--thread", "front"], |tid, it| it.flags & WALL != 0 && tid < 102),
        (&["--mode", "cpu", "--from", "20ms"], |_, it| {
            it.flags & WALL == 0 && it.time_ns >= BEGIN_NS + 20_000_000
        }),
        (&["--state", "sleeping"], |_, it| it.flags & WALL != 0 && it.state == 2),
        (&["--span", "1"], |_, it| it.flags & WALL != 0 && it.span == 1),
        (&["--span", "2", "--mode", "cpu"], |_, it| it.flags & WALL == 0 && it.span == 2),
        (&["--no-idle"], |tid, it| it.flags & WALL != 0 && tid != 103),
    ];
    for (options, is_meant) in cases {
        let expected = weight(&made, is_meant);
        assert!(expected > 0.0);
        for format in Format::ALL {
            let found =
                total(format, &exported(&made, format.name(), options), !options.contains(&"cpu"));
            assert!(
                (found - expected).abs() < 1e-6,
                "{format} {options:?}: {found}, not {expected}"
            );
        }
    }
}

/// In every format, two adjacent windows add up to the complete trace, and so do two halves of the
/// threads.
#[test]
fn adjacent_windows_add_up_to_the_complete_trace() {
    let made = demo();
    for mode in ["cpu", "wall"] {
        let of_mode = weight(&made, |_, it| is_wall(it) == (mode == "wall"));
        let halves: [[&[&str]; 2]; 3] = [
            [&["--to", "30.5ms"], &["--from", "30.5ms"]],
            [&["--to", "10.1ms", "--thread", "front"], &["--from", "10.1ms", "--thread", "front"]],
            [&["--thread", "front"], &["--thread", "back", "--thread", "idle"]],
        ];
        for (case, parts) in halves.into_iter().enumerate() {
            let whole = match case {
                1 => weight(&made, |tid, it| tid < 102 && is_wall(it) == (mode == "wall")),
                _ => of_mode,
            };
            for format in Format::ALL {
                let part = |part: &[&str]| {
                    let options = [&["--mode", mode], part].concat();
                    total(format, &exported(&made, format.name(), &options), mode == "wall")
                };
                let parts = parts.map(part);
                assert!(parts.iter().all(|part| *part > 0.0), "{format} {mode}: {parts:?}");
                let sum: f64 = parts.iter().sum();
                assert!((sum - whole).abs() < 1e-6, "{format} {mode}: {parts:?}, not {whole}");
            }
        }
    }
}

#[test]
fn stacks_with_a_function_and_those_without_it_are_all() {
    let made = demo();
    for format in Format::ALL {
        let of = |options: &[&str]| {
            let options: Vec<_> = ["--mode", "cpu"].iter().chain(options).copied().collect();
            total(format, &exported(&made, format.name(), &options), false)
        };
        let [whole, with, without] =
            [of(&[]), of(&["--include", "^serve$"]), of(&["--ignore", "^serve$"])];
        assert!(with > 0.0 && without > 0.0, "{format}");
        assert!((with + without - whole).abs() < 1e-6, "{format}: {with} + {without}, not {whole}");
        // A stack that contains both functions is included by one filter and excluded by the other.
        assert_eq!(
            of(&["-I", "main", "-I", "_start", "-X", "e$"]),
            of(&["-X", "e$", "-I", "^main$"])
        );
    }
}

#[test]
fn print_says_which_stacks_it_shows_and_a_timeline_has_none() {
    let made = demo();
    let print = |options: &[&str]| {
        let mut command = traceprof(&["print", "--mode", "cpu"]);
        command.arg(made.path()).args(options).output().expect("traceprof")
    };
    let output = print(&["--tree", "--include", "serve", "--exclude", "_start"]);
    let message = String::from_utf8(output.stdout).unwrap();
    assert!(message.contains("stacks with /serve/, stacks without /_start/"), "{message}");
    assert!(message.contains("serve") && !message.contains("memcpy"), "{message}");
}

#[test]
fn an_empty_selection_is_not_exported() {
    let made = demo();
    for format in Format::ALL {
        let bytes = exported(&made, format.name(), &["--mode", "cpu", "--thread", "idle"]);
        if format == Format::Flamegraph {
            assert!(String::from_utf8(bytes).unwrap().contains("CPU time: no samples"));
        } else {
            assert_eq!(total(format, &bytes, false), 0.0, "{format}");
        }
    }
}

/// The period of wall clock time is the interval between scans of the threads.
#[test]
fn a_profile_of_all_time_has_the_scan_interval_as_its_period() {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", Value::Text("wall".to_owned())).unwrap();
    maker.writer.set_metadata("wall_interval_ns", Value::Unsigned(20_000_000)).unwrap();
    let thread = maker.thread(1, "x");
    let sample = Sample { time_ns: BEGIN_NS, flags: WALL, weight: 9_000, ..Sample::default() };
    maker.full_sample(thread, &sample, "main");
    let bytes = exported(&maker.finish(), "otlp", &[]);
    let profiles = ProfilesData::decode(&*bytes).unwrap().resource_profiles;
    assert_eq!(profiles[0].scope_profiles[0].profiles[0].period, 20_000_000);
}

#[test]
fn the_file_name_selects_the_format() {
    for (name, format) in [
        ("a.folded", Format::Folded),
        ("a.svg", Format::Flamegraph),
        ("a.pb.gz", Format::Pprof),
        ("a.json", Format::Firefox),
        ("a.speedscope.json", Format::Speedscope),
        ("a.perf", Format::PerfScript),
        ("a.otlp", Format::Otlp),
        ("a.html", Format::Html),
    ] {
        assert_eq!(Format::of_path(name.as_ref()), Some(format), "{name}");
    }
    assert_eq!(Format::of_path("perf.data".as_ref()), None);
}
