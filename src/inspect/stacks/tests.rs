//! Stacks of sleeping threads that were not stopped, compared with those of the same threads when
//! stopped.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::inject::{SleepingThread, read_sleeping_thread};
use crate::proc::TaskClock;
use crate::unwind::StackFingerprint;

const TARGETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/targets");
const WAIT: Duration = Duration::from_secs(60);

/// A program that is terminated on drop.
struct TestProgram(Child);

impl TestProgram {
    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Starts a program, and waits for its `ready` if it is one of ours.
    fn start(command: &mut Command, says_ready: bool) -> Self {
        let output = if says_ready { Stdio::piped() } else { Stdio::null() };
        let command = command.stdin(Stdio::null()).stdout(output).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        if let Some(output) = child.stdout.take() {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            assert!(lines.take(20).any(|line| line == "ready"), "{command:?}");
        }
        Self(child)
    }

    /// Compiles one of the targets with these options, and starts it.
    fn compiled(folder: &Path, name: &str, options: &[&str]) -> Self {
        let program = folder.join(format!("{name}{}", options.concat()));
        let mut compiler = Command::new("cc");
        compiler.args(["-g", "-pthread", "-w", "-o"]).arg(&program).args(options);
        assert!(compiler.arg(format!("{TARGETS}/{name}.c")).status().unwrap().success());
        Self::start(&mut Command::new(program), true)
    }

    /// Waits until at most this many threads run, and the others stay where they are.
    fn rest(&self, running_max: usize) {
        let since = Instant::now();
        let asleep = || {
            let tids = proc::tasks(self.pid()).unwrap();
            let asleep =
                tids.iter().filter(|tid| read_sleeping_thread(self.pid(), **tid).is_some()).count();
            (asleep + running_max >= tids.len(), tids.len())
        };
        let mut before = (false, 0);
        loop {
            let now = asleep();
            if now.0 && now == before {
                return;
            }
            assert!(since.elapsed() < WAIT, "it does not come to rest");
            before = now;
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for TestProgram {
    fn drop(&mut self) {
        // SIGTERM first: a program that exits by itself returns what it got from the kernel.
        let _ = kill(Pid::from_raw(self.pid()), Signal::SIGTERM);
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(5) && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process whose sleeping threads are read.
struct SleepProbe {
    process: InspectedProcess,
    unwinder: RefCell<RemoteUnwinder>,
    mappings: Vec<Mapping>,
    start_time: u64,
}

impl SleepProbe {
    fn open(pid: i32) -> Self {
        let mappings = proc::mappings(pid).unwrap();
        let process =
            InspectedProcess::open(pid, &mappings).unwrap_or_else(|error| panic!("{error:?}"));
        let start_time = proc::start_time(pid).unwrap();
        Self { process, unwinder: RefCell::default(), mappings, start_time }
    }

    /// Returns the stack of a thread that is not stopped, if it can be known.
    fn asleep(&self, tid: i32, seen: &SleepingThread) -> Option<(Vec<u64>, StackFingerprint)> {
        let tables = self.process.tables.as_tables();
        let copy = StackCopy { avma: seen.stack_avma, bytes: &seen.stack };
        let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
        let place = (seen.sp, seen.pc);
        let mut unwinder = self.unwinder.borrow_mut();
        unwinder.unwind_sleeping(&tables.snapshot()?, place, copy, &mut read)
    }

    /// Returns the stack of a thread that was stopped.
    fn stopped(&self, tid: i32, stopped: &ThreadSnapshot) -> (RemoteStack, StackFingerprint) {
        let tables = self.process.tables.as_tables();
        let copy = StackCopy { avma: stopped.stack_avma, bytes: &stopped.stack };
        let mut read = |avma, into: &mut [u8]| inject::read_part(tid, avma, into);
        let (snapshot, registers) = (tables.snapshot().unwrap(), &stopped.registers);
        let mut unwinder = self.unwinder.borrow_mut();
        unwinder.unwind_with_fingerprint(&snapshot, registers, copy, &mut read)
    }

    fn is_still(&self, tid: i32, fingerprint: &StackFingerprint, place: (u64, u64)) -> bool {
        fingerprint.matches(place, &mut |avma, into| inject::read_part(tid, avma, into))
    }

    fn capture(&self) -> Vec<Capture<()>> {
        let pid = self.process.pid;
        inject::capture(pid, self.start_time, &self.mappings, |_| ()).unwrap().threads
    }
}

/// The number of a process's sleeping threads, and of those with a stack without a stop.
#[derive(Debug, Default, Clone, Copy)]
struct SleeperShare {
    asleep: usize,
    found: usize,
    /// Of the others, those whose stack ends at a root when the thread is stopped.
    rooted: usize,
}

/// Compares every stack found without a stop with the one found with a stop.
fn compare(pid: i32) -> SleeperShare {
    let watched = SleepProbe::open(pid);
    let tids = proc::tasks(pid).unwrap().into_iter();
    let seen: Vec<_> = tids
        .filter_map(|tid| {
            let clock = TaskClock::open(pid, tid).ok()?;
            let before = clock.turns().ok()?;
            let seen = read_sleeping_thread(pid, tid)?;
            let found = watched.asleep(tid, &seen);
            // Otherwise the thread has run meanwhile, as some threads of runtimes do.
            (clock.turns().ok()? == before).then_some((tid, clock, before, seen, found))
        })
        .collect();
    let last: Vec<_> =
        seen.iter().map(|(_, clock, before, ..)| clock.turns().ok() == Some(*before)).collect();
    let captured = watched.capture();
    let mut share = SleeperShare::default();
    for ((tid, clock, _, seen, found), slept_on) in seen.into_iter().zip(last) {
        let Some(Capture { outcome: Ok(stopped), .. }) = captured.iter().find(|it| it.tid == tid)
        else {
            continue;
        };
        let (sp, pc) = (stopped.registers.sp, stopped.registers.pc);
        if !slept_on || (sp, pc) != (seen.sp, seen.pc) {
            continue;
        }
        let (stack, fingerprint) = watched.stopped(tid, stopped);
        share.asleep += 1;
        match found {
            Some((frames, known_by)) => {
                share.found += 1;
                assert_eq!((&frames, stack.end), (&stack.frames, EndReason::Root), "thread {tid}");
                assert!(clock.state().is_err() || watched.is_still(tid, &known_by, (sp, pc)));
            }
            None => share.rooted += usize::from(stack.end == EndReason::Root),
        }
        let since = Instant::now();
        // The stop has woken it, and it goes back to sleep.
        let is_back =
            || read_sleeping_thread(pid, tid).is_some_and(|now| (now.sp, now.pc) == (sp, pc));
        while !is_back() {
            assert!(since.elapsed() < WAIT, "thread {tid} does not sleep again");
            std::thread::yield_now();
        }
        if stack.end == EndReason::Root {
            assert!(watched.is_still(tid, &fingerprint, (sp, pc)), "thread {tid}");
            assert!(!watched.is_still(tid, &fingerprint, (sp + 8, pc)));
        }
    }
    share
}

#[test]
fn sleepers_that_are_not_stopped_have_the_stacks_of_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    let all: [&[&str]; 4] =
        [&["-O2"], &["-O2", "-static"], &["-O2", "-fno-omit-frame-pointer"], &["-O0"]];
    for options in all {
        let target = TestProgram::compiled(folder.path(), "asleep", options);
        target.rest(1);
        let share = compare(target.pid());
        eprintln!("asleep.c {options:?}: {share:?}");
        // The main thread and all others but the one that runs.
        assert_eq!(share.asleep, 8, "{options:?}: {share:?}");
        assert_eq!(share.found + share.rooted, share.asleep, "{options:?}: {share:?}");
        assert!(share.found > 0, "{options:?}: {share:?}");
    }
}

/// Returns the stack known without a stop, if the thread did not run meanwhile.
fn read_asleep(
    watched: &SleepProbe,
    clock: &TaskClock,
    tid: i32,
) -> Option<(SleepingThread, Vec<u64>, StackFingerprint)> {
    let before = clock.turns().unwrap();
    let seen = read_sleeping_thread(watched.process.pid, tid)?;
    let (frames, fingerprint) = watched.asleep(tid, &seen)?;
    (clock.turns().unwrap() == before).then_some((seen, frames, fingerprint))
}

#[test]
fn stack_is_recognised_among_others_at_the_same_place() {
    let folder = tempfile::tempdir().unwrap();
    let target = TestProgram::compiled(folder.path(), "by_turns", &["-O2"]);
    let pid = target.pid();
    let watched = SleepProbe::open(pid);
    let clock = TaskClock::open(pid, pid).unwrap();
    let mut known: Vec<(Vec<u64>, StackFingerprint)> = Vec::new();
    let (mut same, mut others) = (0, 0);
    let since = Instant::now();
    while same < 200 || others < 200 {
        assert!(since.elapsed() < WAIT, "{same} {others}");
        std::thread::sleep(Duration::from_micros(700));
        let before = clock.turns().unwrap();
        let Some((seen, frames, fingerprint)) = read_asleep(&watched, &clock, pid) else {
            continue;
        };
        let place = (seen.sp, seen.pc);
        let is_still =
            |known: &(Vec<u64>, StackFingerprint)| watched.is_still(pid, &known.1, place);
        let recognised: Vec<bool> = known.iter().map(is_still).collect();
        if clock.turns().unwrap() != before {
            continue;
        }
        for ((stack, _), recognised) in known.iter().zip(&recognised) {
            assert_eq!(*recognised, *stack == frames);
        }
        same += u32::from(recognised.contains(&true));
        others += u32::from(recognised.contains(&false));
        if !recognised.contains(&true) {
            known.push((frames, fingerprint));
        }
    }
    // Three depths below each of two functions, and as many locations as depths.
    assert_eq!(known.len(), 6, "{known:x?}");
}

/// Prints how long each reading of a process's sleepers takes.
fn report_costs(pid: i32) {
    const ROUNDS: u32 = 100;
    let watched = SleepProbe::open(pid);
    let seen = proc::tasks(pid).unwrap().into_iter().filter_map(|tid| {
        let seen = read_sleeping_thread(pid, tid)?;
        let (frames, fingerprint) = watched.asleep(tid, &seen)?;
        Some((tid, seen, frames.len(), fingerprint))
    });
    let seen: Vec<_> = seen.collect();
    let frames: usize = seen.iter().map(|(_, _, frames, _)| frames).sum();
    let time =
        |what: &str, read_asleep: &mut dyn FnMut(i32, &SleepingThread, &StackFingerprint)| {
            let since = Instant::now();
            for _ in 0..ROUNDS {
                seen.iter()
                    .for_each(|(tid, seen, _, fingerprint)| read_asleep(*tid, seen, fingerprint));
            }
            eprint!("{what} {:?} ", since.elapsed() / ROUNDS / seen.len().max(1) as u32);
        };
    eprint!("  {} threads, {frames} frames: ", seen.len());
    time("activity", &mut |tid, _, _| assert!(proc::task_activity(pid, tid).is_ok()));
    time("glimpse", &mut |tid, _, _| assert!(read_sleeping_thread(pid, tid).is_some()));
    time("unwinding", &mut |tid, seen, _| assert!(watched.asleep(tid, seen).is_some()));
    time("recognition", &mut |tid, seen, fingerprint| {
        assert!(watched.is_still(tid, fingerprint, (seen.sp, seen.pc)));
    });
    eprintln!();
}

/// Programs as they are installed, each with threads that wait.
#[test]
#[ignore = "a measurement"]
fn shares_of_sleepers_with_a_stack_without_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let python = "import threading,time,queue,select\n\
        q=queue.Queue(); l=threading.Lock(); l.acquire()\n\
        for f in (lambda:time.sleep(999), q.get, l.acquire, \
        lambda:select.select([],[],[],999)):\n    \
        threading.Thread(target=f,daemon=True).start()\n\
        time.sleep(999)";
    let go = folder.path().join("sleepers.go");
    let go_text = "package main\nimport (\"time\"; \"os\")\nfunc main() { for i := 0; i < 8; i++ { \
        go func() { r, _, _ := os.Pipe(); var b [1]byte; r.Read(b[:]) }() }; \
        time.Sleep(time.Hour) }\n";
    std::fs::write(&go, go_text).unwrap();
    let java = folder.path().join("Sleepers.java");
    let java_text = "public class Sleepers { \
        public static void main(String[] a) throws Exception { \
        for (int i = 0; i < 4; i++) { Thread t = new Thread(() -> { \
        try { synchronized (a) { a.wait(); } } \
        catch (Exception e) {} }); t.setDaemon(true); t.start(); } Thread.sleep(3600000); } }";
    std::fs::write(&java, java_text).unwrap();
    let node = "const {Worker}=require('worker_threads'); \
        new Worker('setInterval(()=>0,99999)',{eval:true}); setInterval(()=>0,99999)";
    let mut commands = [
        ("python3", vec!["-c", python]),
        ("redis-server", vec!["--port", "0", "--unixsocket", "redis", "--save", ""]),
        ("node", vec!["-e", node]),
        ("java", vec![java.to_str().unwrap()]),
        ("go", vec!["run", go.to_str().unwrap()]),
        ("sleep", vec!["999"]),
        ("bash", vec!["-c", "read -t 999 <> <(:)"]),
    ]
    .map(|(program, arguments)| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder.path());
        command
    });
    for command in &mut commands {
        let mut running = TestProgram::start(command, false);
        std::thread::sleep(Duration::from_secs(4));
        if let Ok(Some(status)) = running.0.try_wait() {
            eprintln!("{command:?}: {status}");
            continue;
        }
        running.rest(0);
        let children = proc::children(running.pid(), running.pid()).unwrap_or_default();
        for pid in std::iter::once(running.pid()).chain(children) {
            eprintln!("{:?} {pid}: {:?}", command.get_program(), compare(pid));
            report_costs(pid);
        }
    }
}
