//! Threads of a target that stop or die in the middle of our handler, while they use a call-trace
//! table.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use traceprof_abi::layout;
use traceprof_abi::storage::hazard;

use crate::common::{Recorder, Target, Trace, needs_recording, together};

/// A thread of a recorded target that is stopped while it holds a hazard.
struct Inside {
    pid: i32,
    tid: Pid,
}

impl Inside {
    /// Stops the thread at many moments, until one of them finds it inside. Single steps would not
    /// work: in a handler that blocks all signals, the trap of a step resets the disposition of
    /// SIGTRAP.
    fn catch(pid: i32, tid: i32) -> Self {
        let memory = File::open(format!("/proc/{pid}/mem")).expect("memory of the target");
        let base = agent_base(pid);
        let deadline = Instant::now() + Duration::from_secs(100);
        let mut tries = 0;
        while Instant::now() < deadline {
            let stopped = Self::stop(pid, tid);
            let pc = ptrace::getregs(stopped.tid).expect("registers").rip;
            let in_agent = (base..base + layout::CODE_LEN).contains(&pc);
            if in_agent && holds_hazard(&memory, base + layout::DATA_DISTANCE, tid) {
                return stopped;
            }
            drop(stopped);
            tries += 1;
            std::thread::sleep(Duration::from_micros(tries * 137 % 1000));
        }
        panic!("thread {tid} held no hazard at any of {tries} moments");
    }

    fn stop(pid: i32, tid: i32) -> Self {
        let stopped = Self { pid, tid: Pid::from_raw(tid) };
        ptrace::seize(stopped.tid, ptrace::Options::empty()).expect("a thread to trace");
        ptrace::interrupt(stopped.tid).expect("a stop");
        loop {
            match stopped.state() {
                WaitStatus::Stopped(_, signal) => {
                    ptrace::cont(stopped.tid, signal).expect("delivery");
                }
                WaitStatus::PtraceEvent(..) => return stopped,
                WaitStatus::StillAlive => std::thread::sleep(Duration::from_micros(20)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn state(&self) -> WaitStatus {
        let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
        waitpid(self.tid, Some(flags)).expect("a thread to wait for")
    }

    /// Lets the thread go on.
    fn release(self) {
        drop(self);
    }

    /// Makes the thread exit where it is, with the system call `exit`. The other threads go on.
    fn die(self) {
        const EXIT: u64 = 60;
        let mut registers = ptrace::getregs(self.tid).expect("registers");
        registers.rip = system_call(self.pid);
        (registers.rax, registers.orig_rax, registers.rdi) = (EXIT, u64::MAX, 0);
        ptrace::setregs(self.tid, registers).expect("registers");
        drop(self);
    }
}

impl Drop for Inside {
    /// A traced thread that has died stays until its tracer has waited for it, and so does its
    /// process.
    fn drop(&mut self) {
        // Fails for a thread that runs, or that is dead.
        if ptrace::detach(self.tid, None).is_err() {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
            let _ = waitpid(self.tid, Some(WaitPidFlag::__WALL));
        }
    }
}

fn maps(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings of the target")
}

fn start_of(line: &str) -> u64 {
    u64::from_str_radix(line.split('-').next().unwrap(), 16).expect("an address")
}

/// Returns the start of the agent's code in the target.
fn agent_base(pid: i32) -> u64 {
    let maps = maps(pid);
    let shared = |line: &&str| line.contains(" r-xs ");
    start_of(maps.lines().find(shared).expect("the agent's code"))
}

/// Returns the address of a system call instruction in the target.
fn system_call(pid: i32) -> u64 {
    let maps = maps(pid);
    let start = start_of(maps.lines().find(|line| line.ends_with("[vdso]")).expect("the vdso"));
    let mut code = [0; 0x1000];
    let memory = File::open(format!("/proc/{pid}/mem")).expect("memory of the target");
    memory.read_exact_at(&mut code, start).expect("the vdso");
    let found = code.windows(2).position(|bytes| bytes == [0x0f, 0x05]);
    start + found.expect("a system call in the vdso") as u64
}

/// Whether a hazard slot names the thread slot of this thread, with its generation.
fn holds_hazard(memory: &File, data: u64, tid: i32) -> bool {
    let mut hazards = vec![0; layout::HAZARD_SLOTS * 8];
    memory.read_exact_at(&mut hazards, data + layout::HAZARD_OFFSET).expect("hazards");
    let words = hazards.chunks_exact(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap()));
    let mut owners = words.filter_map(|word| hazard::slot_of((word >> 32) as u32));
    owners.any(|(slot, _)| {
        let place =
            data + layout::THREAD_SLOTS_OFFSET + u64::from(slot) * layout::THREAD_SLOT_BYTES;
        let mut owner = [0; 4];
        memory.read_exact_at(&mut owner, place).expect("a thread slot");
        i32::from_ne_bytes(owner) == tid
    })
}

/// Returns a thread other than the first.
fn other_thread(pid: i32) -> i32 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("threads of the target");
    let tids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
    tids.max().expect("a thread")
}

/// Starts a recording of a program with four busy threads.
fn start() -> (Target, Recorder, i32) {
    let target = Target::start("threads", &[]);
    let pid = target.pid();
    let pid_text = pid.to_string();
    // All samples come from the handlers.
    let args = ["--pid", &pid_text, "--freq", "9973", "--no-kernel"];
    let mut recorder = Recorder::start(&args);
    recorder.wait_until_attached(pid);
    recorder.wait_for_cpu(pid, Duration::from_millis(200));
    (target, recorder, pid)
}

fn lost(trace: &Trace, reasons: &[&str]) -> u64 {
    reasons.iter().map(|reason| trace.number(&format!("lost.{reason}"))).sum()
}

/// Checks that only logs overflowed. They do so on a machine that does not run the recorder for
/// long.
fn nothing_else_is_lost(trace: &Trace) {
    let reasons = [
        "no thread slot",
        "no hazard slot",
        "overtaken by rotations",
        "control block unusable",
        "withheld from calls",
        "log records unreadable",
        "thread unknown",
    ];
    assert_eq!(lost(trace, &reasons), 0);
    assert_eq!(trace.number("samples_without_stack"), 0);
}

/// Checks that the samples of the other threads are complete and were collected all the time.
fn others_went_on(trace: &Trace, rotations: u64) {
    nothing_else_is_lost(trace);
    assert!(trace.number("rotations") >= rotations, "{} rotations", trace.number("rotations"));
    assert_eq!(trace.number("rotations_blocked"), 0);
    let cpu = trace.number("cpu_time_ns");
    let periods = trace.number("weight_sum") + lost(trace, &["log full"]);
    let share = (periods * trace.number("period_ns")) as f64 / cpu as f64;
    // The remainder is time in the kernel. At this rate most of it is the signals themselves.
    assert!((0.8..1.07).contains(&share), "{periods} periods of {cpu} ns are sampled");
}

#[test]
fn a_thread_that_is_stopped_inside_holds_up_nobody_and_loses_nothing() {
    needs_recording!();
    let _machine = together();
    let (mut target, mut recorder, pid) = start();
    let inside = Inside::catch(pid, other_thread(pid));
    let since = Instant::now();
    recorder.wait_for_cpu(pid, Duration::from_secs(2));
    let held = since.elapsed();
    inside.release();
    recorder.wait_for_cpu(pid, Duration::from_millis(300));
    recorder.send(Signal::SIGINT);
    let trace = recorder.finish().expect_code(0).trace;
    target.goes_on_and_ends_by_itself();

    // At most ten a second, and a busy machine is no reason to fail.
    others_went_on(&trace, (held.as_millis() as u64 / 1000).min(5));
    // A thread that was stopped only briefly may also have held a hazard.
    let quarantined = trace.number("quarantined_tables");
    assert!(quarantined >= 1, "the table that the thread used");
    assert_eq!(trace.number("released_tables"), quarantined, "and the table came back");
    assert_eq!(trace.number("samples"), trace.number("samples_stored"));
    assert_eq!((trace.number("lost.log holes"), trace.number("hazards_reclaimed")), (0, 0));
}

#[test]
fn a_thread_that_dies_inside_leaves_its_table_to_the_others() {
    needs_recording!();
    let _machine = together();
    let (_target, mut recorder, pid) = start();
    let tid = other_thread(pid);
    Inside::catch(pid, tid).die();
    recorder.wait_for_cpu(pid, Duration::from_secs(1));
    assert_ne!(other_thread(pid), tid, "the thread is dead");
    recorder.send(Signal::SIGINT);
    let trace = recorder.finish().expect_code(0).trace;
    others_went_on(&trace, 2);
    assert_eq!(trace.number("hazards_reclaimed"), 1);
    assert_eq!(trace.number("quarantined_tables"), trace.number("released_tables"));
    // Its last sample may be stored but not counted, or started but not stored.
    let (read, stored) = (trace.number("samples"), trace.number("samples_stored"));
    assert!(
        read.abs_diff(stored) <= 1 && trace.number("lost.log holes") <= 1,
        "{read} of {stored}"
    );
}

#[test]
fn a_program_that_is_killed_inside_leaves_its_samples() {
    needs_recording!();
    let _machine = together();
    let (_target, mut recorder, pid) = start();
    let inside = Inside::catch(pid, other_thread(pid));
    recorder.wait_for_cpu(pid, Duration::from_millis(500));
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("a target to kill");
    drop(inside);
    let trace = recorder.finish().expect_code(0).trace;
    nothing_else_is_lost(&trace);
    assert_eq!(trace.number("quarantined_tables"), trace.number("released_tables"));
    let (read, stored) = (trace.number("samples"), trace.number("samples_stored"));
    assert!(
        read.abs_diff(stored) <= 1 && trace.number("lost.log holes") <= 1,
        "{read} of {stored}"
    );
}
