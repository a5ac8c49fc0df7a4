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
/// `si_perf_flags`: the signal had been blocked.
pub const TRAP_PERF_FLAG_ASYNC: u32 = 1;

/// `si_code` of a signal sent by `kill`.
pub const SI_USER: i32 = 0;

/// The kernel's `siginfo_t` as a perf event fills it. A timer has its id and its overruns in place
/// of the address, a queued signal its sender; the value is at the same place in all three.
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
    /// Address of the hit, or who sent it.
    pub origin: u64,
    /// The event's `sig_data`, the timer's or the queued signal's value.
    pub value: u64,
    /// The event's type.
    pub perf_type: u32,
    /// [`TRAP_PERF_FLAG_ASYNC`].
    pub perf_flags: u32,
    rest: [u64; 11],
}
const _: () = assert!(size_of::<SigInfo>() == 128);
const _: () = assert!(core::mem::offset_of!(SigInfo, value) == 24);

impl SigInfo {
    /// The kernel had no memory to note what it is: as if process 0 had sent it.
    pub fn is_nameless(&self) -> bool {
        self.code == SI_USER && self.origin == 0
    }

    /// A timer's id.
    pub fn timer(&self) -> i32 {
        self.origin as u32 as i32
    }

    /// Periods that passed since a timer's signal was queued, besides the one that queued it.
    pub fn overruns(&self) -> u32 {
        // The kernel's counter is signed and does not go below zero.
        ((self.origin >> 32) as i32).max(0) as u32
    }
}

/// The kernel's `struct sigevent`.
#[repr(C)]
struct SigEvent {
    value: u64,
    signo: u32,
    notify: u32,
    tid: u32,
    rest: [u32; 11],
}
const _: () = assert!(size_of::<SigEvent>() == 64);

/// A timer on a thread's CPU time that signals that thread.
#[derive(Debug, Clone, Copy)]
pub struct ThreadTimer {
    /// The thread.
    pub tid: u32,
    /// The signal.
    pub signal: u32,
    /// What comes with it.
    pub value: u64,
    /// CPU time between two of them.
    pub period_ns: u64,
}

impl ThreadTimer {
    /// Creates and starts it; gives its id or an errno.
    pub fn arm(&self, first_ns: u64) -> Result<i32, u32> {
        const SIGEV_THREAD_ID: u32 = 4;
        let (tid, rest) = (self.tid, [0; 11]);
        let event =
            SigEvent { value: self.value, signo: self.signal, notify: SIGEV_THREAD_ID, tid, rest };
        let mut timer = 0i32;
        // The CPU clock of one thread, in the kernel's encoding: 4 for a thread's, 2 for the
        // scheduler's exact time.
        let clock = i64::from((!tid << 3 | 6) as i32) as u64;
        // SAFETY: reads the event and writes the id; both live across the call.
        let created = unsafe {
            syscall4(nr::TIMER_CREATE, [clock, &raw const event as u64, &raw mut timer as u64, 0])
        };
        if created != 0 {
            return Err(created.unsigned_abs() as u32);
        }
        let set = timer_set(timer, first_ns, self.period_ns);
        if set != 0 {
            timer_delete(timer);
            return Err(set);
        }
        Ok(timer)
    }
}

/// Starts a timer anew, to expire first after one time and then once in each of the other; 0 or an
/// errno.
pub fn timer_set(timer: i32, first_ns: u64, period_ns: u64) -> u32 {
    let timespec = |ns: u64| [ns / 1_000_000_000, ns % 1_000_000_000];
    let setting = [timespec(period_ns), timespec(first_ns)];
    // SAFETY: reads the setting, which has the layout of an itimerspec and lives across the call.
    let set =
        unsafe { syscall4(nr::TIMER_SETTIME, [timer as u64, 0, &raw const setting as u64, 0]) };
    set.unsigned_abs() as u32
}

/// Deletes a timer; one that is not there does no harm.
pub fn timer_delete(timer: i32) {
    // SAFETY: touches no memory.
    unsafe { syscall4(nr::TIMER_DELETE, [timer as u64, 0, 0, 0]) };
}

/// Process id of the caller.
pub fn getpid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { syscall4(nr::GETPID, [0; 4]) as u32 }
}

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
/// looks at `how`: EINVAL says readable, EFAULT not (the probe that LLVM's libunwind uses). No
/// address at all is no set, which it has nothing against.
pub fn readable(avma: u64) -> bool {
    const EFAULT: i64 = -14;
    // SAFETY: with this `how` the call reads eight bytes and changes nothing.
    let result = unsafe { syscall4(nr::RT_SIGPROCMASK, [u64::from(u32::MAX), avma, 0, 8]) };
    result != EFAULT && avma != 0
}

/// Sets the calling thread's signal mask.
pub fn set_signal_mask(mask: u64) {
    const SIG_SETMASK: u64 = 2;
    // SAFETY: the call reads eight bytes of a live local.
    unsafe { syscall4(nr::RT_SIGPROCMASK, [SIG_SETMASK, &raw const mask as u64, 0, 8]) };
}

/// A signal whose default action does nothing (SIGCHLD, SIGCONT, SIGURG, SIGWINCH; what SIGCONT
/// does is done when it is sent).
pub fn is_ignored_by_default(signal: i32) -> bool {
    matches!(signal, 17 | 18 | 23 | 28)
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
    let (pid, tid) = (u64::from(getpid()), u64::from(gettid()));
    // SAFETY: the call reads the 128 bytes of `info`.
    unsafe {
        syscall4(nr::RT_TGSIGQUEUEINFO, [pid, tid, signal as u64, &raw const *info as u64]);
    }
}
