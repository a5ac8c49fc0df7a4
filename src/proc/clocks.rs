//! Clocks that exist on each computer and in each thread.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Returns CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |it| Duration::from(it).as_nanos() as u64)
}

/// Returns the CPU time of this thread, which does not include waiting: on a busy computer, as much
/// is done in it as elsewhere.
pub fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
