//! The state that a stopped thread returns to.

use std::io;

use super::{NotStopped, failed, restartable_sequence, system};
use crate::inject::arch::{self, Interrupted, Registers};
use crate::inject::error::InjectError;
use crate::inject::ptrace::Tracee;
use crate::inject::sigreturn_chain::SavedState;

/// The state to return to, and flags for later changes of the thread.
#[derive(Debug)]
pub(super) struct ReturnState {
    pub(super) saved: SavedState,
    /// The state that the stop interrupted.
    pub(super) interrupted: Interrupted,
    /// Whether the thread has not run by itself since its state was saved.
    pub(super) is_current: bool,
    /// Whether the tracer has changed the thread's registers, or is about to.
    pub(super) touched: bool,
    /// Whether the thread has run the agent, which uses vector registers, and no frame has restored
    /// them.
    pub(super) entered: bool,
}

impl ReturnState {
    /// Creates the value for a thread whose state is not saved yet.
    pub(super) fn unsaved() -> Self {
        Self {
            saved: SavedState {
                registers: arch::zeroed(),
                xstate: Vec::new(),
                vectors: Vec::new(),
                mask: 0,
            },
            interrupted: Interrupted::User,
            is_current: false,
            touched: false,
            entered: false,
        }
    }

    /// Creates the value for a thread on a chain, which may have run the entry.
    pub(super) fn on_chain(saved: SavedState, is_current: bool) -> Self {
        let interrupted = arch::interrupted(&saved.registers);
        Self { saved, interrupted, is_current, touched: true, entered: true }
    }

    /// Whether the thread was stopped in a call.
    pub(super) fn is_in_call(&self) -> bool {
        self.interrupted != Interrupted::User
    }

    /// Saves the registers, and immediately returns a broken call to the kernel's decision. If the
    /// tracer dies then, the thread sees no EINTR, and a later signal still ends the call.
    pub(super) fn save(&mut self, tracee: &Tracee) -> io::Result<()> {
        let Some(mut registers) = registers_at_stop(tracee)? else {
            self.saved.registers = arch::zeroed();
            return Ok(());
        };
        self.interrupted = arch::interrupted(&registers);
        if self.interrupted == Interrupted::Broken {
            registers = arch::left_to_kernel(&registers);
            tracee.set_registers(&registers)?;
        }
        self.saved.registers = registers;
        self.is_current = true;
        Ok(())
    }

    /// Saves the registers. Returns an error if the thread runs 32-bit code.
    pub(super) fn save_native(&mut self, tracee: &Tracee) -> Result<(), NotStopped> {
        self.save(tracee).map_err(|error| failed("reading registers", &error))?;
        if !arch::is_native(&self.saved.registers) {
            // The tracer never writes the registers of a 32-bit thread: the detach leaves the
            // thread as it is.
            self.is_current = false;
            return Err(NotStopped::Foreign);
        }
        Ok(())
    }

    /// Completes the saved state before the thread runs anything: the thread's own mask, its vector
    /// state, and its restartable sequences.
    pub(super) fn complete(&mut self, tracee: &Tracee, mask: u64) -> Result<(), InjectError> {
        self.saved.mask = mask;
        let raw = tracee.xstate().map_err(|e| system("NT_X86_XSTATE", &e))?;
        self.saved.xstate = arch::frame_xstate(&raw).ok_or_else(|| InjectError::BadPlan {
            reason: "the processor has no XSAVE state, which signal frames need".to_owned(),
        })?;
        self.saved.vectors = raw;
        // A thread in a call is not inside a sequence.
        if self.interrupted == Interrupted::User
            && let Some(abort) = restartable_sequence::abort(tracee, self.saved.registers.rip)
        {
            self.saved.registers.rip = abort;
            self.touched = true;
        }
        Ok(())
    }

    /// Issues an interrupted sleep again, because a filter forbids the call with which the kernel
    /// would restart the sleep. The sleep may then last longer.
    pub(super) fn forgo_restart(&mut self) {
        if self.interrupted == Interrupted::RestartBlock {
            self.saved.registers = arch::issued_again(&self.saved.registers);
            self.interrupted = Interrupted::User;
            self.touched = true;
        }
    }
}

/// Returns the registers of a stopped thread; `None` if it runs 32-bit code.
///
/// On a busy machine, a thread that was released lately may stop again just before it continues its
/// call from the restart block. It counts as a thread in that call: any `rt_sigreturn` would drop
/// the restart block, and the call would fail with EINTR.
pub(super) fn registers_at_stop(tracee: &Tracee) -> io::Result<Option<Registers>> {
    let Some(registers) = tracee.registers()? else { return Ok(None) };
    let continues = arch::continues_call(&registers) && is_at_call(tracee, registers.rip)?;
    Ok(Some(if continues { arch::before_continuation(&registers) } else { registers }))
}

/// Whether the instruction at this address makes a system call.
fn is_at_call(tracee: &Tracee, address: u64) -> io::Result<bool> {
    let mut code = [0; arch::SYSCALL.len()];
    match tracee.read(address, &mut code) {
        Ok(()) => Ok(code == arch::SYSCALL),
        // Nothing can be executed there.
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(false),
        Err(error) => Err(error),
    }
}
