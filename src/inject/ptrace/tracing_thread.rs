//! A thread that traces, and detaches every tracee when it ends.

/// Runs the closure in a thread of its own. When that thread ends, the kernel detaches all its
/// tracees, even those that have not stopped yet.
pub(in crate::inject) fn on_tracing_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
