//! The time stamp counter, read on both sides of the shared memory.
//!
//! # Safety
//! Wraps one instruction.

/// Returns the time stamp counter.
#[cfg(target_arch = "x86_64")]
pub fn ticks() -> u64 {
    // SAFETY: every x86_64 processor has the instruction. It faults in a process that disabled it
    // (PR_SET_TSC), so the recorder chooses the other clock mode where the counter cannot be
    // trusted.
    unsafe { core::arch::x86_64::_rdtsc() }
}
