//! The x86_64 parts: the system call instruction, the thread pointer, the signal frame.
//!
//! # Safety
//! This module wraps `syscall` and `rdfsbase`, and switches the stack. The frame types mirror the
//! kernel's.

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

/// Calls `function` with `argument` on the stack that ends at `top`, or on the current one if `top`
/// is null. Its unwind information leads back to the caller's stack.
///
/// # Safety
/// `function` is an `extern "C"` function that takes `argument`. `top` is null or a multiple of 16,
/// and nothing else uses the memory below it, as far as the call needs it, until the call returns.
#[unsafe(naked)]
pub unsafe extern "C" fn call_on(top: *const u8, argument: *const u8, function: *const ()) {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "test rdi, rdi",
        "cmovnz rsp, rdi",
        "mov rdi, rsi",
        "call rdx",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
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
