//! The effect of a seccomp filter on a system call.

/// The effect of a filter on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilterAnswer {
    /// The filter permits the call.
    Permitted,
    /// The call fails with this errno.
    Fails(u32),
    /// The filter sends a signal, kills, or asks another process; the text says which.
    Other(&'static str),
}
