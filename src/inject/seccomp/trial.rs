//! A trial of all required system calls in a forked child, under the same filters.
//!
//! # Safety
//! The forked child makes system calls on memory of its own, and leaves by `_exit`.
#![allow(unsafe_code, reason = "forks, and makes bare system calls in the child")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use nix::unistd::ForkResult;
use traceprof_abi::calls::{SyscallPattern, nr};
use traceprof_abi::signal::SI_QUEUE;

use super::answer::FilterAnswer;
use crate::inject::abandoned_segments;

/// The child writes this byte before each call, and the errno or 0 after it.
const STARTED: u8 = u8::MAX;
/// Memory for the calls: a signal set, an action, a time, an event.
type Scratch = [u64; 32];

/// Makes each call in a forked child. If a call ends the child, that call and all later ones get
/// [`FilterAnswer::Other`].
pub(super) fn try_all(calls: &[SyscallPattern]) -> io::Result<Vec<FilterAnswer>> {
    let (from, to) = nix::unistd::pipe()?;
    // SAFETY: the child runs `run`, which makes system calls only, and leaves by `_exit`.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Child => {
            run(calls, to.as_raw_fd());
            // SAFETY: ends the child without the exit handlers of its parent.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(to);
            let mut reported = Vec::new();
            let read = File::from(from).read_to_end(&mut reported);
            nix::sys::wait::waitpid(child, None)?;
            read?;
            Ok(answers(&reported, calls.len()))
        }
    }
}

fn answers(reported: &[u8], count: usize) -> Vec<FilterAnswer> {
    let (pairs, _) = reported.as_chunks::<2>();
    (0..count)
        .map(|index| match pairs.get(index) {
            Some([STARTED, 0]) => FilterAnswer::Permitted,
            Some([STARTED, errno]) => FilterAnswer::Fails(u32::from(*errno)),
            _ => FilterAnswer::Other("it kills the process that tries the call"),
        })
        .collect()
}

fn run(calls: &[SyscallPattern], to: RawFd) {
    let mut scratch: Scratch = [0; 32];
    let mut made = Previous { address: 0, timer: 0 };
    for call in calls {
        report(to, STARTED);
        let errno = try_one(call, &mut scratch, &mut made);
        report(to, u8::try_from(errno).unwrap_or(STARTED));
    }
}

fn report(to: RawFd, byte: u8) {
    // SAFETY: reads one byte of a live local. A failed write has no other reader.
    unsafe { libc::write(to, (&raw const byte).cast(), 1) };
}

/// Results of calls that later calls need.
struct Previous {
    address: u64,
    timer: u64,
}

/// Makes one call. Returns the errno of a call that should have worked, or 0.
fn try_one(call: &SyscallPattern, scratch: &mut Scratch, last: &mut Previous) -> i32 {
    let given = |index: usize, own: u64| call.args[index].unwrap_or(own);
    let scratch_address = scratch.as_mut_ptr() as u64;
    let pid = u64::from(std::process::id());
    let arguments: [u64; 4] = match call.number {
        nr::RT_SIGRETURN => return take_a_signal(),
        number if number == libc::SYS_shmat as u64 => {
            let id = abandoned_segments::create(4096, 0o700).unwrap_or(-1);
            let errno = bare(call.number, [id as u64, 0, given(2, 0), 0], &mut last.address);
            // SAFETY: IPC_RMID takes no structure.
            unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
            return errno;
        }
        number if number == libc::SYS_shmdt as u64 => [last.address, 0, 0, 0],
        nr::RT_SIGACTION => [libc::SIGURG as u64, 0, scratch_address, given(3, 8)],
        nr::RT_SIGPROCMASK => [given(0, 2), scratch_address, given(2, 0), given(3, 8)],
        nr::TIMER_CREATE => {
            // The thread's own clock, and an event that sends no signal.
            *scratch = [0; 32];
            scratch[1] = (libc::SIGEV_NONE as u64) << 32;
            let timer = scratch_address + 128;
            let errno = bare(
                call.number,
                [libc::CLOCK_THREAD_CPUTIME_ID as u64, scratch_address, timer, 0],
                &mut 0,
            );
            last.timer = scratch[16] & u64::from(u32::MAX);
            return errno;
        }
        nr::TIMER_SETTIME => {
            *scratch = [0; 32];
            [last.timer, 0, scratch_address, 0]
        }
        nr::TIMER_DELETE => [last.timer, 0, 0, 0],
        nr::CLOCK_GETTIME => [given(0, 1), scratch_address, 0, 0],
        nr::RT_TGSIGQUEUEINFO => {
            *scratch = [0; 32];
            scratch[0] = libc::SIGURG as u64;
            scratch[1] = u64::from(SI_QUEUE as u32);
            [pid, pid, libc::SIGURG as u64, scratch_address]
        }
        _ => [0; 4],
    };
    bare(call.number, arguments, &mut 0)
}

/// Makes one call. Returns the errno that a filter returned, or 0.
fn bare(number: u64, arguments: [u64; 4], result: &mut u64) -> i32 {
    let [a, b, c, d] = arguments;
    // SAFETY: the pointers among the arguments lead to the caller's scratch memory, which is larger
    // than any of the structures, or to what an earlier call returned.
    let got = unsafe { libc::syscall(number as libc::c_long, a, b, c, d) };
    *result = got as u64;
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let expected = match number {
        // Nothing can be restarted, and no such way to change the mask exists.
        _ if number == libc::SYS_restart_syscall as u64 => errno == libc::EINTR,
        nr::RT_SIGPROCMASK => errno == libc::EINVAL,
        // The timer could not be created.
        nr::TIMER_SETTIME | nr::TIMER_DELETE => errno == libc::EINVAL,
        _ => false,
    };
    if got >= 0 || expected { 0 } else { errno }
}

/// Takes a signal: the return from its handler makes `rt_sigreturn`.
fn take_a_signal() -> i32 {
    extern "C" fn nothing(_: i32) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing.
    let taken = unsafe { sigaction(Signal::SIGUSR1, &action) };
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGUSR1);
    let taken = taken.and_then(|_| mask.thread_unblock()).and_then(|()| raise(Signal::SIGUSR1));
    taken.map_or_else(|errno| errno as i32, |()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::seccomp::required_calls;

    #[test]
    fn without_a_filter_every_call_is_made() {
        let calls = required_calls::all();
        let tried = try_all(&calls).unwrap();
        for (call, answer) in calls.iter().zip(tried) {
            assert_eq!(answer, FilterAnswer::Permitted, "{}", call.name);
        }
    }

    #[test]
    fn call_that_ended_the_child_has_no_errno() {
        let reported = [STARTED, 0, STARTED, 1, STARTED];
        let ended = FilterAnswer::Other("it kills the process that tries the call");
        assert_eq!(
            answers(&reported, 4),
            [FilterAnswer::Permitted, FilterAnswer::Fails(1), ended, ended]
        );
    }
}
