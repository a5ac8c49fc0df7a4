//! The stack of a thread that sleeps, copied without stopping it.
//!
//! # Does not
//! - know that the thread sleeps on: whoever asks looks at its turns before and after
//!   ([`proc::TaskClock::turns`]). Where they differ, the copy is of no one time.
//! - know registers but the stack pointer and the pc, which are all that the kernel tells of a thread
//!   that is not stopped.

use super::{arch, ptrace};
use crate::proc::{self, Activity};

/// Bytes that are copied: most stacks are shorter, and what lies beyond can be read as long as the
/// thread sleeps.
const COPY_LEN: usize = 16 << 10;

/// A thread as it sleeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glimpse {
    /// Its stack pointer.
    pub sp: u64,
    /// Its pc: behind the instruction of its system call.
    pub pc: u64,
    /// The system call that it sleeps in, with its arguments; none in a page fault or a stop.
    pub call: Option<(u64, [u64; 6])>,
    /// Where the copy of its stack starts (AVMA).
    pub stack_avma: u64,
    /// The stack, from below its stack pointer upwards, as far as it was copied.
    pub stack: Vec<u8>,
}

/// Looks at a thread of a process without stopping it. `None` if it runs, or is gone, or may not be
/// looked at.
pub fn glimpse(pid: i32, tid: i32) -> Option<Glimpse> {
    let (sp, pc, call) = match proc::task_activity(pid, tid).ok()? {
        Activity::Running => return None,
        Activity::Blocked { sp, pc } => (sp, pc, None),
        Activity::Syscall { number, args, sp, pc } => (sp, pc, Some((number, args))),
    };
    let (stack_avma, stack) = copy_stack(tid, sp);
    Some(Glimpse { sp, pc, call, stack_avma, stack })
}

/// Copies the stack of a thread that sleeps with this stack pointer: where the copy starts (AVMA), and the
/// bytes from below the stack pointer upwards, as far as they could be read.
pub fn copy_stack(tid: i32, sp: u64) -> (u64, Vec<u8>) {
    let stack_avma = sp.saturating_sub(arch::RED_ZONE) & !7;
    let mut stack = vec![0; COPY_LEN];
    let got = ptrace::read_part(tid, stack_avma, &mut stack);
    stack.truncate(got);
    (stack_avma, stack)
}
