//! Who a thread is, and what happened to it.

/// Who a thread is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThreadLife {
    /// Its id as the recorder sees it.
    pub(crate) tid: i32,
    /// Its process's id and its own in the innermost pid namespace.
    pub(crate) inner: (u32, u32),
    /// Its name.
    pub(crate) name: String,
    /// When it started, or was first heard of, in CLOCK_MONOTONIC nanoseconds.
    pub(crate) start_ns: u64,
}

/// What happened to a thread. The key is that of its samples once they have been attributed: it
/// names one thread for the whole recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ThreadNews {
    /// A thread that has samples, or a slot for them.
    Seen { key: (u32, u32), life: ThreadLife },
    /// It has another name now.
    Renamed { key: (u32, u32), name: String },
    /// It is gone; no sample of it follows.
    Gone { key: (u32, u32), time_ns: u64 },
}

/// An attributed sample's `slot` and `generation`: a thread's name within a recording.
pub(crate) type Key = (u32, u32);
