//! The screen that `print` shows without options, of synthetic traces.

use traceprof::trace::{LazyTrace, Sample, ThreadId, Value};
use traceprof::view::print::first_screen::{self, LINES_MAX};
use traceprof::view::{self, Selected, Selection, TextStyle, TreeOptions};
use traceprof_abi::storage::log::flags::WALL;
use unicode_width::UnicodeWidthStr;

use crate::common::{Maker, Trace, maker, traceprof};
use crate::snapshot;

use maker::BEGIN_NS;

fn screen(trace: &Trace, width: Option<usize>) -> String {
    let style = TextStyle { width, ..TextStyle::default() };
    let options = TreeOptions { style, ..TreeOptions::default() };
    let mut lazy = LazyTrace::open(&trace.path()).unwrap();
    lazy.leave_out_interpreters();
    let selected: Selected = Selection::default().resolve(&lazy).unwrap();
    let profile = view::load(&lazy, &selected).unwrap();
    let mut out = Vec::new();
    first_screen::write(&profile, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn print(trace: &Trace, options: &[&str]) -> String {
    let output = traceprof(&["print"]).arg(trace.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Adds samples of one period each, at consecutive milliseconds.
fn runs(maker: &mut Maker, thread: ThreadId, ms: &mut u64, stacks: &[(&str, u64)]) {
    for (stack, times) in stacks {
        for _ in 0..*times {
            *ms += 1;
            maker.sample(thread, *ms, stack);
        }
    }
}

/// A program with a long chain to its work, two workers, and a light thread.
fn busy() -> Trace {
    let mut maker = Maker::new();
    maker.writer.set_metadata("end_monotonic_ns", Value::Unsigned(2 * BEGIN_NS)).unwrap();
    let start = "_start __libc_start_main@libc main";
    let mut ms = 0;
    let main = maker.thread(100, "demo");
    let stacks = [
        (format!("{start} run parse next_token"), 30),
        (format!("{start} run hash mix fold round"), 90),
        (format!("{start} run hash mix fold round memcpy@libc"), 60),
        (format!("{start} log"), 10),
    ];
    let stacks: Vec<(&str, u64)> = stacks.iter().map(|(stack, it)| (stack.as_str(), *it)).collect();
    runs(&mut maker, main, &mut ms, &stacks);
    for tid in [101, 102] {
        let worker = maker.thread(tid, &format!("worker-{tid}"));
        runs(&mut maker, worker, &mut ms, &[("clone3@libc work", 5)]);
    }
    let timer = maker.thread(103, "timer");
    runs(&mut maker, timer, &mut ms, &[("clone3@libc tick", 1)]);
    maker.finish()
}

#[test]
fn a_trace_is_shown_on_one_screen() {
    let trace = busy();
    let text = print(&trace, &[]);
    assert_eq!(text, screen(&trace, None), "the command shows it without options");
    snapshot::check("tests/snapshots/first-screen.txt", text.as_bytes());
    snapshot::check("tests/snapshots/first-screen-80.txt", screen(&trace, Some(80)).as_bytes());
}

#[test]
fn an_option_of_trees_brings_trees() {
    let trace = busy();
    let tree = "\nthread 100 \"demo\": ";
    let none: [&[&str]; 5] =
        [&[], &["--summary"], &["--from", "0"], &["--mode", "cpu"], &["--include", "hash"]];
    for options in none {
        let text = print(&trace, options);
        assert!(!text.contains(tree) && text.contains("  hot path\n"), "{options:?}: {text}");
    }
    let some: [&[&str]; 10] = [
        &["--tree"],
        &["--thread", "demo"],
        &["--process", "100"],
        &["--threads"],
        &["--verbose"],
        &["--idle"],
        &["--min-percent", "1"],
        &["--depth", "9"],
        &["--follow"],
        &["--by", "module"],
    ];
    for options in some {
        let text = print(&trace, options);
        assert!(text.contains(tree) && !text.contains("  hot path\n"), "{options:?}: {text}");
    }
    assert!(print(&trace, &["--json"]).contains("\"trees\":["));
    assert!(!print(&trace, &["--json", "--summary"]).contains("\"trees\""));
}

/// Adds everything that a header has lines for.
fn all_lines(maker: &mut Maker) {
    let text = |text: &str| Value::Text(text.to_owned());
    let number = Value::Unsigned;
    let word = |it: usize| text(&format!("--option-{it}=value"));
    for (key, value) in [
        ("mode", text("cpu,wall")),
        ("pid", number(100)),
        ("command_line", Value::List((0..90).map(word).collect())),
        ("host", text("a-host.with.a.long.name.example.org")),
        ("kernel", text("6.18.44-a-kernel-with-a-long-version")),
        ("cpus", number(128)),
        ("start_realtime_ns", number(1_764_000_000_000_000_000)),
        ("end_monotonic_ns", number(9 * BEGIN_NS)),
        ("freq_hz", number(1000)),
        ("wall_interval_ns", number(20_000_000)),
        ("kernel_included", number(1)),
        ("traceprof_version", text("0.1.0")),
        ("processes", number(2000)),
        ("processes_refused", number(3)),
        ("processes_missed", number(5)),
        ("lock_holders.python", number(1)),
        ("executions", number(70)),
        ("cpu_time_ns", number(8_000_000_000)),
        ("detach_stopped_ns", number(5_000_000)),
        ("attach_stops_ns", Value::List((1..500).map(|ms| number(ms * 1_000_000)).collect())),
        ("write_error", text(&"the disk is full ".repeat(20))),
        ("recovered_from", text(&"/a/path/".repeat(30))),
    ] {
        maker.writer.set_metadata(key, value).unwrap();
    }
    for reason in 0..60 {
        maker.writer.set_metadata(&format!("lost.reason_{reason}"), number(reason)).unwrap();
        let program = vec![text("a-program-that-was-executed"), number(2 * BEGIN_NS), number(1)];
        let key = format!("executed.{reason}");
        maker.writer.set_metadata(&key, Value::List(program)).unwrap();
    }
}

/// Many threads of many processes, with deep stacks and long names, in both kinds of time.
fn crowded() -> Trace {
    let mut maker = Maker::new();
    all_lines(&mut maker);
    let mut ms = 0;
    for pid in 0..60u32 {
        let names: Vec<String> =
            (0..200).map(|depth| format!("a_function_with_a_long_name<{}>", depth / 3)).collect();
        for tid in 0..3 {
            let name = format!("thread-name-{pid}x{tid}y");
            let thread = maker.thread_of(pid * 10, pid * 10 + tid, &name);
            for depth in [200, 150, 120, 110, 50] {
                let stack = format!("{} leaf_{pid}_{tid}_{depth}", names[..depth].join(" "));
                for flags in [0, WALL] {
                    ms += 1;
                    let time_ns = BEGIN_NS + ms * 1_000_000;
                    let weight = if flags == WALL { 1000 } else { 1 };
                    let sample = Sample { time_ns, flags, weight, ..Sample::default() };
                    maker.full_sample(thread, &sample, &stack);
                }
            }
        }
    }
    maker.finish()
}

#[test]
fn no_trace_takes_more_than_a_screen() {
    for trace in [crowded(), busy()] {
        for width in [None, Some(40), Some(80), Some(132), Some(300)] {
            let text = screen(&trace, width);
            let lines = text.lines().count();
            assert!(lines <= LINES_MAX, "{width:?}: {lines} lines:\n{text}");
            for part in ["hot path", "function", "more "] {
                assert!(text.contains(part), "{width:?}: no {part}:\n{text}");
            }
            let widest = text.lines().map(UnicodeWidthStr::width).max().unwrap();
            let fits = width.is_none_or(|width| width < 80 || widest <= width);
            assert!(fits, "{width:?}: {widest} columns:\n{text}");
        }
    }
}

#[test]
fn what_is_lost_is_never_left_out() {
    let text = screen(&crowded(), Some(40));
    for label in ["command ", "processes ", "samples ", "lost ", "ended ", "origin "] {
        assert!(text.lines().any(|line| line.starts_with(label)), "{label}:\n{text}");
    }
}

#[test]
fn processes_of_one_name_share_a_line() {
    let mut maker = Maker::new();
    let mut ms = 0;
    for (pid, name, periods) in
        [(10, "cc1", 5), (20, "cc1", 7), (30, "cc1", 8), (40, "make", 2), (50, "as", 3)]
    {
        let main = maker.thread_of(pid, pid, name);
        runs(&mut maker, main, &mut ms, &[("main compile", periods)]);
        if name == "as" {
            let helper = maker.thread_of(pid, pid + 1, "helper");
            runs(&mut maker, helper, &mut ms, &[("clone3@libc help", 1)]);
        }
    }
    let text = screen(&maker.finish(), None);
    let (_, table) = text.split_once("  process\n").unwrap();
    let rows: Vec<&str> = table.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(
        rows,
        [
            "   76.9     0.020  cc1 x3",
            "   15.4     0.004  as (50), 2 threads",
            "    7.7     0.002  make (40)",
        ]
    );
}

/// Adds wall-clock time of 10 ms for each sample, all in one state.
fn spends(maker: &mut Maker, thread: ThreadId, (state, call): (u8, Option<u32>), stack: &str) {
    for number in 1..=100 {
        let time_ns = BEGIN_NS + number * 10_000_000;
        let sample = Sample { flags: WALL, weight: 10_000, time_ns, state, ..Sample::default() };
        maker.full_sample(thread, &Sample { syscall: call, ..sample }, stack);
    }
}

#[test]
fn the_path_of_wall_clock_time_is_of_what_ran() {
    let mut maker = Maker::new();
    maker.writer.set_metadata("mode", Value::Text("wall".to_owned())).unwrap();
    let end = Value::Unsigned(2 * BEGIN_NS);
    maker.writer.set_metadata("end_monotonic_ns", end).unwrap();
    let main = maker.thread(100, "demo");
    spends(&mut maker, main, (0, None), "main run compute");
    for tid in 101..=104 {
        let worker = maker.thread(tid, &format!("worker-{tid}"));
        spends(&mut maker, worker, (2, Some(202)), "work pthread_mutex_lock@libc");
    }
    let text = screen(&maker.finish(), None);
    let path = "total %  self %  hot path of the 1.000 s that threads ran or were runnable\n  \
                100.0   100.0  (2 calls) > compute\n\n";
    assert!(text.contains(path), "{text}");
    let table = " busy %  running (s)  runnable (s)  waiting (s)  thread\n  \
                 100.0        1.000         0.000        0.000  demo (100)\n    \
                 0.0        0.000         0.000        4.000  worker-* x4\n";
    assert!(text.contains(table), "{text}");
}
