//! Spans on the samples of programs that publish them with each writer of `context/`, against what
//! the programs wrote to a log before they set them. `context.rs` has the writer for C.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use traceprof::trace::{FrameKind, LoadedTrace, Sample, TagKey, TagKind, TextId, load};

use crate::common::{
    Java, Outcome, Python, Target, is_long_run, java_classes_of, needs_recording, pythons,
    record_cpu, rust_program_with_context, scratch_dir, skip, together, variant,
};

/// The functions of the programs. The innermost one on a stack decides what the sample must have:
/// the span that was set for it, no span, or, while spans change, anything.
const FUNCTIONS: [&str; 5] = ["in_request", "in_query", "in_none", "request", "query"];
/// Samples of each function, of some 2,000.
const LEAST: usize = 100;

/// A span in the log of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Written {
    root: u64,
    tid: u32,
    /// The function that runs in it, or the name of the thread.
    place: String,
    route: String,
    tenant: String,
}

fn read_log(path: &Path) -> BTreeMap<u64, Written> {
    let text = fs::read_to_string(path).expect("a log");
    // The last line may be incomplete.
    let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
    let parse = |line: &str| {
        let [span, root, tid, place, route, tenant] =
            line.split(' ').collect::<Vec<_>>().try_into().expect("six words");
        let hex = |word| u64::from_str_radix(word, 16).expect("an id");
        let tid = tid.parse().expect("a thread id");
        let [place, route, tenant] = [place, route, tenant].map(str::to_owned);
        (hex(span), Written { root: hex(root), tid, place, route, tenant })
    };
    complete.lines().map(parse).collect()
}

/// A sample, with what is known of it.
struct Known {
    tid: u32,
    thread: String,
    /// The innermost function of [`FUNCTIONS`] among the frames of the expected kind.
    function: Option<String>,
    span: u64,
    root: u64,
    /// The values of `route` and `tenant`.
    tags: (Option<String>, Option<String>),
}

fn samples_of(loaded: &LoadedTrace, kind: FrameKind) -> Vec<Known> {
    let keys = TagKey::of(&loaded.metadata);
    let tag = |sample: &Sample, name: &str| {
        let at = keys.iter().position(|key| key.name == name)?;
        let value = sample.tags[at];
        let text = || match keys[at].kind {
            TagKind::Text => loaded.texts[&TextId(value - 1)].clone(),
            _ => value.to_string(),
        };
        (value != 0).then(text)
    };
    let mut found = Vec::new();
    for thread in &loaded.threads {
        let about = thread.thread();
        thread.for_each_sample(&mut |sample, stack| {
            let frames = stack.iter().rev().map(|id| &loaded.locations[id.0 as usize]);
            let names = frames.filter(|it| it.kind == kind).filter_map(|it| {
                let name = loaded.methods[it.method.0 as usize].name.rsplit("::").next()?;
                FUNCTIONS.iter().find(|known| **known == name)
            });
            found.push(Known {
                tid: about.tid,
                thread: about.name.clone(),
                function: names.map(|name| (*name).to_owned()).next(),
                span: sample.span,
                root: sample.root_span,
                tags: (tag(sample, "route"), tag(sample, "tenant")),
            });
        });
    }
    found
}

/// Records two seconds of CPU time of a program that writes its log into this folder.
fn recorded(mut command: Command, folder: &Path) -> (Outcome, BTreeMap<u64, Written>) {
    let log = folder.join("spans");
    command.arg(&log);
    let mut target = Target::spawn(command);
    let options = ["--freq", "997", "--no-kernel"];
    let outcome = record_cpu(target.pid(), Duration::from_secs(2), &options);
    target.goes_on_and_ends_by_itself();
    assert_eq!(outcome.trace.number("contexts.torn"), 0, "{}", outcome.text());
    assert_eq!(outcome.trace.number("contexts.tags_lost"), 0, "{}", outcome.text());
    (outcome, read_log(&log))
}

/// Checks the span of each sample by the function that runs, whose frames are of this kind.
fn check_by_function(command: Command, kind: FrameKind) {
    let folder = scratch_dir();
    let (outcome, log) = recorded(command, folder.path());
    let loaded = load(&outcome.trace.path()).expect("a trace");
    let mut counts = BTreeMap::<&str, usize>::new();
    for it in samples_of(&loaded, kind) {
        let function = match it.function.as_deref() {
            Some("in_request") => "in_request",
            Some("in_query") => "in_query",
            Some("in_none") => {
                assert_eq!((it.span, it.tags), (0, (None, None)), "{}", outcome.text());
                *counts.entry("in_none").or_default() += 1;
                continue;
            }
            _ => continue,
        };
        *counts.entry(function).or_default() += 1;
        let written = log.get(&it.span);
        let found = Written {
            root: it.root,
            tid: it.tid,
            place: function.to_owned(),
            route: it.tags.0.unwrap_or_default(),
            tenant: it.tags.1.unwrap_or_default(),
        };
        assert_eq!(written, Some(&found), "span {:x}\n{}", it.span, outcome.text());
    }
    let has_enough = |name| counts.get(name).is_some_and(|count| *count >= LEAST);
    let is_enough = ["in_request", "in_query", "in_none"].into_iter().all(has_enough);
    assert!(is_enough, "{counts:?}\n{}", outcome.text());
    eprintln!("{counts:?} samples have the span of their function");
}

/// Returns a library of `context/`, built from this file.
fn library(name: &str, file: &str, includes: &[PathBuf]) -> PathBuf {
    let own = [context("include")];
    let includes = own.iter().chain(includes).map(|folder| format!("-I{}", folder.display()));
    let includes: Vec<String> = includes.collect();
    let includes = includes.iter().map(String::as_str);
    let flags: Vec<&str> = ["-shared", "-fPIC", "-pthread"].into_iter().chain(includes).collect();
    variant(name, &format!("../../context/{file}"), "cc", &flags)
}

fn context(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("context").join(path)
}

#[test]
fn samples_of_rust_have_the_spans_that_the_program_wrote() {
    needs_recording!();
    let _machine = together();
    let program = rust_program_with_context("spans_in_rust", "spans/spans.rs");
    check_by_function(Command::new(program), FrameKind::Native);
}

#[test]
fn samples_of_python_have_the_spans_that_the_program_wrote() {
    needs_recording!();
    let system = Python::of_system();
    let chosen = if is_long_run() { pythons() } else { system.into_iter().collect() };
    if chosen.is_empty() {
        skip!("/usr/bin/python3: not installed");
    }
    let _machine = together();
    let library = library("libtraceprof_context.so", "c/traceprof_context.c", &[]);
    for python in chosen {
        let mut command = python.runs("spans/spans.py");
        let given = command.get_envs().find(|(name, _)| *name == "PYTHONPATH");
        let given = given.and_then(|(_, value)| value).map(PathBuf::from);
        let paths = [context("python")].into_iter().chain(given);
        command.env("PYTHONPATH", std::env::join_paths(paths).expect("paths"));
        command.env("TRACEPROF_CONTEXT_LIBRARY", &library);
        eprintln!("{python}");
        check_by_function(command, FrameKind::Python);
    }
}

/// Callers of Java's methods may be unknown, so each sample is checked by its thread: the span is one
/// that this thread wrote, and the tags are those of this span, as far as they were set.
fn check_java(version: u32) {
    needs_recording!();
    let compiler = fs::canonicalize("/usr/bin/javac").ok();
    let home = compiler.as_deref().and_then(|path| path.parent()?.parent());
    let machine = Java::all().into_iter().find(|it| it.version == version);
    let (Some(headers), Some(machine)) = (home.map(|home| home.join("include")), machine) else {
        skip!("javac or java {version}: not installed");
    };
    let _machine = together();
    let includes = [headers.clone(), headers.join("linux")];
    let name = "libtraceprof_context_jni.so";
    let library = library(name, "java/traceprof_context_jni.c", &includes);
    let sources = ["../../context/java/TraceprofContext.java", "spans/Spans.java"];
    let folder = library.parent().expect("a folder");
    let libraries = format!("-Djava.library.path={}", folder.display());
    let access = (version >= 24).then_some("--enable-native-access=ALL-UNNAMED");
    let options: Vec<&str> = [libraries.as_str()].into_iter().chain(access).collect();
    let java = machine.runs_in(&java_classes_of("Spans", &sources), "Spans", &options);
    let scratch = scratch_dir();
    let (outcome, log) = recorded(java, scratch.path());
    let loaded = load(&outcome.trace.path()).expect("a trace");
    let (mut all, mut known) = (0, 0);
    for it in samples_of(&loaded, FrameKind::Native) {
        if !it.thread.starts_with("server-") {
            assert_eq!(it.span, 0, "{}: {}", it.thread, outcome.text());
            continue;
        }
        all += 1;
        if it.span == 0 {
            continue;
        }
        let written = log.get(&it.span).unwrap_or_else(|| panic!("{:x} is not in it", it.span));
        let is_tag = |tag: &Option<String>, of: &str| tag.as_deref().is_none_or(|tag| tag == of);
        assert!(is_tag(&it.tags.0, &written.route) && is_tag(&it.tags.1, &written.tenant));
        assert_eq!((&it.thread, it.root), (&written.place, written.root), "{:x}", it.span);
        known += usize::from(it.tags.0.is_some() && it.tags.1.is_some());
    }
    assert!(all >= 5 * LEAST && known * 10 >= all * 9, "{known} of {all}\n{}", outcome.text());
    eprintln!(
        "Java {version}: {known} of {all} samples have the span and the tags of their thread"
    );
}

#[test]
fn samples_of_java_8_have_the_spans_that_the_program_wrote() {
    check_java(8);
}

#[test]
fn samples_of_java_11_have_the_spans_that_the_program_wrote() {
    check_java(11);
}

#[test]
fn samples_of_java_17_have_the_spans_that_the_program_wrote() {
    check_java(17);
}

#[test]
fn samples_of_java_21_have_the_spans_that_the_program_wrote() {
    check_java(21);
}

#[test]
fn samples_of_java_25_have_the_spans_that_the_program_wrote() {
    check_java(25);
}
