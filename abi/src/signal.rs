//! The origins of a signal: values of `si_code` (sigaction(2)).

/// A perf event with `sigtrap` sent the signal.
pub const TRAP_PERF: i32 = 6;
/// A perf event that notifies its descriptor's owner sent the signal. The same number means a
/// breakpoint for SIGTRAP, which such events do not send.
pub const POLL_IN: i32 = 1;
/// A POSIX timer sent the signal.
pub const SI_TIMER: i32 = -2;
/// A process queued the signal with a value.
pub const SI_QUEUE: i32 = -1;
