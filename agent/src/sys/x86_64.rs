//! The x86_64 parts: the system call instruction, the thread pointer, the signal frame.
//!
//! # Safety
//! This module wraps `syscall` and `rdfsbase`. The frame types mirror the kernel's.

use traceprof_abi::unwind::Registers;

pub use traceprof_abi::calls::nr;

/// Makes a system call with up to four arguments. Negative results are negated errnos.
///
/// # Safety
/// The call must be sound with these arguments.
pub unsafe fn syscall4(number: u64, arguments: [u64; 4]) -> i64 {
    let result: i64;
    // SAFETY: `syscall` clobbers rcx and r11 and nothing else. The caller promises that the call is
    // sound.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result
}

/// Returns the calling thread's thread pointer, or 0 if it has none.
///
/// # Safety
/// The kernel allows programs to use `rdfsbase`.
pub unsafe fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: reads a register; permitted by this function's contract.
    unsafe {
        core::arch::asm!("rdfsbase {}", out(reg) pointer, options(nomem, nostack, preserves_flags));
    }
    pointer
}

/// The part of the kernel's `ucontext` that the handler reads.
#[repr(C)]
#[derive(Debug)]
pub struct UserContext {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    /// r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags, then registers that the
    /// handler does not read.
    gregs: [u64; 23],
    fpstate: u64,
    reserved: [u64; 8],
    /// The signals that were blocked when the signal arrived.
    pub signal_mask: u64,
}
const _: () = assert!(core::mem::offset_of!(UserContext, signal_mask) == 296);

impl UserContext {
    /// Returns the interrupted registers, in DWARF order.
    pub fn registers(&self) -> Registers {
        let [r8, r9, r10, r11, r12, r13, r14, r15, ..] = self.gregs;
        let [.., rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, _, _, _, _, _, _] = self.gregs;
        Registers {
            pc: rip,
            sp: rsp,
            fp: rbp,
            gpr: [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15],
        }
    }
}
