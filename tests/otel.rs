//! Contexts of programs that publish them in OpenTelemetry's format, by every way of access to the
//! thread-local variable.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use traceprof::trace::{LoadedTrace, LocationId, RunState, Sample, TextId, Value, load};
use traceprof_abi::storage::log::flags::{KERNEL, WALL};

use crate::common::{Outcome, Target, alone, needs_recording, record_cpu, together, variant};

/// The context of one sample: trace id (upper and lower half), span id, attributes by name.
type SampleContext = (u64, u64, u64, Vec<(String, String)>);

/// The contexts of each function's samples, with their counts.
type Spans = BTreeMap<&'static str, BTreeMap<SampleContext, u64>>;

/// The functions of `otel.c`. One of them is on every stack that matters.
const FUNCTIONS: [&str; 9] = [
    "in_first",
    "in_second",
    "in_third",
    "in_later",
    "in_none",
    "in_invalid",
    "in_garbage",
    "in_baseless",
    "in_raw",
];
/// The flag with which a program exports its own variable.
const EXPORT: &str = "-Wl,--export-dynamic-symbol=otel_thread_ctx_v1";

/// Twice the CPU time after which the last attribute gets its name.
const NAMED: Duration = Duration::from_secs(4);

fn context((high, low, span): (u64, u64, u64), attributes: &[(&str, &str)]) -> SampleContext {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    (high, low, span, attributes.iter().map(own).collect())
}

fn names(loaded: &LoadedTrace) -> Vec<String> {
    let Some(Value::List(tags)) = loaded.metadata.get("tags") else { return Vec::new() };
    let name = |tag: &Value| match tag {
        Value::List(pair) => match &pair[..] {
            [Value::Text(name), Value::Text(kind)] if kind == "text" => name.clone(),
            other => panic!("no name of a text: {other:?}"),
        },
        other => panic!("no list: {other:?}"),
    };
    tags.iter().map(name).collect()
}

fn context_of(sample: &Sample, loaded: &LoadedTrace, names: &[String]) -> SampleContext {
    let tags = sample.tags.iter().enumerate().filter(|(_, tag)| **tag != 0);
    let text = |tag: u32| loaded.texts[&TextId(tag - 1)].clone();
    let mut tags: Vec<_> = tags.map(|(place, tag)| (names[place].clone(), text(*tag))).collect();
    tags.sort();
    (sample.root_high, sample.root_span, sample.span, tags)
}

fn spans(loaded: &LoadedTrace, is_meant: impl Fn(u32) -> bool) -> Spans {
    let names = names(loaded);
    let mut spans = Spans::new();
    for thread in &loaded.threads {
        thread.for_each_sample(&mut |sample, stack| {
            let function = |place: &LocationId| {
                let method = loaded.locations[place.0 as usize].method;
                let name = &loaded.methods[method.0 as usize].name;
                FUNCTIONS.into_iter().find(|it| it == name)
            };
            let Some(function) = stack.iter().find_map(function) else { return };
            if is_meant(sample.flags) {
                let found_context = context_of(sample, loaded, &names);
                *spans.entry(function).or_default().entry(found_context).or_default() += 1;
            }
        });
    }
    spans
}

/// Checks that the samples of a function have one of these contexts, or, where `may_lack`, none.
fn expect(spans: &Spans, function: &str, expected: &[SampleContext], may_lack: bool) {
    let found =
        spans.get(function).unwrap_or_else(|| panic!("no samples of {function}: {spans:?}"));
    let mut others = found.keys().filter(|it| !expected.contains(it));
    let nothing = SampleContext::default();
    assert!(others.all(|it| may_lack && *it == nothing), "{function}: {found:?}");
    for found_context in expected {
        let count = found.get(found_context).copied().unwrap_or(0);
        assert!(count >= 10, "{function}: {count} of {found_context:?}: {found:?}");
    }
}

/// Checks the contexts of the samples that handlers took.
fn expect_contexts(spans: &Spans, may_lack: bool) {
    let nothing = SampleContext::default();
    let trace = (0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10, 0x1111);
    let first = context(trace, &[("http_route", "/checkout"), ("user", "7")]);
    expect(spans, "in_first", &[first], may_lack);
    expect(spans, "in_second", &[context((0, 0x42, 0x2222), &[])], may_lack);
    let third =
        |turn: u64, name| context((0x10 + turn, 0x20 + turn, 0x30 + turn), &[("user", name)]);
    expect(spans, "in_third", &[third(0, "/0"), third(1, "/1"), third(2, "/2")], may_lack);
    let later = |attributes: &[_]| context((1, 2, 0x4444), attributes);
    expect(spans, "in_later", &[later(&[]), later(&[("late", "yes")])], may_lack);
    for function in ["in_none", "in_invalid", "in_garbage", "in_baseless", "in_raw"] {
        expect(spans, function, std::slice::from_ref(&nothing), false);
    }
}

/// Records a variant until it has used this much CPU time.
fn recorded(target: Command, cpu: Duration, args: &[&str]) -> (LoadedTrace, Outcome) {
    let mut target = Target::spawn(target);
    let args = [&["--freq", "499"], args].concat();
    let outcome = record_cpu(target.pid(), cpu, &args);
    target.goes_on_and_ends_by_itself();
    (load(&outcome.trace.path()).expect("a trace"), outcome)
}

/// Records a variant. Samples of handlers must have their contexts; samples from the kernel have
/// the right context or none.
fn check(command: Command, may_lack: bool) -> Outcome {
    let (loaded, outcome) = recorded(command, NAMED, &[]);
    let handled = spans(&loaded, |flags| flags & (WALL | KERNEL) == 0);
    expect_contexts(&handled, may_lack);
    for (function, found) in spans(&loaded, |flags| flags & KERNEL != 0) {
        let is_known = |found_context: &SampleContext| {
            *found_context == SampleContext::default()
                || handled.get(function).is_none_or(|it| it.contains_key(found_context))
        };
        assert!(found.keys().all(is_known), "{function}: {found:?}");
    }
    assert!(outcome.trace.number("contexts.records_unreadable") > 50, "{}", outcome.text());
    assert!(outcome.trace.number("contexts.records_foreign") > 50, "{}", outcome.text());
    for none in ["contexts.attributes_unnamed", "contexts.attributes_lost", "contexts.tags_lost"] {
        assert_eq!(outcome.trace.number(none), 0, "{none}: {}", outcome.text());
    }
    assert_eq!(loaded.metadata.get("otel.service.name"), Some(&Value::Text("shop".into())));
    assert!(outcome.text().contains("know their span"), "{}", outcome.text());
    outcome
}

fn otel(name: &str, compiler: &str, flags: &[&str]) -> Command {
    let linked = ["-pthread", "-DLINKED", "-DOWN"];
    Command::new(variant(name, "otel.c", compiler, &[&linked, flags].concat()))
}

/// Builds a library that contains the variable.
fn library(name: &str, compiler: &str, flags: &[&str]) -> String {
    let flags = [&["-shared", "-fPIC"], flags].concat();
    variant(name, "otel_variable.c", compiler, &flags).to_str().expect("a path").to_owned()
}

/// Returns the program linked with such a library.
fn linked(name: &str, compiler: &str, library: &str) -> Command {
    let flags = ["-pthread", "-DLINKED", "-Wl,--no-as-needed", library];
    Command::new(variant(name, "otel.c", compiler, &flags))
}

/// Returns the program that loads the library some time after the recording began.
fn loads(name: &str, compiler: &str, library: &str) -> Command {
    let mut command = Command::new(variant(name, "otel.c", compiler, &["-pthread"]));
    command.args(["1", library]);
    command
}

#[test]
fn a_program_publishes_with_its_own_variable() {
    needs_recording!();
    let _machine = together();
    check(otel("otel", "cc", &[EXPORT]), false);
}

#[test]
fn timer_samples_have_the_context_too() {
    needs_recording!();
    let _machine = together();
    let (loaded, _) = recorded(otel("otel", "cc", &[EXPORT]), NAMED, &["--engine", "timer"]);
    expect_contexts(&spans(&loaded, |flags| flags & (WALL | KERNEL) == 0), false);
}

#[test]
fn a_static_program_publishes_with_its_own_variable() {
    needs_recording!();
    let _machine = together();
    check(otel("otel_static", "cc", &["-static"]), false);
}

#[test]
fn a_library_of_the_general_model_publishes() {
    needs_recording!();
    let _machine = together();
    let library = library("otel_general.so", "cc", &[]);
    check(linked("otel_general", "cc", &library), false);
}

#[test]
fn a_library_with_descriptors_publishes() {
    needs_recording!();
    let _machine = together();
    let library = library("otel_descriptor.so", "cc", &["-mtls-dialect=gnu2"]);
    check(linked("otel_descriptor", "cc", &library), false);
}

#[test]
fn a_library_of_the_initial_model_publishes() {
    needs_recording!();
    let _machine = together();
    let library = library("otel_initial.so", "cc", &["-ftls-model=initial-exec"]);
    check(linked("otel_initial", "cc", &library), false);
}

#[test]
fn a_library_that_is_loaded_later_publishes_from_then_on() {
    needs_recording!();
    let _machine = together();
    let library = library("otel_general.so", "cc", &[]);
    check(loads("otel_loads", "cc", &library), true);
}

#[test]
fn one_with_descriptors_publishes_from_then_on() {
    needs_recording!();
    let _machine = together();
    let library = library("otel_descriptor.so", "cc", &["-mtls-dialect=gnu2"]);
    check(loads("otel_loads", "cc", &library), true);
}

#[test]
fn one_with_large_variables_publishes_from_then_on() {
    needs_recording!();
    let _machine = together();
    let large = ["-mtls-dialect=gnu2", "-DLARGE"];
    let library = library("otel_large.so", "cc", &large);
    check(loads("otel_loads", "cc", &library), true);
}

#[test]
fn a_musl_program_publishes() {
    needs_recording!();
    let _machine = together();
    check(otel("otel_musl", "musl-gcc", &[EXPORT]), false);
}

#[test]
fn a_static_musl_program_publishes() {
    needs_recording!();
    let _machine = together();
    check(otel("otel_musl_static", "musl-gcc", &["-static"]), false);
}

#[test]
fn a_musl_library_publishes() {
    needs_recording!();
    let _machine = together();
    let library = library("otel_musl_general.so", "musl-gcc", &[]);
    check(linked("otel_musl_general", "musl-gcc", &library), false);
}

#[test]
fn a_musl_library_that_is_loaded_later_publishes() {
    needs_recording!();
    let _machine = together();
    let library = library("otel_musl_general.so", "musl-gcc", &[]);
    check(loads("otel_musl_loads", "musl-gcc", &library), true);
}

/// Checks that the samples of `sleeper` while it sleeps have its context or none. Returns the
/// number without context and the number of all.
fn slept(command: Command) -> (u64, u64) {
    let (loaded, _) = recorded(command, Duration::from_secs(8), &["--mode", "cpu,wall"]);
    let names = names(&loaded);
    let mut slept: BTreeMap<SampleContext, u64> = BTreeMap::new();
    let sleeper = loaded.threads.iter().find(|it| it.thread().name == "sleeper");
    sleeper.expect("a thread that sleeps").for_each_sample(&mut |sample, _| {
        if sample.flags & WALL != 0 && sample.state == RunState::Sleeping as u8 {
            *slept.entry(context_of(sample, &loaded, &names)).or_default() += 1;
        }
    });
    let (one, other) =
        (context((5, 6, 0x5555), &[("http_route", "/wait")]), context((5, 6, 0x6666), &[]));
    let known = BTreeSet::from([one.clone(), other.clone(), SampleContext::default()]);
    assert!(slept.keys().all(|found_context| known.contains(found_context)), "{slept:?}");
    assert!(slept[&one] >= 20 && slept[&other] >= 20, "{slept:?}");
    (slept.get(&SampleContext::default()).copied().unwrap_or(0), slept.values().sum())
}

#[test]
fn threads_that_sleep_have_the_context_that_they_sleep_in() {
    needs_recording!();
    let _machine = alone();
    let (unknown, all) = slept(otel("otel", "cc", &[EXPORT]));
    // A thread that wakes and changes its span while the recorder reads its record has neither
    // span. It does so every 53 ms, and a read takes some 50 us, or longer if it is interrupted.
    assert!(unknown * 20 <= all, "{unknown} of {all}");
}

/// This C library does not give the kernel the address of a thread's block, so a handler must have
/// seen the block before.
#[test]
fn threads_of_another_c_library_have_it_too_once_they_were_sampled() {
    needs_recording!();
    let _machine = alone();
    let (unknown, _) = slept(otel("otel_musl", "musl-gcc", &[EXPORT]));
    assert!(unknown < 40, "{unknown}");
}
