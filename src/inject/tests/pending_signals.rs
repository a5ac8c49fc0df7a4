//! Pending signals of a held thread: the application's and ours.
//!
//! # Safety
//! One system call, on a structure that the caller owns.
#![allow(unsafe_code, reason = "queues a signal with the mark of a sampling signal")]

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use traceprof_abi::layout::{AgentState, Counter, SIG_DATA_MARK};
use traceprof_abi::signal::SI_QUEUE;
use traceprof_abi::sync::Ordering;

use super::agent::until;
use super::alone;
use super::victim::{Victim, build};
use crate::inject::data_segment::AttachedData;
use crate::inject::ptrace::tracing_thread::on_tracing_thread;
use crate::inject::ptrace::{Resume, Tracee, TraceeEvent};
use crate::inject::sigreturn_chain::{Chain, ChainGadgets, ChainStep};
use crate::inject::stop::{self, Stopped};
use crate::inject::syscall::Syscall;
use crate::inject::worker::execution::ExecIdentity;
use crate::inject::worker::gadgets::Gadgets;
use crate::inject::worker::stack::stack_top;
use crate::proc;

const COUNTING_SLEEPER: &str = include_str!("victims/counting_sleeper.c");
const WAIT: Duration = Duration::from_secs(5);

pub(super) fn sleeper(arguments: &[&str]) -> Victim {
    let mut command = Command::new(build("counting_sleeper", COUNTING_SLEEPER, &[]));
    command.args(arguments);
    let victim = Victim::start(command);
    await_sleep(victim.pid);
    victim
}

fn await_sleep(pid: i32) {
    let deadline = Instant::now() + WAIT;
    while proc::task_stat(pid, pid).unwrap().state != 'S' {
        assert!(Instant::now() < deadline, "it does not sleep");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Queues SIGTRAP to the only thread, in the form of a sampling signal.
pub(super) fn queue_sampling_signal(pid: i32) {
    let mut about = [0u32; 32];
    about[0] = libc::SIGTRAP as u32;
    about[2] = SI_QUEUE as u32;
    about[7] = u32::from(SIG_DATA_MARK) << 16;
    // SAFETY: reads one structure, which this function owns.
    let sent = unsafe {
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, pid, libc::SIGTRAP, about.as_ptr())
    };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

fn count(data: &AttachedData, counter: Counter) -> u64 {
    data.control().counters[counter as usize].load(Ordering::Relaxed)
}

/// The end of a tracing thread has the effect of a tracer's death.
#[test]
fn signal_that_a_dying_tracer_observed_is_taken() {
    let _alone = alone();
    let victim = sleeper(&[]);
    const ROUNDS: i32 = 20;
    for _ in 0..ROUNDS {
        on_tracing_thread(|| {
            let tracee = Tracee::seize(victim.pid).unwrap();
            victim.signal(Signal::SIGUSR1);
            let stop = tracee.wait(Instant::now() + WAIT).unwrap();
            assert_eq!(stop, TraceeEvent::Signal(libc::SIGUSR1));
        });
        std::thread::sleep(Duration::from_millis(5));
        await_sleep(victim.pid);
    }
    victim.expect(ROUNDS);
}

/// The tracer dies after it resumed the thread with the signal and interrupted it.
#[test]
fn signal_that_was_passed_on_is_taken_once() {
    let _alone = alone();
    let victim = sleeper(&[]);
    for _ in 0..10 {
        on_tracing_thread(|| {
            let tracee = Tracee::seize(victim.pid).unwrap();
            victim.signal(Signal::SIGUSR1);
            let stop = tracee.wait(Instant::now() + WAIT).unwrap();
            assert_eq!(stop, TraceeEvent::Signal(libc::SIGUSR1));
            tracee.interrupt().unwrap();
            tracee.resume(Resume::Run, libc::SIGUSR1).unwrap();
            assert_eq!(tracee.wait(Instant::now() + WAIT).unwrap(), TraceeEvent::Interrupt);
        });
        std::thread::sleep(Duration::from_millis(5));
        await_sleep(victim.pid);
    }
    victim.expect(10);
}

/// Steps the only thread through a call, and runs `then` while it is on the chain.
fn step_through_call(pid: i32, then: impl FnOnce(Stopped) + Send) {
    on_tracing_thread(|| {
        let mappings = proc::mappings(pid).unwrap();
        let gadgets = Gadgets::find(pid, ExecIdentity::of(pid).unwrap(), &mappings).unwrap();
        let mut stopped = stop::stop(pid, WAIT, WAIT).unwrap();
        stopped.prepare().unwrap();
        let top = stack_top(&stopped, &mappings).unwrap();
        let chain_gadgets = ChainGadgets {
            syscall_return: gadgets.syscall_return.unwrap(),
            restorer: gadgets.restorer.unwrap(),
        };
        let steps = [ChainStep::Syscall(Syscall::new(libc::SYS_getppid, &[]))];
        let chain = Chain::new(stopped.saved(), &steps, chain_gadgets, top);
        stopped.run_stepwise(&chain, &steps).unwrap();
        then(stopped);
    });
    std::thread::sleep(Duration::from_millis(2));
    await_sleep(pid);
}

#[test]
fn sampling_signal_of_a_stepped_thread_ends_no_call() {
    let _alone = alone();
    for arguments in [&[][..], &["pause"], &["epoll"]] {
        let victim = sleeper(arguments);
        stop::take_withheld();
        for _ in 0..10 {
            step_through_call(victim.pid, |stopped| {
                queue_sampling_signal(victim.pid);
                drop(stopped);
            });
        }
        victim.expect(0);
        assert_eq!(stop::take_withheld(), (10, 0));
    }
}

#[test]
fn application_signal_of_a_stepped_thread_is_taken() {
    let _alone = alone();
    for arguments in [&[][..], &["pause"], &["epoll"]] {
        let victim = sleeper(arguments);
        for _ in 0..10 {
            step_through_call(victim.pid, |stopped| {
                victim.signal(Signal::SIGUSR1);
                drop(stopped);
            });
        }
        victim.expect(10);
    }
}

/// Stops the only thread in its call, runs `then`, and only afterwards reads the pending signals.
fn stop_in_call(pid: i32, then: impl FnOnce() + Send) {
    on_tracing_thread(|| {
        let tracee = Tracee::seize(pid).unwrap();
        tracee.interrupt().unwrap();
        assert_eq!(tracee.wait(Instant::now() + WAIT).unwrap(), TraceeEvent::Interrupt);
        then();
        drop(Stopped::adopt(tracee).unwrap());
    });
    std::thread::sleep(Duration::from_millis(2));
    await_sleep(pid);
}

/// A timer that expires on the way into a call raises its signal when the thread leaves the kernel,
/// so the stop itself may raise it.
#[test]
fn sampling_signal_that_comes_with_a_stop_ends_no_call() {
    let _alone = alone();
    for arguments in [&[][..], &["pause"], &["epoll"]] {
        let victim = sleeper(arguments);
        stop::take_withheld();
        for _ in 0..10 {
            stop_in_call(victim.pid, || queue_sampling_signal(victim.pid));
        }
        victim.expect(0);
        let data = AttachedData::blank().unwrap();
        stop::count_withheld(&data);
        assert_eq!((count(&data, Counter::Withheld), count(&data, Counter::Off)), (10, 0));
        let victim = sleeper(arguments);
        for _ in 0..10 {
            stop_in_call(victim.pid, || {
                victim.signal(Signal::SIGUSR1);
                queue_sampling_signal(victim.pid);
            });
        }
        victim.expect(10);
    }
}

/// On a busy machine a thread may report its signal before it sees the request to stop.
#[test]
fn sampling_signal_that_is_reported_before_the_stop_ends_no_call() {
    let _alone = alone();
    for arguments in [&[][..], &["pause"], &["epoll"]] {
        let victim = sleeper(arguments);
        stop::take_withheld();
        for _ in 0..10 {
            on_tracing_thread(|| {
                let tracee = Tracee::seize(victim.pid).unwrap();
                queue_sampling_signal(victim.pid);
                until("a report of the signal", || tracee.has_stopped());
                tracee.interrupt().unwrap();
                let now = Instant::now();
                drop(Stopped::collect(tracee, now, now + WAIT, now + WAIT).unwrap());
            });
            std::thread::sleep(Duration::from_millis(2));
            await_sleep(victim.pid);
        }
        victim.expect(0);
        assert_eq!(stop::take_withheld(), (10, 0));
    }
}

#[test]
fn sampling_signal_after_the_sampling_is_no_loss() {
    let _alone = alone();
    let victim = sleeper(&[]);
    stop::take_withheld();
    stop_in_call(victim.pid, || queue_sampling_signal(victim.pid));
    let data = AttachedData::blank().unwrap();
    data.control().state.store(AgentState::Stopped as u32, Ordering::Relaxed);
    stop::count_withheld(&data);
    assert_eq!((count(&data, Counter::Withheld), count(&data, Counter::Off)), (0, 1));
    victim.expect(0);
}

/// The thread is not back in its call when the signal arrives.
#[test]
fn signal_that_comes_with_the_release_ends_the_call() {
    let _alone = alone();
    for arguments in [&[][..], &["pause"], &["epoll"]] {
        let victim = sleeper(arguments);
        for _ in 0..50 {
            on_tracing_thread(|| {
                let stopped = stop::stop(victim.pid, WAIT, WAIT).unwrap();
                stopped.release().unwrap();
                victim.signal(Signal::SIGUSR1);
            });
            std::thread::sleep(Duration::from_millis(2));
            await_sleep(victim.pid);
        }
        victim.expect(50);
    }
}

/// The tracer dies while a thread is on a chain: the thread continues its sleep.
#[test]
fn thread_that_is_left_on_a_chain_sleeps_on() {
    let _alone = alone();
    for arguments in [&[][..], &["pause"], &["epoll"]] {
        let victim = sleeper(arguments);
        for _ in 0..10 {
            // The thread is never put back.
            step_through_call(victim.pid, std::mem::forget);
        }
        victim.expect(0);
    }
}
