//! Traces that are truncated, have flipped bits or were never closed: `verify`, `recover` and
//! `print`.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value as Json;

use crate::common::{Maker, Trace, maker, peak_kib, traceprof};

/// Number of samples in each of the frames of [`frames`].
const IN_FRAME: u64 = 100;

/// Makes a trace of `count` frames with samples. One thread is in all of them, another in the even
/// frames.
fn frames(count: u64) -> Maker {
    let mut maker = Maker::new();
    let (one, two) = (maker.thread(100, "one"), maker.thread(101, "two"));
    for frame in 0..count {
        for number in 0..IN_FRAME {
            let ms = frame * IN_FRAME + number;
            let other = frame % 2 == 0 && number % 2 == 0;
            let stack = format!("main:1 step_{} leaf_{}", ms % 7, ms % 13);
            maker.sample(if other { two } else { one }, ms, &stack);
        }
        maker.flush();
    }
    maker
}

fn run(args: &[&str], paths: &[&Path]) -> Output {
    let output = traceprof(args).args(paths).output().expect("traceprof");
    let text = stderr(&output);
    assert!(!text.contains("panicked"), "{args:?}: {text}");
    output
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

/// Returns what `verify` prints as text and as JSON, after checking that both agree.
fn verify(trace: &Trace) -> (i32, String, Json) {
    let plain = run(&["verify"], &[&trace.path()]);
    let json = run(&["verify", "--json"], &[&trace.path()]);
    let code = plain.status.code().expect("an exit code");
    assert_eq!(json.status.code(), Some(code));
    let (text, json) = (stdout(&plain), stdout(&json));
    let json: Json = serde_json::from_str(&json).expect("JSON");
    let verdict = json["verdict"].as_str().expect("a verdict");
    let last = text.lines().last().expect("lines");
    assert!(last.starts_with(&format!("verdict   {verdict}: ")), "{text}");
    (code, text, json)
}

/// Returns the sum of the counts that `export` writes.
fn exported(trace: &Trace) -> u64 {
    trace.folded().total()
}

#[test]
fn a_complete_trace_is_clean() {
    let trace = frames(3).finish();
    let (code, text, json) = verify(&trace);
    assert_eq!(code, 0, "{text}");
    assert_eq!(json["verdict"], "clean");
    assert_eq!(json["samples"], 3 * IN_FRAME);
    assert_eq!(json["threads"], 2);
    assert_eq!(json["coverage_percent"], 100.0);
    assert_eq!(json["index"]["state"], "sound");
    assert_eq!(json["losses"], Json::Array(Vec::new()));
    assert!(text.contains("index     sound\n"), "{text}");
    let print = run(&["print", "--tree"], &[&trace.path()]);
    assert_eq!(stderr(&print), "");
}

#[test]
fn a_trace_that_was_never_closed_is_sound_and_reported_as_open() {
    let maker = frames(3);
    let trace = maker.abandon();
    let (code, text, json) = verify(&trace);
    assert_eq!(code, 8, "{text}");
    assert_eq!(json["samples"], 3 * IN_FRAME);
    assert_eq!(json["closed"], false);
    let print = run(&["print", "--tree"], &[&trace.path()]);
    assert_eq!(print.status.code(), Some(0));
    assert!(stdout(&print).contains("the recording did not end properly"), "{}", stdout(&print));
    assert!(stderr(&print).contains("note: "), "{}", stderr(&print));
    assert_eq!(exported(&trace), 3 * IN_FRAME);
    let timeline = run(&["print", "--timeline", "--min-percent", "0"], &[&trace.path()]);
    assert!(stdout(&timeline).contains("<unfinished>"), "{}", stdout(&timeline));
    let saved = Trace::new();
    let recover = run(&["recover"], &[&trace.path(), &saved.path()]);
    assert_eq!(recover.status.code(), Some(0), "{}", stderr(&recover));
    assert_eq!(verify(&saved).0, 0);
    assert_eq!(exported(&saved), 3 * IN_FRAME);
    let text = stdout(&run(&["print", "--tree"], &[&saved.path()]));
    let origin = "origin    recovered from out.trace, whose recording did not end properly; \
                  of what was written nothing was lost\n";
    assert!(text.contains(origin), "{text}");
}

#[test]
fn a_lost_begin_lies_before_all_samples() {
    let trace = frames(3).finish();
    let mut bytes = fs::read(trace.path()).expect("the trace");
    // In the first frame, after the header of the file.
    bytes[24] ^= 4;
    fs::write(trace.path(), bytes).expect("a damaged trace");
    let (code, text, json) = verify(&trace);
    assert_eq!(code, 9, "{text}");
    let losses = json["losses"].as_array().expect("a list");
    assert!(!losses.is_empty(), "{text}");
    for loss in losses {
        let (from_ns, to_ns) = (loss["from_ns"].as_u64(), loss["to_ns"].as_u64());
        assert!(to_ns.is_none_or(|to_ns| from_ns <= Some(to_ns)), "{text}");
        assert!(loss["thread"].is_u64() || from_ns == Some(0), "{text}");
    }
    assert!(text.contains("bytes at offset 16 are lost ("), "{text}");
}

#[test]
fn bytes_that_are_cut_off_cost_the_tail() {
    let trace = frames(4).finish();
    let bytes = fs::read(trace.path()).expect("the trace");
    fs::write(trace.path(), &bytes[..bytes.len() * 6 / 10]).expect("a cut trace");
    let (code, text, json) = verify(&trace);
    assert!(matches!(code, 8 | 9), "{text}");
    let left = json["samples"].as_u64().expect("a number");
    assert!((IN_FRAME..4 * IN_FRAME).contains(&left) && left % IN_FRAME == 0, "{text}");
    let print = run(&["print", "--tree"], &[&trace.path()]);
    assert_eq!(print.status.code(), Some(0), "{}", stderr(&print));
    assert!(stdout(&print).contains("did not end properly"), "{}", stdout(&print));
    assert_eq!(exported(&trace), left);
}

#[test]
fn a_flipped_bit_costs_its_frame_and_is_named() {
    let trace = frames(5).finish();
    let whole = fs::read(trace.path()).expect("the trace");
    let magic = b"\xd7FRAME\x1a\n";
    let starts = whole.windows(8).enumerate().filter(|(_, window)| window == magic);
    let starts: Vec<usize> = starts.map(|(at, _)| at).collect();
    // Inside the samples of the third frame, just before its trailer.
    let mut flipped = whole.clone();
    flipped[starts[3] - 20] ^= 4;
    fs::write(trace.path(), flipped).expect("a flipped trace");
    let (code, text, json) = verify(&trace);
    assert_eq!(code, 9, "{text}");
    let left = json["samples"].as_u64().expect("a number");
    assert_eq!(left, 4 * IN_FRAME, "{text}");
    let bad = json["bad"].as_array().expect("a list");
    assert!(bad.iter().any(|range| range["offset"].as_u64() == Some(starts[2] as u64)), "{text}");
    let lost = json["losses"].as_array().expect("a list");
    let lost: u64 = lost.iter().filter_map(|loss| loss["samples"].as_u64()).sum();
    assert_eq!(lost, IN_FRAME, "{text}");
    assert!(text.contains("lost      50 samples of thread 2, from "), "{text}");
    let print = run(&["print", "--tree"], &[&trace.path()]);
    assert_eq!(print.status.code(), Some(0), "{}", stderr(&print));
    assert!(
        stdout(&print).contains("damage    100 samples can no longer be read"),
        "{}",
        stdout(&print)
    );
    assert_eq!(exported(&trace), left);
    let timeline = run(&["print", "--timeline", "--min-percent", "0"], &[&trace.path()]);
    assert!(stdout(&timeline).contains("... <lost 50 samples, "), "{}", stdout(&timeline));
    fs::remove_file(trace.index_path()).expect("no index");
    // The view reads everything before it prints anything.
    let timeline = run(&["print", "--timeline", "--min-percent", "0"], &[&trace.path()]);
    let summary = format!("samples   {left} for {left} periods in 2 threads\n");
    assert!(stdout(&timeline).contains(&summary), "{}", stdout(&timeline));
    assert!(stdout(&timeline).contains("damage    100 samples"), "{}", stdout(&timeline));
    let saved = Trace::new();
    let recover = run(&["recover"], &[&trace.path(), &saved.path()]);
    assert_eq!(recover.status.code(), Some(9), "{}", stderr(&recover));
    assert!(stderr(&recover).contains("lost     50 samples of thread 1"), "{}", stderr(&recover));
    assert_eq!(exported(&saved), left);
    assert_eq!(verify(&saved).2["closed"], true);
    let text = stdout(&run(&["print", "--tree"], &[&saved.path()]));
    let origin = "origin    recovered from out.trace: 100 samples of 1 frame are lost\n";
    assert!(text.contains(origin), "{text}");
}

#[test]
fn recover_never_writes_over_its_input_or_without_asking() {
    let trace = frames(2).finish();
    let before = fs::read(trace.path()).expect("the trace");
    let link = trace.dir().join("link");
    fs::hard_link(trace.path(), &link).expect("a link");
    for output in [trace.path(), trace.index_path(), link] {
        let refused = run(&["recover", "--force"], &[&trace.path(), &output]);
        assert_eq!(refused.status.code(), Some(6), "{}", stderr(&refused));
    }
    let taken = trace.dir().join("taken");
    fs::write(&taken, "precious").expect("a file in the way");
    let refused = run(&["recover"], &[&trace.path(), &taken]);
    assert_eq!(refused.status.code(), Some(6), "{}", stderr(&refused));
    assert_eq!(fs::read(&taken).expect("the file"), b"precious");
    assert_eq!(fs::read(trace.path()).expect("the trace"), before);
    let forced = run(&["recover", "--force"], &[&trace.path(), &taken]);
    assert_eq!(forced.status.code(), Some(0), "{}", stderr(&forced));
}

#[test]
fn a_lost_index_is_rebuilt() {
    let trace = frames(3).finish();
    let print = || run(&["print", "--tree"], &[&trace.path()]);
    let before = stdout(&print());
    for full in [&["reindex"][..], &["reindex", "--full"]] {
        fs::remove_file(trace.index_path()).expect("an index");
        assert_eq!(verify(&trace).2["index"]["state"], "missing");
        assert_eq!(verify(&trace).0, 0, "a trace needs no index");
        let without = print();
        assert_eq!(stdout(&without), before);
        assert!(stderr(&without).contains("note: "), "{}", stderr(&without));
        let reindex = run(full, &[&trace.path()]);
        assert_eq!(reindex.status.code(), Some(0), "{}", stderr(&reindex));
        assert_eq!(verify(&trace).2["index"]["state"], "sound");
        assert_eq!(stderr(&print()), "");
        assert_eq!(stdout(&print()), before);
    }
    fs::write(trace.index_path(), b"something else").expect("a broken index");
    let (code, text, json) = verify(&trace);
    assert_eq!((code, &json["index"]["state"]), (0, &Json::from("broken")), "{text}");
    assert!(text.contains("clean: every byte is sound except the index, "), "{text}");
    assert_eq!(stdout(&print()), before);
}

#[test]
fn threads_and_times_are_selected() {
    let trace = frames(4).finish();
    let path = trace.path();
    let sum = |args: &[&str]| -> u64 {
        let output = run(&[&["export", "--format", "folded"], args].concat(), &[&path]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let text = stdout(&output);
        text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    };
    assert_eq!(sum(&["--thread", "two"]), IN_FRAME);
    assert_eq!(sum(&["--thread", "100"]), 3 * IN_FRAME);
    assert_eq!(sum(&["--thread", "o*", "--thread", "101"]), 4 * IN_FRAME);
    assert_eq!(sum(&["--from", "100ms", "--to", "149ms"]), 50);
    assert_eq!(sum(&["--thread", "two", "--from", "0.3s"]), 0);
    assert_eq!(sum(&["--to", "0.0995", "--thread", "two"]), 50);
    let text = stdout(&run(&["print", "--thread", "two", "--from", "50%"], &[&path]));
    assert!(
        text.contains("window    0.200 s to 0.399 s of 0.399 s, thread 101 \"two\"\n"),
        "{text}"
    );
    assert!(!text.contains("thread 100"), "{text}");
    let refused = run(&["print", "--thread", "three"], &[&path]);
    assert_eq!(refused.status.code(), Some(2));
    let message = stderr(&refused);
    assert!(message.contains("there are 100 \"one\", 101 \"two\""), "{message}");
    let refused = run(&["print", "--from", "3s"], &[&path]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
}

/// The number of samples of a trace that is large enough to reach every limit.
const SAMPLES: u64 = 50_000;

/// A call with a hundred thousand children, and a very large number of samples.
#[test]
fn memory_of_a_view_does_not_grow_with_the_trace() {
    let made = |samples: u64| {
        let mut maker = Maker::new();
        let thread = maker.thread(1, "x");
        let stacks = ["main:1 even leaf", "main:2 odd leaf"]
            .map(|stack| stack.split(' ').map(|place| maker.location(place)).collect::<Vec<_>>());
        for number in 0..samples {
            let time_ns = maker::BEGIN_NS + number * 1_000_000 + number % 1009 * 317;
            let sample = traceprof::trace::Sample { time_ns, ..Default::default() };
            maker.writer.sample(thread, &sample, &stacks[(number / 3 % 2) as usize]).unwrap();
        }
        maker.finish()
    };
    let many = if crate::common::is_long_run() { 3_000_000 } else { 8 * SAMPLES };
    let (small, large) = (made(SAMPLES), made(many));
    for args in [
        &["print", "--tree"][..],
        &["export", "--format", "folded"],
        &["print", "--timeline"],
        &["print", "--timeline", "--min-percent", "0", "--depth", "2"],
        &["print", "--timeline", "--min-percent", "0", "--json"],
    ] {
        let peak = |trace: &Trace| {
            let mut command = traceprof(args);
            command.arg(trace.path());
            peak_kib(command)
        };
        // A peak varies by up to two megabytes: it includes the pages of the program that the
        // system happens to have mapped.
        let few = peak(&small).min(peak(&small));
        assert!(few > 1 << 10, "{args:?}: {few} KiB");
        // Half of the memory that a timeline would need if it kept every sample.
        let most = few + (many - SAMPLES) * 12 / 1024;
        let all = Some(peak(&large)).filter(|all| *all < most).unwrap_or_else(|| peak(&large));
        assert!(all < most, "{args:?}: {few} KiB of {SAMPLES} samples, {all} KiB of {many}");
    }
}
