//! A chain of signal frames, through which the kernel takes a thread through steps and back to
//! where it was.
//!
//! `rt_sigreturn` loads each frame: the registers of one step, with all signals blocked. A step
//! ends with a return into a restorer, which loads the next frame. The last frame is the thread's
//! own state. Once started, the thread needs no tracer.
//!
//! ```text
//! base  [ucontext 0][pad][slot][ucontext 1][pad][slot] ... [ucontext n: the thread's own] [xstate]
//!                          ^ step 0's stack pointer; the slot holds the restorer's address
//! ```
//!
//! # Invariants
//! - A slot is at 8 modulo 16, as a stack pointer is on entry to a function.
//! - All frames share one image of the vector state, which nothing writes.

use super::arch::{self, Registers, UCONTEXT_LEN};
use super::syscall::Syscall;

const STRIDE: u64 = 320;
const SLOT: u64 = STRIDE - 8;
const ALL_SIGNALS: u64 = u64::MAX;

/// One step of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChainStep {
    /// A system call.
    Syscall(Syscall),
    /// The agent's entry with its argument.
    Enter {
        /// Address of the entry.
        entry: u64,
        /// The argument of the entry.
        argument: u64,
    },
}

/// The instructions in the target that a chain uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChainGadgets {
    /// `syscall; ret`.
    pub(super) syscall_return: u64,
    /// The instructions of a signal restorer.
    pub(super) restorer: u64,
}

impl ChainGadgets {
    /// Whether the instruction at this address belongs to a chain, outside of the agent's entry.
    pub(super) fn contains(self, avma: u64) -> bool {
        let len = |forms: &[&[u8]]| forms.iter().map(|form| form.len() as u64).max().unwrap_or(0);
        let is_in = |start: u64, len: u64| (start..start + len).contains(&avma);
        is_in(self.syscall_return, len(&[arch::SYSCALL_RETURN]))
            || is_in(self.restorer, len(&arch::RESTORERS))
    }
}

/// The complete state of a thread at its stop.
#[derive(Debug, Clone)]
pub(super) struct SavedState {
    /// The registers at the stop, with the pc moved out of a restartable sequence.
    pub(super) registers: Registers,
    /// The vector state in the format of a signal frame.
    pub(super) xstate: Vec<u8>,
    /// The vector state in the format of `NT_X86_XSTATE`.
    pub(super) vectors: Vec<u8>,
    /// The signal mask.
    pub(super) mask: u64,
}

/// A chain with its addresses.
#[derive(Debug)]
pub(super) struct Chain {
    /// The address of the first byte.
    pub(super) base: u64,
    /// The bytes to write there.
    pub(super) bytes: Vec<u8>,
    /// The registers of each step.
    pub(super) steps: Vec<Registers>,
    /// The registers that start the chain.
    pub(super) start: Registers,
    /// The instructions that the chain uses.
    pub(super) gadgets: ChainGadgets,
}

impl Chain {
    /// Lays out a chain that ends below `top`.
    pub(super) fn new(
        saved: &SavedState,
        steps: &[ChainStep],
        gadgets: ChainGadgets,
        top: u64,
    ) -> Chain {
        let xstate = (top - saved.xstate.len() as u64) & !(arch::XSTATE_ALIGN - 1);
        let frames = steps.len() as u64 + 1;
        let base = (xstate - frames * STRIDE) & !(arch::XSTATE_ALIGN - 1);
        let own = arch::resumed(&saved.registers);
        let mut bytes = vec![0; (xstate - base) as usize + saved.xstate.len()];
        bytes[(xstate - base) as usize..].copy_from_slice(&saved.xstate);
        let mut registers = Vec::with_capacity(steps.len());
        for (index, step) in (0..).zip(steps) {
            let slot = base + index * STRIDE + SLOT;
            let of_step = match step {
                ChainStep::Syscall(call) => arch::calling(&own, gadgets.syscall_return, call, slot),
                ChainStep::Enter { entry, argument } => {
                    arch::entering(&own, *entry, *argument, slot)
                }
            };
            put(&mut bytes, index * STRIDE, &arch::ucontext(&of_step, ALL_SIGNALS, xstate));
            put(&mut bytes, slot - base, &gadgets.restorer.to_le_bytes());
            registers.push(of_step);
        }
        let last = arch::ucontext(&own, saved.mask, xstate);
        put(&mut bytes, (frames - 1) * STRIDE, &last);
        let start = arch::returning(&own, gadgets.restorer, base);
        Chain { base, bytes, steps: registers, start, gadgets }
    }

    /// Returns the address of the frame that follows a step.
    pub(super) fn frame_after(&self, step: usize) -> u64 {
        self.base + (step as u64 + 1) * STRIDE
    }
}

fn put(bytes: &mut [u8], offset: u64, what: &[u8]) {
    bytes[offset as usize..offset as usize + what.len()].copy_from_slice(what);
}

const _: () = assert!(UCONTEXT_LEN as u64 <= SLOT && STRIDE.is_multiple_of(16));

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> SavedState {
        let mut registers = arch::zeroed();
        registers.rip = 0x4000;
        registers.rsp = 0x7000_0008;
        registers.orig_rax = u64::MAX;
        SavedState { registers, xstate: vec![0xab; 580], vectors: Vec::new(), mask: 0x55 }
    }

    fn word(chain: &Chain, address: u64) -> u64 {
        let at = (address - chain.base) as usize;
        u64::from_le_bytes(chain.bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn every_step_returns_into_the_next_frame() {
        let gadgets = ChainGadgets { syscall_return: 0x111, restorer: 0x222 };
        let steps = [
            ChainStep::Syscall(Syscall::new(30, &[1, 2, 3])),
            ChainStep::Enter { entry: 0x333, argument: 1 },
        ];
        let chain = Chain::new(&saved(), &steps, gadgets, 0x6fff_ff88);
        assert!(chain.base + chain.bytes.len() as u64 <= 0x6fff_ff88);
        assert_eq!((chain.start.rip, chain.start.rsp), (0x222, chain.base));
        for (index, registers) in chain.steps.iter().enumerate() {
            assert_eq!(registers.rsp % 16, 8);
            assert_eq!(word(&chain, registers.rsp), 0x222);
            assert_eq!(registers.rsp + 8, chain.frame_after(index));
        }
        // The last frame has the thread's own rip and mask; its xstate is aligned and complete.
        let last = chain.frame_after(1);
        assert_eq!(word(&chain, last + 40 + 128), 0x4000);
        assert_eq!(word(&chain, last + 296), 0x55);
        let xstate = word(&chain, last + 40 + 184);
        assert_eq!(xstate % 64, 0);
        assert_eq!(chain.bytes[(xstate - chain.base) as usize..], vec![0xab; 580]);
    }
}
