//! How a signal says where it comes from: values of `si_code` (sigaction(2)).

/// A perf event with `sigtrap`.
pub const TRAP_PERF: i32 = 6;
/// A POSIX timer.
pub const SI_TIMER: i32 = -2;
/// A signal that was queued with a value.
pub const SI_QUEUE: i32 = -1;
