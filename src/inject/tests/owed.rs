//! Signals of the application and hits of ours that wait at a thread while it is held.
//!
//! # Safety
//! One system call, on a structure of its own.
#![allow(unsafe_code, reason = "queues a signal with the mark of a hit")]

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use traceprof_abi::layout::{AgentState, Counter, SIG_DATA_MARK};
use traceprof_abi::sync::Ordering;

use super::super::chain::{Call, Chain, Landing, Step};
use super::super::gadget::Gadgets;
use super::super::identity::Execution;
use super::super::ptrace::{Resume, Stop, Tracee};
use super::super::segment::Attached;
use super::super::stop::Stopped;
use super::super::{identity, stop, threads};
use super::alone;
use super::victim::{Victim, build};
use crate::proc;

const OWED: &str = include_str!("victims/owed.c");
const WAIT: Duration = Duration::from_secs(5);

pub(super) fn sleeper(arguments: &[&str]) -> Victim {
    let mut command = Command::new(build("owed", OWED, &[]));
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

/// Queues SIGTRAP to the only thread, as a sampling event's hit looks.
pub(super) fn hit(pid: i32) {
    let mut about = [0u32; 32];
    about[0] = libc::SIGTRAP as u32;
    about[2] = -1i32 as u32; // SI_QUEUE
    about[7] = u32::from(SIG_DATA_MARK) << 16;
    // SAFETY: reads one structure, which is ours.
    let sent = unsafe {
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, pid, libc::SIGTRAP, about.as_ptr())
    };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

fn count(data: &Attached, counter: Counter) -> u64 {
    data.control().counters[counter as usize].load(Ordering::Relaxed)
}

/// The end of a thread that traces is the death of a tracer.
#[test]
fn signal_that_a_dying_tracer_looked_at_is_taken() {
    let _alone = alone();
    let victim = sleeper(&[]);
    const ROUNDS: i32 = 20;
    for _ in 0..ROUNDS {
        identity::disposable(|| {
            let tracee = Tracee::seize(victim.pid).unwrap();
            victim.signal(Signal::SIGUSR1);
            let stop = tracee.wait(Instant::now() + WAIT).unwrap();
            assert_eq!(stop, Stop::Signal(libc::SIGUSR1));
        });
        std::thread::sleep(Duration::from_millis(5));
        await_sleep(victim.pid);
    }
    victim.expect(ROUNDS);
}

/// The same where the thread was told to go on with the signal, or is asked to stop besides.
#[test]
fn signal_that_was_passed_on_is_taken_once() {
    let _alone = alone();
    let victim = sleeper(&[]);
    for _ in 0..10 {
        identity::disposable(|| {
            let tracee = Tracee::seize(victim.pid).unwrap();
            victim.signal(Signal::SIGUSR1);
            let stop = tracee.wait(Instant::now() + WAIT).unwrap();
            assert_eq!(stop, Stop::Signal(libc::SIGUSR1));
            tracee.interrupt().unwrap();
            tracee.resume(Resume::Run, libc::SIGUSR1).unwrap();
            assert_eq!(tracee.wait(Instant::now() + WAIT).unwrap(), Stop::Interrupt);
        });
        std::thread::sleep(Duration::from_millis(5));
        await_sleep(victim.pid);
    }
    victim.expect(10);
}

/// Leads the only thread through a call, and has `then` happen to it on the chain.
fn lead(pid: i32, then: impl FnOnce(Stopped) + Send) {
    identity::disposable(|| {
        let mappings = proc::mappings(pid).unwrap();
        let gadgets = Gadgets::find(pid, Execution::of(pid), &mappings).unwrap();
        let mut stopped = stop::stop(pid, WAIT, WAIT).unwrap();
        stopped.prepare().unwrap();
        let top = threads::stack_top(&stopped, &mappings).unwrap();
        let landing =
            Landing { gadget: gadgets.call.unwrap(), restorer: gadgets.restorer.unwrap() };
        let steps = [Step::Call(Call::new(libc::SYS_getppid, &[]))];
        let chain = Chain::new(&stopped.saved, &steps, landing, top);
        stopped.walk(&chain, &steps).unwrap();
        then(stopped);
    });
    std::thread::sleep(Duration::from_millis(2));
    await_sleep(pid);
}

#[test]
fn hit_that_a_led_thread_owes_ends_no_call() {
    let _alone = alone();
    for arguments in [&[][..], &["pause"], &["epoll"]] {
        let victim = sleeper(arguments);
        stop::take_withheld();
        for _ in 0..10 {
            lead(victim.pid, |stopped| {
                hit(victim.pid);
                drop(stopped);
            });
        }
        victim.expect(0);
        assert_eq!(stop::take_withheld(), (10, 0));
    }
}

#[test]
fn signal_of_the_application_that_a_led_thread_owes_is_taken() {
    let _alone = alone();
    for arguments in [&[][..], &["pause"], &["epoll"]] {
        let victim = sleeper(arguments);
        for _ in 0..10 {
            lead(victim.pid, |stopped| {
                victim.signal(Signal::SIGUSR1);
                drop(stopped);
            });
        }
        victim.expect(10);
    }
}

/// Stops the only thread in its call, has `then` happen to it, and only now looks what waits for it.
fn catch(pid: i32, then: impl FnOnce() + Send) {
    identity::disposable(|| {
        let tracee = Tracee::seize(pid).unwrap();
        tracee.interrupt().unwrap();
        assert_eq!(tracee.wait(Instant::now() + WAIT).unwrap(), Stop::Interrupt);
        then();
        drop(Stopped::adopt(tracee).unwrap());
    });
    std::thread::sleep(Duration::from_millis(2));
    await_sleep(pid);
}

/// A timer that expires on the way into a call has its hit raised when the thread leaves the kernel, so
/// the stop itself may bring it out.
#[test]
fn hit_that_comes_with_a_stop_ends_no_call() {
    let _alone = alone();
    for arguments in [&[][..], &["pause"], &["epoll"]] {
        let victim = sleeper(arguments);
        stop::take_withheld();
        for _ in 0..10 {
            catch(victim.pid, || hit(victim.pid));
        }
        victim.expect(0);
        let data = Attached::blank().unwrap();
        stop::count_withheld(&data);
        assert_eq!((count(&data, Counter::Withheld), count(&data, Counter::Off)), (10, 0));
        let victim = sleeper(arguments);
        for _ in 0..10 {
            catch(victim.pid, || {
                victim.signal(Signal::SIGUSR1);
                hit(victim.pid);
            });
        }
        victim.expect(10);
    }
}

#[test]
fn hit_that_comes_after_the_sampling_is_no_loss() {
    let _alone = alone();
    let victim = sleeper(&[]);
    stop::take_withheld();
    catch(victim.pid, || hit(victim.pid));
    let data = Attached::blank().unwrap();
    data.control().state.store(AgentState::Stopped as u32, Ordering::Relaxed);
    stop::count_withheld(&data);
    assert_eq!((count(&data, Counter::Withheld), count(&data, Counter::Off)), (0, 1));
    victim.expect(0);
}

/// It has not yet gone back into its call then.
#[test]
fn signal_that_comes_with_the_release_ends_the_call() {
    let _alone = alone();
    for arguments in [&[][..], &["pause"], &["epoll"]] {
        let victim = sleeper(arguments);
        for _ in 0..50 {
            identity::disposable(|| {
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

/// The tracer dies while a thread is on a chain: what it slept in goes on.
#[test]
fn thread_that_is_left_on_a_chain_sleeps_on() {
    let _alone = alone();
    for arguments in [&[][..], &["pause"], &["epoll"]] {
        let victim = sleeper(arguments);
        for _ in 0..10 {
            // Not put back.
            lead(victim.pid, std::mem::forget);
        }
        victim.expect(0);
    }
}
