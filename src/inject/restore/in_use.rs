//! The check whether a thread still uses the agent, or frames that return through it.
//!
//! Such frames outside of the agent's own stack belong to a thread that a killed guardian had
//! launched or stepped. The next restore finds that thread before it has finished its chain.

use traceprof_abi::layout::SignalAction;
use traceprof_abi::sync::Ordering;

use super::uninterruptible::UninterruptibleSleep;
use crate::inject::arch::SYSCALL_RETURN;
use crate::inject::data_segment::AttachedData;
use crate::inject::plan::AttachPlan;
use crate::inject::ptrace;
use crate::inject::stop::Stopped;
use crate::proc;

/// Bytes of stack that are searched for our return address below an application's handler.
const STACK_SEARCHED: usize = 16 << 10;
/// The lowest address of a handler: SIG_DFL and SIG_IGN are not functions.
const FIRST_HANDLER: u64 = 2;
/// All signals but SIGKILL and SIGSTOP, which cannot be blocked.
const HANDLER_MASK: u64 = !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));

/// The check whether a thread uses the agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct InUse<'a> {
    pub(super) plan: &'a AttachPlan,
    pub(super) data: &'a AttachedData,
    /// Whether the program has no restorer, so that its frames return through the agent's restorer.
    pub(super) returns_through_agent: bool,
}

impl InUse<'_> {
    /// Whether a stopped thread uses the agent.
    pub(super) fn by(&self, thread: &Stopped) -> bool {
        let registers = &thread.saved().registers;
        let at = (registers.rip, registers.rsp);
        self.may_be_by(thread.tid(), at, || thread.mask().ok())
    }

    /// Whether a thread that does not stop may use the agent.
    pub(super) fn by_sleeper(&self, tid: i32, sleep: &UninterruptibleSleep) -> bool {
        let mask = || proc::task_status(self.plan.pid, tid).ok().map(|status| status.blocked);
        self.may_be_by(tid, (sleep.pc, sleep.sp), mask)
    }

    /// Whether a thread at this pc and sp may use the agent. The mask is read only if needed:
    /// reading costs a system call, and most programs have no handler that ours calls.
    fn may_be_by(&self, tid: i32, (pc, sp): (u64, u64), mask: impl Fn() -> Option<u64>) -> bool {
        if self.plan.code.contains(pc) || self.plan.data.contains(sp) {
            return true;
        }
        // The word at the stack pointer is the next address only if the thread is about to return.
        // In the middle of a function, a frame of ours may have left that word long ago.
        if self.returns_through_agent
            && self.has_return_address(tid, sp, size_of::<u64>())
            && is_about_to_return(tid, pc)
        {
            return true;
        }
        // Relaxed: written once, before the handler was installed.
        let is_chaining =
            |action: &SignalAction| action.old_action[0].load(Ordering::Relaxed) >= FIRST_HANDLER;
        let chains = self.data.control().signals.iter().any(is_chaining);
        // Our handler calls the application's handler with all signals blocked, and our address is
        // then on the stack. A stale address costs one more attempt.
        let blocks_all = || mask().is_none_or(|blocked| blocked & HANDLER_MASK == HANDLER_MASK);
        chains && blocks_all() && self.has_return_address(tid, sp, STACK_SEARCHED)
    }

    /// Whether an address of the agent's code is in this part of the stack.
    fn has_return_address(&self, tid: i32, sp: u64, len: usize) -> bool {
        let mut stack = vec![0; len];
        let room = ptrace::read_part(tid, sp, &mut stack);
        stack[..room].chunks_exact(8).any(|word| {
            let value = word.iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b));
            self.plan.code.contains(value)
        })
    }
}

/// Whether the next instruction is a return, or a call before one, as in every step of a chain.
fn is_about_to_return(tid: i32, pc: u64) -> bool {
    let mut next = [0; SYSCALL_RETURN.len()];
    let got = ptrace::read_part(tid, pc, &mut next);
    // Unknown: waiting is safe.
    got == 0 || next == SYSCALL_RETURN || SYSCALL_RETURN.ends_with(&next[..1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::plan::{Access, SharedSegment};

    fn plan(pid: i32) -> AttachPlan {
        let segment = |avma, len| SharedSegment { shm_id: 0, avma, len, access: Access::Read };
        AttachPlan {
            pid,
            start_time: 0,
            code: segment(0x1000, 0x1000),
            tables: segment(0x2000, 0x1000),
            data: segment(0x3000, 0x1000),
            entry_avma: 0x1000,
            restorer_avma: 0x1100,
            signals: [0; traceprof_abi::layout::SIGNALS],
            hold_fd: None,
        }
    }

    #[test]
    fn word_on_the_stack_counts_only_for_a_thread_that_returns_to_it() {
        let own = std::process::id() as i32;
        let (plan, data) = (plan(own), AttachedData::blank().unwrap());
        let in_use = InUse { plan: &plan, data: &data, returns_through_agent: true };
        let address = |bytes: &[u8]| bytes.as_ptr() as u64;
        let (ours, other) = (0x1100u64.to_le_bytes(), 0x9000u64.to_le_bytes());
        let before_return = [0x0f, 0x05, 0xc3, 0x90];
        let before_other = [0x0f, 0x05, 0x48, 0x89];
        let is = |code: &[u8], stack: &[u8]| {
            in_use.may_be_by(own, (address(code), address(stack)), || None)
        };
        // Before and after the system call.
        assert!(is(&before_return, &ours) && is(&before_return[2..], &ours));
        assert!(!is(&before_return, &other) && !is(&before_return[2..], &other));
        assert!(!is(&before_other, &ours) && !is(&before_other[2..], &ours));
        let in_use = InUse { returns_through_agent: false, ..in_use };
        assert!(!in_use.may_be_by(own, (address(&before_return), address(&ours)), || None));
    }
}
