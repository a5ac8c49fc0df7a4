//! Timers and signals that a thread aims at itself.

use std::io;

/// What the kernel tells the handler of a timer's or a queued signal, as far as it is read here.
#[repr(C)]
pub(crate) struct Info {
    signo: i32,
    errno: i32,
    code: i32,
    padding: i32,
    sender: i32,
    /// Of a timer: how often it expired besides.
    overrun: i32,
    /// What was to be passed on.
    pub(crate) value: u64,
    rest: [u64; 12],
}
const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>());

impl Info {
    /// How often the timer expired for this signal; 0 for one that was queued.
    pub(crate) fn expirations(&self) -> u64 {
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

/// Sends the calling thread a signal, which it takes before this returns if it is not blocked.
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

/// A running timer of the thread that made it.
pub(crate) struct Timer(libc::timer_t);

impl Timer {
    /// Starts one that signals the calling thread so often.
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
        // SAFETY: the timer exists, and the setting is read only.
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
