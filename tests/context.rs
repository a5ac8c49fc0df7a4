//! Spans on the samples of real programs that publish them, against the spans that each function
//! sets.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use traceprof::trace::{LoadedTrace, RunState, Sample, TagKey, TagKind, TextId, load};
use traceprof_abi::storage::log::flags::{KERNEL, WALL};

use crate::common::{
    Outcome, Recorder, Target, Trace, alone, as_nobody, needs_recording, program,
    program_for_everyone, record, record_cpu, scratch_dir, skip, together, traceprof, variant,
    wait_until,
};

/// The context of one sample: span, root span, tags by name.
type SampleContext = (u64, u64, Vec<(String, String)>);

/// The contexts of each thread's and function's samples, with their counts.
type Spans = BTreeMap<(String, String), BTreeMap<SampleContext, u64>>;

/// The functions of `spans.c`. One of them is on every stack that matters.
const FUNCTIONS: [&str; 7] =
    ["in_first", "in_second", "in_none", "in_lasting", "in_child", "in_parent", "nap"];

fn tag_names(loaded: &LoadedTrace) -> Vec<(String, bool)> {
    let keys = TagKey::of(&loaded.metadata).into_iter();
    keys.map(|key| (key.name, key.kind == TagKind::Text)).collect()
}

/// Returns the contexts of the samples for which `is_meant` holds.
fn spans(loaded: &LoadedTrace, is_meant: impl Fn(&Sample) -> bool) -> Spans {
    let names = tag_names(loaded);
    let mut spans = Spans::new();
    for thread in &loaded.threads {
        thread.for_each_sample(&mut |sample, stack| {
            let function = |place: &traceprof::trace::LocationId| {
                let method = loaded.locations[place.0 as usize].method;
                let name = &loaded.methods[method.0 as usize].name;
                FUNCTIONS.into_iter().find(|it| it == name)
            };
            let Some(function) = stack.iter().rev().find_map(function) else { return };
            if !is_meant(sample) {
                return;
            }
            let tags = sample.tags.iter().enumerate().filter(|(_, tag)| **tag != 0);
            let tags = tags.map(|(place, tag)| match &names[place] {
                (name, true) => (name.clone(), loaded.texts[&TextId(tag - 1)].clone()),
                (name, false) => (name.clone(), tag.to_string()),
            });
            let found_context = (sample.span, sample.root_span, tags.collect());
            let key = (thread.thread().name.clone(), function.to_owned());
            *spans.entry(key).or_default().entry(found_context).or_default() += 1;
        });
    }
    spans
}

fn context(span: u64, root: u64, tags: &[(&str, &str)]) -> SampleContext {
    let tags = tags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    (span, root, tags.collect())
}

/// Checks that all samples of this function have the expected context, and that there are at least
/// `least` of them.
fn expect_only(
    spans: &Spans,
    (thread, function): (&str, &str),
    expected: &SampleContext,
    least: u64,
) {
    let key = (thread.to_owned(), function.to_owned());
    let found = spans.get(&key).unwrap_or_else(|| panic!("no samples of {key:?}: {spans:?}"));
    assert_eq!(found.keys().collect::<Vec<_>>(), [expected], "{key:?}: {found:?}");
    assert!(found[expected] >= least, "{key:?}: {found:?}");
}

fn expect_spans_of_handlers(spans: &Spans, least: u64) {
    let first = context(0x1111, 0x1000, &[("route", "/checkout"), ("tenant", "42")]);
    expect_only(spans, ("worker", "in_first"), &first, least);
    let second = context(0x2222, 0x1000, &[("route", "/cart")]);
    expect_only(spans, ("worker", "in_second"), &second, least);
    expect_only(spans, ("worker", "in_none"), &context(0, 0, &[]), least);
    expect_only(spans, ("silent", "in_none"), &context(0, 0, &[]), least);
    // Each of these threads exists for three milliseconds.
    expect_only(spans, ("brief", "in_first"), &context(0x7777, 0x7000, &[]), least / 10);
    expect_only(spans, ("brief", "in_none"), &context(0, 0, &[]), least / 10);
    expect_only(spans, ("tracer", "in_parent"), &context(0x4444, 0x4444, &[]), least);
    let others = |key: (&str, &str), right: SampleContext| {
        let found = spans.get(&(key.0.to_owned(), key.1.to_owned()));
        found.is_some_and(|found| found.keys().any(|found_context| *found_context != right))
    };
    assert!(!others(("caller", "in_lasting"), context(0x3333, 0x3000, &[])), "{spans:?}");
    assert!(!others(("tracer", "in_child"), context(0x4445, 0x4444, &[])), "{spans:?}");
}

fn load_of(outcome: &Outcome) -> LoadedTrace {
    load(&outcome.trace.path()).expect("a trace")
}

fn check_handlers(args: &[&str]) -> Outcome {
    let mut target = Target::start("spans", &[]);
    let args = [args, &["--freq", "997"]].concat();
    let outcome = record_cpu(target.pid(), Duration::from_secs(8), &args);
    target.goes_on_and_ends_by_itself();
    let loaded = load_of(&outcome);
    expect_spans_of_handlers(&spans(&loaded, |it| it.flags & (WALL | KERNEL) == 0), 10);
    assert_eq!(outcome.trace.number("contexts.torn"), 0, "{}", outcome.text());
    assert_eq!(outcome.trace.number("contexts.tags_lost"), 0, "{}", outcome.text());
    assert!(outcome.text().contains("know their span"), "{}", outcome.text());
    outcome
}

#[test]
fn samples_know_the_span_that_they_were_taken_in() {
    needs_recording!();
    let _machine = together();
    check_handlers(&["--engine", "perf"]);
}

#[test]
fn timer_samples_know_it_too() {
    needs_recording!();
    let _machine = together();
    check_handlers(&["--engine", "timer"]);
}

#[test]
fn kernel_samples_have_a_lasting_span_and_never_that_of_a_parent() {
    needs_recording!();
    let _machine = alone();
    let outcome = check_handlers(&["--engine", "perf"]);
    let loaded = load_of(&outcome);
    let in_kernel = spans(&loaded, |it| it.flags & KERNEL != 0);
    let Some(lasting) = in_kernel.get(&("caller".to_owned(), "in_lasting".to_owned())) else {
        skip!("time in the kernel is not sampled here");
    };
    let (all, right) = (lasting.values().sum::<u64>(), context(0x3333, 0x3000, &[]));
    // The span is not known to last in its first half second.
    let known = lasting.get(&right).copied().unwrap_or(0);
    assert!(all >= 100 && known * 3 >= all * 2, "{known} of {all}: {lasting:?}");
    assert!(lasting.keys().all(|it| *it == right || *it == context(0, 0, &[])), "{lasting:?}");
    assert_eq!(outcome.trace.number("contexts.carried") > 0, known > 0, "{}", outcome.text());
    // Handlers see this thread in its parent span only. What they do not see must not count as that
    // span.
    let child = &in_kernel[&("tracer".to_owned(), "in_child".to_owned())];
    let parent = child.get(&context(0x4444, 0x4444, &[])).copied().unwrap_or(0);
    let all: u64 = child.values().sum();
    assert!(all >= 30 && parent * 20 <= all, "{parent} of {all}: {child:?}");
}

#[test]
fn threads_that_sleep_know_the_span_that_they_sleep_in() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("spans", &[]);
    let outcome = record(target.pid(), 5, &["--mode", "cpu,wall"]);
    target.goes_on_and_ends_by_itself();
    let loaded = load_of(&outcome);
    let in_state =
        |state: RunState| spans(&loaded, |it| it.flags & WALL != 0 && it.state == state as u8);
    let slept = &in_state(RunState::Sleeping)[&("sleeper".to_owned(), "nap".to_owned())];
    let count = |span: u64| slept.get(&context(span, 0x5000, &[])).copied().unwrap_or(0);
    assert!(count(0x5555) >= 20 && count(0x6666) >= 20, "{slept:?}");
    assert_eq!(slept.len(), 2, "{slept:?}");
    let first = context(0x1111, 0x1000, &[("route", "/checkout"), ("tenant", "42")]);
    let ran = &in_state(RunState::Running)[&("worker".to_owned(), "in_first".to_owned())];
    let all: u64 = ran.values().sum();
    assert!(ran[&first] * 20 >= all * 19, "{ran:?}");
    // A single scan shows which of two threads waits for a processor. A lasting span is seen in
    // every scan.
    let waited = &in_state(RunState::Runnable)[&("caller".to_owned(), "in_lasting".to_owned())];
    let known = waited.get(&context(0x3333, 0x3000, &[])).copied().unwrap_or(0);
    let all: u64 = waited.values().sum();
    assert!(known * 2 >= all, "{known} of {all}: {waited:?}");
    assert!(waited.len() <= 2, "{waited:?}");
}

/// One scan of all threads with `stacks`, without a recording.
#[test]
fn stacks_say_what_each_thread_works_on() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("spans", &[]);
    let pid = target.pid().to_string();
    let stacks = |option: &[&str]| {
        let output =
            traceprof(&["stacks", "--pid", &pid]).args(option).output().expect("traceprof");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let spans = ["0000000000005555", "0000000000006666"];
    let is_shown = |text: &str| {
        let mut lines = text.lines().skip_while(|line| !line.contains("\"sleeper\""));
        let line = lines.nth(1).expect("a line of the sleeper");
        let expected = spans.map(|it| format!("       in span {it}, root span 0000000000005000"));
        expected.contains(&line.to_owned())
    };
    // The thread may be between two spans.
    let held = wait_until(Duration::from_secs(20), || is_shown(&stacks(&[])));
    assert!(held, "{}", stacks(&[]));
    let json: serde_json::Value = serde_json::from_str(&stacks(&["--json"])).expect("JSON");
    let threads = json["threads"].as_array().expect("threads");
    let work = |name| &threads.iter().find(|it| it["name"] == name).expect("a thread")["work"];
    assert!(work("silent").is_null());
    assert!(work("sleeper")["root_span"] == "0000000000005000", "{threads:?}");
    target.goes_on_and_ends_by_itself();
}

#[test]
fn a_program_may_publish_spans_after_the_attach() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("spans", &["2"]);
    let outcome = record(target.pid(), 6, &[]);
    target.goes_on_and_ends_by_itself();
    let loaded = load_of(&outcome);
    let spans = spans(&loaded, |it| it.flags & (WALL | KERNEL) == 0);
    let first = context(0x1111, 0x1000, &[("route", "/checkout"), ("tenant", "42")]);
    let found = &spans[&("worker".to_owned(), "in_first".to_owned())];
    // Samples have no context until the recorder finds the table.
    let others: Vec<&SampleContext> = found.keys().filter(|it| **it != first).collect();
    assert!(others.iter().all(|it| **it == context(0, 0, &[])), "{found:?}");
    assert!(found[&first] > found.values().sum::<u64>() / 2, "{found:?}");
}

#[test]
fn a_table_without_a_name_is_found_by_the_symbol_of_its_writer() {
    needs_recording!();
    let _machine = together();
    let exporting = variant("spans_exported", "spans.c", "cc", &["-pthread", "-rdynamic"]);
    let mut command = Command::new(exporting);
    command.args(["0", "without memory files"]);
    let mut target = Target::spawn(command);
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("mappings");
    assert!(!maps.contains("traceprof_context"), "{maps}");
    let outcome = record_cpu(target.pid(), Duration::from_secs(5), &["--freq", "997"]);
    target.goes_on_and_ends_by_itself();
    let loaded = load_of(&outcome);
    expect_spans_of_handlers(&spans(&loaded, |it| it.flags & (WALL | KERNEL) == 0), 10);
}

#[test]
fn an_unprivileged_user_sees_spans_too() {
    needs_recording!();
    let _machine = together();
    let folder = scratch_dir();
    let own = program_for_everyone(&program("spans"), folder.path());
    let Some(command) = as_nobody(&own) else { skip!("needs root to become another user") };
    let mut target = Target::spawn(command);
    let recorder = Path::new(env!("CARGO_BIN_EXE_traceprof"));
    let mut command = as_nobody(&program_for_everyone(recorder, folder.path())).expect("root");
    let trace = Trace::new();
    fs::set_permissions(trace.dir(), PermissionsExt::from_mode(0o777)).expect("a folder");
    command.args(["record", "--duration", "4", "--pid", &target.pid().to_string()]);
    command.args(["--freq", "997"]);
    let outcome = Recorder::spawn(command, trace).finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    let loaded = load_of(&outcome);
    expect_spans_of_handlers(&spans(&loaded, |it| it.flags & (WALL | KERNEL) == 0), 10);
}

/// Returns the number of samples of `span_storm.c`, the number that have a context, and those
/// contexts that are none of its spans.
fn of_storm(loaded: &LoadedTrace) -> (u64, u64, Vec<String>) {
    let names = tag_names(loaded);
    let (mut all, mut known, mut wrong) = (0, 0, Vec::new());
    for thread in &loaded.threads {
        thread.for_each_sample(&mut |sample, _| {
            all += 1;
            if sample.span == 0 {
                return;
            }
            known += 1;
            let x = sample.span;
            let tag = |place: u32, turn| ((x >> 40) as u32) * 2 + turn + place * 77;
            let is_turn = |turn: u32| {
                names.iter().zip(sample.tags).all(|((name, _), value)| {
                    let place = name[1..].parse().expect("a number");
                    value == tag(place, turn)
                })
            };
            let is_root = sample.root_span == x.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            if !is_root || !(is_turn(1) || is_turn(2)) {
                wrong.push(format!("{sample:?}"));
            }
        });
    }
    assert!(known == 0 || names.len() == 10, "{names:?}");
    (all, known, wrong)
}

/// Samples for a second of CPU time of the storm.
const STORM_HZ: f64 = 9973.0;

fn check_storm(cpu: Duration, args: &[&str], least: u64) {
    let mut target = Target::start("span_storm", &[]);
    let freq = STORM_HZ.to_string();
    let outcome = record_cpu(target.pid(), cpu, &[args, &["--freq", &freq]].concat());
    target.goes_on_and_ends_by_itself();
    let (all, known, wrong) = of_storm(&load_of(&outcome));
    assert_eq!(wrong, Vec::<String>::new(), "of {known}");
    assert_eq!(outcome.trace.number("contexts.torn"), 0, "{}", outcome.text());
    // A sample without a context is one whose table row was marked as changing.
    assert!(known * 5 > all && known > least, "{known} of {all}\n{}", outcome.text());
    // Many updates in each period, at any processor speed.
    let per_second = target.fact("updates_of_one") as f64 * 2e9 / target.fact("cpu_ns") as f64;
    assert!(per_second > 10.0 * STORM_HZ, "{per_second} updates a second");
}

#[test]
fn no_sample_mixes_two_spans_of_a_thread_that_takes_a_million_a_second() {
    needs_recording!();
    let _machine = together();
    check_storm(Duration::from_secs(2), &["--engine", "perf", "--no-kernel"], 2000);
}

#[test]
fn no_timer_sample_mixes_two_spans() {
    needs_recording!();
    let _machine = together();
    // The kernel lets timers signal at least 100 times a second.
    check_storm(Duration::from_secs(4), &["--engine", "timer"], 80);
}

fn posing(mode: &str) -> Outcome {
    let mut target = Target::start("posing_tables", &[mode]);
    let outcome = record_cpu(target.pid(), Duration::from_secs(2), &["--freq", "997"]);
    target.goes_on_and_ends_by_itself();
    assert!(outcome.trace.number("samples") > 300, "{mode}: {}", outcome.text());
    outcome
}

/// Reading such memory would crash the target.
#[test]
fn memory_that_only_looks_like_a_table_is_not_read() {
    needs_recording!();
    let _machine = together();
    for mode in ["short", "closed", "shared"] {
        let outcome = posing(mode);
        assert_eq!(outcome.trace.number("contexts.tables"), 0, "{mode}: {}", outcome.text());
    }
}

/// The recorder notices that within a second, and samples come before.
#[test]
fn application_may_withdraw_its_table() {
    needs_recording!();
    let _machine = together();
    std::thread::scope(|scope| {
        for mode in ["unmapped", "closed", "truncated"] {
            scope.spawn(move || {
                let mut target = Target::start("withdrawn_table", &[mode]);
                let outcome = record(target.pid(), 9, &["--freq", "997"]);
                assert!(!target.has_exited(), "{mode}: {}", outcome.text());
                target.goes_on_and_ends_by_itself();
                let number = |name| outcome.trace.number(name);
                assert!(number("contexts.samples") > 100, "{mode}: {}", outcome.text());
                assert!(number("contexts.tables_unreadable") > 0, "{mode}: {}", outcome.text());
            });
        }
    });
}

#[test]
fn tables_beyond_the_limit_are_reported() {
    needs_recording!();
    let _machine = together();
    let outcome = posing("many");
    let number = |name| outcome.trace.number(name);
    assert_eq!(number("contexts.tables"), 8, "{}", outcome.text());
    assert_eq!(number("contexts.tables_left_out"), 2, "{}", outcome.text());
    let text = outcome.text();
    assert!(text.contains("more tables are not read"), "{text}");
    assert!(text.contains("more mappings with a table's name are not read"), "{text}");
}
