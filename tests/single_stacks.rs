//! Single stacks of synthetic traces: of all threads at a time, and of call traces by their ids.

use serde_json::Value as Json;

use traceprof::trace::{Sample, Value};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Trace, maker, traceprof};
use crate::snapshot;

use maker::{BEGIN_NS, GAP};

fn run(trace: &Trace, options: &[&str]) -> (Option<i32>, String) {
    let output = traceprof(&["print"]).arg(trace.path()).args(options).output().expect("traceprof");
    let bytes = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.code(), String::from_utf8(bytes).unwrap())
}

fn shown(trace: &Trace, options: &[&str]) -> String {
    let (code, text) = run(trace, options);
    assert_eq!(code, Some(0), "{options:?}: {text}");
    text
}

fn refused(trace: &Trace, options: &[&str]) -> String {
    let (code, text) = run(trace, options);
    assert_eq!(code, Some(2), "{options:?}: {text}");
    text
}

/// Ten seconds of wall-clock time: a thread that computes, one that sleeps for all of it, and one
/// that starts late.
fn wall() -> Trace {
    let mut maker = Maker::new();
    let mode = Value::Text("cpu,wall".to_owned());
    maker.writer.set_metadata("mode", mode).unwrap();
    let end = Value::Unsigned(BEGIN_NS + 10_000_000_000);
    maker.writer.set_metadata("end_monotonic_ns", end).unwrap();
    let sleeper = maker.thread(101, "sleeper");
    let sample = |end_ms: u64, us: u32, state: u8| {
        let time_ns = BEGIN_NS + end_ms * 1_000_000;
        Sample { time_ns, weight: us, flags: WALL, state, ..Sample::default() }
    };
    let asleep = Sample { syscall: Some(202), ..sample(10_000, 9_900_000, 2) };
    maker.full_sample(sleeper, &asleep, "clone3@libc nap pthread_cond_wait@libc");
    let main = maker.thread(100, "main");
    for second in 1..=10 {
        let stack = if second % 2 == 0 { "main even" } else { "main odd:7" };
        // A sample of CPU time is no time that it stands for.
        let cpu = Sample { time_ns: BEGIN_NS + second * 1_000_000_000, ..Sample::default() };
        maker.full_sample(main, &cpu, "main cpu");
        maker.full_sample(main, &sample(1000 * second, 1_000_000, 0), stack);
    }
    let late = maker.thread(102, "late");
    maker.full_sample(late, &sample(9_500, 100_000, 0), "clone3@libc late");
    maker.thread(103, "never");
    maker.finish()
}

#[test]
fn an_instant_of_wall_clock_time_is_what_threads_did_then() {
    let made = wall();
    let text = shown(&made, &["--at", "2.5"]);
    snapshot::check("tests/snapshots/instant.txt", text.as_bytes());
    for (at, function) in [("0.5", "odd"), ("1500ms", "even"), ("50%", "odd"), ("-1.5s", "odd")] {
        let text = shown(&made, &["--at", at, "--thread", "main"]);
        assert!(text.contains(&format!("#0  {function} (demo)\n")), "{at}: {text}");
        assert!(!text.contains("sleeper"), "{text}");
    }
    let text = shown(&made, &["--at", "9.45", "--verbose"]);
    assert!(
        text.contains("\"late\" of process 100: running from 9.400000 s to 9.500000 s"),
        "{text}"
    );
    assert!(shown(&made, &["--at", "8.5", "--verbose"]).contains("odd() at src/demo.c:7\n"));
}

#[test]
fn an_instant_of_cpu_time_is_the_last_sample_before() {
    let mut maker = Maker::new();
    let end = Value::Unsigned(BEGIN_NS + 1_000_000_000);
    maker.writer.set_metadata("end_monotonic_ns", end).unwrap();
    let main = maker.thread(100, "main");
    maker.sample(main, 100, "main first");
    maker.sample_ending(main, 200, "second", GAP);
    let made = maker.finish();
    let text = shown(&made, &["--at", "199ms"]);
    let title = "thread 100 \"main\": running at 0.100000 s, 99.0 ms before\n   #0  first (demo)\n";
    assert!(text.contains(title), "{text}");
    let text = shown(&made, &["--at", "0.25"]);
    let end = "   #0  second (demo)\n       the rest of the stack cannot be unwound: ";
    assert!(text.contains(end), "{text}");
    let text = shown(&made, &["--at", "50ms"]);
    assert!(
        text.ends_with("at 0.050000 s: 0 threads\n\n1 thread without a sample: \"main\"\n"),
        "{text}"
    );
    for at in ["2s", "+1s"] {
        assert!(refused(&made, &["--at", at]).contains("--at"), "{at}");
    }
}

#[test]
fn the_object_of_an_instant_has_what_the_text_has() {
    let text = shown(&wall(), &["--at", "2.5", "--json"]);
    let all: Json = serde_json::from_str(&text).unwrap();
    assert_eq!(all["at_ns"], 2_500_000_000u64);
    let threads = all["threads"].as_array().unwrap();
    let names: Vec<&Json> = threads.iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["main", "sleeper"]);
    assert_eq!(threads[0]["stack"][0]["name"], "odd");
    assert_eq!(threads[0]["stack"][0]["line"], 7);
    assert_eq!(threads[1]["syscall"], "futex");
    assert_eq!(threads[1]["from_ns"], 100_000_000u64);
}

const ODD: u64 = 3 << 32 | 1;
const EVEN: u64 = 3 << 32 | 2;

fn with_ids() -> Trace {
    let mut maker = Maker::new();
    let id = |id: u64, weight: u64, excess: u64| {
        Value::List([id, weight, excess].map(Value::Unsigned).to_vec())
    };
    let list = Value::List(vec![id(EVEN, 40, 3), id(ODD, 30, 0), id(99, 1, 0)]);
    maker.writer.set_metadata("preserved_traces", list).unwrap();
    let threads = [(100, "main"), (101, "helper")].map(|(tid, name)| maker.thread(tid, name));
    for ms in 1..=10 {
        let (trace_id, stack) = if ms % 2 == 0 { (EVEN, "main even") } else { (ODD, "main odd") };
        let time_ns = BEGIN_NS + ms * 1_000_000;
        let sample = Sample { time_ns, trace_id, weight: 2, ..Sample::default() };
        let thread = threads[usize::from(ms > 8)];
        maker.full_sample(thread, &sample, stack);
    }
    maker.finish()
}

#[test]
fn a_call_trace_is_found_by_its_id() {
    let made = with_ids();
    let text = shown(&made, &["--trace-id", "0x300000001"]);
    let expected = "call trace 0x300000001: 50.0 % of all, 0.010 s in 5 samples of main (100), \
                    helper (101)\n   #0  odd (demo)\n   #1  main (demo)\n";
    assert_eq!(text, expected);
    assert_eq!(shown(&made, &["--trace-id", &ODD.to_string()]), expected);
    // Its samples are those that are selected, and its stack is known without them.
    let early = ["--trace-id", "0x300000002", "--to", "1ms"];
    let text = shown(&made, &early);
    assert_eq!(
        text,
        "call trace 0x300000002: 0 samples selected\n   #0  even (demo)\n   #1  main (demo)\n"
    );
    let message = refused(&made, &["--trace-id", "7", "--trace-id", "0x300000002"]);
    assert!(message.contains("no call trace has the id 0x7: "), "{message}");
    assert!(refused(&made, &["--trace-id", "7z"]).contains("0x300000002"));
    let json = shown(&made, &["--trace-id", "0x300000001", "--json"]);
    let all: Json = serde_json::from_str(&json).unwrap();
    let it = &all["call_traces"][0];
    assert_eq!((&it["id"], &it["total"]["weight"]), (&"0x300000001".into(), &10.into()));
    assert_eq!((&it["stack"][0]["name"], &it["end"]), (&"odd".into(), &"root".into()));
}

#[test]
fn preserved_call_traces_are_listed_with_their_weights() {
    let made = with_ids();
    let text = shown(&made, &["--preserved"]);
    snapshot::check("tests/snapshots/preserved.txt", text.as_bytes());
    assert!(refused(&wall(), &["--preserved"]).contains("--preserve N"));
}

#[test]
fn single_stacks_are_not_added_up() {
    let made = wall();
    for options in [
        &["--at", "1", "--tree"][..],
        &["--at", "1", "--trace-id", "7"],
        &["--at", "1", "--from", "2"],
        &["--at", "1", "--state", "running"],
        &["--preserved", "--top", "3"],
        &["--trace-id", "7", "--timeline"],
    ] {
        assert!(refused(&made, options).contains(" cannot be used with "), "{options:?}");
    }
}
