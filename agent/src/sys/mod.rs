//! System calls without a libc, and the kernel's structures that a handler gets.
//!
//! # Safety
//! The calls either touch no memory of the process, or their contract names the memory that they
//! touch.

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
/// `si_perf_flags`: the signal was blocked.
pub const TRAP_PERF_FLAG_ASYNC: u32 = 1;

/// `si_code` of a signal sent by `kill`.
pub const SI_USER: i32 = 0;

/// The kernel's `siginfo_t` as a perf event fills it. In place of the address, a timer has its id
/// and its overruns, and a queued signal has its sender. The value is at the same offset in all
/// three.
#[repr(C)]
#[derive(Debug)]
pub struct SigInfo {
    /// Signal number.
    pub signo: i32,
    /// Unused by perf events.
    pub errno: i32,
    /// Origin of the signal: a value of `si_code`.
    pub code: i32,
    padding: i32,
    /// Address at the expiry, or the timer's id and overruns, or the signal's sender.
    pub origin: u64,
    /// The event's `sig_data`, or the value of the timer or the queued signal.
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
    /// Whether the kernel had no memory for the signal's information. The signal then looks as if
    /// process 0 had sent it.
    pub fn is_info_lost(&self) -> bool {
        self.code == SI_USER && self.origin == 0
    }

    /// Returns the id of the timer that sent the signal.
    pub fn timer(&self) -> i32 {
        self.origin as u32 as i32
    }

    /// Returns the number of further expiries since the kernel queued the timer's signal.
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
    /// The value that the signal carries.
    pub value: u64,
    /// CPU time between two expiries, in nanoseconds.
    pub period_ns: u64,
}

impl ThreadTimer {
    /// Creates and starts the timer. Returns its id or an errno.
    pub fn arm(&self, first_ns: u64) -> Result<i32, u32> {
        const SIGEV_THREAD_ID: u32 = 4;
        let (tid, rest) = (self.tid, [0; 11]);
        let event =
            SigEvent { value: self.value, signo: self.signal, notify: SIGEV_THREAD_ID, tid, rest };
        let mut timer = 0i32;
        // The CPU clock of one thread, in the kernel's encoding: 4 for a thread, 2 for the
        // scheduler's exact time.
        let clock = i64::from((!tid << 3 | 6) as i32) as u64;
        // SAFETY: the call reads the event and writes the id. Both live across the call.
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

/// Restarts a timer: it first expires after `first_ns` and then every `period_ns`. Returns 0 or an
/// errno.
pub fn timer_set(timer: i32, first_ns: u64, period_ns: u64) -> u32 {
    let timespec = |ns: u64| [ns / 1_000_000_000, ns % 1_000_000_000];
    let setting = [timespec(period_ns), timespec(first_ns)];
    // SAFETY: the call reads the setting, which has the layout of an itimerspec and lives across
    // the call.
    let set =
        unsafe { syscall4(nr::TIMER_SETTIME, [timer as u64, 0, &raw const setting as u64, 0]) };
    set.unsigned_abs() as u32
}

/// Deletes a timer. An id that is not a timer is harmless.
pub fn timer_delete(timer: i32) {
    // SAFETY: touches no memory.
    unsafe { syscall4(nr::TIMER_DELETE, [timer as u64, 0, 0, 0]) };
}

/// Returns the process id of the caller.
pub fn getpid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { syscall4(nr::GETPID, [0; 4]) as u32 }
}

/// Returns the kernel's thread id of the caller.
pub fn gettid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { syscall4(nr::GETTID, [0; 4]) as u32 }
}

/// Returns CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_ns(1)
}

fn clock_ns(clock: u64) -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: `time` has the layout of a timespec and lives across the call.
    unsafe { syscall4(nr::CLOCK_GETTIME, [clock, time.as_mut_ptr() as u64, 0, 0]) };
    time[0].wrapping_mul(1_000_000_000).wrapping_add(time[1])
}

/// Whether the eight bytes at `avma` are readable. `rt_sigprocmask` copies the set before it checks
/// `how`: EINVAL means readable, EFAULT means not readable (LLVM's libunwind uses this probe). The
/// null address means no set, which the call accepts.
pub fn readable(avma: u64) -> bool {
    const EFAULT: i64 = -14;
    // SAFETY: with this `how` the call reads eight bytes and changes nothing.
    let result = unsafe { syscall4(nr::RT_SIGPROCMASK, [u64::from(u32::MAX), avma, 0, 8]) };
    result != EFAULT && avma != 0
}

/// Whether a signal's default action does nothing (SIGCHLD, SIGCONT, SIGURG, SIGWINCH). SIGCONT has
/// its effect when it is sent.
pub fn is_ignored_by_default(signal: i32) -> bool {
    matches!(signal, 17 | 18 | 23 | 28)
}

/// Changes a signal's disposition and returns the negated errno, or 0.
///
/// # Safety
/// A handler in `new` is mapped and follows the kernel's calling convention as long as it stays
/// installed.
pub unsafe fn sigaction(signal: i32, new: &KernelSigaction, old: &mut KernelSigaction) -> i64 {
    let arguments =
        [signal as u64, new.as_ptr() as u64, old.as_mut_ptr() as u64, size_of::<u64>() as u64];
    // SAFETY: both pointers point to live structures of the kernel's layout. The caller promises
    // that the handler is valid.
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
