//! x86-64: registers, signal frames, instruction patterns, call classes.
//!
//! # Invariants
//! - All functions are pure: nothing here stops, reads or writes a process.
//! - A frame that is made here names a full XSAVE image: without one, the kernel resets the vector
//!   state.

use std::mem::offset_of;

use traceprof_abi::unwind;

use crate::inject::syscall::Syscall;

/// The registers of `NT_PRSTATUS`.
pub(in crate::inject) type Registers = libc::user_regs_struct;

/// Bytes of a `struct ucontext` with the kernel's 8-byte signal mask.
pub(in crate::inject) const UCONTEXT_LEN: usize = 304;
/// The number of bytes below the stack pointer that a leaf function may use.
pub(in crate::inject) const RED_ZONE: u64 = 128;
/// Alignment of the vector state's image.
pub(in crate::inject) const XSTATE_ALIGN: u64 = 64;
/// `e_machine` of the supported targets.
pub(in crate::inject) const MACHINE: u16 = 62;
/// `syscall`.
pub(in crate::inject) const SYSCALL: &[u8] = &[0x0f, 0x05];
/// `syscall; ret`.
pub(in crate::inject) const SYSCALL_RETURN: &[u8] = &[0x0f, 0x05, 0xc3];
/// `mov $15, %rax; syscall` (glibc, musl) and `mov $15, %eax; syscall` (Go, our agent).
pub(in crate::inject) const RESTORERS: [&[u8]; 2] =
    [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];

const USER_CODE_64: u64 = 0x33;
const USER_STACK: u64 = 0x2b;
const TRAP_FLAG: u64 = 0x100;
const DIRECTION_FLAG: u64 = 0x400;
/// UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS.
const UC_FLAGS: u64 = 7;
/// Flags of an alternate stack that the kernel refuses; `rt_sigreturn` ignores that refusal and
/// keeps the thread's own alternate stack. That stack is not readable from outside, so a frame
/// could not restore it.
const SS_FLAGS_INVALID: u32 = 0x7fff_ffff;
const MCONTEXT: usize = 40;
const SIGMASK: usize = 296;
/// Length of the syscall instruction.
const SYSCALL_LEN: u64 = 2;

/// Returns the program counter and the stack pointer of each signal frame in the words of a stack:
/// where the signal interrupted 64-bit code.
///
/// The kernel stores the four segment registers as one word, two words above the program counter. A
/// virtual machine monitor may have its own bits in their upper halves.
pub(in crate::inject) fn interruptions(
    words: impl Iterator<Item = u64>,
) -> impl Iterator<Item = (u64, u64)> {
    const KNOWN_BITS: u64 = 0x0fff_ffff_ffff_0fff;
    let mut last = [0; 3];
    words.filter_map(move |word| {
        let [sp, pc, flags] = last;
        last = [pc, flags, word];
        (word & KNOWN_BITS == USER_STACK << 48 | USER_CODE_64).then_some((pc, sp))
    })
}

/// The state that a stop interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::inject) enum Interrupted {
    /// User code, or a system call that had finished.
    User,
    /// A system call that restarts from its arguments.
    Restartable,
    /// A system call that continues from the kernel's restart block, which any `rt_sigreturn`
    /// drops.
    RestartBlock,
    /// A system call that fails with EINTR although no signal came, before or after its repair.
    Broken,
}

/// Whether the thread executes 64-bit code with the flat selectors.
pub(in crate::inject) fn is_native(registers: &Registers) -> bool {
    registers.cs == USER_CODE_64
}

/// Returns the state that the stop interrupted, from the registers at the stop.
pub(in crate::inject) fn interrupted(registers: &Registers) -> Interrupted {
    if (registers.orig_rax as i64) < 0 {
        return Interrupted::User;
    }
    match -(registers.rax as i64) {
        // EINTR, ERESTARTNOHAND.
        4 | 514 if is_broken_by_stop(registers.orig_rax) => Interrupted::Broken,
        // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND.
        512..=514 => Interrupted::Restartable,
        516 => Interrupted::RestartBlock,
        _ => Interrupted::User,
    }
}

/// Whether the registers at a system call instruction continue a call from the kernel's restart
/// block.
pub(in crate::inject) fn continues_call(registers: &Registers) -> bool {
    is_native(registers) && registers.rax as i64 == libc::SYS_restart_syscall
}

/// Returns the registers of a thread that continues a call, from before the kernel changed them for
/// it. The kernel makes the same change again when the thread continues.
pub(in crate::inject) fn before_continuation(registers: &Registers) -> Registers {
    const ERESTART_RESTARTBLOCK: u64 = 516;
    let mut before = *registers;
    before.rax = ERESTART_RESTARTBLOCK.wrapping_neg();
    before.rip += SYSCALL_LEN;
    if (registers.orig_rax as i64) < 0 {
        // The thread was on its way from user code, and the call's number is lost.
        before.orig_rax = registers.rax;
    }
    before
}

/// Returns the call that the stop interrupted, and its arguments.
pub(in crate::inject) fn interrupted_call(registers: &Registers) -> Option<(u64, [u64; 6])> {
    let r = registers;
    match interrupted(r) {
        Interrupted::User => None,
        _ => Some((r.orig_rax, [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9])),
    }
}

/// Returns the registers in the order of the stack unwinder.
pub(in crate::inject) fn general(registers: &Registers) -> unwind::Registers {
    let r = registers;
    unwind::Registers {
        pc: r.rip,
        sp: r.rsp,
        fp: r.rbp,
        gpr: [
            r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15,
        ],
    }
}

/// Returns the thread pointer.
pub(in crate::inject) fn thread_pointer(registers: &Registers) -> u64 {
    registers.fs_base
}

/// Returns the registers to continue with where the kernel has no restart left to decide: an
/// interrupted call is issued again.
pub(in crate::inject) fn resumed(registers: &Registers) -> Registers {
    let mut resumed = *registers;
    match interrupted(registers) {
        Interrupted::User => {}
        // A chain drops the restart block, so the call starts again and waits for its full time
        // again. A call that was restarted once before has lost its number, and fails with EINTR.
        Interrupted::Restartable | Interrupted::Broken | Interrupted::RestartBlock => {
            return issued_again(registers);
        }
    }
    resumed.orig_rax = u64::MAX;
    resumed
}

/// Returns the registers that issue an interrupted call again from its start.
pub(in crate::inject) fn issued_again(registers: &Registers) -> Registers {
    let mut again = *registers;
    again.rax = registers.orig_rax;
    again.rip -= SYSCALL_LEN;
    again.orig_rax = u64::MAX;
    again
}

/// Returns the registers that leave a broken call to the kernel. The kernel ends the call with
/// EINTR if a handler runs when the thread continues, and restarts it otherwise.
pub(in crate::inject) fn left_to_kernel(registers: &Registers) -> Registers {
    const ERESTARTNOHAND: u64 = 514;
    let mut left_to_kernel = *registers;
    left_to_kernel.rax = ERESTARTNOHAND.wrapping_neg();
    left_to_kernel
}

/// Whether this call fails with EINTR after a mere stop, so that it must be issued again. The call
/// has transferred nothing by then. Measured for epoll, sigtimedwait, semop and sockets with a
/// timeout.
fn is_broken_by_stop(number: u64) -> bool {
    const BROKEN: [i64; 19] = [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_io_getevents,
        libc::SYS_io_uring_enter,
    ];
    BROKEN.contains(&(number as i64))
}

/// Returns the degree to which a chain disturbs a thread that sleeps in this call; 0 is best.
pub(in crate::inject) fn sleep_rank(number: u64, args: &[u64; 6]) -> u8 {
    const FUTEX_TIMEOUT: usize = 3;
    match number as i64 {
        libc::SYS_nanosleep
        | libc::SYS_clock_nanosleep
        | libc::SYS_poll
        | libc::SYS_restart_syscall => RANK_RESTART_BLOCK,
        libc::SYS_futex if args[FUTEX_TIMEOUT] != 0 => RANK_RESTART_BLOCK,
        libc::SYS_epoll_wait
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2
        | libc::SYS_rt_sigtimedwait
        | libc::SYS_semop
        | libc::SYS_semtimedop
        | libc::SYS_io_getevents
        | libc::SYS_io_uring_enter => 2,
        _ => 0,
    }
}
/// Rank of a thread that sleeps with a restart block.
pub(in crate::inject) const RANK_RESTART_BLOCK: u8 = 3;

/// Returns the result of a system call at its exit.
pub(in crate::inject) fn result(registers: &Registers) -> i64 {
    registers.rax as i64
}

/// Returns the registers of a thread that is about to make a call at `instruction`.
pub(in crate::inject) fn calling(
    registers: &Registers,
    instruction: u64,
    call: &Syscall,
    sp: u64,
) -> Registers {
    let mut calling = at(registers, instruction, sp);
    calling.rax = call.number as u64;
    [calling.rdi, calling.rsi, calling.rdx, calling.r10, calling.r8, calling.r9] = call.args;
    calling
}

/// Returns the registers that replace a system call by another one at its entry.
pub(in crate::inject) fn instead(registers: &Registers, call: &Syscall) -> Registers {
    let mut instead = *registers;
    instead.orig_rax = call.number as u64;
    [instead.rdi, instead.rsi, instead.rdx, instead.r10, instead.r8, instead.r9] = call.args;
    instead
}

/// Returns the registers of a thread that is about to enter a function with one argument.
pub(in crate::inject) fn entering(
    registers: &Registers,
    entry: u64,
    argument: u64,
    sp: u64,
) -> Registers {
    let mut entering = at(registers, entry, sp);
    entering.rdi = argument;
    entering
}

/// Returns the registers of a thread that is about to return from a signal whose frame is at
/// `ucontext`.
pub(in crate::inject) fn returning(
    registers: &Registers,
    restorer: u64,
    ucontext: u64,
) -> Registers {
    at(registers, restorer, ucontext)
}

fn at(registers: &Registers, rip: u64, rsp: u64) -> Registers {
    let mut moved = *registers;
    moved.rip = rip;
    moved.rsp = rsp;
    // The thread is outside of a system call. Otherwise the kernel would move rip back by one
    // instruction.
    moved.orig_rax = u64::MAX;
    moved.eflags &= !(TRAP_FLAG | DIRECTION_FLAG);
    moved
}

/// Whether a stop at a system call's entry is this `rt_sigreturn`.
pub(in crate::inject) fn is_sigreturn(registers: &Registers, ucontext: u64) -> bool {
    registers.orig_rax as i64 == libc::SYS_rt_sigreturn && registers.rsp == ucontext
}

/// Returns the `struct ucontext` that makes `rt_sigreturn` load these registers, mask and vector
/// state.
pub(in crate::inject) fn ucontext(
    registers: &Registers,
    mask: u64,
    xstate: u64,
) -> [u8; UCONTEXT_LEN] {
    let mut out = [0; UCONTEXT_LEN];
    let mut put = |offset: usize, value: u64| {
        out[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    };
    put(0, UC_FLAGS);
    put(24, u64::from(SS_FLAGS_INVALID));
    let general = [
        registers.r8,
        registers.r9,
        registers.r10,
        registers.r11,
        registers.r12,
        registers.r13,
        registers.r14,
        registers.r15,
        registers.rdi,
        registers.rsi,
        registers.rbp,
        registers.rbx,
        registers.rdx,
        registers.rax,
        registers.rcx,
        registers.rsp,
        registers.rip,
        registers.eflags,
    ];
    for (index, value) in general.into_iter().enumerate() {
        put(MCONTEXT + index * 8, value);
    }
    put(MCONTEXT + 144, (registers.cs & 0xffff) | (registers.ss & 0xffff) << 48);
    put(MCONTEXT + 184, xstate);
    put(SIGMASK, mask);
    out
}

/// Converts the `NT_X86_XSTATE` register set to the image that a signal frame points to.
pub(in crate::inject) fn frame_xstate(regset: &[u8]) -> Option<Vec<u8>> {
    const SW_RESERVED: usize = 464;
    const HEADER: usize = 512;
    const MINIMUM: usize = 576;
    const MAGIC1: u32 = 0x4650_5853;
    const MAGIC2: u32 = 0x4650_5845;
    const TILE_DATA: u64 = 1 << 18;
    if regset.len() < MINIMUM {
        return None;
    }
    let word = |at: usize| {
        regset[at..at + 8].iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
    };
    let enabled = word(SW_RESERVED);
    // A task that never used AMX has no room for tiles. The kernel drops the complete vector state
    // of a frame that claims more than the task has room for.
    let (features, len) = match word(HEADER) & TILE_DATA {
        0 => (enabled & !TILE_DATA, extent(enabled & !TILE_DATA).min(regset.len())),
        _ => (enabled, regset.len()),
    };
    let mut image = regset[..len].to_vec();
    image[SW_RESERVED..HEADER].fill(0);
    image[SW_RESERVED..SW_RESERVED + 4].copy_from_slice(&MAGIC1.to_le_bytes());
    image[SW_RESERVED + 4..SW_RESERVED + 8].copy_from_slice(&(len as u32 + 4).to_le_bytes());
    image[SW_RESERVED + 8..SW_RESERVED + 16].copy_from_slice(&features.to_le_bytes());
    image[SW_RESERVED + 16..SW_RESERVED + 20].copy_from_slice(&(len as u32).to_le_bytes());
    image.extend_from_slice(&MAGIC2.to_le_bytes());
    Some(image)
}

/// Returns the end of the last of these features in the standard XSAVE layout, as the processor
/// reports it.
fn extent(features: u64) -> usize {
    (2..63)
        .filter(|feature| features >> feature & 1 == 1)
        .map(|feature| {
            let leaf = std::arch::x86_64::__cpuid_count(0xd, feature);
            (leaf.eax + leaf.ebx) as usize
        })
        .fold(576, usize::max)
}

/// The length of [`Registers`] as a register set.
pub(in crate::inject) const REGISTERS_LEN: usize = size_of::<Registers>();
const _: () = assert!(REGISTERS_LEN == 216);
const _: () = assert!(offset_of!(Registers, orig_rax) == 120);

/// Returns the registers in which a program keeps values.
pub(in crate::inject) fn words(registers: &Registers) -> [u64; 17] {
    let Registers { rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, rip, .. } = *registers;
    let Registers { r8, r9, r10, r11, r12, r13, r14, r15, .. } = *registers;
    [rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, rip, r8, r9, r10, r11, r12, r13, r14, r15]
}

/// Returns registers that are all zero.
pub(in crate::inject) const fn zeroed() -> Registers {
    Registers {
        r15: 0,
        r14: 0,
        r13: 0,
        r12: 0,
        rbp: 0,
        rbx: 0,
        r11: 0,
        r10: 0,
        r9: 0,
        r8: 0,
        rax: 0,
        rcx: 0,
        rdx: 0,
        rsi: 0,
        rdi: 0,
        orig_rax: 0,
        rip: 0,
        cs: 0,
        eflags: 0,
        rsp: 0,
        ss: 0,
        fs_base: 0,
        gs_base: 0,
        ds: 0,
        es: 0,
        fs: 0,
        gs: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped_in(number: i64, result: i64) -> Registers {
        let mut registers = zeroed();
        registers.rip = 0x1002;
        registers.rax = result as u64;
        registers.orig_rax = number as u64;
        registers
    }

    #[test]
    fn interrupted_calls_are_distinguished() {
        let check = |number, result, expected| {
            assert_eq!(interrupted(&stopped_in(number, result)), expected);
        };
        check(libc::SYS_read, -512, Interrupted::Restartable);
        check(libc::SYS_nanosleep, -516, Interrupted::RestartBlock);
        check(libc::SYS_epoll_wait, -4, Interrupted::Broken);
        check(libc::SYS_epoll_wait, -514, Interrupted::Broken);
        check(libc::SYS_pause, -514, Interrupted::Restartable);
        check(libc::SYS_connect, -4, Interrupted::User);
        check(libc::SYS_read, 5, Interrupted::User);
        check(-1, -512, Interrupted::User);
    }

    #[test]
    fn resumed_registers_issue_the_call_again() {
        let again = resumed(&stopped_in(libc::SYS_read, -512));
        assert_eq!((again.rax as i64, again.rip, again.orig_rax), (0, 0x1000, u64::MAX));
        let waiting = left_to_kernel(&stopped_in(libc::SYS_epoll_wait, -4));
        assert_eq!((waiting.rax as i64, waiting.rip), (-514, 0x1002));
        let waiting = resumed(&waiting);
        assert_eq!((waiting.rax as i64, waiting.rip), (libc::SYS_epoll_wait, 0x1000));
        let sleeping = resumed(&stopped_in(libc::SYS_nanosleep, -516));
        assert_eq!((sleeping.rax as i64, sleeping.rip), (libc::SYS_nanosleep, 0x1000));
        let done = resumed(&stopped_in(libc::SYS_read, 7));
        assert_eq!((done.rax, done.rip), (7, 0x1002));
    }

    #[test]
    fn continued_call_is_known_by_its_number_if_there_is_one() {
        for (orig, number) in [(libc::SYS_poll, libc::SYS_poll), (-1, libc::SYS_restart_syscall)] {
            let continued = Registers { cs: USER_CODE_64, ..stopped_in(orig, 219) };
            assert!(continues_call(&continued));
            let before = before_continuation(&continued);
            assert_eq!(interrupted(&before), Interrupted::RestartBlock);
            assert_eq!((before.orig_rax as i64, before.rip), (number, 0x1004));
            let again = resumed(&before);
            assert_eq!((again.rax as i64, again.rip), (number, 0x1002));
        }
    }

    #[test]
    fn image_carries_its_sizes_and_marks() {
        let mut regset = vec![0u8; 1000];
        regset[464] = 3;
        let image = frame_xstate(&regset).unwrap();
        assert_eq!(image.len(), 576 + 4);
        assert_eq!(&image[464..468], b"SXPF");
        assert_eq!(image[468..472], 580u32.to_le_bytes());
        assert_eq!(&image[576..], b"EXPF");
        assert!(frame_xstate(&regset[..500]).is_none());
    }
}
