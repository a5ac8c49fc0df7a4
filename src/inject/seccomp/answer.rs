//! The effect of a seccomp filter on a system call.

/// The effect of a filter on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilterAnswer {
    /// The call is made.
    Made,
    /// The call fails with this errno.
    Fails(u32),
    /// A signal or another process answers the call, or nothing does.
    Ends(&'static str),
}
