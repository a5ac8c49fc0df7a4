//! What a thread waits for: its system call, the kernel's functions, what is open.

use std::ffi::OsString;
use std::fs;
use std::io;

use procfs::process::Syscall;

use super::{open, to_io};

/// What a thread is doing, from `/proc/PID/task/TID/syscall`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It runs, or is ready to.
    Running,
    /// It is blocked outside a system call (a page fault, a stop).
    Blocked {
        /// Its stack pointer.
        sp: u64,
        /// Its program counter.
        pc: u64,
    },
    /// It is blocked in a system call.
    Syscall {
        /// The system call's number.
        number: u64,
        /// Its arguments.
        args: [u64; 6],
        /// Its stack pointer.
        sp: u64,
        /// The address after the system call instruction.
        pc: u64,
    },
}

/// What a thread is doing. Needs the permission to trace it.
pub fn task_activity(pid: i32, tid: i32) -> io::Result<Activity> {
    let task = open(pid)?.task_from_tid(tid).map_err(to_io)?;
    Ok(match task.syscall().map_err(to_io)? {
        Syscall::Running => Activity::Running,
        Syscall::Blocked { syscall_number, argument_registers, stack_pointer, program_counter } => {
            match u64::try_from(syscall_number) {
                Ok(number) => Activity::Syscall {
                    number,
                    args: argument_registers,
                    sp: stack_pointer,
                    pc: program_counter,
                },
                Err(_) => Activity::Blocked { sp: stack_pointer, pc: program_counter },
            }
        }
        // Running, and whatever a later version of the crate tells apart.
        _ => Activity::Running,
    })
}

/// The kernel function that a thread sleeps in; `None` if it runs, or the kernel does not say.
pub fn wait_channel(pid: i32, tid: i32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/task/{tid}/wchan")).ok()?;
    (!name.is_empty() && name != "0").then_some(name)
}

/// The kernel functions of a thread that sleeps, innermost first. Needs root's rights.
pub fn kernel_stack(pid: i32, tid: i32) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stack"))?;
    // `[<0>] futex_wait+0x6e/0xf0`; addresses are not shown to anybody.
    let function = |line: &str| line.split_once("] ").map_or(line, |(_, rest)| rest).to_owned();
    Ok(text.lines().map(function).collect())
}

/// What a process has open under a number.
pub fn descriptor(pid: i32, number: i32) -> io::Result<OsString> {
    fs::read_link(format!("/proc/{pid}/fd/{number}")).map(OsString::from)
}
