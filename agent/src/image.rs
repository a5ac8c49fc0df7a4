//! The parts that only the freestanding image has: the panic handler, `mem*`, and the three symbols
//! that the recorder resolves.
//!
//! # Safety
//! The entry points are naked functions. Everything that they call is ordinary Rust.

use core::arch::naked_asm;

use traceprof_abi::layout::{DATA_DISTANCE, TABLES_DISTANCE, TABLES_LEN};
use traceprof_abi::segment::DataSegment;
use traceprof_abi::unwind::Tables;

use crate::entry;
use crate::frame::Frame;
use crate::signal::{self, KEEPS_MASK, NextCall};
use crate::sys::{SigInfo, UserContext};

/// Unreachable: a test of the image shows that it contains no panic.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// Returns the start address of the image in this process.
fn base() -> u64 {
    let base: u64;
    // SAFETY: computes an address; the linker defines the symbol at the first byte.
    unsafe {
        core::arch::asm!("lea {}, [rip + __ehdr_start]", out(reg) base, options(nomem, nostack));
    }
    base
}

fn data(base: u64) -> DataSegment {
    // SAFETY: the recorder maps the data segment at this distance before it maps or calls anything
    // else, and unmaps it after the code.
    unsafe { DataSegment::new((base + DATA_DISTANCE) as *mut u8) }
}

/// The agent's entry, which the injection calls as a step of its chain.
#[unsafe(no_mangle)]
pub extern "C" fn traceprof_entry(op: u64) -> i64 {
    let own = entry::Addresses {
        entry: traceprof_entry as *const () as u64,
        handler: traceprof_handler as *const () as u64,
        restorer: traceprof_restorer as *const () as u64,
    };
    // SAFETY: all addresses are in this image, which stays mapped while they are installed.
    unsafe { entry::run(op, data(base()), own) }
}

/// Returns from a signal handler by `rt_sigreturn`. A tracer may run another call in its place, so
/// that the signal frame is kept, and may die before it has restored the registers. The loop then
/// repeats `rt_sigreturn`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn traceprof_restorer() {
    naked_asm!("2:", "mov eax, 15", "syscall", "jmp 2b")
}

/// The signal handler. It saves its three arguments, calls `on_signal`, and then returns, or goes
/// on in the previous handler with the same arguments on the same frame. Its unwind information
/// describes its frame, for readers of a thread that is inside.
///
/// All signals are blocked while it runs. One that comes meanwhile is delivered as soon as they are
/// not, and its handler would run on top of this one and return to it, after the detach perhaps. So
/// `rt_sigreturn` sets the previous handler's signal mask and calls that handler in one step. The
/// frame for it is below the kernel's and is not used again. It has no processor state, which the
/// kernel then initializes, as it does for every handler; and it has flags of an alternate stack
/// that do not exist, so that the kernel keeps the setting.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn traceprof_handler() {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "mov rcx, rsp",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "call {on_signal}",
        "mov rcx, rdx",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jnz 2f",
        "ret",
        "2:",
        "cmp rcx, {keeps_mask}",
        "jne 3f",
        "jmp rax",
        // The frame's `ucontext`: its flags, and those of the alternate stack.
        "3:",
        "mov r8, rsp",
        "pushfq",
        ".cfi_adjust_cfa_offset 8",
        "pop r9",
        ".cfi_adjust_cfa_offset -8",
        "xor r10d, r10d",
        "sub rsp, 304",
        ".cfi_adjust_cfa_offset 304",
        "mov [rsp], r10",
        "mov qword ptr [rsp + 24], 4",
        // r8 to r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags, the segments.
        "mov [rsp + 40], r10",
        "mov [rsp + 48], r10",
        "mov [rsp + 56], r10",
        "mov [rsp + 64], r10",
        "mov [rsp + 72], r12",
        "mov [rsp + 80], r13",
        "mov [rsp + 88], r14",
        "mov [rsp + 96], r15",
        "mov [rsp + 104], rdi",
        "mov [rsp + 112], rsi",
        "mov [rsp + 120], rbp",
        "mov [rsp + 128], rbx",
        "mov [rsp + 136], rdx",
        "mov [rsp + 144], r10",
        "mov [rsp + 152], r10",
        "mov [rsp + 160], r8",
        "mov [rsp + 168], rax",
        "mov [rsp + 176], r9",
        "mov r8d, cs",
        "mov r9d, ss",
        "shl r9, 48",
        "or r8, r9",
        "mov [rsp + 184], r8",
        // Three words that the kernel does not read, and no processor state. Then the mask.
        "mov [rsp + 224], r10",
        "mov [rsp + 296], rcx",
        // As in `traceprof_restorer`.
        "4:",
        "mov eax, 15",
        "syscall",
        "jmp 4b",
        ".cfi_endproc",
        on_signal = sym on_signal,
        keeps_mask = const KEEPS_MASK as i64,
    )
}

/// # Safety
/// The arguments are those of a signal handler. `return_slot` is the stack pointer at its entry.
unsafe extern "C" fn on_signal(
    signal: i32,
    info: *const SigInfo,
    context: *const UserContext,
    return_slot: *mut u64,
) -> NextCall {
    let base = base();
    let tables = (base + TABLES_DISTANCE) as *const u8;
    // SAFETY: the recorder maps the tables segment at this distance and length.
    let tables = unsafe { Tables::new(tables, TABLES_LEN as usize) };
    let restorer = traceprof_restorer as *const () as u64;
    // SAFETY: promised by the caller.
    match unsafe { Frame::of_call((signal, info, context), return_slot, restorer) } {
        Some(mut frame) => signal::on_signal(data(base), tables, &mut frame),
        None => signal::on_bare_call(data(base), signal),
    }
}

// The compiler may call these functions for its own copies. They are in assembly, because the
// compiler could turn a loop into a call of the function itself.

/// # Safety
/// As C's `memcpy`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memcpy(_to: *mut u8, _from: *const u8, _count: usize) -> *mut u8 {
    naked_asm!("mov rax, rdi", "mov rcx, rdx", "rep movsb", "ret")
}

/// # Safety
/// As C's `memmove`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memmove(_to: *mut u8, _from: *const u8, _count: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "mov rcx, rdx",
        "cmp rdi, rsi",
        "ja 2f",
        "rep movsb",
        "ret",
        "2:",
        "lea rdi, [rdi + rcx - 1]",
        "lea rsi, [rsi + rcx - 1]",
        "std",
        "rep movsb",
        "cld",
        "ret",
    )
}

/// # Safety
/// As C's `memset`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memset(_to: *mut u8, _value: i32, _count: usize) -> *mut u8 {
    naked_asm!("mov r8, rdi", "mov eax, esi", "mov rcx, rdx", "rep stosb", "mov rax, r8", "ret")
}

/// # Safety
/// As C's `memcmp`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn memcmp(_a: *const u8, _b: *const u8, _count: usize) -> i32 {
    naked_asm!(
        "xor eax, eax",
        "2:",
        "test rdx, rdx",
        "jz 3f",
        "movzx eax, byte ptr [rdi]",
        "movzx ecx, byte ptr [rsi]",
        "sub eax, ecx",
        "jnz 3f",
        "inc rdi",
        "inc rsi",
        "dec rdx",
        "jmp 2b",
        "3:",
        "ret",
    )
}
