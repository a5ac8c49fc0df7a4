//! The time stamp counter, read on both sides of the shared memory.
//!
//! # Safety
//! Wraps one instruction.

/// The time stamp counter.
#[cfg(target_arch = "x86_64")]
pub fn ticks() -> u64 {
    // SAFETY: every x86_64 has it. A process that forbade it to itself (PR_SET_TSC) would fault:
    // the recorder takes the other clock mode where it cannot be trusted.
    unsafe { core::arch::x86_64::_rdtsc() }
}
