//! Waits for state changes of traced threads.
//!
//! # Safety
//! One system call, on values that this module owns.
#![allow(unsafe_code, reason = "sigtimedwait with a time limit")]

use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

/// Sleeps until a child changes state, or until the deadline.
///
/// The tracer blocks every signal, so SIGCHLD stays pending until this call takes it. The call
/// sleeps in short slices: a SIGCHLD may be merged with another one, or another thread may take it.
pub(in crate::inject) fn await_child(deadline: Instant) {
    const SLICE: Duration = Duration::from_millis(2);
    let left = deadline.saturating_duration_since(Instant::now()).min(SLICE);
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut set = SigSet::empty();
    set.add(Signal::SIGCHLD);
    // SAFETY: reads the set and the timeout, writes nothing.
    unsafe { libc::sigtimedwait(set.as_ref(), std::ptr::null_mut(), &timeout) };
}

/// Gives the interrupted threads time to stop, without waking up for each of them.
///
/// A tracer with real-time priority, such as a guardian, would take the processor from the next
/// thread each time it wakes up. That was half of the time for which a hundred threads were held.
pub(in crate::inject) fn await_children(how_many: usize, deadline: Instant) {
    /// Time that a thread takes to stop, including the switch to the next one.
    const EACH: Duration = Duration::from_micros(2);
    /// The shortest pause that is worth a timer.
    const LEAST: Duration = Duration::from_micros(20);
    const MOST: Duration = Duration::from_micros(100);
    let pause = EACH.saturating_mul(u32::try_from(how_many).unwrap_or(u32::MAX)).min(MOST);
    if pause < LEAST {
        return await_child(deadline);
    }
    std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
}
