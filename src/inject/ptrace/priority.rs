//! The scheduling priority of a tracing thread.
//!
//! # Safety
//! The system calls take numbers, or read one structure that this module owns.
#![allow(unsafe_code, reason = "changes the scheduling of the calling thread")]

/// Raises the priority of the calling thread, to real time where the kernel permits it.
///
/// A tracer that loses its processor keeps its tracee stopped. Each released thread may take the
/// processor away, for several milliseconds on a busy machine (measured). The guardian sleeps
/// except while it attaches and restores.
pub(in crate::inject) fn raise_priority() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: reads the parameter.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &lowest) } != 0 {
        // SAFETY: takes numbers. Without permission the priority stays as it is.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    }
}
