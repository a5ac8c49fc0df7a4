//! The complete text of the views, from synthetic profiles.

use std::collections::BTreeSet;

use traceprof::trace::{
    Location, LocationId, Method, MethodId, Module, ModuleId, Sample, Thread, Value,
};
use traceprof::view::export::{self, ExportOptions, Format};
use traceprof::view::print::tree::{self, TreeOptions};
use traceprof::view::{PrintLimits, Profile, RecordingInfo, Split, ThreadProfileBuilder};

use crate::snapshot;

/// End reason of an unwind that reached the root.
const ROOT: u16 = 0;
/// End reason of an unwind at code without unwind information.
const GAP: u16 = 1;

/// Makes a profile from stacks that are written as text.
struct Maker {
    profile: Profile,
    time_ns: u64,
}

impl Maker {
    fn new() -> Self {
        let module = |path: &str| Module { path: path.to_owned(), build_id: vec![1] };
        let profile = Profile {
            modules: vec![module("/usr/bin/demo"), module("/usr/lib/libc.so.6")],
            recording: RecordingInfo { closed: true, ..RecordingInfo::default() },
            ..Profile::default()
        };
        Self { profile, time_ns: 1_000_000_000 }
    }

    fn metadata(mut self, key: &str, value: Value) -> Self {
        self.profile.recording.metadata.insert(key.to_owned(), value);
        self
    }

    fn number(self, key: &str, number: u64) -> Self {
        self.metadata(key, Value::Unsigned(number))
    }

    fn text(self, key: &str, text: &str) -> Self {
        self.metadata(key, Value::Text(text.to_owned()))
    }

    fn list(self, key: &str, words: &[&str]) -> Self {
        let words = words.iter().map(|word| Value::Text((*word).to_owned())).collect();
        self.metadata(key, Value::List(words))
    }

    /// Returns the location of `name`, `name:line` or `name@libc`.
    fn location(&mut self, place: &str) -> LocationId {
        let (name, module) = match place.strip_suffix("@libc") {
            Some(name) => (name, 1),
            None => (place, 0),
        };
        let (name, line) = match name.rsplit_once("::").or(name.rsplit_once(':')) {
            Some((before, last)) if last.parse::<u32>().is_ok() => (before, last.parse().unwrap()),
            _ => (name, 0),
        };
        let start_svma = 0x1000 + 0x100 * name.bytes().map(u64::from).sum::<u64>();
        let method = Method {
            module: Some(ModuleId(module)),
            name: name.to_owned(),
            start_svma,
            ..Method::default()
        };
        let method = MethodId(index(&mut self.profile.methods, method));
        let svma = start_svma + 4 + u64::from(line);
        let file = (line > 0).then(|| "src/demo.c".to_owned());
        let location = Location { file, line, ..Location::at(method, svma) };
        LocationId(index(&mut self.profile.locations, location))
    }

    /// Adds a thread with samples: stack, weight, end reason.
    fn thread(mut self, tid: u32, name: &str, samples: &[(&str, u32, u16)]) -> Self {
        let mut grower = ThreadProfileBuilder::default();
        for (stack, weight, end_reason) in samples {
            let stack: Vec<LocationId> =
                stack.split_whitespace().map(|place| self.location(place)).collect();
            self.time_ns += 1_000_000;
            grower.add(&sample(self.time_ns, *weight, *end_reason), &stack, None);
        }
        let thread = Thread { pid: 100, tid, name: name.to_owned(), ..Thread::default() };
        self.profile.threads.push(grower.finish(thread));
        self
    }
}

fn index<T: PartialEq>(table: &mut Vec<T>, value: T) -> u32 {
    let found = table.iter().position(|known| *known == value);
    let at = found.unwrap_or_else(|| {
        table.push(value);
        table.len() - 1
    });
    u32::try_from(at).unwrap()
}

fn sample(time_ns: u64, weight: u32, end_reason: u16) -> Sample {
    Sample { time_ns, trace_id: 1 << 32, weight, end_reason, ..Sample::default() }
}

/// A typical program: a chain to main, branches, light calls, another thread, idle threads.
fn demo() -> Profile {
    let start = "_start __libc_start_main@libc main:10";
    let under = |rest: &str| format!("{start} {rest}");
    let (parse, hash, copy) = (
        under("run:21 parse:30 next_token:44"),
        under("run:22 hash:50 mix:61"),
        under("run:22 hash:51 memcpy@libc"),
    );
    let small: Vec<String> =
        ["a", "b", "c", "d"].iter().map(|name| under(&format!("run:23 log:70 {name}"))).collect();
    let mut samples: Vec<(&str, u32, u16)> = vec![
        (&parse, 300, ROOT),
        (&hash, 400, ROOT),
        (&copy, 90, ROOT),
        (start, 10, ROOT),
        ("mix:61", 6, GAP),
        ("", 2, ROOT),
    ];
    samples.extend(small.iter().map(|stack| (stack.as_str(), 1, ROOT)));
    let worker = "clone3@libc start_thread@libc worker:80";
    let deep = format!("{worker} step:81 step:81 step:81");
    // A call too light to be shown beside the only heavy one.
    let aside = "clone3@libc start_thread@libc set_name@libc";
    Maker::new()
        .list("command_line", &["/usr/bin/demo", "--input", "a file", ""])
        .number("pid", 100)
        .text("engine", "perf")
        .text("host", "example")
        .text("kernel", "Linux 6.12.0")
        .number("cpus", 2)
        .number("freq_hz", 1000)
        .number("period_ns", 1_000_000)
        .number("start_realtime_ns", 1_795_260_153_000_000_000)
        .number("start_monotonic_ns", 1_000_000_000)
        .number("end_monotonic_ns", 2_500_000_000)
        .number("cpu_time_ns", 1_000_000_000)
        .number("kernel_included", 1)
        .number("lost.ring_full", 2)
        .number("lost.hole", 1)
        .number("lost.busy", 0)
        .metadata("attach_stops_ns", Value::List(vec![Value::Unsigned(41_000)]))
        .number("detach_stopped_ns", 120_000)
        .thread(101, "worker-1", &[(worker, 60, ROOT), (&deep, 240, ROOT), (aside, 1, ROOT)])
        .thread(100, "demo", &samples)
        .thread(102, "tiny-1", &[(worker, 2, ROOT)])
        .thread(103, "tiny-2", &[(worker, 1, ROOT)])
        .thread(104, "idle", &[])
        .thread(105, "idle", &[])
        .profile
}

fn print(profile: &Profile, verbose: bool, min_percent: f64, depth: Option<usize>) -> String {
    let limits = PrintLimits { min_percent, depth };
    let options = TreeOptions { verbose, limits, split: Split::Threads, ..TreeOptions::default() };
    let mut out = Vec::new();
    tree::write(profile, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn folded(profile: &Profile, threads: bool) -> String {
    let mut out = Vec::new();
    export::write_folded(
        profile,
        &ExportOptions { threads, ..ExportOptions::new(Format::Folded) },
        &mut out,
    )
    .unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn print_is_a_summary_and_a_tree_per_thread() {
    snapshot::check("tests/snapshots/print.txt", print(&demo(), false, 0.5, None).as_bytes());
}

#[test]
fn print_verbose_says_where_each_call_is() {
    snapshot::check("tests/snapshots/verbose.txt", print(&demo(), true, 0.5, None).as_bytes());
}

#[test]
fn print_without_a_threshold_shows_everything() {
    let text = print(&demo(), false, 0.0, None);
    assert!(!text.contains("..."), "{text}");
    snapshot::check("tests/snapshots/everything.txt", text.as_bytes());
}

#[test]
fn print_to_a_depth_sums_up_what_is_deeper() {
    snapshot::check("tests/snapshots/depth.txt", print(&demo(), false, 0.5, Some(4)).as_bytes());
}

#[test]
fn a_trace_without_metadata_or_samples_prints_what_there_is() {
    let bare = Maker::new().thread(7, "", &[]).profile;
    assert_eq!(
        print(&bare, false, 0.5, None),
        "samples   none; --mode wall records what threads wait for\n\n\
         1 thread without a sample: \"\"\n"
    );
    assert_eq!(folded(&bare, true), "");
}

#[test]
fn names_from_the_target_cannot_move_the_cursor_or_break_a_line() {
    let mut profile = Maker::new().thread(1, "\u{1b}[2Jx\ny", &[("a b", 1, ROOT)]).profile;
    profile.methods[1].name = "f\r\n\u{202e};9 1".to_owned();
    profile.modules[0].path = "/x/\u{7}bell".to_owned();
    profile.recording.metadata.insert("host".to_owned(), Value::Text("h\n\u{9b}".to_owned()));
    profile.recording.window = Some("odd\u{0}".to_owned());
    for text in [print(&profile, false, 0.0, None), print(&profile, true, 0.0, None)] {
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(text.contains("f\\r\\n\\u{202e};9 1"), "{text}");
    }
    assert_eq!(folded(&profile, true), "\\u{1b}[2Jx\\ny;a;f\\r\\n\\u{202e}:9_1 1\n");
}

#[test]
fn siblings_of_one_name_are_distinguished() {
    let stacks = [("main init", 3, ROOT), ("main init@libc", 2, ROOT)];
    let profile = Maker::new().thread(1, "x", &stacks).profile;
    let text = print(&profile, false, 0.0, None);
    assert!(text.contains("├─ init (demo)\n"), "{text}");
    assert!(text.contains("└─ init (libc.so.6)\n"), "{text}");
}

#[test]
fn an_inlined_copy_is_the_function_itself_with_its_own_location() {
    let mut maker = Maker::new().thread(1, "x", &[("main:1", 1, ROOT)]);
    let main = maker.location("main:1");
    let inlined = Method { module: Some(ModuleId(0)), name: "get".to_owned(), ..Method::default() };
    maker.profile.methods.push(inlined);
    let method = MethodId(u32::try_from(maker.profile.methods.len() - 1).unwrap());
    let file = Some("src/get.h".to_owned());
    let inlined = Location { file, line: 9, inline_parent: Some(main), ..Location::at(method, 4) };
    maker.profile.locations.push(inlined);
    let inlined = LocationId(u32::try_from(maker.profile.locations.len() - 1).unwrap());
    let called = maker.location("get:9");
    let mut grower = ThreadProfileBuilder::default();
    grower.add(&sample(5, 1, ROOT), &[main, inlined], None);
    grower.add(&sample(6, 1, ROOT), &[main, called], None);
    let thread = Thread { pid: 1, tid: 1, name: "x".to_owned(), ..Thread::default() };
    maker.profile.threads = vec![grower.finish(thread)];
    assert_eq!(folded(&maker.profile, false), "main;get 2\n");
    let text = print(&maker.profile, true, 0.0, None);
    assert!(text.contains("get at src/get.h:9 (inlined)\n"), "{text}");
    assert!(text.contains("get at src/demo.c:9\n"), "{text}");
}

#[test]
fn a_location_that_is_not_defined_is_unknown_not_a_panic() {
    let mut profile = Maker::new().profile;
    let mut grower = ThreadProfileBuilder::default();
    grower.add(&sample(5, 1, 999), &[LocationId(77)], None);
    profile.threads =
        vec![grower.finish(Thread { pid: 1, tid: 1, name: "x".to_owned(), ..Thread::default() })];
    let location = Location::at(MethodId(9), 16);
    profile.locations.push(location);
    assert_eq!(folded(&profile, false), "[truncated];[unknown] 1\n");
    assert!(print(&profile, true, 0.0, None).contains("unknown reason 1"));
}

#[test]
fn a_stack_of_many_thousand_frames_is_a_straight_column() {
    let mut maker = Maker::new();
    let frames: Vec<LocationId> =
        (0..20_000).map(|level| maker.location(if level % 2 == 0 { "f" } else { "g" })).collect();
    let mut grower = ThreadProfileBuilder::default();
    grower.add(&sample(5, 1, 5), &frames, None);
    maker.profile.threads =
        vec![grower.finish(Thread { pid: 1, tid: 1, name: "x".to_owned(), ..Thread::default() })];
    let text = print(&maker.profile, false, 0.0, None);
    assert_eq!(text.lines().filter(|line| line.ends_with("  f")).count(), 10_000);
    // The names of all frames begin at the same column.
    let column =
        |line: &str| ["  f", "  g"].iter().find_map(|end| line.strip_suffix(end)).map(str::len);
    let columns: BTreeSet<usize> = text.lines().filter_map(column).collect();
    assert_eq!(columns.len(), 1, "the column moved: {columns:?}");
}

#[test]
fn folded_counts_add_up_to_the_weight_of_all_samples() {
    let profile = demo();
    let text = folded(&profile, false);
    let sum: u64 =
        text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, profile.count().weight);
    assert!(text.lines().is_sorted());
    snapshot::check("tests/snapshots/demo.folded", text.as_bytes());
    snapshot::check("tests/snapshots/threads.folded", folded(&profile, true).as_bytes());
}
