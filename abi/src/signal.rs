//! The origins of a signal: values of `si_code` (sigaction(2)).

/// A perf event with `sigtrap` sent the signal.
pub const TRAP_PERF: i32 = 6;
/// A POSIX timer sent the signal.
pub const SI_TIMER: i32 = -2;
/// A process queued the signal with a value.
pub const SI_QUEUE: i32 = -1;
