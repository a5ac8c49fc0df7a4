//! Whether a thread is where nothing of ours may be unmapped: in the agent, in what the agent called, or
//! on frames that return through the agent's code.
//!
//! On such frames, outside of the agent's own stack, is nobody but a thread that was led or set going by
//! a guardian who was killed: whoever cures in its place meets that thread on its way home.

use traceprof_abi::layout::SignalAction;
use traceprof_abi::sync::Ordering;

use super::arch::SYSCALL_RETURN;
use super::beside::Sleep;
use super::plan::AttachPlan;
use super::ptrace;
use super::segment::Attached;
use super::stop::Stopped;
use crate::proc;

/// Bytes of stack that are searched for our return address under a handler that we called.
const STACK_SEARCHED: usize = 16 << 10;
/// SIG_DFL and SIG_IGN are no functions.
const FIRST_HANDLER: u64 = 2;
/// All signals but SIGKILL and SIGSTOP, which cannot be blocked.
const HANDLER_MASK: u64 = !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inside<'a> {
    pub(super) plan: &'a AttachPlan,
    pub(super) data: &'a Attached,
    /// The program has no restorer: its frames return through ours.
    pub(super) through_ours: bool,
}

impl Inside<'_> {
    /// The thread is.
    pub(super) fn is(&self, thread: &Stopped) -> bool {
        let registers = &thread.saved.registers;
        let place = (registers.rip, registers.rsp);
        self.may_be(thread.tid(), place, || thread.mask().ok())
    }

    /// The same of a thread that does not stop, of which it is not known where it is not.
    pub(super) fn may_be_asleep(&self, tid: i32, sleep: &Sleep) -> bool {
        let mask = || proc::task_status(self.plan.pid, tid).ok().map(|status| status.blocked);
        self.may_be(tid, (sleep.pc, sleep.sp), mask)
    }

    /// Its mask costs a system call, and most programs have no handler that ours calls.
    fn may_be(&self, tid: i32, (pc, sp): (u64, u64), mask: impl Fn() -> Option<u64>) -> bool {
        if self.plan.code.contains(pc) || self.plan.data.contains(sp) {
            return true;
        }
        // What lies at the stack pointer is where it goes next only if it is about to return: with a call
        // in the midst of a function it may be a word that a frame of ours left there long ago.
        if self.through_ours
            && self.returns_here(tid, sp, size_of::<u64>())
            && is_about_to_return(tid, pc)
        {
            return true;
        }
        // Relaxed: written once, before the handler was installed.
        let is_chaining =
            |action: &SignalAction| action.old_action[0].load(Ordering::Relaxed) >= FIRST_HANDLER;
        let chains = self.data.control().signals.iter().any(is_chaining);
        // Our handler calls the application's with all signals blocked: our address is then on
        // the stack. A stale one costs a retry.
        let blocks_all = || mask().is_none_or(|blocked| blocked & HANDLER_MASK == HANDLER_MASK);
        chains && blocks_all() && self.returns_here(tid, sp, STACK_SEARCHED)
    }

    /// An address of the agent's code is among so many bytes of the stack.
    fn returns_here(&self, tid: i32, sp: u64, len: usize) -> bool {
        let mut stack = vec![0; len];
        let room = ptrace::read_part(tid, sp, &mut stack);
        stack[..room].chunks_exact(8).any(|word| {
            let value = word.iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b));
            self.plan.code.contains(value)
        })
    }
}

/// Its next instruction is a return, or a call before one, as in every step of a chain.
fn is_about_to_return(tid: i32, pc: u64) -> bool {
    let mut next = [0; SYSCALL_RETURN.len()];
    let got = ptrace::read_part(tid, pc, &mut next);
    // Unknown: it is waited for.
    got == 0 || next == SYSCALL_RETURN || SYSCALL_RETURN.ends_with(&next[..1])
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Access, Segment};
    use super::*;

    fn plan(pid: i32) -> AttachPlan {
        let segment = |avma, len| Segment { shm_id: 0, avma, len, access: Access::Read };
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
    fn word_on_the_stack_counts_only_for_who_returns_to_it() {
        let own = std::process::id() as i32;
        let (plan, data) = (plan(own), Attached::blank().unwrap());
        let inside = Inside { plan: &plan, data: &data, through_ours: true };
        let address = |bytes: &[u8]| bytes.as_ptr() as u64;
        let (ours, other) = (0x1100u64.to_le_bytes(), 0x9000u64.to_le_bytes());
        let before_return = [0x0f, 0x05, 0xc3, 0x90];
        let before_other = [0x0f, 0x05, 0x48, 0x89];
        let is = |code: &[u8], stack: &[u8]| {
            inside.may_be(own, (address(code), address(stack)), || None)
        };
        // Before and behind the system call.
        assert!(is(&before_return, &ours) && is(&before_return[2..], &ours));
        assert!(!is(&before_return, &other) && !is(&before_return[2..], &other));
        assert!(!is(&before_other, &ours) && !is(&before_other[2..], &ours));
        let inside = Inside { through_ours: false, ..inside };
        assert!(!inside.may_be(own, (address(&before_return), address(&ours)), || None));
    }
}
