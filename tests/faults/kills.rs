//! Cycles of a recording that is killed or ended at a random moment, over all kinds of targets.
//!
//! `scripts/soak --kills N SECONDS` runs N cycles, or fewer if the time is up, and prints a table.
//! A test run makes a few.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::in_parallel;
use crate::common::{
    OWN_EXIT_CODE, Random, Snapshot, Target, child_named, has_command, needs_recording, program,
    scratch_dir, script, together, traceprof, variant, wait_until,
};

/// Timeout of steps that normally take a second.
const PATIENCE: Duration = Duration::from_secs(60);
/// Exit code of a prey that saw an EINTR.
const EINTR_SEEN: i32 = 18;

/// What ends the recording.
#[derive(Debug, Clone, Copy)]
enum End {
    /// SIGKILL to the recorder.
    Kill,
    Term,
    Int,
    /// SIGTERM, and a second one later, which ends a recorder at once that has not ended yet.
    Twice,
    /// SIGKILL to the guardian.
    Guardian,
    /// SIGKILL to both, in either order.
    Both,
    /// SIGSTOP to the recorder, and SIGKILL later.
    StopFirst,
}

/// Sends a signal. A process that has exited needs none.
fn send(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

impl End {
    /// Sends the signals. `below` returns a random number below its argument.
    fn strike(self, recorder: i32, guardian: Option<i32>, below: &dyn Fn(u64) -> u64) {
        let pause = |most_us| std::thread::sleep(Duration::from_micros(below(most_us)));
        let kill_guardian = || guardian.into_iter().for_each(|pid| send(pid, Signal::SIGKILL));
        match self {
            End::Kill => send(recorder, Signal::SIGKILL),
            End::Term => send(recorder, Signal::SIGTERM),
            End::Int => send(recorder, Signal::SIGINT),
            End::Twice => {
                send(recorder, Signal::SIGTERM);
                pause(1_500_000);
                send(recorder, Signal::SIGTERM);
            }
            End::Guardian => {
                kill_guardian();
                pause(50_000);
                send(recorder, Signal::SIGTERM);
            }
            End::Both if below(2) == 0 => {
                send(recorder, Signal::SIGKILL);
                kill_guardian();
            }
            End::Both => {
                kill_guardian();
                send(recorder, Signal::SIGKILL);
            }
            End::StopFirst => {
                send(recorder, Signal::SIGSTOP);
                pause(300_000);
                send(recorder, Signal::SIGKILL);
            }
        }
    }
}

const ENDS: [End; 7] =
    [End::Kill, End::Term, End::Int, End::Twice, End::Guardian, End::Both, End::StopFirst];

/// A kind of target.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    /// The program, by its name in `tests/targets` or in PATH, and its argument.
    program: (&'static str, &'static str),
    code: i32,
    /// Whether its threads make calls with nothing to return to: the guardian's death may end it.
    is_bare: bool,
    /// Whether it changes its mappings and threads itself.
    changes: bool,
}

const PREY: Kind = Kind {
    name: "computing",
    program: ("prey", "spin"),
    code: OWN_EXIT_CODE,
    is_bare: false,
    changes: false,
};

static KINDS: [Kind; 14] = [
    PREY,
    Kind { name: "nanosleep", program: ("prey", "nap"), ..PREY },
    Kind { name: "epoll_wait", program: ("prey", "epoll"), ..PREY },
    Kind { name: "pause", program: ("prey", "pause"), ..PREY },
    Kind { name: "five threads", program: ("prey", "crowd"), ..PREY },
    Kind { name: "interval timer", program: ("prey", "ticks"), ..PREY },
    Kind { name: "no queued signals", program: ("prey", "poor"), ..PREY },
    Kind { name: "fiber", program: ("prey", "fiber"), is_bare: true, ..PREY },
    Kind { name: "no libc", program: ("bare", ""), code: 7, is_bare: true, ..PREY },
    Kind { name: "12 threads", program: ("steady", "12"), ..PREY },
    Kind { name: "100 threads", program: ("many_threads", "100"), ..PREY },
    Kind { name: "static, musl", program: ("steady-musl", "4"), ..PREY },
    Kind { name: "python", program: ("python3", "script.py"), changes: true, ..PREY },
    Kind { name: "node", program: ("node", "steady.js"), changes: true, ..PREY },
];

/// The results of the cycles of one kind.
#[derive(Debug, Default, Clone)]
struct Tally {
    cycles: usize,
    /// Targets that died although the documentation does not say that they may.
    deaths: usize,
    /// Targets that died in a call with nothing to return to, with their guardian.
    bare_deaths: usize,
    /// Both were killed, and `detach` removed what they had left.
    residue: usize,
    /// What nobody removed.
    left: usize,
    hangs: usize,
    eintr: usize,
}

impl Tally {
    const HEAD: [&str; 8] =
        ["target", "cycles", "deaths", "in bare calls", "residue", "left", "hangs", "EINTR"];

    fn row(&self, name: &str) -> [String; 8] {
        let Self { cycles, deaths, bare_deaths, residue, left, hangs, eintr } = self;
        let numbers = [cycles, deaths, bare_deaths, residue, left, hangs, eintr];
        let mut row = [const { String::new() }; 8];
        name.clone_into(&mut row[0]);
        row[1..].iter_mut().zip(numbers).for_each(|(cell, number)| *cell = number.to_string());
        row
    }

    fn add(&mut self, other: &Self) {
        self.cycles += other.cycles;
        self.deaths += other.deaths;
        self.bare_deaths += other.bare_deaths;
        self.residue += other.residue;
        self.left += other.left;
        self.hangs += other.hangs;
        self.eintr += other.eintr;
    }
}

/// Starts a target of this kind, unless one of its tools is missing.
fn start(kind: &Kind) -> Option<Target> {
    const HEADERS: [&str; 4] =
        ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"];
    let (name, argument) = kind.program;
    let mut command = match name {
        "python3" | "node" if !has_command(name) => return None,
        "python3" | "node" => Command::new(name),
        "steady-musl" if !has_command("musl-gcc") => return None,
        "steady-musl" => {
            let flags = [&["-static", "-pthread"], &HEADERS[..]].concat();
            Command::new(variant(name, "steady.c", "musl-gcc", &flags))
        }
        _ => Command::new(program(name)),
    };
    match argument.contains('.') {
        true => command.arg(script(argument)),
        false => command.arg(argument),
    };
    Some(Target::spawn(command).with_code(kind.code))
}

/// A cycle that found something wrong.
type Wrong = String;

/// Runs one cycle.
fn cycle(kind: &Kind, random: &Mutex<Random>) -> Option<(Tally, Option<Wrong>)> {
    let below = |limit: u64| random.lock().unwrap().below(limit);
    let mut target = start(kind)?;
    let before = Snapshot::take(target.pid());
    let engine = ["perf", "timer", "auto"][below(3) as usize];
    let mode = ["cpu", "cpu", "cpu,wall"][below(3) as usize];
    let end = ENDS[below(ENDS.len() as u64) as usize];
    let delay = Duration::from_micros(below(500_000));
    let case = format!("{}, {engine}, {mode}, {end:?} after {delay:?}", kind.name);
    let mut tally = Tally { cycles: 1, ..Tally::default() };
    let directory = scratch_dir();
    let mut command = traceprof(&["record", "-q", "--freq", "997", "--engine", engine]);
    command.args(["--mode", mode, "--pid", &target.pid().to_string(), "--output"]);
    command.arg(directory.path().join("out.trace"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut recorder = command.spawn().expect("traceprof");
    std::thread::sleep(delay);
    let own = recorder.id() as i32;
    end.strike(own, child_named(own, "traceprof-guard"), &below);
    // A shell starts its background jobs with SIGINT ignored. Until the recorder has its own handler,
    // the signal is then lost, and a user would send it again.
    let mut asked = Instant::now();
    let mut has_ended = || {
        if matches!(end, End::Int) && asked.elapsed() > Duration::from_secs(5) {
            send(own, Signal::SIGINT);
            asked = Instant::now();
        }
        recorder.try_wait().expect("its state").is_some()
    };
    let mut hang = None;
    if !wait_until(PATIENCE, &mut has_ended) {
        tally.hangs += 1;
        let states = [own, target.pid()].map(what_threads_do);
        hang = Some(format!("the recorder does not end: {}; target: {}", states[0], states[1]));
        let _ = recorder.kill();
        let _ = recorder.wait();
    }
    let judged = judge(kind, &mut target, &before, (end, &mut tally));
    let wrong = hang.or(judged);
    if tally.eintr > 0 {
        eprintln!("{case}: EINTR");
    }
    Some((tally, wrong.map(|wrong| format!("{case}: {wrong}"))))
}

/// Returns what each thread of a process and of its children waits in, for a report of a hang.
fn what_threads_do(pid: i32) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().replace('\n', " ");
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut all = String::new();
    for task in tasks.take(8) {
        let at = task.path().display().to_string();
        let state = read(&format!("{at}/stat"));
        let state = state.rsplit_once(')').map_or("", |(_, rest)| rest.get(1..2).unwrap_or(""));
        let [name, wait, call, children] =
            ["comm", "wchan", "syscall", "children"].map(|file| read(&format!("{at}/{file}")));
        all += &format!("[{name}{state} {wait} {call}]");
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            all += &format!(" child {child} {}", what_threads_do(child));
        }
    }
    all
}

/// Checks what became of the target, and counts it.
fn judge(
    kind: &Kind,
    target: &mut Target,
    before: &Snapshot,
    (end, tally): (End, &mut Tally),
) -> Option<Wrong> {
    let guardian_died = matches!(end, End::Guardian | End::Both);
    let differences = |target: &Target| {
        let now = Snapshot::take(target.pid());
        if kind.changes { before.marks_left(&now) } else { before.differences(&now) }
    };
    let is_mapped = |pid: i32| {
        std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default().contains("/SYSV")
    };
    let since = Instant::now();
    let is_clean = wait_until(PATIENCE, || {
        if target.has_exited() || differences(target).is_empty() {
            return true;
        }
        // Another process restores the target first, if there is one.
        if guardian_died && since.elapsed() > Duration::from_secs(1) && is_mapped(target.pid()) {
            let pid = target.pid().to_string();
            let removed = traceprof(&["detach", "--pid", &pid]).output().expect("traceprof");
            tally.residue += usize::from(removed.status.success());
        }
        false
    });
    if target.has_exited() {
        let is_documented = kind.is_bare && guardian_died;
        *if is_documented { &mut tally.bare_deaths } else { &mut tally.deaths } += 1;
        return (!is_documented).then(|| format!("the target is dead: {}", target.wait()));
    }
    if !is_clean {
        tally.left += 1;
        return Some(format!("left: {:#?}", differences(target)));
    }
    // A thread that is about to issue its call again takes the signal before that, and then blocks
    // in the call. A runtime that exits has its handlers no longer.
    let mut asked = None;
    let ended = wait_until(PATIENCE, || {
        let is_late = |since: Instant| !kind.changes && since.elapsed() > Duration::from_secs(1);
        if asked.is_none_or(is_late) {
            send(target.pid(), Signal::SIGTERM);
            asked = Some(Instant::now());
        }
        target.has_exited()
    });
    if !ended {
        tally.hangs += 1;
        return Some(format!("the target does not end, state {}", target.state()));
    }
    let code = target.wait().code();
    tally.eintr += usize::from(code == Some(EINTR_SEEN));
    let is_right = code == Some(kind.code) || code == Some(EINTR_SEEN);
    (!is_right).then(|| format!("the target ended with {code:?}"))
}

fn print(tallies: &BTreeMap<&'static str, Tally>) {
    let mut sum = Tally::default();
    tallies.values().for_each(|tally| sum.add(tally));
    let rows = tallies.iter().map(|(name, tally)| tally.row(name)).chain([sum.row("all")]);
    eprintln!("| {} |\n|---|{}", Tally::HEAD.join(" | "), "---:|".repeat(7));
    rows.for_each(|row| eprintln!("| {} |", row.join(" | ")));
}

/// The documentation names the only window in which a target may die: the guardian is killed while
/// a thread makes a call with nothing to return to, some tens of microseconds at the attach and at
/// the detach. A kill at a random moment hits it once in a hundred cycles at most.
const BARE_DEATHS_PERCENT_MAX: usize = 3;
/// A call may end with EINTR if a process is killed within some tens of microseconds.
const EINTR_PERCENT_MAX: usize = 1;

#[test]
fn targets_survive_recordings_that_are_ended_at_random_moments() {
    needs_recording!();
    let _machine = together();
    let given =
        |name| std::env::var(name).ok().map(|text| text.parse::<usize>().expect("a whole number"));
    let cycles = given("TRACEPROF_TEST_KILLS_OF_ALL").unwrap_or(KINDS.len());
    let most_s = given("TRACEPROF_TEST_KILLS_SECONDS").map(|most_s| most_s as u64);
    let until = most_s.map(|most_s| Instant::now() + Duration::from_secs(most_s));
    let random = Mutex::new(Random::new(17));
    let (tallies, wrong) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
    let done = AtomicUsize::new(0);
    let rounds: &'static [usize] = (0..cycles).collect::<Vec<_>>().leak();
    in_parallel(rounds, |round| {
        if until.is_some_and(|until| Instant::now() > until) {
            return;
        }
        let kind = &KINDS[round % KINDS.len()];
        let Some((tally, error)) = cycle(kind, &random) else { return };
        tallies.lock().unwrap().entry(kind.name).or_insert_with(Tally::default).add(&tally);
        if let Some(error) = error {
            eprintln!("{error}");
            wrong.lock().unwrap().push(error);
        }
        // Relaxed: only for progress.
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(100) {
            eprintln!("{done} of {cycles} cycles");
        }
    });
    let (tallies, wrong) = (tallies.into_inner().unwrap(), wrong.into_inner().unwrap());
    print(&tallies);
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    let mut sum = Tally::default();
    tallies.values().for_each(|tally| sum.add(tally));
    assert_eq!((sum.deaths, sum.left, sum.hangs), (0, 0, 0), "{sum:?}");
    let most = |percent: usize| 1 + sum.cycles * percent / 100;
    assert!(sum.bare_deaths <= most(BARE_DEATHS_PERCENT_MAX), "{sum:?}");
    assert!(sum.eintr <= most(EINTR_PERCENT_MAX), "{sum:?}");
}
