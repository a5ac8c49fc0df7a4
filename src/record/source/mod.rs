//! The sources of samples: perf events, CPU timers, the wall clock, and task records.

pub(crate) mod engine;
pub(crate) mod exit_times;
pub(crate) mod kernel;
pub(crate) mod missing_expiries;
pub(crate) mod perf;
pub(crate) mod ring_buffer;
pub(crate) mod signal_blocked;
pub(crate) mod task_events;
pub(crate) mod task_scan;
pub(crate) mod thread_events;
pub(crate) mod timer;
pub(crate) mod timer_failures;
pub(crate) mod wall;
