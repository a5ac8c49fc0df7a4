//! A thread in an uninterruptible sleep (state D), which cannot be stopped.

use std::time::{Duration, Instant};

use crate::inject::ptrace::wait::await_children;
use crate::inject::ptrace::{self, Tracee};
use crate::proc::{self, TaskActivity, shares_memory};

/// A thread that has not stopped after this time is checked for an uninterruptible sleep.
const ASLEEP_AFTER: Duration = Duration::from_micros(300);
/// Additional time for each other thread that was interrupted at the same time and may have the
/// processor.
const LATER_EACH: Duration = Duration::from_micros(4);

/// The location at which a thread sleeps uninterruptibly.
#[derive(Debug, Clone, Copy)]
pub(super) struct UninterruptibleSleep {
    /// The address after the system call, or of the instruction that waits for its memory.
    pub(super) pc: u64,
    /// The stack pointer.
    pub(super) sp: u64,
    /// The system call and its arguments, if the thread is in one.
    pub(super) call: Option<(u64, [u64; 6])>,
}

/// The other processes in the memory of a sleeping thread.
pub(super) enum VforkChildren {
    Known(Vec<i32>),
    Unknown,
}

/// Returns the location at which an interrupted thread sleeps, while `left` threads have not
/// stopped yet. `None` if the thread has stopped, or runs.
pub(super) fn uninterruptible_sleep(
    pid: i32,
    tracee: &Tracee,
    left: usize,
) -> Option<UninterruptibleSleep> {
    let others = u32::try_from(left).unwrap_or(u32::MAX);
    let mut limit = None;
    while !tracee.has_stopped() {
        let deadline = *limit.get_or_insert_with(|| {
            Instant::now() + ASLEEP_AFTER + LATER_EACH.saturating_mul(others)
        });
        if Instant::now() < deadline {
            await_children(left, deadline);
            continue;
        }
        let tid = tracee.tid();
        if proc::task_stat(pid, tid).ok()?.state != 'D' {
            return None;
        }
        return match proc::task_activity(pid, tid).ok()? {
            TaskActivity::Syscall { number, args, sp, pc } => {
                Some(UninterruptibleSleep { pc, sp, call: Some((number, args)) })
            }
            TaskActivity::Blocked { sp, pc } => Some(UninterruptibleSleep { pc, sp, call: None }),
            TaskActivity::Running => None,
        };
    }
    None
}

pub(super) fn vfork_children(pid: i32, tid: i32, sleep: UninterruptibleSleep) -> VforkChildren {
    let Some((number, args)) = sleep.call else { return VforkChildren::Known(Vec::new()) };
    let flags = match number as i64 {
        libc::SYS_vfork => Some((libc::CLONE_VFORK | libc::CLONE_VM) as u64),
        libc::SYS_clone => Some(args[0]),
        libc::SYS_clone3 => {
            let mut bytes = [0; size_of::<u64>()];
            let got = ptrace::read_part(tid, args[0], &mut bytes);
            (got == bytes.len()).then(|| u64::from_ne_bytes(bytes))
        }
        libc::SYS_fork | libc::SYS_execve | libc::SYS_execveat => None,
        _ => return VforkChildren::Known(Vec::new()),
    };
    // A thread without a child may still create one, of an unknown kind.
    let is = |flag: i32| flags.is_some_and(|flags| flags & flag as u64 != 0);
    if !is(libc::CLONE_VFORK) || !is(libc::CLONE_VM) || is(libc::CLONE_THREAD) {
        return VforkChildren::Unknown;
    }
    let Ok(mut children) = proc::children(pid, tid) else { return VforkChildren::Unknown };
    let mut is_known = true;
    children.retain(|child| {
        let shares = shares_memory(pid, *child);
        let has_ended =
            || proc::task_stat(*child, *child).map_or(true, |it| proc::has_ended(it.state));
        is_known &= shares.is_some() || has_ended();
        shares == Some(true)
    });
    if is_known && !children.is_empty() {
        VforkChildren::Known(children)
    } else {
        VforkChildren::Unknown
    }
}
