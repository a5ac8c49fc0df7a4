//! Timers and signals that a thread sends to itself.

use std::io;

/// The part of the kernel's `siginfo_t` that the handler reads, for a timer's or a queued signal.
#[repr(C)]
pub(crate) struct Info {
    signo: i32,
    errno: i32,
    code: i32,
    padding: i32,
    sender: i32,
    /// Number of a timer's further expiries.
    overrun: i32,
    /// The value that the signal carries.
    pub(crate) value: u64,
    rest: [u64; 12],
}
const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>());

impl Info {
    /// Returns the number of expiries that this signal stands for, or 0 if the signal was queued.
    pub(crate) fn expiries(&self) -> u64 {
        if self.code == libc::SI_TIMER { 1 + u64::from(self.overrun.unsigned_abs()) } else { 0 }
    }
}

/// A signal handler.
pub(crate) type Handler = extern "C" fn(i32, &Info, *const libc::c_void);

/// Installs a handler that its own signal may interrupt.
pub(crate) fn install(signal: i32, handler: Handler) {
    // SAFETY: zero bytes are a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: the handler has the kernel's signature and is never removed.
    let result = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Sends a signal to the calling thread. The thread handles it before this returns, unless it is
/// blocked.
pub(crate) fn send_to_self(signal: i32, value: u64) {
    let pid = std::process::id() as i32;
    // SAFETY: touches no memory.
    let tid = unsafe { libc::gettid() };
    let code = libc::SI_QUEUE;
    let rest = [0; 12];
    let info =
        Info { signo: signal, errno: 0, code, padding: 0, sender: pid, overrun: 0, value, rest };
    // SAFETY: the call reads the structure, which has the kernel's size.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, &raw const info) };
}

/// A running timer of the thread that created it.
pub(crate) struct Timer(libc::timer_t);

impl Timer {
    /// Starts a timer that signals the calling thread in each interval.
    pub(crate) fn start(signal: i32, value: u64, interval_ns: i64) -> Self {
        // SAFETY: zero bytes are a valid sigevent.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        event.sigev_value.sival_ptr = value as *mut libc::c_void;
        // SAFETY: touches no memory.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer = std::ptr::null_mut();
        // SAFETY: both are live structures of the library's layout.
        let made =
            unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        assert_eq!(made, 0, "{}", io::Error::last_os_error());
        let interval = libc::timespec { tv_sec: 0, tv_nsec: interval_ns };
        let setting = libc::itimerspec { it_interval: interval, it_value: interval };
        // SAFETY: the timer exists, and the call only reads the setting.
        let set =
            unsafe { libc::timer_settime(timer, 0, &raw const setting, std::ptr::null_mut()) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        Self(timer)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer exists until here.
        unsafe { libc::timer_delete(self.0) };
    }
}
