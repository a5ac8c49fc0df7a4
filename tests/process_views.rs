//! Views of several processes that were recorded together, from synthetic traces.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use traceprof::trace::{RunState, Sample, ThreadId, Value};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{BROWSER, Browser, Maker, Page, Trace, has_command, maker, skip, traceprof};
use crate::snapshot;

use maker::BEGIN_NS;

/// Two processes with two workers of the same names each. The second process hangs: all of its
/// threads wait for work.
fn demo() -> Trace {
    beside(RunState::Sleeping)
}

/// The same, with this state of all threads of the second process.
fn beside(state: RunState) -> Trace {
    let mut maker = Maker::new();
    let text = |text: &str| Value::Text(text.to_owned());
    let words = Value::List(vec![text("/usr/bin/front"), text("--all")]);
    for (key, value) in [
        ("mode", text("cpu,wall")),
        ("pid", Value::Unsigned(100)),
        ("command_line", words),
        ("processes", Value::Unsigned(2)),
        ("freq_hz", Value::Unsigned(1000)),
        ("end_monotonic_ns", Value::Unsigned(BEGIN_NS + 1_000_000_000)),
    ] {
        maker.writer.set_metadata(key, value).unwrap();
    }
    for (number, pid, name) in [(1, 100, "front"), (2, 200, "ba\u{1b}ck")] {
        let numbers = [3_000_000_000, 7, 1_000_000_000 * number].map(Value::Unsigned);
        let [end, samples, cpu] = numbers;
        let begun = [Value::Unsigned(pid), Value::Unsigned(1), text(name), text(name)];
        let ended = [Value::Unsigned(BEGIN_NS), end, text("exited"), samples, cpu];
        let fields = begun.into_iter().chain(ended).collect();
        maker.writer.set_metadata(&format!("process.{number}"), Value::List(fields)).unwrap();
    }
    for pid in [100, 200] {
        let name = if pid == 100 { "front" } else { "back" };
        let main = maker.thread_of(pid, pid, name);
        let workers = [1, 2].map(|at| maker.thread_of(pid, pid + at, &format!("worker-{at}")));
        for thread in [main].into_iter().chain(workers) {
            waits(&mut maker, thread, if pid == 100 { RunState::Sleeping } else { state });
        }
        let twins = [3, 4].map(|at| maker.thread_of(pid, pid + at, "http2"));
        for thread in twins {
            match pid {
                100 => runs(&mut maker, thread),
                _ => waits(&mut maker, thread, state),
            }
        }
    }
    maker.finish()
}

/// Adds a second of waiting.
fn waits(maker: &mut Maker, thread: ThreadId, state: RunState) {
    let (stack, time_ns) = ("start_thread@libc work epoll_wait@libc", BEGIN_NS + 1_000_000_000);
    let state = state as u8;
    let sample = Sample { flags: WALL, weight: 1_000_000, time_ns, state, ..Sample::default() };
    maker.full_sample(thread, &Sample { syscall: Some(232), ..sample }, stack);
}

/// Adds a hundredth of a second in both kinds of time.
fn runs(maker: &mut Maker, thread: ThreadId) {
    for ms in 1..=10 {
        let time_ns = BEGIN_NS + ms * 100_000_000;
        let stack = "start_thread@libc serve";
        maker.full_sample(thread, &Sample { time_ns, ..Sample::default() }, stack);
        let sample = Sample { flags: WALL, weight: 100_000, time_ns, ..Sample::default() };
        maker.full_sample(thread, &sample, stack);
    }
}

fn run(made: &Trace, action: &[&str], options: &[&str]) -> String {
    let output = traceprof(action).arg(made.path()).args(options).output().expect("traceprof");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(made: &Trace, action: &[&str], options: &[&str]) -> Json {
    serde_json::from_str(&run(made, action, options)).unwrap()
}

fn page(made: &Trace) -> Page {
    Page::parse(&run(made, &["export", "--format", "html", "--output", "-"], &[]))
}

#[test]
fn a_process_that_only_waits_beside_a_busy_one_is_idle() {
    let made = demo();
    let text = run(&made, &["print", "--tree"], &[]);
    let idle = "\n8 idle threads: 80.0 % of all, 8.000 s (--idle shows their trees)\n    in \
                epoll_wait below work: 8 threads, 8.000 s, of ba\\u{1b}ck (200), front (100)\n";
    assert!(text.contains(idle), "{text}");
    assert!(text.contains("pool \"http2\" (2 threads) of process 100"), "{text}");
    assert!(!text.contains("thread 200 ") && !text.contains("of process 200"), "{text}");
    // The table of processes has all of them.
    let screen = run(&made, &["print"], &[]);
    let rows = "  process\n  100.0        2.000         0.000        3.000  front (100), 5 threads\n    \
                0.0        0.000         0.000        5.000  ba\\u{1b}ck (200), 5 threads\n\n";
    assert!(screen.contains(rows), "{screen}");
    let all = run(&made, &["print", "--idle"], &[]);
    assert!(all.contains("thread 200 \"back\"") && all.contains("\"worker-*\" (2 "), "{all}");
    // If all of them wait, something may hang.
    let all = run(&made, &["print", "--process", "200"], &[]);
    assert!(all.contains("thread 200 \"back\"") && !all.contains(" idle thread"), "{all}");
    let idle = page(&made);
    let idle = idle.head["threads"].as_array().unwrap().iter().filter(|it| it["idle"] == true);
    let idle: Vec<&Json> = idle.map(|thread| &thread["id"]).collect();
    assert_eq!(idle, ["100", "101", "102", "200", "201", "202", "203", "204"]);
    let folded = run(&made, &["export", "--format", "folded", "--no-idle"], &["--threads"]);
    assert!(folded.contains("/100;http2;") && !folded.contains("worker-1;"), "{folded}");
}

#[test]
fn threads_of_one_name_are_distinguished_by_their_processes() {
    let made = demo();
    let folded = run(&made, &["export", "--format", "folded", "--threads"], &[]);
    let firsts: BTreeSet<String> = folded
        .lines()
        .map(|line| line.splitn(3, ';').take(2).collect::<Vec<_>>().join(";"))
        .collect();
    let of = |process: &str, main: &str| {
        ["worker-1", "worker-2", "http2", main].map(|name| format!("{process};{name}"))
    };
    let both = [of("front/100", "front"), of("ba\\u{1b}ck/200", "back")];
    assert_eq!(firsts, both.concat().into_iter().collect());
    let profile = json(&made, &["export", "--format", "speedscope"], &[]);
    let names = profile["profiles"].as_array().unwrap().iter().map(|it| it["name"].as_str());
    let names: BTreeSet<&str> = names.map(Option::unwrap).collect();
    assert_eq!(names.len(), 10);
    assert!(names.contains("worker-1 (101) of front/100"), "{names:?}");
    assert!(names.contains("worker-1 (201) of ba\\u{1b}ck/200"), "{names:?}");
    let profile = json(&made, &["export", "--format", "firefox"], &[]);
    let threads = profile["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 10);
    for thread in threads {
        let name = if thread["pid"] == "100" { "front" } else { "ba\\u{1b}ck" };
        assert_eq!(thread["processName"], name);
    }
}

#[test]
fn processes_are_the_first_level_of_a_tree_and_the_rows_of_a_table() {
    let made = demo();
    let mut text = run(&made, &["print"], &["--summary"]);
    for options in [&["--by", "process"][..], &["--by", "process", "--top", "1"]] {
        let all = run(&made, &["print", "--idle"], options);
        let (_, below) = all.rsplit_once("\n\n").unwrap();
        text.push_str(&format!("\n{}\n{below}", options.join(" ")));
    }
    snapshot::check("tests/snapshots/print-process.txt", text.as_bytes());
    let by: [&[&str]; 3] =
        [&["--by", "process", "--idle"], &["--by", "process", "--mode", "cpu"], &["--idle"]];
    for options in by {
        let all = json(&made, &["print", "--json"], options);
        let of = |rows: &Json, key: &str| -> u64 {
            let rows = rows.as_array().unwrap().iter();
            rows.map(|row| row[key]["weight"].as_u64().unwrap()).sum()
        };
        let whole = all["all"]["weight"].as_u64().unwrap();
        assert_eq!(of(&all["processes"], "total"), whole, "{options:?}");
        let top = json(&made, &["print", "--json", "--by", "process", "--top", "9"], &["--idle"]);
        assert_eq!(of(&top["top"]["rows"], "self"), top["all"]["weight"].as_u64().unwrap());
        let calls = all["trees"][0]["calls"].as_array().unwrap();
        let groups = calls.iter().filter(|call| call["kind"] == "group");
        let names: BTreeSet<&str> = groups.map(|call| call["name"].as_str().unwrap()).collect();
        let expected: &[&str] = match options {
            ["--idle"] => &[],
            ["--by", "process", "--idle"] => &["front (100)", "ba\\u{1b}ck (200)"],
            _ => &["front (100)"],
        };
        assert_eq!(names, expected.iter().copied().collect(), "{options:?}");
    }
}

#[test]
fn one_process_is_one_row() {
    let mut maker = Maker::new();
    let [main, worker] = [100, 101].map(|tid| maker.thread(tid, "alone"));
    maker.sample(main, 1, "main serve");
    maker.sample(worker, 2, "start_thread work");
    let made = maker.finish();
    let top = run(&made, &["print", "--by", "process", "--top", "5"], &[]);
    assert!(top.ends_with("  process\n   100.0         2      0.002  alone (100)\n"), "{top}");
    let tree = run(&made, &["print", "--by", "process"], &[]);
    assert!(tree.contains("\n2 threads by process: 100.0 % of all"), "{tree}");
    let lines: Vec<&str> = tree.lines().filter(|line| line.ends_with("  alone (100)")).collect();
    assert_eq!(lines, ["   100.0       -   100.0         2         -     0.002  alone (100)"]);
}

#[test]
fn titles_name_their_processes() {
    let made = demo();
    let all = "2 processes: front (100), ba\\u{1b}ck (200)";
    assert_eq!(page(&made).head["title"], all);
    let title = |options: &[&str]| {
        json(&made, &["export", "--format", "speedscope"], options)["name"].clone()
    };
    assert_eq!(title(&[]), format!("Wall clock time of {all}"));
    let back_first = ["--thread", "201", "--thread", "202", "--thread", "103"];
    let expected = "Wall clock time of 2 processes: ba\\u{1b}ck (200), front (100)";
    assert_eq!(title(&back_first), expected);
    assert_eq!(title(&["--process", "100"]), "Wall clock time of front (100)");
    let text = run(&made, &["print", "--tree"], &[]);
    let command = "command   /usr/bin/front --all (pid 100) and 1 other process\nprocesses 2: ";
    assert!(text.starts_with(command), "{text}");
}

#[test]
fn shares_of_processes_name_their_total() {
    let made = demo();
    let line = |options: &[&str]| {
        let text = run(&made, &["print", "--tree"], options);
        text.lines().find(|line| line.starts_with("processes ")).unwrap().to_owned()
    };
    let of = |front: &str, back: &str, what: &str| {
        format!("processes 2: front (100) {front} %, 'ba\\u{{1b}}ck' (200) {back} % of {what}")
    };
    assert_eq!(line(&[]), of("50.0", "50.0", "the time of all threads"));
    assert_eq!(line(&["--mode", "cpu"]), of("100.0", "0.0", "CPU time"));
    let mut maker = Maker::new();
    for (key, number) in [("processes", 1), ("processes_refused", 3), ("processes_missed", 2)] {
        maker.writer.set_metadata(key, Value::Unsigned(number)).unwrap();
    }
    let main = maker.thread(100, "main");
    maker.sample(main, 1, "_start main");
    let text = run(&maker.finish(), &["print", "--tree"], &[]);
    let tail =
        "100.0 % of CPU time; 3 could not be recorded; 2 exited before they could be recorded\n";
    assert!(text.contains(tail), "{text}");
}

#[test]
fn events_of_a_recording_are_in_its_json() {
    let mut maker = Maker::new();
    let number = Value::Unsigned;
    let text = |text: &str| Value::Text(text.to_owned());
    let since = |ns: u64| number(BEGIN_NS + ns);
    for (key, fields) in [
        ("executed.1", vec![text("helper"), since(500), number(7)]),
        ("executed.2", vec![text("brief"), since(900), text("too short")]),
        ("process.1.executed.1", vec![text("own\u{9b}"), since(700), number(8)]),
        // For a process that is not listed, and for none.
        ("process.2.executed.1", vec![text("late"), since(1_000)]),
        ("process.x.executed.1", vec![text("odd"), since(1), number(2)]),
        ("process.1", vec![number(100), number(1), text("front"), text("front")]),
        ("rate_changes", vec![Value::List(vec![since(2_000), number(4)]), number(9)]),
    ] {
        maker.writer.set_metadata(key, Value::List(fields)).unwrap();
    }
    // One of the two is not listed.
    maker.writer.set_metadata("processes", number(2)).unwrap();
    let main = maker.thread(100, "main");
    maker.sample(main, 1, "_start main");
    let made = maker.finish();
    let all = json(&made, &["print", "--json"], &[]);
    let recording = &all["recording"];
    assert_eq!(
        recording["processes"],
        serde_json::json!([{ "pid": 100, "name": "front", "cpu_time_ns": null }])
    );
    assert_eq!(recording["rate_changes"], serde_json::json!([{ "time_ns": 2_000, "divisor": 4 }]));
    assert_eq!(
        recording["executed"],
        serde_json::json!([
            { "pid": null, "name": "helper", "time_ns": 500, "not_sampled": null },
            { "pid": 100, "name": "own\u{9b}", "time_ns": 700, "not_sampled": null },
            { "pid": null, "name": "brief", "time_ns": 900, "not_sampled": "too short" },
            { "pid": null, "name": "late", "time_ns": 1_000, "not_sampled": "too short" },
        ])
    );
    let head = run(&made, &["print", "--tree"], &[]);
    let line = "\nexecuted  helper after 0.000 s, 'own\\u{9b}' by 100 after 0.000 s, brief after \
        0.000 s \
                (not sampled: too short), late after 0.000 s (not sampled: too short)\n";
    assert!(head.contains(line), "{head}");
    let processes = &json(&demo(), &["print", "--json"], &[])["recording"]["processes"];
    assert_eq!(processes[1]["cpu_time_ns"], 2_000_000_000u64);
}

#[test]
fn two_processes_of_one_recording_are_compared() {
    let made = demo();
    let options = ["--json", "--base-process", "200", "--process", "front"];
    let all = json(&made, &["diff"], &options);
    assert_eq!([&all["before"]["samples"], &all["after"]["samples"]], [5, 23]);
    let options = ["--format", "folded", "--base-process", "200", "--process", "front"];
    let text = run(&made, &["diff"], &options);
    let lines: Vec<&str> = text.lines().collect();
    let waits = "start_thread;work;epoll_wait;[sleeping in epoll_wait]";
    assert_eq!(lines, ["start_thread;serve 0 2000000", &format!("{waits} 5000000 3000000")]);
}

#[test]
fn rows_of_a_page_are_of_one_process_each() {
    if !has_command(BROWSER) {
        skip!("chromium, which shows the page");
    }
    let made = beside(RunState::Disk);
    let path = made.dir().join("page.html");
    run(&made, &["view", "--output", path.to_str().unwrap()], &[]);
    let mut browser = Browser::open(&path, "", (1400, 900));
    let labels = browser.text("#labels");
    for label in [
        "back, pid 200",
        "worker ×2, pid 200",
        // The digit is part of the name and not a thread number.
        "http2 ×2, pid 100",
        "http2 ×2, pid 200",
        "3 idle",
    ] {
        assert!(labels.contains(label), "{label} is not in {labels}");
    }
    assert!(browser.text("#title").starts_with("2 processes: "));
    assert_eq!(browser.problems(), [""; 0]);
}

/// A server with a title for each process, two sessions of one, and another program.
fn titled() -> Trace {
    let mut maker = Maker::new();
    let text = |text: &str| Value::Text(text.to_owned());
    let processes = [
        (100, "postgres", "postgres: checkpointer ", 1),
        (200, "postgres", "postgres: amy shop [local] SELECT", 5),
        (300, "postgres", "postgres: amy shop [local] idle", 6),
        (400, "pgbench", "pgbench", 3),
    ];
    // A title that the kernel has, too: its first 15 bytes.
    let processes = processes.map(|(pid, program, title, periods)| match pid {
        300 => (pid, "postgres: amy s", title, periods),
        _ => (pid, program, title, periods),
    });
    maker.writer.set_metadata("processes", Value::Unsigned(4)).unwrap();
    for (number, (pid, program, title, periods)) in processes.into_iter().enumerate() {
        let started = [u64::from(pid), 1].map(Value::Unsigned);
        let fields = started.into_iter().chain([text(program), Value::List(vec![text(title)])]);
        let key = format!("process.{}", number + 1);
        maker.writer.set_metadata(&key, Value::List(fields.collect())).unwrap();
        let main = maker.thread_of(pid, pid, program);
        for ms in 1..=periods {
            maker.sample(main, u64::from(pid) + ms, "_start main work");
        }
        let helper = maker.thread_of(pid, pid + 1, &format!("io-{pid}"));
        maker.sample(helper, u64::from(pid) + 50, "clone3@libc help");
    }
    maker.finish()
}

#[test]
fn processes_have_the_titles_that_they_give_themselves() {
    let made = titled();
    let screen = run(&made, &["print"], &[]);
    let rows = [
        "   68.4     0.013  postgres: amy shop [local] x2, 4 threads\n",
        "   21.1     0.004  pgbench (400), 2 threads\n",
        "   10.5     0.002  postgres: checkpointer (100), 2 threads\n",
    ]
    .concat();
    assert!(screen.contains(&rows), "{screen}");
    let trees = run(&made, &["print", "--threads", "--min-percent", "0"], &[]);
    for title in
        ["thread 100 \"postgres: checkpointer\": ", "thread 300 \"postgres: amy shop [local]\": "]
    {
        assert!(trees.contains(title), "{title}: {trees}");
    }
    for (pattern, count) in
        [("postgres: check*", 2), ("postgres: amy shop [local]", 4), ("postgres", 4)]
    {
        let json = json(&made, &["print", "--json", "--process", pattern], &[]);
        assert_eq!(json["threads"], count, "{pattern}");
    }
    let folded = run(&made, &["export", "--format", "folded", "--threads"], &[]);
    assert!(folded.contains("postgres: checkpointer/100;"), "{folded}");
    let named = run(&made, &["print", "--timeline"], &[]);
    assert!(named.contains("(postgres: checkpointer, tid 100 of process 100)"), "{named}");
}

#[test]
fn equal_programs_are_merged() {
    let made = titled();
    let titles = |options: &[&str]| -> Vec<String> {
        let text = run(&made, &["print", "--min-percent", "0"], options);
        let titles = text.lines().filter(|line| line.contains(" % of all"));
        titles.map(|line| line.split_once(": 1").map_or(line, |it| it.0).to_owned()).collect()
    };
    assert_eq!(titles(&[]).len(), 8);
    let merged = titles(&["--merge-processes"]);
    assert!(
        merged[0].starts_with("main threads of postgres x3: 63.2 % of all, 0.012 s"),
        "{merged:?}"
    );
    assert!(merged[2].starts_with("pool \"io-*\" (3 threads) of postgres x3"), "{merged:?}");
    assert!(merged[1].starts_with("thread 400 \"pgbench\""), "{merged:?}");
    assert_eq!(merged.len(), 4, "{merged:?}");
    let of = |rows: &Json| -> Vec<(String, u64)> {
        let rows = rows.as_array().unwrap().iter();
        let row = |it: &Json| {
            let weight = it["total"]["weight"].as_u64().unwrap();
            (it["name"].as_str().unwrap().to_owned(), weight)
        };
        rows.map(row).collect()
    };
    let expected = [("postgres x3".to_owned(), 15), ("pgbench (400)".to_owned(), 4)];
    let by = ["--json", "--by", "process", "--merge-processes"];
    let table = json(&made, &["print", "--top", "9"], &by);
    assert_eq!(table["top"]["of"], "program");
    assert_eq!(of(&table["top"]["rows"]), expected);
    let tree = json(&made, &["print"], &by);
    let groups = tree["trees"][0]["calls"].as_array().unwrap().iter();
    let groups: Json = groups.filter(|call| call["kind"] == "group").cloned().collect();
    assert_eq!(of(&groups), expected);
    let refused = traceprof(&["print", "--merge-processes", "--threads"]).arg(made.path()).output();
    assert_eq!(refused.unwrap().status.code(), Some(2));
}
