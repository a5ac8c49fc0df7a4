//! Wall clock time of real programs, against what they measure themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;
use traceprof::trace::{LoadedTrace, RunState, load};
use traceprof_abi::storage::log::flags::WALL;

use crate::common::{
    Outcome, Recorder, Target, Trace, alone, as_nobody, needs_recording, record, record_and_end,
    scratch_dir, skip, together, wait_until,
};

/// Wall clock time of one thread, in microseconds.
#[derive(Debug, Default)]
struct Spent {
    /// Time in each state.
    states: BTreeMap<u8, u64>,
    /// Time on stacks that contain a function, in any state.
    functions: BTreeMap<String, u64>,
    /// Time in each system call, with what the call waited on.
    calls: BTreeMap<(Option<u32>, Option<String>), u64>,
    first_ns: u64,
    last_ns: u64,
    /// The times of its checks.
    checks_ns: BTreeSet<u64>,
}

impl Spent {
    /// Returns the mean square of the time between the two checks around a random moment, in
    /// microseconds.
    fn mean_square_gap(&self) -> f64 {
        // A long gap is around more moments than a short one.
        self.sum_of_gaps(3) / self.sum_of_gaps(1).max(1.0)
    }

    /// Returns how many equally long gaps between checks would give shares as certain as these.
    fn effective_checks(&self) -> f64 {
        self.sum_of_gaps(1).powi(2) / self.sum_of_gaps(2).max(1.0)
    }

    /// Returns the sum of this power of the time between two checks, in microseconds.
    fn sum_of_gaps(&self, power: i32) -> f64 {
        let gaps = self.checks_ns.iter().zip(self.checks_ns.iter().skip(1));
        gaps.map(|(one, next)| ((next - one) as f64 / 1000.0).powi(power)).sum()
    }

    fn all(&self) -> u64 {
        self.states.values().sum()
    }

    fn in_state(&self, state: RunState) -> u64 {
        self.states.get(&(state as u8)).copied().unwrap_or(0)
    }

    fn in_function(&self, name: &str) -> u64 {
        self.functions.get(name).copied().unwrap_or(0)
    }

    fn percent_in(&self, name: &str) -> f64 {
        self.in_function(name) as f64 * 100.0 / self.all().max(1) as f64
    }
}

/// Returns the wall clock time of a trace's threads, by name and id.
fn spent(trace: &Trace) -> BTreeMap<(String, u32), Spent> {
    let loaded = load(&trace.path()).expect("a trace");
    let mut threads = BTreeMap::new();
    for thread in &loaded.threads {
        let mut spent = Spent::default();
        thread.for_each_sample(&mut |sample, stack| {
            if sample.flags & WALL == 0 {
                return;
            }
            let us = u64::from(sample.weight);
            *spent.states.entry(sample.state).or_default() += us;
            let mut names: Vec<&str> =
                stack.iter().map(|place| name_of(&loaded, place.0 as usize)).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                *spent.functions.entry(name.to_owned()).or_default() += us;
            }
            let waits_on = sample.waits_on.and_then(|text| loaded.texts.get(&text));
            let call = (sample.syscall, waits_on.cloned());
            *spent.calls.entry(call).or_default() += us;
            spent.first_ns = if spent.first_ns == 0 { sample.time_ns } else { spent.first_ns };
            spent.last_ns = sample.time_ns;
            spent.checks_ns.insert(sample.time_ns);
        });
        threads.insert((thread.thread().name.clone(), thread.thread().tid), spent);
    }
    threads
}

fn name_of(loaded: &LoadedTrace, location: usize) -> &str {
    let method = loaded.locations[location].method;
    &loaded.methods[method.0 as usize].name
}

/// Returns the only thread of this name.
fn the<'a>(threads: &'a BTreeMap<(String, u32), Spent>, name: &str) -> &'a Spent {
    let mut found = threads.iter().filter(|((other, _), _)| other == name).map(|(_, it)| it);
    let first = found.next().unwrap_or_else(|| panic!("no thread {name}: {:?}", threads.keys()));
    assert!(found.next().is_none(), "two threads {name}");
    first
}

/// Returns the time between begin and end of the sampling, in microseconds.
fn elapsed_us(trace: &Trace) -> u64 {
    trace.number("elapsed_ns") / 1000
}

fn percent(part: u64, all: u64) -> f64 {
    part as f64 * 100.0 / all.max(1) as f64
}

/// Checks that the samples cover all of a thread's time, each microsecond once.
fn expect_balance(outcome: &Outcome, elapsed: u64, spent: &Spent, name: &str) {
    let all = spent.all();
    let error = percent(all, elapsed) - 100.0;
    assert!(error.abs() < 1.0, "{name}: {all} us of {elapsed}\n{spent:?}\n{}", outcome.text());
}

/// Returns how far a share of a thread's time may be off, in percent of the recording.
///
/// Each boundary between two parts of a program is seen at one of the checks around it. Its error
/// has a triangular distribution, as wide as the time between two checks. Four standard errors of
/// their sum are exceeded once in ten thousand recordings.
fn boundary_error(trace: &Trace, thread: &Spent, boundaries: u64) -> f64 {
    let error = (boundaries as f64 * thread.mean_square_gap() / 6.0).sqrt();
    400.0 * error / elapsed_us(trace) as f64
}

/// Returns the time that a thread was in each of its three parts while it was observed, by the
/// program's own clock in microseconds, and the number of parts that began in that time.
fn time_in_parts(target: &Target, tid: u32, thread: &Spent) -> ([u64; 3], u64) {
    let steps = target.facts().get(&format!("begun_{tid}")).expect("times of the thread");
    let steps = steps.split(' ').map(|step| step.parse::<u64>().expect("a time"));
    let begun = steps.scan(0, |time, step| {
        *time += step;
        Some(*time)
    });
    let begun: Vec<u64> = begun.collect();
    let observed = thread.last_ns / 1000 - thread.all()..thread.last_ns / 1000;
    let mut times = [0; 3];
    for (number, from) in begun.iter().enumerate() {
        let to = begun.get(number + 1).copied().unwrap_or(u64::MAX);
        let (from, to) = ((*from).max(observed.start), to.min(observed.end));
        times[number % 3] += to.saturating_sub(from);
    }
    (times, begun.iter().filter(|time| observed.contains(time)).count() as u64)
}

fn check_shares(mode: &str) {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("shares", &[]);
    let pid = target.pid().to_string();
    let mut recorder = Recorder::start(&["--pid", &pid, "--duration", "3600", "--mode", mode]);
    recorder.wait_until_attached(target.pid());
    std::thread::sleep(Duration::from_secs(10));
    recorder.send(Signal::SIGINT);
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    let threads = spent(&outcome.trace);
    let worker = the(&threads, "worker");
    let ((_, tid), _) = threads.iter().find(|((name, _), _)| name == "worker").unwrap();
    let (own, begun) = time_in_parts(&target, *tid, worker);
    let own_all: u64 = own.iter().sum();
    let elapsed = elapsed_us(&outcome.trace);
    // Each part begins and ends once a round.
    let tolerance = boundary_error(&outcome.trace, worker, 2 * begun.div_ceil(3));
    for (part, own) in ["sleeping_part", "locked_part", "computing_part"].iter().zip(own) {
        let (seen, known) = (worker.percent_in(part), percent(own, own_all));
        assert!(
            (seen - known).abs() < tolerance,
            "{part}: {seen:.1} %, {known:.1} % as the program measured, may be {tolerance:.1} % off"
        );
    }
    // A thread that has been woken waits for a processor, which the program cannot tell from sleep.
    let asleep = percent(worker.in_state(RunState::Sleeping), worker.all());
    let waiting = percent(worker.in_state(RunState::Runnable), worker.all());
    let known = percent(own[0] + own[1], own_all);
    assert!(
        asleep < known + tolerance && asleep + waiting > known - tolerance,
        "asleep {asleep:.1} % and waiting {waiting:.1} %, {known:.1} % as the program measured"
    );
    for (name, thread) in [("worker", worker), ("holder", the(&threads, "holder"))] {
        expect_balance(&outcome, elapsed, thread, name);
    }
    assert_eq!(outcome.trace.number("wall.stacks_by_stop"), 0, "{}", outcome.text());
}

#[test]
fn shares_of_sleep_lock_and_work_are_those_that_the_program_measures() {
    check_shares("wall");
}

#[test]
fn shares_are_the_same_beside_cpu_samples_at_a_rate_of_their_own() {
    check_shares("cpu,wall");
}

#[test]
fn threads_of_a_lock_convoy_are_seen_to_wait() {
    needs_recording!();
    let _machine = alone();
    let mut target = Target::start("convoy", &["6"]);
    let outcome = record(target.pid(), 10, &["--mode", "wall"]);
    target.goes_on_and_ends_by_itself();
    let threads = spent(&outcome.trace);
    let convoy: Vec<_> = threads.iter().filter(|((name, _), _)| name == "member").collect();
    assert_eq!(convoy.len(), 6);
    let (mut own, mut checks) = ([0; 3], 0.0);
    for ((_, tid), thread) in &convoy {
        let (times, _) = time_in_parts(&target, *tid, thread);
        own = std::array::from_fn(|part| own[part] + times[part]);
        checks += thread.effective_checks();
    }
    let own_all = own.iter().sum();
    let all = convoy.iter().map(|(_, it)| it.all()).sum();
    for (function, own) in ["want_the_lock", "with_the_lock"].iter().zip(own) {
        let seen = convoy.iter().map(|(_, it)| it.in_function(function)).sum();
        let (seen, known) = (percent(seen, all), percent(own, own_all));
        // Four standard errors of a share are exceeded once in ten thousand recordings. Only one
        // thread has the lock, so checks of all threads at one moment are as certain as others.
        let tolerance = 4.0 * (known * (100.0 - known) / checks).sqrt();
        assert!(
            (seen - known).abs() < tolerance,
            "{function}: {seen:.1} %, {known:.1} % as the program measured, may be {tolerance:.1} \
             % off"
        );
    }
}

/// Returns the context switches of all threads of a process, and its CPU time.
fn turns(pid: i32) -> (u64, Duration) {
    let mut switches = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("threads") {
        let status = fs::read_to_string(task.expect("a thread").path().join("status"));
        let status = status.expect("status");
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        switches += lines
            .map(|line| line.rsplit('\t').next().and_then(|it| it.parse::<u64>().ok()).unwrap())
            .sum::<u64>();
    }
    (switches, crate::common::cpu_clock(pid))
}

#[test]
fn a_thousand_idle_threads_are_left_alone_and_folded() {
    needs_recording!();
    let _machine = alone();
    const THREADS: usize = 1000;
    let mut target = Target::start("pool", &[&THREADS.to_string()]);
    let pid = target.pid();
    let mut recorder =
        Recorder::start(&["--pid", &pid.to_string(), "--duration", "10", "--mode", "wall"]);
    recorder.wait_until_attached(pid);
    std::thread::sleep(Duration::from_secs(4));
    let before = turns(pid);
    std::thread::sleep(Duration::from_secs(3));
    let after = turns(pid);
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    assert_eq!(after, before, "no thread had work");
    let threads = spent(&outcome.trace);
    let idle = threads.iter().filter(|((name, _), _)| name == "idle");
    let elapsed = elapsed_us(&outcome.trace);
    let mut seen = 0;
    for ((name, tid), thread) in idle {
        expect_balance(&outcome, elapsed, thread, &format!("{name} {tid}"));
        assert!(thread.percent_in("take_work") > 99.0, "{tid}: {thread:?}");
        seen += 1;
    }
    assert_eq!(seen, THREADS);
    assert_eq!(outcome.trace.number("wall.threads_unwatched"), 0);
    assert_eq!(outcome.trace.number("wall.stacks_by_stop"), 0, "{}", outcome.text());
    let printed = outcome.trace.view(&["print", "--tree"]);
    assert!(printed.contains("below take_work: 1000 threads"), "{printed}");
    // Two threads that hang are not idle.
    assert!(printed.contains("embrace") && printed.contains("lll_lock_wait"), "{printed}");
}

#[test]
fn no_call_comes_back_with_eintr() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("eintr", &[]);
    let outcome = record(target.pid(), 20, &["--mode", "wall"]);
    target.goes_on_and_ends_by_itself();
    target.assert_no_call_was_interrupted(&outcome.text());
    assert!(target.fact("calls") > 5000, "{:?}", target.facts());
    let looked = ["stacks_known", "stacks_read", "stacks_by_stop"];
    let looked = looked.map(|key| outcome.trace.number(&format!("wall.{key}")));
    assert!(looked.iter().sum::<u64>() > 3000, "{looked:?}");
}

#[test]
fn a_process_that_is_stopped_is_reported_as_stopped() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("shares", &[]);
    let pid = target.pid();
    let mut recorder =
        Recorder::start(&["--pid", &pid.to_string(), "--duration", "6", "--mode", "wall"]);
    recorder.wait_until_attached(pid);
    std::thread::sleep(Duration::from_secs(1));
    target.send(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(3));
    target.send(Signal::SIGCONT);
    let outcome = recorder.finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    let threads = spent(&outcome.trace);
    for name in ["shares", "worker", "holder"] {
        let thread = the(&threads, name);
        let stopped = thread.in_state(RunState::Stopped) as f64 / 1e6;
        assert!((2.5..4.5).contains(&stopped), "{name}: {stopped} s\n{thread:?}");
        assert!(thread.in_state(RunState::Sleeping) > 300_000, "{name}: {thread:?}");
    }
}

#[test]
fn a_thread_in_uninterruptible_sleep_has_its_state_and_its_stack() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("disk", &["300"]);
    let outcome = record(target.pid(), 4, &["--mode", "wall"]);
    target.goes_on_and_ends_by_itself();
    let threads = spent(&outcome.trace);
    let waiter = the(&threads, "waiter");
    let asleep = percent(waiter.in_state(RunState::Disk), waiter.all());
    assert!(asleep > 90.0, "{waiter:?}");
    assert!(waiter.percent_in("wait_for_a_child") > 99.0, "{waiter:?}");
    let in_clone = waiter.calls.keys().any(|(call, _)| *call == Some(libc::SYS_clone as u32));
    assert!(in_clone, "{waiter:?}");
    let printed = outcome.trace.view(&["print", "--tree", "--state", "disk"]);
    assert!(printed.contains("[disk in clone]"), "{printed}");
}

/// While the child runs, the return address of vfork is in a register, and no stop reaches the
/// parent.
#[test]
fn a_thread_whose_stack_cannot_be_read_is_reported_without_it() {
    needs_recording!();
    let _machine = together();
    let target = Target::start("vfork_parent", &["3000", "busy"]);
    let outcome = record_and_end(target, 3, &["--mode", "wall"]);
    let threads = spent(&outcome.trace);
    let is_disk = |it: &&Spent| it.in_state(RunState::Disk) * 10 > it.all() * 9;
    let parent = threads.values().find(is_disk);
    let parent = parent.unwrap_or_else(|| panic!("{threads:?}\n{}", outcome.text()));
    assert!(parent.calls.keys().any(|(call, _)| *call == Some(libc::SYS_vfork as u32)));
    assert!(outcome.trace.number("wall.stacks_missed") > 0, "{}", outcome.text());
    expect_balance(&outcome, elapsed_us(&outcome.trace), parent, "the parent");
}

/// Without root's rights, and without perf events.
#[test]
fn wall_clock_time_needs_no_privileges() {
    needs_recording!();
    let folder = scratch_dir();
    let program =
        crate::common::program_for_everyone(&crate::common::program("shares"), folder.path());
    let Some(command) = as_nobody(&program) else { skip!("needs root to become somebody else") };
    let _machine = together();
    let mut target = Target::spawn(command);
    let recorder = crate::common::program_for_everyone(
        std::path::Path::new(env!("CARGO_BIN_EXE_traceprof")),
        folder.path(),
    );
    let trace = Trace::new();
    fs::set_permissions(trace.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let mut command = as_nobody(&recorder).unwrap();
    let pid = target.pid().to_string();
    command.args(["record", "--pid", &pid, "--duration", "5", "--engine", "timer"]);
    command.args(["--mode", "wall"]);
    let outcome = Recorder::spawn(command, trace).finish().expect_code(0);
    target.goes_on_and_ends_by_itself();
    let threads = spent(&outcome.trace);
    let worker = the(&threads, "worker");
    expect_balance(&outcome, elapsed_us(&outcome.trace), worker, "worker");
    for part in ["sleeping_part", "locked_part", "computing_part"] {
        assert!(worker.percent_in(part) > 5.0, "{part}: {worker:?}");
    }
}

/// A redis server and its client.
struct Redis {
    server: Child,
    folder: TempDir,
}

impl Redis {
    fn start() -> Option<Self> {
        let folder = scratch_dir();
        let mut command = Command::new("redis-server");
        command
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(folder.path().join("socket"));
        let server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let redis = Self { server, folder };
        let is_up = || redis.folder.path().join("socket").exists();
        assert!(wait_until(Duration::from_secs(20), is_up), "redis-server does not start");
        Some(redis)
    }

    fn pid(&self) -> i32 {
        self.server.id() as i32
    }

    /// Sends requests until the value is dropped.
    fn ask(&self) -> Asking {
        let mut command = Command::new("redis-benchmark");
        command.arg("-s").arg(self.folder.path().join("socket"));
        command.args(["-q", "-t", "get,set", "-n", "100000000"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Asking(child.expect("redis-benchmark"))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

struct Asking(Child);

impl Drop for Asking {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn redis_waits_for_events_when_it_is_idle_and_works_when_it_is_asked() {
    needs_recording!();
    let Some(redis) = Redis::start() else { skip!("redis-server: not installed") };
    let _machine = alone();
    let seen = |asking: bool| {
        let asking = asking.then(|| redis.ask());
        std::thread::sleep(Duration::from_millis(500));
        let outcome = record(redis.pid(), 10, &["--mode", "wall"]);
        drop(asking);
        let mut threads = spent(&outcome.trace);
        let elapsed = elapsed_us(&outcome.trace);
        for ((name, tid), thread) in &threads {
            expect_balance(&outcome, elapsed, thread, &format!("{name} {tid}"));
        }
        let main = threads.keys().find(|(_, tid)| *tid == redis.pid() as u32).cloned();
        (threads.remove(&main.expect("the main thread")).unwrap(), outcome)
    };
    let (idle, outcome) = seen(false);
    // That it waits for a processor, when it has something to do, is not its own doing.
    let own = idle.all() - idle.in_state(RunState::Runnable);
    assert!(percent(idle.in_state(RunState::Sleeping), own) > 95.0, "{idle:?}");
    let in_epoll = (Some(libc::SYS_epoll_wait as u32), Some("eventpoll".to_owned()));
    let waited = idle.calls.get(&in_epoll).copied().unwrap_or(0);
    assert!(percent(waited, own) > 95.0, "{idle:?}");
    assert_eq!(outcome.trace.number("wall.stacks_by_stop"), 0, "{}", outcome.text());
    let (asked, _) = seen(true);
    let works = asked.in_state(RunState::Running) + asked.in_state(RunState::Runnable);
    assert!(percent(works, asked.all()) > 30.0, "{asked:?}");
}

/// All threads wait for locks, and the view must show it.
#[test]
fn a_process_that_hangs_shows_where() {
    needs_recording!();
    let _machine = together();
    let mut target = Target::start("pool", &["0"]);
    let outcome = record(target.pid(), 3, &["--mode", "wall"]);
    target.goes_on_and_ends_by_itself();
    let printed = outcome.trace.view(&["print", "--tree"]);
    for part in ["embrace", "lll_lock_wait", "[sleeping in futex]"] {
        assert!(printed.contains(part), "{part}\n{printed}");
    }
    let threads = spent(&outcome.trace);
    let hung = threads.iter().filter(|((name, _), _)| name == "hung");
    assert_eq!(hung.filter(|(_, thread)| thread.percent_in("embrace") > 99.0).count(), 2);
}
