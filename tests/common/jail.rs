//! Commands under a seccomp filter or a limit.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// The filter action that kills the process.
pub(crate) const KILL: u32 = 0x8000_0000;
/// The filter action that makes a call fail. The caller adds the errno.
pub(crate) const ERRNO: u32 = 0x0005_0000;

/// One instruction of a classic BPF program.
#[repr(C)]
#[derive(Clone, Copy)]
struct Step(u16, u8, u8, u32);

#[repr(C)]
struct Filter(u16, *const Step);

/// Returns the command without permission to open perf events, as in most containers.
pub(crate) fn without_perf(command: Command) -> Command {
    without(command, libc::SYS_perf_event_open, ERRNO | libc::EPERM as u32)
}

/// Returns the command under a filter that gives `action` for one system call.
pub(crate) fn without(command: Command, number: libc::c_long, action: u32) -> Command {
    filtered(command, vec![Step(0x06, 0, 0, action)], number)
}

/// Returns the command under a filter that gives `action` for one system call if an argument, by
/// its index, has this value in the lower half.
pub(crate) fn without_argument(
    command: Command,
    number: libc::c_long,
    (index, value): (u32, u32),
    action: u32,
) -> Command {
    let steps = vec![
        Step(0x20, 0, 0, 16 + 8 * index), // the argument
        Step(0x15, 0, 1, value),          // is it this one?
        Step(0x06, 0, 0, action),         // answer it so
        Step(0x06, 0, 0, PERMIT),
    ];
    filtered(command, steps, number)
}

const PERMIT: u32 = 0x7fff_0000;

/// Returns the command under a filter that takes `steps` for one system call, and permits all
/// others.
fn filtered(mut command: Command, steps: Vec<Step>, number: libc::c_long) -> Command {
    const NO_NEW_PRIVILEGES: i32 = 38;
    const SET_FILTER: libc::c_long = 1;
    let mut program = vec![
        Step(0x20, 0, 0, 0),             // the system call's number
        Step(0x15, 1, 0, number as u32), // is it this one?
        Step(0x06, 0, 0, PERMIT),
    ];
    program.extend(steps);
    let install = move || {
        let filter = Filter(program.len() as u16, program.as_ptr());
        // SAFETY: the call takes only numbers.
        let quiet = unsafe { libc::prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) };
        // SAFETY: the kernel reads the filter's steps, which live across the call.
        let done = unsafe { libc::syscall(libc::SYS_seccomp, SET_FILTER, 0, &raw const filter) };
        if quiet == 0 && done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure only makes system calls.
    unsafe { command.pre_exec(install) };
    command
}

/// Returns the command with this soft and hard limit of descriptors.
pub(crate) fn with_descriptors((soft, hard): (u64, u64), mut command: Command) -> Command {
    let limit = move || {
        use nix::sys::resource::{Resource, setrlimit};
        Ok(setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?)
    };
    // SAFETY: the closure only makes a system call.
    unsafe { command.pre_exec(limit) };
    command
}

/// Returns the command as a tracee of the thread that spawns it.
pub(crate) fn traced(mut command: Command) -> Command {
    // SAFETY: the closure only makes a system call.
    unsafe { command.pre_exec(|| Ok(nix::sys::ptrace::traceme()?)) };
    command
}
