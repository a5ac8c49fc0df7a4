//! Profiles of pprof, read with `go tool pprof`.

use std::path::PathBuf;
use std::process::Command;

use traceprof::trace::{Sample, TagKey, TagKind, Value};

use crate::common::{Maker, Trace, has_command, maker, skip, traceprof};

use maker::{BEGIN_NS, GAP, SPAN};

/// Two threads; spans, tags, an inlined function, a truncated stack, and names that must be
/// escaped.
fn demo() -> Trace {
    let mut maker = Maker::new();
    let front = maker.thread_with_tags("status");
    let inlined = maker.inlined_stack();
    let sample = Sample { time_ns: BEGIN_NS + 11_000_000, ..Sample::default() };
    maker.writer.sample(front, &sample, &inlined).unwrap();
    let back = maker.thread(101, "back");
    maker.sample_ending(back, 3, "memcpy@libc", GAP);
    maker.finish()
}

/// Exports the trace. The file is removed with the trace.
fn exported(made: &Trace, options: &[&str]) -> PathBuf {
    let path = made.path().with_extension("pb.gz");
    let mut command = traceprof(&["export", "--force", "--output"]);
    let output = command.arg(&path).arg(made.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

/// Returns what pprof prints for it.
fn pprof(path: &PathBuf, options: &[&str]) -> String {
    let mut command = Command::new("go");
    command.args(["tool", "pprof"]).args(options).arg(path);
    let output = command.env("PPROF_TMPDIR", path.parent().unwrap()).output().expect("go");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{options:?}: {message}");
    assert!(!message.contains("ocal symbolization failed"), "pprof searches for names: {message}");
    String::from_utf8(output.stdout).unwrap()
}

macro_rules! needs_pprof {
    () => {
        if !has_command("go") {
            skip!("go, whose pprof reads the profiles");
        }
    };
}

#[test]
fn totals_are_those_of_the_trace() {
    needs_pprof!();
    let made = demo();
    let path = exported(&made, &[]);
    let top = pprof(&path, &["-top", "-sample_index=samples"]);
    assert!(top.contains("Type: samples\n"), "{top}");
    assert!(top.contains("Showing nodes accounting for 12, 100% of 12 total"), "{top}");
    let cpu = pprof(&path, &["-top", "-unit=ms"]);
    assert!(cpu.contains("Type: cpu\n"), "CPU time is shown by default: {cpu}");
    assert!(cpu.contains("accounting for 22ms, 100% of 22ms total"), "{cpu}");
    for line in ["20ms 90.91% 90.91%       20ms 90.91%  serve", "21ms 95.45%  main"] {
        assert!(cpu.contains(line), "no {line:?} in {cpu}");
    }
    let some = pprof(&exported(&made, &["--thread", "back"]), &["-top", "-unit=ms"]);
    assert!(some.contains("of 1ms total"), "{some}");
}

#[test]
fn threads_spans_and_tags_are_labels() {
    needs_pprof!();
    let made = demo();
    let path = exported(&made, &[]);
    let tags = pprof(&path, &["-tags", "-unit=ms"]);
    for part in [
        "trace_id: Total 20.0ms\n",
        "4bf92f3577b34da6a3ce929d0e0e4736\n",
        "00f067aa0ba902b7\n",
        "/check\\u{1b}out\n",
        "status: Total 20.0ms\n",
        "thread: Total 22.0ms\n",
        "503",
    ] {
        assert!(tags.contains(part), "no {part:?} in {tags}");
    }
    let focus = pprof(&path, &["-top", "-unit=ms", "-tagfocus=span_id=00f067aa0ba902b7"]);
    assert!(focus.contains("accounting for 20ms, 90.91% of 22ms total"), "{focus}");
    let thread = pprof(&path, &["-top", "-unit=ms", "-tagfocus=tid=101:101"]);
    assert!(thread.contains("accounting for 1ms, 4.55% of 22ms total"), "{thread}");
}

#[test]
fn tags_named_like_labels_and_empty_texts_are_kept() {
    needs_pprof!();
    let mut maker = Maker::new();
    let key = |name: &str, kind| TagKey { name: name.to_owned(), kind };
    let keys = ["thread", "span_id", "route"].map(|name| key(name, TagKind::Text));
    let keys = [&keys[..], &[key("tid", TagKind::Number)]].concat();
    let (name, value) = TagKey::metadata(&keys);
    maker.writer.set_metadata(name, value).unwrap();
    let [pool, own, empty] = ["pool", "own", ""].map(|text| maker.writer.text(text).unwrap().0 + 1);
    let thread = maker.thread(100, "front");
    let tags = [pool, own, empty, 7, 0, 0, 0, 0, 0, 0];
    let sample = Sample { time_ns: BEGIN_NS, span: SPAN, tags, ..Sample::default() };
    maker.full_sample(thread, &sample, "main");
    let raw = pprof(&exported(&maker.finish(), &[]), &["-raw"]);
    for part in [
        " thread:[front]",
        " tag.thread:[pool]",
        " span_id:[00f067aa0ba902b7]",
        " tag.span_id:[own]",
        " route:[(empty)]",
        " tid:[100]",
        " tag.tid:[7]",
    ] {
        assert!(raw.contains(part), "no {part:?} in {raw}");
    }
}

#[test]
fn functions_have_files_lines_modules_and_what_is_inlined() {
    needs_pprof!();
    let raw = pprof(&exported(&demo(), &[]), &["-raw"]);
    for part in [
        "PeriodType: cpu nanoseconds\nPeriod: 1000000\n",
        "samples/count cpu/nanoseconds[dflt]\n",
        "main src/demo.c:10 s=0",
        "inlined_part src/part.h:7 s=0",
        "[truncated] :0 s=0",
        "/usr/bin/demo  [FN][FL][LN][IN]",
        "/usr/lib/libc.so.6  [FN][FL][LN]",
    ] {
        assert!(raw.contains(part), "no {part:?} in {raw}");
    }
    // One location with two lines, the inlined one first.
    let inlined = raw.split("inlined_part src/part.h:7").nth(1).unwrap();
    let next = inlined.lines().nth(1).unwrap().trim();
    assert_eq!(next, "main src/demo.c:10 s=0", "{raw}");
}

#[test]
fn wall_clock_time_is_in_nanoseconds_with_the_wait_reason() {
    needs_pprof!();
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", traceprof::trace::Value::Text("wall".to_owned())).unwrap();
    let thread = maker.thread(1, "sleeper");
    maker.wait_sample(thread);
    let top = pprof(&exported(&maker.finish(), &[]), &["-top", "-unit=ms"]);
    assert!(top.contains("Type: wall\n"), "{top}");
    assert!(top.contains("300ms   100%   100%      300ms   100%  [sleeping in futex]"), "{top}");
}

#[test]
fn a_window_has_its_own_length() {
    needs_pprof!();
    let made = demo();
    let raw = pprof(&exported(&made, &["--from", "2ms", "--to", "8ms"]), &["-raw"]);
    assert!(raw.contains("Duration: 6ms"), "{raw}");
}

/// `File:` is the first mapping's name.
#[test]
fn the_file_is_the_program_and_not_the_library_of_the_first_sample() {
    needs_pprof!();
    let check = |command: Option<&str>, stacks: &[&str], file: &str| {
        let mut maker = Maker::new();
        if let Some(command) = command {
            let words = ["-x", command].map(|word| Value::Text(word.to_owned()));
            let words = Value::List(words.into_iter().rev().collect());
            maker.writer.set_metadata("command_line", words).unwrap();
        }
        let thread = maker.thread(100, "front");
        for (number, stack) in (1..).zip(stacks) {
            maker.sample(thread, number, stack);
        }
        let top = pprof(&exported(&maker.finish(), &[]), &["-top"]);
        assert!(top.starts_with(&format!("File: {file}\n")), "{command:?} {stacks:?}: {top}");
    };
    let library_first = ["clone@libc memcpy@libc", "main memcpy@libc"];
    check(Some("./bin/demo"), &library_first, "demo");
    // The name tells nothing: most stacks begin in the program.
    check(Some("sh"), &library_first, "demo");
    check(None, &library_first, "demo");
    // Nothing but a library.
    check(None, &library_first[..1], "libc.so.6");
}
