//! System calls without a libc, and the kernel's structures that the handler is given.
//!
//! # Safety
//! The calls here either touch no memory of ours, or name in their contract what they touch.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// The kernel's `struct sigaction`: handler, flags, restorer, mask.
pub type KernelSigaction = [u64; 4];

/// The disposition "default" in the handler word.
pub const SIG_DFL: u64 = 0;
/// The disposition "ignore" in the handler word.
pub const SIG_IGN: u64 = 1;
/// `SA_SIGINFO | SA_RESTORER | SA_ONSTACK | SA_RESTART`.
pub const SA_FLAGS: u64 = 4 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000;
/// `SA_RESETHAND`.
pub const SA_RESETHAND: u64 = 0x8000_0000;
/// `SA_NODEFER`.
pub const SA_NODEFER: u64 = 0x4000_0000;
/// `SA_RESTORER`.
pub const SA_RESTORER: u64 = 0x0400_0000;
/// `si_code` of a perf event with `sigtrap`.
pub const TRAP_PERF: i32 = 6;
/// `si_perf_flags`: the signal had been blocked.
pub const TRAP_PERF_FLAG_ASYNC: u32 = 1;

/// The kernel's `siginfo_t` as a perf event fills it.
#[repr(C)]
#[derive(Debug)]
pub struct SigInfo {
    /// Signal number.
    pub signo: i32,
    /// Unused by perf.
    pub errno: i32,
    /// Origin of the signal.
    pub code: i32,
    padding: i32,
    /// Address of the hit.
    pub addr: u64,
    /// The event's `sig_data`.
    pub perf_data: u64,
    /// The event's type.
    pub perf_type: u32,
    /// [`TRAP_PERF_FLAG_ASYNC`].
    pub perf_flags: u32,
    rest: [u64; 11],
}
const _: () = assert!(size_of::<SigInfo>() == 128);
const _: () = assert!(core::mem::offset_of!(SigInfo, perf_data) == 24);

/// Kernel thread id of the caller.
pub fn gettid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { syscall4(nr::GETTID, [0; 4]) as u32 }
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_ns(1)
}

fn clock_ns(clock: u64) -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: `time` has the layout of a timespec and lives across the call.
    unsafe { syscall4(nr::CLOCK_GETTIME, [clock, time.as_mut_ptr() as u64, 0, 0]) };
    time[0].wrapping_mul(1_000_000_000).wrapping_add(time[1])
}

/// True if the eight bytes at `avma` can be read. `rt_sigprocmask` copies the set in before it
/// looks at `how`: EINVAL says readable, EFAULT not (the probe that LLVM's libunwind uses).
pub fn readable(avma: u64) -> bool {
    const EFAULT: i64 = -14;
    // SAFETY: with this `how` the call reads eight bytes and changes nothing.
    let result = unsafe { syscall4(nr::RT_SIGPROCMASK, [u64::from(u32::MAX), avma, 0, 8]) };
    result != EFAULT
}

/// Sets the calling thread's signal mask.
pub fn set_signal_mask(mask: u64) {
    const SIG_SETMASK: u64 = 2;
    // SAFETY: the call reads eight bytes of a live local.
    unsafe { syscall4(nr::RT_SIGPROCMASK, [SIG_SETMASK, &raw const mask as u64, 0, 8]) };
}

/// Changes a signal's disposition and returns the negated errno, or 0.
///
/// # Safety
/// A handler in `new` is mapped and obeys the kernel's calling convention for as long as it stays
/// installed.
pub unsafe fn sigaction(signal: i32, new: &KernelSigaction, old: &mut KernelSigaction) -> i64 {
    let arguments =
        [signal as u64, new.as_ptr() as u64, old.as_mut_ptr() as u64, size_of::<u64>() as u64];
    // SAFETY: both pointers are to live structures of the kernel's layout; the rest is promised.
    unsafe { syscall4(nr::RT_SIGACTION, arguments) }
}

/// Reads a signal's disposition and returns the negated errno, or 0.
pub fn query_sigaction(signal: i32, old: &mut KernelSigaction) -> i64 {
    let arguments = [signal as u64, 0, old.as_mut_ptr() as u64, size_of::<u64>() as u64];
    // SAFETY: the call writes one structure of the kernel's layout and changes nothing.
    unsafe { syscall4(nr::RT_SIGACTION, arguments) }
}

/// Queues a signal with its original information to the calling thread.
pub fn requeue(signal: i32, info: &SigInfo) {
    // SAFETY: touches no memory.
    let pid = unsafe { syscall4(nr::GETPID, [0; 4]) } as u64;
    let tid = u64::from(gettid());
    // SAFETY: the call reads the 128 bytes of `info`.
    unsafe {
        syscall4(nr::RT_TGSIGQUEUEINFO, [pid, tid, signal as u64, &raw const *info as u64]);
    }
}
