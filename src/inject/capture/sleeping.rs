//! The stack of a sleeping thread, copied without stopping the thread.
//!
//! # Does not
//! - check that the thread sleeps on: the caller compares [`proc::TaskClock::turns`] before and
//!   after. If the values differ, the copy mixes several moments.
//! - read registers other than the stack pointer and the pc: the kernel shows no others of a
//!   running thread.

use crate::inject::{arch, ptrace};
use crate::proc::{self, TaskActivity};

/// Bytes that are copied. Most stacks are shorter, and the remainder can be read while the thread
/// sleeps.
const COPY_LEN: usize = 16 << 10;

/// A sleeping thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SleepingThread {
    /// The stack pointer.
    pub sp: u64,
    /// The pc, after the instruction of the system call.
    pub pc: u64,
    /// The system call that the thread sleeps in, with the arguments; `None` in a page fault or a
    /// stop.
    pub call: Option<(u64, [u64; 6])>,
    /// The start of the copy of the stack (AVMA).
    pub stack_avma: u64,
    /// The stack, from below the stack pointer upwards, as far as it was copied.
    pub stack: Vec<u8>,
}

/// Reads the state of a thread without stopping it. Returns `None` if the thread runs, has exited,
/// or is not readable.
pub fn read_sleeping_thread(pid: i32, tid: i32) -> Option<SleepingThread> {
    let (sp, pc, call) = match proc::task_activity(pid, tid).ok()? {
        TaskActivity::Running => return None,
        TaskActivity::Blocked { sp, pc } => (sp, pc, None),
        TaskActivity::Syscall { number, args, sp, pc } => (sp, pc, Some((number, args))),
    };
    let (stack_avma, stack) = copy_stack(tid, sp);
    Some(SleepingThread { sp, pc, call, stack_avma, stack })
}

/// Copies the stack of a thread that sleeps with this stack pointer. Returns the start of the copy
/// (AVMA), and the bytes upwards from there as far as they are readable.
pub fn copy_stack(tid: i32, sp: u64) -> (u64, Vec<u8>) {
    let stack_avma = sp.saturating_sub(arch::RED_ZONE) & !7;
    let mut stack = vec![0; COPY_LEN];
    let got = ptrace::read_part(tid, stack_avma, &mut stack);
    stack.truncate(got);
    (stack_avma, stack)
}
