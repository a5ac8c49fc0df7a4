//! Whether a thread is where nothing of ours may be unmapped: in the agent, in what the agent called, or
//! on frames that return through the agent's code.
//!
//! On such frames, outside of the agent's own stack, is nobody but a thread that was led or set going by
//! a guardian who was killed: whoever cures in its place meets that thread on its way home.

use traceprof_abi::layout::SignalAction;
use traceprof_abi::sync::Ordering;

use super::beside::Sleep;
use super::chain::Saved;
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
        let Saved { registers, mask, .. } = &thread.saved;
        self.may_be(thread.tid(), (registers.rip, registers.rsp), *mask)
    }

    /// The same of a thread that does not stop, of which it is not known where it is not.
    pub(super) fn may_be_asleep(&self, tid: i32, sleep: &Sleep) -> bool {
        let status = proc::task_status(self.plan.pid, tid);
        status.map_or(true, |it| self.may_be(tid, (sleep.pc, sleep.sp), it.blocked))
    }

    fn may_be(&self, tid: i32, (pc, sp): (u64, u64), mask: u64) -> bool {
        if self.plan.code.contains(pc) || self.plan.data.contains(sp) {
            return true;
        }
        if self.through_ours && self.returns_here(tid, sp, size_of::<u64>()) {
            return true;
        }
        // Relaxed: written once, before the handler was installed.
        let is_chaining =
            |action: &SignalAction| action.old_action[0].load(Ordering::Relaxed) >= FIRST_HANDLER;
        let chains = self.data.control().signals.iter().any(is_chaining);
        // Our handler calls the application's with all signals blocked: our address is then on
        // the stack. A stale one costs a retry.
        chains && mask & HANDLER_MASK == HANDLER_MASK && self.returns_here(tid, sp, STACK_SEARCHED)
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
