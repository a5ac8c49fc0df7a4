//! Sampling signals that the tracer withholds from a thread, because their handler would end the
//! thread's call.
//!
//! The counts belong to the process, because threads are released in many places, also by `drop`. A
//! guardian adds them to the agent's counters. A capture in the target of another recording reports
//! them.

use traceprof_abi::layout::{AgentState, Counter};
use traceprof_abi::sync::Ordering;

use super::return_state::registers_at_stop;
use crate::inject::arch::{self, Interrupted};
use crate::inject::data_segment::AttachedData;
use crate::inject::ptrace::Tracee;

/// The number of withheld signals. Relaxed everywhere: plain counts; the tracing threads are joined
/// before they are read.
static SIGNALS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
/// The number of timer expiries that were folded into those signals.
static EXTRA_EXPIRIES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// Whether the signal that a thread has stopped for is a sampling signal. If so, this counts the
/// signal, and the caller resumes the thread without it.
pub(super) fn withholds_sampling_signal(tracee: &Tracee) -> bool {
    let Some(signal) = tracee.taken().ok().filter(|taken| taken.is_sampling()) else {
        return false;
    };
    SIGNALS.fetch_add(1, Ordering::Relaxed);
    EXTRA_EXPIRIES.fetch_add(u64::from(signal.overruns()), Ordering::Relaxed);
    true
}

/// Returns the signal with which a thread that has stopped to take `signal` is resumed: none for a
/// sampling signal in a call.
///
/// A timer that expires on the way into a call keeps its signal pending until the call ends. Our
/// stop ended the call too early, and the handler would make a `poll` or an `epoll_wait` return
/// EINTR.
pub(super) fn passed_on(tracee: &Tracee, signal: i32) -> i32 {
    let registers = registers_at_stop(tracee).ok().flatten();
    let is_in_call = registers.is_some_and(|it| arch::interrupted(&it) != Interrupted::User);
    if is_in_call && withholds_sampling_signal(tracee) { 0 } else { signal }
}

/// Adds the signals that were withheld since the last call to the agent's counters. A stopped agent
/// would not have stored samples for them.
pub(in crate::inject) fn count_withheld(data: &AttachedData) {
    let (signals, extra_expiries) = take_withheld();
    let control = data.control();
    // Relaxed: only this process changes it.
    match control.state.load(Ordering::Relaxed) == AgentState::Stopped as u32 {
        true => control.count_by(Counter::Off, signals),
        false => {
            control.count_by(Counter::Withheld, signals);
            control.count_by(Counter::LostOverruns, extra_expiries);
        }
    }
}

/// Returns the signals withheld since the last call, and the expiries folded into them.
pub(in crate::inject) fn take_withheld() -> (u64, u64) {
    (SIGNALS.swap(0, Ordering::Relaxed), EXTRA_EXPIRIES.swap(0, Ordering::Relaxed))
}
