//! What the collector hands to the scribe: plain, owned values.

use std::sync::Arc;

use traceprof_abi::storage::log::Sample;

use super::modules::AddressMap;

/// A call trace that samples of a batch refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallTrace {
    /// Its 64-bit id.
    pub(super) id: u64,
    /// End reason of the unwinding.
    pub(super) flags: u32,
    /// Frame words, leaf first.
    pub(super) frames: Vec<u64>,
}

/// Who a thread is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ThreadLife {
    /// Its id as the recorder sees it.
    pub(super) tid: i32,
    /// Its process's id and its own in the innermost pid namespace.
    pub(super) inner: (u32, u32),
    /// Its name.
    pub(super) name: String,
    /// When it started, or was first heard of, in CLOCK_MONOTONIC nanoseconds.
    pub(super) start_ns: u64,
}

/// What happened to a thread. The key is that of its samples once they have been attributed: it
/// names one thread for the whole recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ThreadNews {
    /// A thread that has samples, or a slot for them.
    Seen { key: (u32, u32), life: ThreadLife },
    /// It has another name now.
    Renamed { key: (u32, u32), name: String },
    /// It is gone; no sample of it follows.
    Gone { key: (u32, u32), time_ns: u64 },
}

/// One rotation's worth.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The traces, each id once.
    pub(super) traces: Vec<CallTrace>,
    /// The samples with their times in CLOCK_MONOTONIC nanoseconds, by thread, then time.
    pub(super) samples: Vec<Sample>,
    /// Threads that came, changed or went.
    pub(super) threads: Vec<ThreadNews>,
    /// What is mapped where, if it changed.
    pub(super) addresses: Option<Arc<AddressMap>>,
    /// Everything so far must be readable by others when the batch has been written.
    pub(super) flush: bool,
}
