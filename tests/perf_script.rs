//! Text in the format of `perf script`, read by a tool that folds it.

use std::collections::BTreeMap;

use inferno::collapse::{Collapse, perf};

use traceprof::trace::{Location, Method, Module, Sample, Value};

use crate::common::{Maker, Trace, maker, traceprof};

use maker::{BEGIN_NS, GAP};

/// Two threads, an inlined function, a truncated stack, and one without a frame.
fn demo() -> Trace {
    let mut maker = Maker::new();
    let front = maker.thread(100, "pool 12");
    for (ms, stack) in [(1, "_start main"), (2, "_start main serve:20"), (3, "_start main")] {
        maker.sample(front, ms, stack);
    }
    maker.sample(front, 4, "");
    maker.inlined_sample(front);
    let back = maker.thread(101, "back");
    maker.sample_ending(back, 30, "memcpy@libc", GAP);
    maker.finish()
}

fn exported(made: &Trace, format: &str, options: &[&str]) -> String {
    let mut command = traceprof(&["export", "--format", format]);
    let output = command.arg(made.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Parses stacks with their counts.
fn lines(text: &str) -> BTreeMap<String, u64> {
    let mut lines = BTreeMap::new();
    for (stack, count) in text.lines().map(|line| line.rsplit_once(' ').unwrap()) {
        *lines.entry(stack.to_owned()).or_default() += count.parse::<u64>().unwrap();
    }
    lines
}

/// Folds the text with inferno, which reads it like stackcollapse-perf.pl.
fn collapsed(script: &str) -> BTreeMap<String, u64> {
    let mut folded = Vec::new();
    perf::Folder::default().collapse(script.as_bytes(), &mut folded).unwrap();
    lines(&String::from_utf8(folded).unwrap())
}

#[test]
fn folding_it_gives_the_folded_stacks() {
    let made = demo();
    for options in [&[][..], &["--thread", "back"], &["--from", "3ms", "--to", "10ms"]] {
        let script = exported(&made, "perf-script", options);
        let folded = exported(&made, "folded", &[&["--threads"], options].concat());
        assert_eq!(collapsed(&script), lines(&folded), "{options:?}: {script}");
    }
}

#[test]
fn events_have_thread_time_weight_addresses_and_modules() {
    let script = exported(&demo(), "perf-script", &[]);
    let events: Vec<&str> = script.split("\n\n").collect();
    let address = 0x1000 + 0x100 * "main".bytes().map(u64::from).sum::<u64>();
    let serve = 0x1000 + 0x100 * "serve".bytes().map(u64::from).sum::<u64>() + 24;
    let start = 0x1000 + 0x100 * "_start".bytes().map(u64::from).sum::<u64>() + 4;
    let expected = format!(
        "pool_12          100/100      1.002000000:          1 cpu-periods:\n\
         \t{serve:16x} serve+0x18 (/usr/bin/demo)\n\
         \t{:16x} main+0x4 (/usr/bin/demo)\n\
         \t{start:16x} _start+0x4 (/usr/bin/demo)",
        address + 4
    );
    assert_eq!(events[1], expected);
    let inlined = format!(
        "pool_12          100/100      1.021000000:          3 cpu-periods:\n\
         \t{0:16x} inlined_part (inlined)\n\
         \t{0:16x} main+0xe (/usr/bin/demo)",
        address + 14
    );
    assert_eq!(events[4], inlined);
    assert!(
        events[5].ends_with(
            "memcpy+0x4 (/usr/lib/libc.so.6)\n\t               0 [truncated] ([unknown])"
        )
    );
}

/// Names and modules are never read as the end of a stack, as a comment or as nothing.
#[test]
fn odd_names_lose_no_sample() {
    let mut maker = Maker::new();
    let path = "/opt/my app/(lib) #1;x".to_owned();
    let module = maker.writer.module(&Module { path, build_id: Vec::new() }).unwrap();
    for (tid, name) in [(1, "# 7 8"), (2, ""), (3, "3"), (4, "a\nb"), (5, "x: 5 y:")] {
        let thread = maker.thread(tid, name);
        for name in [
            "(anonymous namespace)::f(int)",
            "[unknown]",
            "a->b;c",
            " ",
            "#",
            "x\n\ny",
            "(",
            "f (deleted)",
        ] {
            let method = Method {
                module: Some(module),
                name: name.to_owned(),
                start_svma: 16,
                ..Method::default()
            };
            let method = maker.writer.method(&method).unwrap();
            let place = Location::at(method, 24);
            let place = maker.writer.location(&place).unwrap();
            let sample = Sample { time_ns: BEGIN_NS, weight: 7, ..Sample::default() };
            maker.writer.sample(thread, &sample, &[place]).unwrap();
        }
    }
    let script = exported(&maker.finish(), "perf-script", &[]);
    let folded = collapsed(&script);
    assert_eq!(folded.values().sum::<u64>(), 5 * 8 * 7, "{script}");
    let threads: std::collections::BTreeSet<_> =
        folded.keys().map(|stack| stack.split(';').next().unwrap()).collect();
    assert_eq!(threads, ["3", "[unnamed]", "_#_7_8", "a\\nb", "x:_5_y:"].into());
}

#[test]
fn wall_clock_time_is_in_microseconds_with_the_wait_reason() {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", Value::Text("wall".to_owned())).unwrap();
    let thread = maker.thread(1, "sleeper");
    maker.wait_sample(thread);
    let script = exported(&maker.finish(), "perf-script", &[]);
    assert!(script.contains("     300000 wall-microseconds:\n"), "{script}");
    assert_eq!(collapsed(&script), lines("sleeper;main;wait;[sleeping in futex] 300000"));
}
