//! The clock of the samples.

use traceprof_abi::layout::{ClockMode, ControlBlock};
use traceprof_abi::sync::Ordering;

use crate::sys;

/// Returns the time of a sample, in the unit of the clock mode.
pub fn now(control: &ControlBlock) -> u64 {
    // Relaxed: written before the handler was installed.
    if control.clock_mode.load(Ordering::Relaxed) == ClockMode::Tsc as u32 {
        traceprof_abi::clock::ticks()
    } else {
        sys::monotonic_ns()
    }
}
