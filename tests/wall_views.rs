//! Views of wall clock time, from synthetic traces.

use std::collections::BTreeMap;
use std::process::{Command, Output};

use traceprof::trace::{LazyTrace, RunState, Sample, ThreadId, Value};
use traceprof::view::export::{self, ExportOptions, Format};
use traceprof::view::print::tree::{self, TreeOptions};
use traceprof::view::timeline::{self, TimelineOptions};
use traceprof::view::{self, Mode, PrintLimits, Profile, Selection, Split};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{Maker, Trace, maker};
use crate::snapshot;

use RunState::{Disk, Runnable, Running, Sleeping, Stopped};
use maker::BEGIN_NS;

const PREAD64: Option<u32> = Some(17);
const NANOSLEEP: Option<u32> = Some(35);
const FUTEX: Option<u32> = Some(202);
const EPOLL_WAIT: Option<u32> = Some(232);

/// The stack on which a pool's threads wait for work.
const POOL: &str = "start_thread@libc worker_main pthread_cond_wait@libc";

/// Makes a trace of wall clock time.
struct Wall {
    maker: Maker,
    ms: u64,
    /// Whether there are wall clock samples. Without them there are only CPU samples.
    wall: bool,
}

impl Wall {
    fn new(wall: bool) -> Self {
        let mut maker = Maker::new();
        let mode = if wall { "cpu,wall" } else { "cpu" };
        maker.writer.set_metadata("mode", Value::Text(mode.to_owned())).unwrap();
        for (key, number) in [("wall_interval_ns", 20_000_000), ("cpu_time_ns", 19_000_000)] {
            maker.writer.set_metadata(key, Value::Unsigned(number)).unwrap();
        }
        Self { maker, ms: 0, wall }
    }

    /// Adds a thread at the begin of the recording.
    fn thread(&mut self, tid: u32, name: &str) -> ThreadId {
        self.ms = 0;
        self.maker.thread(tid, name)
    }

    /// Adds `ms` milliseconds of run time, one sample each.
    fn runs(&mut self, thread: ThreadId, ms: u64, stack: &str) {
        for _ in 0..ms {
            self.ms += 1;
            self.maker.sample(thread, self.ms, stack);
            if self.wall {
                self.spends(thread, 1, stack, (Running, None, ""));
            }
        }
    }

    /// Adds time in which the thread does not run.
    fn waits(
        &mut self,
        thread: ThreadId,
        ms: u64,
        stack: &str,
        why: (RunState, Option<u32>, &str),
    ) {
        self.ms += ms;
        if self.wall {
            self.spends(thread, ms, stack, why);
        }
    }

    /// Adds a sample of this much time, which ends now.
    fn spends(
        &mut self,
        thread: ThreadId,
        ms: u64,
        stack: &str,
        why: (RunState, Option<u32>, &str),
    ) {
        let (state, syscall, on) = why;
        let on = (!on.is_empty()).then(|| self.maker.writer.text(on).unwrap());
        let sample = Sample {
            time_ns: BEGIN_NS + self.ms * 1_000_000,
            trace_id: 1 << 32 | 6,
            flags: WALL,
            weight: ms as u32 * 1000,
            state: state as u8,
            syscall,
            waits_on: on,
            ..Sample::default()
        };
        self.maker.full_sample(thread, &sample, stack);
    }
}

/// A program that computes, sleeps, waits for a lock and for a disk. Its pool and its event loop
/// are idle, one thread waits for the lock all the time, and one is stopped.
fn demo(wall: bool, others: bool) -> Trace {
    let mut made = Wall::new(wall);
    let main = made.thread(100, "demo");
    made.runs(main, 10, "_start main compute");
    made.waits(main, 600, "_start main nap nanosleep@libc", (Sleeping, NANOSLEEP, ""));
    let lock = "_start main take pthread_mutex_lock@libc";
    made.waits(main, 235, lock, (Sleeping, FUTEX, ""));
    made.waits(main, 15, lock, (Runnable, FUTEX, ""));
    made.waits(main, 135, "_start main load pread@libc", (Disk, PREAD64, "/var/x"));
    made.runs(main, 5, "_start main compute inner");
    if others {
        let convoy = made.thread(101, "convoy");
        made.waits(convoy, 1000, lock, (Sleeping, FUTEX, ""));
        let events = made.thread(102, "events");
        made.runs(events, 4, "start_thread@libc event_loop handle");
        made.waits(
            events,
            996,
            "start_thread@libc event_loop epoll_wait@libc",
            (Sleeping, EPOLL_WAIT, "eventpoll"),
        );
        let held = made.thread(103, "held");
        made.waits(held, 990, POOL, (Sleeping, FUTEX, ""));
        made.waits(held, 10, POOL, (Stopped, FUTEX, ""));
    }
    for worker in 0..20 {
        let id = made.thread(200 + worker, &format!("worker-{worker}"));
        made.waits(id, 1000, POOL, (Sleeping, FUTEX, ""));
    }
    made.maker.finish()
}

fn load(made: &Trace, selection: &Selection) -> Profile {
    let trace = LazyTrace::open(&made.path()).unwrap();
    let selected = selection.resolve(&trace).unwrap();
    view::load(&trace, &selected).unwrap()
}

fn print(profile: &Profile, verbose: bool, idle: bool) -> String {
    let limits = PrintLimits { min_percent: 0.5, depth: None };
    let options =
        TreeOptions { verbose, limits, idle, split: Split::Threads, ..TreeOptions::default() };
    let mut out = Vec::new();
    tree::write(profile, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn folded(profile: &Profile, no_idle: bool) -> BTreeMap<String, u64> {
    let options = ExportOptions { no_idle, ..ExportOptions::new(Format::Folded) };
    let mut out = Vec::new();
    export::write_folded(profile, &options, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let line = |line: &str| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), count.parse().unwrap())
    };
    text.lines().map(line).collect()
}

fn of(states: &[RunState], calls: &[Option<u32>]) -> Selection {
    let calls = calls.iter().flatten().copied().collect();
    Selection { states: states.to_vec(), calls, ..Selection::default() }
}

/// Returns the microseconds of a title: `..., 1.000 s in 5 samples` or `..., 1.000 s (--idle ...`.
fn titled_us(text: &str) -> u64 {
    let titles = text.lines().filter(|line| line.contains(" % of all, "));
    let seconds = titles.map(|line| {
        let (_, rest) = line.split_once(" % of all, ").unwrap();
        rest.split(' ').next().unwrap().parse::<f64>().unwrap()
    });
    seconds.map(|seconds| (seconds * 1e6).round() as u64).sum()
}

#[test]
fn print_of_wall_clock_time_says_what_threads_wait_for() {
    let profile = load(&demo(true, true), &Selection::default());
    assert_eq!(profile.mode, Mode::Wall);
    let text = print(&profile, false, false);
    snapshot::check("tests/snapshots/wall.txt", text.as_bytes());
    assert!(!text.contains("period in") && !text.contains("periods in"), "{text}");
    assert_eq!(titled_us(&text), 24_000_000, "all threads for a second each");
    let verbose = print(&profile, true, true);
    snapshot::check("tests/snapshots/wall-verbose.txt", verbose.as_bytes());
    assert_eq!(titled_us(&verbose), 24_000_000);
}

#[test]
fn the_time_of_each_thread_and_of_all_adds_up() {
    let profile = load(&demo(true, true), &Selection::default());
    for thread in &profile.threads {
        let name = &thread.thread.name;
        assert_eq!(thread.states.total(), 1_000_000, "{name}");
        assert_eq!(thread.count.weight, 1_000_000, "{name}");
        assert_eq!(thread.tree.totals()[0], thread.count, "{name}");
    }
    let main = &profile.threads[0].states;
    let of = |state| main.of(state);
    assert_eq!(
        [Running, Runnable, Sleeping, Disk, Stopped].map(of),
        [15_000, 15_000, 835_000, 135_000, 0]
    );
    assert_eq!(profile.states().of(Stopped), 10_000);
}

#[test]
fn cpu_time_of_a_trace_is_as_if_nothing_else_were_in_it() {
    let cpu = Selection { mode: Some(Mode::Cpu), ..Selection::default() };
    let (with, without) = (load(&demo(true, true), &cpu), load(&demo(false, true), &cpu));
    let body = |profile: &Profile| {
        let text = print(profile, true, false);
        let lines = text.lines().filter(|line| !line.starts_with("sampling "));
        // From the first to the last sample of all, because the recorder has not written when it
        // ended.
        lines.filter(|line| !line.starts_with("recorded ")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(body(&with), body(&without));
    assert!(body(&with).contains("samples   19 for 19 periods in 2 threads"), "{}", body(&with));
    assert_eq!(folded(&with, true), folded(&without, false));
    assert_eq!(folded(&with, false).values().sum::<u64>(), 19);
}

#[test]
fn folded_stacks_of_wall_clock_time_are_in_microseconds() {
    let profile = load(&demo(true, true), &Selection::default());
    let all = folded(&profile, false);
    assert_eq!(all.values().sum::<u64>(), 24_000_000);
    for (stack, us) in [
        ("_start;main;compute", 10_000),
        ("_start;main;compute;inner", 5_000),
        ("_start;main;nap;nanosleep;[sleeping in nanosleep]", 600_000),
        ("_start;main;take;pthread_mutex_lock;[sleeping in futex]", 1_235_000),
        ("_start;main;take;pthread_mutex_lock;[runnable]", 15_000),
        ("_start;main;load;pread;[disk in pread64 on /var/x]", 135_000),
        ("start_thread;worker_main;pthread_cond_wait;[stopped]", 10_000),
        ("start_thread;worker_main;pthread_cond_wait;[sleeping in futex]", 20_990_000),
        ("start_thread;event_loop;epoll_wait;[sleeping in epoll_wait on eventpoll]", 996_000),
    ] {
        assert_eq!(all.get(stack), Some(&us), "{stack} in {all:?}");
    }
    let busy = folded(&profile, true);
    assert_eq!(busy.values().sum::<u64>(), 3_000_000, "without the pool and the event loop");
    assert!(!busy.keys().any(|stack| stack.contains("event_loop")));
}

#[test]
fn threads_that_wait_for_work_are_summed_up() {
    let profile = load(&demo(true, true), &Selection::default());
    let text = print(&profile, false, false);
    assert!(
        text.ends_with(
            "\n21 idle threads: 87.5 % of all, 21.000 s (--idle shows their trees)\n    \
             in futex below worker_main: 20 threads, 20.000 s\n    \
             in epoll_wait below event_loop: 1 thread, 1.000 s\n"
        ),
        "{text}"
    );
    for name in ["convoy", "held", "demo"] {
        assert!(text.contains(&format!("\"{name}\"")), "{name} is not idle: {text}");
    }
    assert!(!text.contains("\"events\"") && !text.contains("worker-3"), "{text}");
    let all = print(&profile, false, true);
    assert!(!all.contains("idle thread") && all.contains("\"worker-3\""), "{all}");
}

#[test]
fn busy_threads_beside_many_idle_ones_keep_their_trees() {
    let mut made = Wall::new(true);
    for tid in 1..=4 {
        let busy = made.thread(tid, &format!("busy-{tid}"));
        let ms = if tid > 2 { 1 } else { 300 };
        made.runs(busy, ms, "_start main compute");
        made.waits(busy, ms, "_start main nap", (Sleeping, NANOSLEEP, ""));
    }
    for tid in 10..400 {
        let idle = made.thread(tid, "idle");
        made.waits(idle, 1000, POOL, (Sleeping, FUTEX, ""));
    }
    let text = print(&load(&made.maker.finish(), &Selection::default()), false, false);
    assert!(text.contains("thread 1 \"busy-1\" of process 100: 0.2 % of all, 0.600 s"), "{text}");
    assert!(text.contains("thread 2 \"busy-2\""), "{text}");
    assert!(text.contains("2 threads below 0.5 % of all but the idle, together: 0.0 %"), "{text}");
    assert!(text.contains("390 idle threads: 99.7 % of all, 390.000 s"), "{text}");
    assert_eq!(titled_us(&text), 391_204_000);
}

#[test]
fn the_time_of_a_module_is_that_of_threads_that_wait_in_it() {
    let output = run(&["info"], &demo(true, false));
    let text = String::from_utf8(output.stdout).unwrap();
    let shares: Vec<&str> = text.lines().filter(|line| line.contains("samples ")).collect();
    assert_eq!(shares, ["  samples   99.9 %", "  samples   0.1 %"], "{text}");
}

#[test]
fn a_process_that_hangs_completely_is_shown() {
    let pool = Selection { threads: vec!["worker-*".to_owned()], ..Selection::default() };
    let text = print(&load(&demo(true, true), &pool), false, false);
    assert!(!text.contains("idle") && text.contains("thread 204 \"worker-4\""), "{text}");
    // A selection of states or calls also shows idle threads.
    let text = print(&load(&demo(true, true), &of(&[Sleeping], &[])), false, false);
    assert!(!text.contains("idle") && text.contains("thread 204 \"worker-4\""), "{text}");
}

#[test]
fn states_and_system_calls_choose_samples() {
    let made = demo(true, false);
    let total = |selection: &Selection| load(&made, selection).count().weight;
    assert_eq!(total(&Selection::default()), 21_000_000);
    assert_eq!(total(&of(&[Disk], &[])), 135_000);
    assert_eq!(total(&of(&[Running, Runnable], &[])), 30_000);
    assert_eq!(total(&of(&[], &[NANOSLEEP, PREAD64])), 735_000);
    assert_eq!(total(&of(&[Sleeping], &[FUTEX])), 20_235_000);
    assert_eq!(total(&of(&[Disk], &[FUTEX])), 0);
    let profile = load(&made, &of(&[Sleeping, Disk], &[NANOSLEEP, PREAD64]));
    let text = print(&profile, false, false);
    let window = "window    threads that are sleeping or disk, in pread64 or nanosleep\n";
    assert!(text.contains(window), "{text}");
    assert_eq!(folded(&profile, false).values().sum::<u64>(), 735_000);
}

fn timeline(made: &Trace, selection: &Selection, verbose: bool) -> String {
    let trace = LazyTrace::open(&made.path()).unwrap();
    let selected = selection.resolve(&trace).unwrap();
    let limits = PrintLimits { min_percent: 0.0, depth: None };
    let mut out = Vec::new();
    let options = TimelineOptions { verbose, limits, ..TimelineOptions::default() };
    timeline::write(&trace, &selected, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn main_thread(selection: Selection) -> Selection {
    Selection { threads: vec!["demo".to_owned()], ..selection }
}

#[test]
fn a_timeline_says_how_long_a_thread_waited_and_for_what() {
    let made = demo(true, true);
    let text = timeline(&made, &main_thread(Selection::default()), true);
    snapshot::check("tests/snapshots/wall-timeline.txt", text.as_bytes());
    let short = timeline(&made, &main_thread(Selection::default()), false);
    for line in [
        "  demo._start(): 19 samples, 1.00 s at 0.000 s <unfinished>",
        "    demo.main(): 19 samples, 1.00 s <unfinished>",
        "      demo.compute(): 10 samples, 10.0 ms",
        "        ... <10 samples in self, 10.0 ms>",
        "      demo.take(): 2 samples, 250 ms at 0.610 s",
        "          ... <2 samples in self, 250 ms>",
    ] {
        assert!(short.contains(&format!("{line}\n")), "{line} in {short}");
    }
    // A call is as long as the time measured in it, however few samples cover it.
    let all = timeline(&made, &Selection::default(), false);
    assert_eq!(all.matches("demo.worker_main(): 1 sample, 1.00 s").count(), 20, "{all}");
    assert_eq!(all.matches("\n# Thread ").count(), 24);
}

#[test]
fn a_timeline_of_cpu_time_counts_nothing_else() {
    let cpu = Selection { mode: Some(Mode::Cpu), ..Selection::default() };
    let text = timeline(&demo(true, true), &cpu, true);
    let without = timeline(&demo(false, true), &cpu, true);
    for text in [&text, &without] {
        assert_eq!(text.matches("sample at ").count(), 19, "{text}");
        assert!(text.contains("demo.compute(): 10 samples, ~10.0 ms"), "{text}");
        assert!(text.contains("22 threads without a sample: \"convoy\" \"held\" "), "{text}");
        assert!(!text.contains("demo.nap()") && !text.contains("# Thread 2"), "{text}");
    }
    assert!(text.contains("samples   19 for 19 periods in 2 threads\n"), "{text}");
    assert!(text.contains("demo.main(): 15 samples, ~1.00 s"), "{text}");
}

#[test]
fn a_timeline_of_some_states_has_only_the_calls_in_them() {
    let made = demo(true, false);
    let text = timeline(&made, &main_thread(of(&[Disk, Runnable], &[])), false);
    for line in ["demo.main(): 2 samples, 150 ms", "demo.load(): 1 sample, 135 ms"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(text.contains("demo.take(): 1 sample, 15.0 ms\n"), "{text}");
    assert!(!text.contains("demo.nap()") && !text.contains("demo.compute()"), "{text}");
    assert!(text.contains("samples   2 for 0.150 s in 1 thread\n"), "{text}");
    // Only the part inside the window counts.
    let from = Some("500ms".parse().unwrap());
    let window = main_thread(Selection { from, ..of(&[Sleeping], &[]) });
    let text = timeline(&made, &window, false);
    assert!(text.contains("demo._start(): 2 samples, 835 ms"), "{text}");
    let to = Some("700ms".parse().unwrap());
    let text = timeline(&made, &Selection { to, ..window }, false);
    assert!(text.contains("demo._start(): 1 sample, 600 ms"), "{text}");
}

#[test]
fn the_times_of_a_timeline_add_up_whatever_is_truncated() {
    let mut made = Wall::new(true);
    let id = made.thread(1, "x");
    for turn in 0..400 {
        let stack = ["main a", "main b f", "main b g", "main a f h"][turn % 4];
        made.runs(id, 1, stack);
        made.waits(id, 2, stack, (Sleeping, FUTEX, ""));
        if turn % 3 == 0 {
            made.ms += 1;
            let sample = Sample {
                time_ns: BEGIN_NS + made.ms * 1_000_000,
                trace_id: 1 << 32 | 7,
                end_reason: maker::GAP,
                flags: WALL,
                weight: 1000,
                ..Sample::default()
            };
            made.maker.full_sample(id, &sample, "g h");
        }
    }
    let made = made.maker.finish();
    for (selection, expected) in
        [(Selection::default(), 934), (of(&[Sleeping], &[]), 400), (of(&[Running], &[]), 534)]
    {
        let text = timeline(&made, &selection, false);
        let own = |line: &str| {
            let rest = line.trim_start().strip_prefix("... <")?;
            rest.split_once(" in self")?.0.split(' ').next()?.parse::<u64>().ok()
        };
        assert_eq!(text.lines().filter_map(own).sum::<u64>(), expected, "{text}");
        let roots = text.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let samples = roots
            .filter_map(|line| line.split_once(": ")?.1.split(' ').next()?.parse::<u64>().ok());
        assert_eq!(samples.sum::<u64>(), expected, "{text}");
    }
}

#[test]
fn an_empty_trace_of_wall_clock_time_is_shown_as_such() {
    let mut made = Wall::new(true).maker;
    made.flush();
    let output = run(&["print", "--follow"], &made.abandon());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(8), "its recorder has exited");
    assert!(text.contains("samples   0 for 0.000 s in 0 threads\n"), "{text}");
}

#[test]
fn wait_reasons_cannot_move_the_cursor_or_break_a_line() {
    let mut made = Wall::new(true);
    let id = made.thread(1, "x");
    made.waits(id, 7, "main", (Disk, PREAD64, "/tmp/\u{1b}[2J;a\n9 1"));
    let made = made.maker.finish();
    let profile = load(&made, &Selection::default());
    let tree = print(&profile, true, false);
    for text in [&tree, &timeline(&made, &Selection::default(), true)] {
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        assert!(text.contains("disk in pread64 on /tmp/\\u{1b}[2J;a\\n9 1"), "{text}");
    }
    let leaf = "main;[disk in pread64 on /tmp/\\u{1b}[2J:a\\n9 1]".to_owned();
    assert_eq!(folded(&profile, false), [(leaf, 7000)].into());
}

fn run(words: &[&str], made: &Trace) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_traceprof"));
    command.args(words).arg(made.path()).output().unwrap()
}

#[test]
fn filters_that_make_no_sense_are_refused_with_advice() {
    let (wall, cpu) = (demo(true, false), demo(false, false));
    for (made, words, expected) in [
        (&wall, &["print", "--state", "sleping"][..], "the nearest is sleeping"),
        (&wall, &["print", "--syscall", "epol_wait"], "the nearest are epoll_wait, "),
        (&wall, &["print", "--mode", "all"], "expected cpu or wall"),
        (&wall, &["print", "--mode", "cpu", "--state", "disk"], "leave out `--mode cpu`"),
        (&cpu, &["print", "--mode", "wall"], "record it with `--mode wall`"),
        (&cpu, &["print", "--state", "disk"], "record it with `--mode wall`"),
        (&cpu, &["export", "-f", "folded", "--syscall", "futex"], "record it with `--mode wall`"),
    ] {
        let output = run(words, made);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(error.contains(expected) && output.stdout.is_empty(), "{words:?}: {error}");
    }
    let output = run(&["print", "--follow", "--state", "disk"], &wall);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("samples   1 for 0.135 s"), "{text}");
    let output = run(&["print", "--state", "disk,sleeping", "--syscall", "17,futex"], &wall);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("samples   22 for 20.370 s"), "{text}");
}
