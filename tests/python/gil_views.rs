//! How views count the time with the GIL and the waits for it, in synthetic traces.

use serde_json::{Deserializer, Value as Json};
use traceprof::trace::{RunState, Sample, ThreadId, Value};
use traceprof_abi::storage::log::flags::{HOLDS_LOCK, KERNEL, WALL};

use crate::common::{Maker, maker};

const FUTEX: u32 = 202;

/// Adds time of a thread in this state. The system call waits on an object.
fn spend(
    made: &mut Maker,
    thread: ThreadId,
    (end_ms, ms): (u64, u32),
    (state, on, flags): (RunState, &str, u32),
) {
    let sample = Sample {
        time_ns: maker::BEGIN_NS + end_ms * 1_000_000,
        trace_id: 1 << 32 | 6,
        flags: WALL | flags,
        weight: ms * 1000,
        state: state as u8,
        syscall: Some(FUTEX),
        waits_on: Some(made.writer.text(on).unwrap()),
        ..Sample::default()
    };
    made.full_sample(thread, &sample, "main work");
}

#[test]
fn each_view_counts_the_time_with_the_gil_and_the_waits_for_it() {
    let blind = "; perf events in the kernel do not say who held it";
    for (engine, end) in [("perf task clock", blind), ("thread CPU timer", "")] {
        let mut made = Maker::new();
        for (key, value) in [
            ("mode", Value::Text("wall".to_owned())),
            ("wall_interval_ns", Value::Unsigned(20_000_000)),
            ("engine", Value::Text(engine.to_owned())),
            ("kernel_included", Value::Unsigned(1)),
            ("lock_holders.python", Value::Unsigned(1)),
        ] {
            made.writer.set_metadata(key, value).unwrap();
        }
        let id = made.thread(100, "demo");
        spend(&mut made, id, (200, 200), (RunState::Sleeping, "the GIL", 0));
        spend(&mut made, id, (250, 50), (RunState::Sleeping, "a lock", 0));
        // A thread that waits for a processor does not wait for the GIL any more.
        spend(&mut made, id, (280, 30), (RunState::Runnable, "the GIL", 0));
        spend(&mut made, id, (780, 500), (RunState::Runnable, "the GIL", HOLDS_LOCK));
        let trace = made.finish();
        let line = format!("threads held the GIL for 0.500 s and waited 0.200 s for it{end}\n");
        for options in [&[][..], &["--summary"], &["--timeline"]] {
            let text = trace.view(&[&["print"][..], options].concat());
            assert!(text.contains(&line), "{options:?}: {text}");
            let json = trace.view(&[&["print", "--json"][..], options].concat());
            let head = Deserializer::from_str(&json).into_iter::<Json>().next();
            let lock = &head.expect("an object").expect("JSON")["lock"];
            let weights = [&lock["held"], &lock["waited"]].map(|it| it["weight"].as_u64());
            assert_eq!(weights, [Some(500_000), Some(200_000)], "{options:?}: {lock}");
            assert_eq!(lock["known_in_kernel"], end.is_empty(), "{options:?}");
        }
    }
}

#[test]
fn cpu_time_with_the_gil_is_a_minimum_where_perf_events_take_samples_in_the_kernel() {
    for (kernel, expected) in [(1, "at least 75.0 %"), (0, "75.0 %")] {
        let mut made = Maker::new();
        for (key, value) in [("kernel_included", kernel), ("lock_holders.python", 1)] {
            made.writer.set_metadata(key, Value::Unsigned(value)).unwrap();
        }
        let id = made.thread(100, "demo");
        for number in 1..=8 {
            let flags = if number % 4 == 0 { KERNEL } else { HOLDS_LOCK };
            let time_ns = maker::BEGIN_NS + number * 1_000_000;
            let sample = Sample { time_ns, flags, trace_id: 1 << 32 | 6, ..Sample::default() };
            made.full_sample(id, &sample, "main work");
        }
        let trace = made.finish();
        let text = trace.view(&["print", "--tree"]);
        assert!(
            text.contains(&format!("the GIL was held in {expected} of the CPU time")),
            "{text}"
        );
        let text = trace.view(&["print", "--tree", "--gil"]);
        assert!(text.contains("the GIL was held in 100.0 % of the CPU time\n"), "{text}");
    }
}
