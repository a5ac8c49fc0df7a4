//! The identity of threads, and changes to them.

/// The identity of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThreadLife {
    /// The thread id as the recorder sees it.
    pub(crate) tid: i32,
    /// The process id and thread id in the innermost pid namespace.
    pub(crate) inner: (u32, u32),
    /// The thread's name.
    pub(crate) name: String,
    /// The time at which the thread started or was first seen, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) start_ns: u64,
}

/// A change to a thread.
///
/// The key is the one of the thread's attributed samples, and names one thread for the complete
/// recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ThreadChange {
    /// The thread has samples, or a slot for them.
    Seen { key: (u32, u32), life: ThreadLife },
    /// The thread changed its name.
    Renamed { key: (u32, u32), name: String },
    /// The program has given the thread this name in its language's runtime.
    NamedInRuntime { key: (u32, u32), name: String },
    /// The thread exited; none of its samples follow.
    Exited { key: (u32, u32), time_ns: u64 },
}

/// The key of a thread within a recording: `slot` and `generation` of its attributed samples.
pub(crate) type ThreadKey = (u32, u32);
