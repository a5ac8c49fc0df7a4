//! The check whether a thread still uses the agent, or frames that return through it.
//!
//! A thread uses the agent if its next instruction is in the agent's code or its stack is in the
//! agent's memory, or if a signal handler of the application interrupted it there. All signals are
//! blocked in the agent's handler when the kernel calls it, but the application may call it as a
//! function, or install it with a mask of its own. The interrupted address is in the signal frame
//! below the handler that runs now. So the stack of every thread is searched for signal frames, and
//! so are the stacks that these frames lead to: a handler may run on an alternate stack. Other
//! words of a stack prove nothing, since each sample leaves addresses of the agent below the stack
//! pointer, and the next calls may cover them with buffers that they do not write.
//!
//! Frames that return through the agent, outside of the agent's own stack, belong to a thread that
//! a killed guardian had launched or stepped. The next restore finds that thread before it has
//! finished its chain.
//!
//! # Does not
//! - find a frame that is more than [`SEARCHED_MAX`] bytes above the stack pointer, or on the stack
//!   of a fiber that no thread runs.

use std::ops::Range;

use traceprof_abi::layout::SignalAction;
use traceprof_abi::sync::Ordering;

use super::uninterruptible::UninterruptibleSleep;
use crate::inject::arch::{self, SYSCALL_RETURN};
use crate::inject::data_segment::AttachedData;
use crate::inject::plan::AttachPlan;
use crate::inject::ptrace;
use crate::inject::stop::Stopped;
use crate::proc::{self, Mapping};

/// The most bytes of a stack that are searched. Most stacks end before, with their mapping; those
/// that a runtime allocates in its heap do not.
const SEARCHED_MAX: usize = 256 << 10;
/// Bytes that are read first: most stacks have fewer in use.
const READ_FIRST: usize = 16 << 10;
/// The most stacks of one thread that are searched.
const STACKS_MAX: usize = 8;
/// The lowest address of a handler: SIG_DFL and SIG_IGN are not functions.
const FIRST_HANDLER: u64 = 2;

/// The check whether a thread uses the agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct InUse<'a> {
    pub(super) plan: &'a AttachPlan,
    pub(super) data: &'a AttachedData,
    /// Whether the program has no restorer, so that its frames return through the agent's restorer.
    pub(super) returns_through_agent: bool,
    /// The program's mappings, from just before the stop.
    pub(super) mappings: &'a [Mapping],
}

impl InUse<'_> {
    /// Whether a stopped thread uses the agent.
    pub(super) fn by(&self, thread: &Stopped) -> bool {
        let registers = &thread.saved().registers;
        self.may_be_by(thread.tid(), (registers.rip, registers.rsp))
    }

    /// Whether a thread that does not stop may use the agent.
    pub(super) fn by_sleeper(&self, tid: i32, sleep: &UninterruptibleSleep) -> bool {
        self.may_be_by(tid, (sleep.pc, sleep.sp))
    }

    /// Whether a thread at this pc and sp may use the agent.
    fn may_be_by(&self, tid: i32, (pc, sp): (u64, u64)) -> bool {
        if self.plan.code.contains(pc) || self.plan.data.contains(sp) {
            return true;
        }
        let stack = self.read_stack(tid, sp);
        // The word at the stack pointer is the next address only if the thread is about to return.
        // In the middle of a function, a frame of ours may have left that word long ago.
        if self.returns_through_agent
            && stack.words().next().is_some_and(|word| self.plan.code.contains(word))
            && is_about_to_return(tid, pc)
        {
            return true;
        }
        // A stale address costs one more attempt.
        (self.is_returned_to() && stack.words().any(|word| self.plan.code.contains(word)))
            || self.is_interrupted(tid, stack)
    }

    /// Whether a handler of the application has no restorer of its own, and so returns through the
    /// agent's.
    fn is_returned_to(&self) -> bool {
        const SA_RESTORER: u64 = 0x0400_0000;
        // Relaxed: written once, before the handler was installed.
        let has_no_restorer = |action: &SignalAction| {
            action.old_action[0].load(Ordering::Relaxed) >= FIRST_HANDLER
                && action.old_action[1].load(Ordering::Relaxed) & SA_RESTORER == 0
        };
        self.data.control().signals.iter().any(has_no_restorer)
    }

    /// Reads a stack from its stack pointer to the end of its mapping. The next mapping may be one
    /// in which a read waits, for a server or for the program itself.
    fn read_stack(&self, tid: i32, sp: u64) -> ReadStack {
        let start = sp & !(size_of::<u64>() as u64 - 1);
        let end_in = |mappings: &[Mapping]| {
            let mapping = mappings.get(mappings.partition_point(|it| it.end <= start))?;
            (mapping.start <= start).then_some(mapping.end)
        };
        // The stack of a thread that started during the stop is in a later list.
        let end = end_in(self.mappings)
            .or_else(|| end_in(&proc::mappings(self.plan.pid).ok()?))
            .unwrap_or(start.saturating_add(READ_FIRST as u64));
        ReadStack::read(tid, start..end)
    }

    /// Whether a signal frame on this stack, or on one that it leads to, is of an interruption of
    /// the agent's code, or of a function on the agent's stack.
    fn is_interrupted(&self, tid: i32, first: ReadStack) -> bool {
        let mut searched: Vec<Range<u64>> = Vec::new();
        let mut next = vec![first];
        while let Some(stack) = next.pop() {
            searched.push(stack.range());
            for (pc, sp) in arch::interruptions(stack.words()) {
                if self.plan.code.contains(pc) || self.plan.data.contains(sp) {
                    return true;
                }
                let is_known = |range: &Range<u64>| range.contains(&sp);
                let is_new = !searched.iter().any(is_known)
                    && !next.iter().any(|stack| is_known(&stack.range()));
                if is_new && searched.len() + next.len() < STACKS_MAX {
                    next.push(self.read_stack(tid, sp));
                }
            }
        }
        false
    }
}

/// A copy of a thread's stack, from a stack pointer on.
struct ReadStack {
    start: u64,
    bytes: Vec<u8>,
}

impl ReadStack {
    /// Reads up to the end of the range, or the first unreadable page.
    fn read(tid: i32, Range { start, end }: Range<u64>) -> Self {
        let most = usize::try_from(end.saturating_sub(start))
            .map_or(SEARCHED_MAX, |it| it.min(SEARCHED_MAX));
        let mut bytes = Vec::new();
        while bytes.len() < most {
            let done = bytes.len();
            let wanted = done.max(READ_FIRST).min(most - done);
            bytes.resize(done + wanted, 0);
            let got = ptrace::read_part(tid, start + done as u64, &mut bytes[done..]);
            bytes.truncate(done + got);
            if got < wanted {
                break;
            }
        }
        Self { start, bytes }
    }

    fn range(&self) -> Range<u64> {
        // A stack that cannot be read is known all the same.
        self.start..self.start.saturating_add(self.bytes.len().max(1) as u64)
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        self.bytes.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word))
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

    fn address(bytes: &[u8]) -> u64 {
        bytes.as_ptr() as u64
    }

    #[test]
    fn word_on_the_stack_counts_only_for_a_thread_that_returns_to_it() {
        let own = std::process::id() as i32;
        let (plan, data) = (plan(own), AttachedData::blank().unwrap());
        let in_use = InUse { plan: &plan, data: &data, returns_through_agent: true, mappings: &[] };
        let (ours, other) = ([0x1100u64], [0x9000u64]);
        let before_return = [0x0f, 0x05, 0xc3, 0x90];
        let before_other = [0x0f, 0x05, 0x48, 0x89];
        let is = |code: &[u8], stack: &[u64; 1]| {
            in_use.may_be_by(own, (address(code), stack.as_ptr() as u64))
        };
        // Before and after the system call.
        assert!(is(&before_return, &ours) && is(&before_return[2..], &ours));
        assert!(!is(&before_return, &other) && !is(&before_return[2..], &other));
        assert!(!is(&before_other, &ours) && !is(&before_other[2..], &ours));
        let in_use = InUse { returns_through_agent: false, ..in_use };
        assert!(!in_use.may_be_by(own, (address(&before_return), ours.as_ptr() as u64)));
        // A handler without a restorer returns to ours.
        let action = &data.control().signals[0].old_action;
        action[0].store(FIRST_HANDLER, Ordering::Relaxed);
        assert!(in_use.may_be_by(own, (address(&before_other), ours.as_ptr() as u64)));
    }

    /// Returns a stack with a signal frame above this many words. The frame says that the code at
    /// `pc` was interrupted with this stack pointer. The search ends in the zeroes above it.
    fn stack(words: usize, (pc, sp): (u64, u64)) -> Vec<u64> {
        let mut stack = vec![0x1100; words];
        stack.extend([sp, pc, 0x202, 0x002b_0000_0000_0033]);
        stack.resize(words + SEARCHED_MAX / 8, 0);
        stack
    }

    #[test]
    fn interrupted_code_is_found_on_every_stack() {
        let own = std::process::id() as i32;
        let (plan, data) = (plan(own), AttachedData::blank().unwrap());
        let in_use =
            InUse { plan: &plan, data: &data, returns_through_agent: false, mappings: &[] };
        let code = [0; 4];
        let is = |stack: &[u64]| in_use.may_be_by(own, (address(&code), stack.as_ptr() as u64));
        let (ours, other) = (0x1234, 0x9000);
        for words in [0, 5, 3000, SEARCHED_MAX / 8 - 4] {
            assert!(is(&stack(words, (ours, 0))), "{words} words");
            assert!(!is(&stack(words, (other, 0))), "{words} words: only stale addresses");
        }
        // Through other stacks. The last frame leads back to the first stack.
        let mut lower = vec![stack(40, (other, 0))];
        for _ in 0..3 {
            let sp = lower.last().unwrap().as_ptr() as u64;
            lower.push(stack(900, (other, sp)));
        }
        let back = lower.last().unwrap().as_ptr() as u64;
        lower[0][40] = back;
        assert!(!is(lower.last().unwrap()));
        lower[0][41] = ours;
        assert!(is(lower.last().unwrap()));
    }

    /// The handler takes its samples on stacks in the data segment.
    #[test]
    fn stack_in_the_agents_memory_is_in_use() {
        let own = std::process::id() as i32;
        let (plan, data) = (plan(own), AttachedData::blank().unwrap());
        let in_use =
            InUse { plan: &plan, data: &data, returns_through_agent: false, mappings: &[] };
        let (code, elsewhere) = ([0; 4], 0x9000);
        let inside = plan.data.avma..plan.data.avma + plan.data.len;
        for sp in [inside.start, inside.end - 8] {
            assert!(in_use.may_be_by(own, (elsewhere, sp)), "{sp:x}");
            let interrupted = stack(40, (elsewhere, sp));
            assert!(in_use.may_be_by(own, (address(&code), interrupted.as_ptr() as u64)), "{sp:x}");
        }
        let interrupted = stack(40, (elsewhere, inside.end));
        assert!(!in_use.may_be_by(own, (address(&code), interrupted.as_ptr() as u64)));
    }
}
